import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from bmrjax import noise


@pytest.mark.parametrize("shape", [(), (1,), (7,), (33, 5), (2, 3, 4)])
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_gives_the_numbers_of_jax(shape, implementation):
    key = jax.random.key(11, impl=implementation)
    mine, theirs = noise.normal(key, shape), jax.random.normal(key, shape)
    assert mine.dtype == theirs.dtype
    np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_takes_raw_keys_and_double_precision(x64):
    key = jax.random.PRNGKey(3)
    expected = jax.random.normal(key, (9,), jnp.float64)
    np.testing.assert_array_equal(noise.normal(key, (9,), jnp.float64), expected)


def test_is_what_normal_sites_draw():
    fn = dist.Normal(jnp.arange(3.0), 2.0).to_event(1)
    key = jax.random.key(5)
    fast = noise.with_fast_noise(fn)
    np.testing.assert_allclose(fast.sample(key), fn.sample(key), rtol=1e-6)
    np.testing.assert_allclose(fast.log_prob(jnp.ones(3)), fn.log_prob(jnp.ones(3)), rtol=1e-6)
    other = dist.Gamma(2.0, 1.0)
    assert noise.with_fast_noise(other) is other


def test_vmaps_over_keys():
    keys = jax.random.split(jax.random.key(0), 4)
    rows = jnp.stack([noise.normal(k, (6,)) for k in keys])
    batched = jax.jit(jax.vmap(lambda k: noise.normal(k, (6,))))(keys)
    np.testing.assert_allclose(batched, rows, rtol=1e-6)
