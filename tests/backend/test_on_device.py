"""Arrays brought to the device without compiling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend.on_device import copied, floats_on_device, held_on_device, on_device


@pytest.mark.usefixtures("all_compiled")
def test_what_is_brought_is_what_asarray_gives_and_compiles_nothing(caplog):
    tree = {"mask": np.ones((3, 7), bool), "values": np.arange(11.0), "count": np.int32(4)}
    with jax.log_compiles():
        found = on_device(tree)
        numbers = floats_on_device(np.full(13, np.nan)), floats_on_device(1)
        assert not caplog.records
    expected = jax.tree.map(jnp.asarray, tree)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(mine, jax.Array)
        assert (mine.dtype, mine.weak_type) == (theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(mine, theirs)
    assert [each.dtype for each in numbers] == [jnp.result_type(float)] * 2
    assert not any(each.weak_type for each in numbers)


def test_a_copy_outlives_what_it_was_made_of():
    tree = {"a": jnp.arange(5.0), "b": jnp.arange(5.0), "none": None}
    copy = copied(tree)
    jax.jit(lambda t: jax.tree.map(lambda x: 2 * x, t), donate_argnums=0)(tree)
    assert tree["a"].is_deleted()
    np.testing.assert_array_equal(copy["a"], np.arange(5.0))
    # Its arrays are apart from each other too: each may be donated.
    jax.jit(lambda t: jax.tree.map(lambda x: 2 * x, t), donate_argnums=0)(copy)


def aligned(shape):
    """Return an array of NumPy that begins where JAX does without a copy."""
    memory = np.zeros(4 * int(np.prod(shape)) + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : len(memory) - 64 + begin].view(np.float32).reshape(shape)


def test_the_callers_array_may_change_afterwards():
    given = aligned((5, 2))
    shared, held = on_device(given), held_on_device(given)
    of_view = held_on_device(np.lib.stride_tricks.as_strided(given, writeable=False))
    given[:] = 1.0
    assert float(held.sum()) == float(of_view.sum()) == 0.0
    if jax.default_backend() == "cpu":
        assert float(shared.sum()) == 10.0  # else this test would say nothing


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere nothing is shared")
def test_what_nobody_can_write_is_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert held_on_device(mapped).unsafe_buffer_pointer() == mapped.ctypes.data
