import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend.threefry import is_threefry, threefry2x32, unrolled

KEY = jax.random.key(9)


def data(keys):
    return np.asarray(jax.random.key_data(keys))


def test_the_hash_is_threefry():
    """JAX's 32 random bits are the two words of the same hash, combined."""
    words, count = jax.random.key_data(KEY), jnp.arange(50, dtype=jnp.uint32)
    high, low = threefry2x32((words[0], words[1]), jnp.zeros_like(count), count)
    np.testing.assert_array_equal(high ^ low, jax.random.bits(KEY, (50,)))


@pytest.mark.parametrize("shape", [1, 2, 7, (2, 3)])
def test_unrolled_keys_split_alike(shape):
    found = jax.jit(lambda k: jax.random.split(k, shape))(unrolled(KEY))
    np.testing.assert_array_equal(data(found), data(jax.random.split(KEY, shape)))


@pytest.mark.parametrize("number", [0, 1, 12345, 2**32 - 1])
def test_unrolled_keys_fold_alike(number):
    number = np.uint32(number)
    found = jax.random.fold_in(unrolled(KEY), number)
    np.testing.assert_array_equal(data(found), data(jax.random.fold_in(KEY, number)))


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_unrolled_keys_draw_alike(dtype, shape):
    found = jax.random.bits(unrolled(KEY), shape, dtype)
    np.testing.assert_array_equal(found, jax.random.bits(KEY, shape, dtype))


@pytest.mark.parametrize("draw", [jax.random.normal, jax.random.gumbel])
def test_under_vmap_too(draw):
    keys = jax.random.split(KEY, 4)
    found = jax.vmap(lambda k: draw(k, (3,)))(unrolled(keys))
    np.testing.assert_allclose(found, jax.vmap(lambda k: draw(k, (3,)))(keys), rtol=1e-6)


def test_no_loop_is_left():
    keys = jax.random.split(KEY, 4)

    def derive(keys):
        one = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 3), 2))(keys)
        return jax.random.key_data(one)

    assert "while" in jax.jit(derive).lower(keys).compile().as_text()
    assert "while" not in jax.jit(lambda k: derive(unrolled(k))).lower(keys).compile().as_text()


def test_keys_of_other_generators_are_left_alone():
    other = jax.random.key(1, impl="rbg")
    assert unrolled(other) is other
    assert not is_threefry(other)
    assert is_threefry(KEY)
    assert is_threefry(unrolled(KEY))
