"""Arrays brought to the device without compiling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend.on_device import copied, floats_on_device, on_device


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
