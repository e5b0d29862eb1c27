"""Keys from the host are those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend.random_keys import fold_in, split_keys


def data(key):
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if typed else key)


KEYS = {
    "typed": lambda: jax.random.key(7),
    "raw": lambda: jax.random.PRNGKey(7),
    "high words": lambda: jax.random.wrap_key_data(jnp.array([2**32 - 1, 2**31], jnp.uint32)),
    "another generator": lambda: jax.random.key(7, impl="rbg"),
}


@pytest.mark.parametrize("key", [make() for make in KEYS.values()], ids=KEYS)
@pytest.mark.parametrize("number", [0, 1, 12_345, 2**32 - 1])
def test_fold_in_is_that_of_jax(key, number):
    number = np.uint32(number)
    folded, expected = fold_in(key, number), jax.random.fold_in(key, number)
    np.testing.assert_array_equal(data(folded), data(expected))
    assert folded.dtype == expected.dtype


@pytest.mark.parametrize("key", [make() for make in KEYS.values()], ids=KEYS)
@pytest.mark.parametrize("num", [1, 2, 5])
def test_split_is_that_of_jax(key, num):
    expected = jax.random.split(key, num)
    for mine, theirs in zip(split_keys(key, num), expected, strict=True):
        np.testing.assert_array_equal(data(mine), data(theirs))
        assert mine.dtype == theirs.dtype


@pytest.mark.usefixtures("all_compiled")
def test_keys_are_derived_without_compiling(caplog):
    key = jax.random.wrap_key_data(jax.device_put(np.array([3, 4], np.uint32)))
    with jax.log_compiles():
        for each in split_keys(key, 7):
            fold_in(each, np.uint32(2))
        assert not caplog.records
        jax.random.split(key, 7)
        assert caplog.records


def test_traced_keys_are_those_of_jax():
    key = jax.random.key(3)

    def both(key, number):
        return fold_in(split_keys(key, 2)[1], number)

    mine = jax.jit(both)(key, jnp.uint32(9))
    theirs = jax.random.fold_in(jax.random.split(key, 2)[1], 9)
    np.testing.assert_array_equal(data(mine), data(theirs))


def test_the_older_order_of_hashing_is_that_of_jax():
    key = jax.random.key(3)
    with jax.threefry_partitionable(new_val=False):
        expected = [data(each) for each in jax.random.split(key, 3)]
        found = [data(each) for each in split_keys(key, 3)]
    np.testing.assert_array_equal(found, expected)


def test_a_concrete_key_may_be_split_while_a_program_is_traced():
    key = jax.random.key(7)  # its words are tracers in there
    expected = data(jax.random.split(key, 2)[1]), data(jax.random.fold_in(key, 3))
    found = jax.jit(
        lambda: [
            jax.random.key_data(k) for k in (split_keys(key, 2)[1], fold_in(key, jnp.uint32(3)))
        ]
    )()
    np.testing.assert_array_equal(found, expected)
