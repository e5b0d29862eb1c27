"""Moments through functions: dtypes, gradients, and what must not become a normal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moments import FUNCTIONS, assert_moments, draws, linear, moments, of_draws, source

from bmrjax.infer.propagate import NoRuleError, Uncertain

POSITIVE = {
    "entropy of a sigmoid": lambda u: (lambda p: -p * jnp.log(p) - (1 - p) * jnp.log(1 - p))(
        jax.nn.sigmoid(u)
    ),
    "log of an exponential": lambda u: (lambda s: jnp.log(s) + s)(jnp.exp(u)),
    "log of a moved exponential": lambda u: jnp.log(jnp.exp(u)[:, None].T[0, :2] + 0.1),
    "log of a softplus": lambda u: (lambda s: jnp.log(s) + s)(jax.nn.softplus(u) + 1e-3),
}


@pytest.mark.parametrize("name", POSITIVE)
def test_what_cannot_be_negative_is_not_taken_for_a_normal(name):
    w, v = linear()
    function = lambda w: POSITIVE[name](w @ v)  # noqa: E731
    exact = of_draws(function, draws(w, 40_000))
    assert_moments(moments(function, w), exact, rtol=3e-2)


CONVERTED = {
    "a rectifier by a mask": lambda x: x * (x > 0),
    "how many are positive": lambda x: jnp.sum(x > 0),
    "a mask that is broadcast": lambda x: jnp.where((x > 0)[:, None], 1.0, jnp.arange(3.0)),
    "swish through half precision": lambda x: (
        x * jax.nn.sigmoid(x.astype(jnp.bfloat16)).astype(jnp.float32)
    ),
    "swish with a constant copy": lambda x: x * jax.nn.sigmoid(jax.lax.stop_gradient(x)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_changes_its_dtype_stays_a_function(name):
    x = Uncertain(jnp.array([-1.0, -0.2, 0.5, 1.5]), jnp.full(4, 0.5), distinct=True)
    exact = np.asarray(of_draws(CONVERTED[name], draws(x, 40_000)), float)
    found = moments(CONVERTED[name], x)
    # A step is smeared over the distance of two nodes.
    assert_moments(found, exact, atol=0.12 if "mask" in name or "how" in name else 0.02)
    assert found.mean.dtype == jnp.float32


def test_what_is_no_number_is_named_where_moments_would_be_needed():
    x, y = source((4,)), source((4,), 1)

    def chosen(x, y):
        mask = x > y
        return jax.lax.select(mask, x, y) + jax.lax.select(mask, jnp.ones(4), jnp.zeros(4))

    with pytest.raises(NoRuleError, match=r"Use FitOptions\(estimator='local'"):
        moments(chosen, x, y)
    first = jnp.zeros(4, bool)
    with pytest.raises(NoRuleError, match="'scan'"):
        moments(lambda x: jax.lax.scan(lambda c, _: (c | (x > 0), None), first, None, 3)[0], x)


@pytest.mark.parametrize("variance", [0.0, 0.5, 2.0])
def test_an_elementwise_function_keeps_the_derivative_of_its_own(variance):
    def slope(mean):
        x = Uncertain(jnp.array([mean]), jnp.array([variance]))
        return moments(jax.nn.softplus, x).mean[0]

    assert float(jax.jit(jax.grad(slope))(0.0)) == pytest.approx(0.5, abs=1e-3)

    @jax.custom_jvp
    def halved(x):
        return jnp.sin(x)

    halved.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 0.5 * tangents[0]))
    value = lambda m: moments(halved, Uncertain(m, jnp.zeros(1))).mean[0]  # noqa: E731
    np.testing.assert_allclose(jax.grad(value)(jnp.zeros(1)), 0.5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "softplus", "swish"])
def test_activations_in_half_precision(name, dtype):
    x = Uncertain(jnp.array([-1.0, 0.2, 2.0], dtype), jnp.array([0.5, 0.1, 1.0], dtype))
    found = moments(FUNCTIONS[name], x)
    assert found.mean.dtype == found.variance.dtype == dtype
    wide = Uncertain(x.mean.astype(jnp.float32), x.variance.astype(jnp.float32))
    exact = moments(FUNCTIONS[name], wide)
    np.testing.assert_allclose(np.asarray(found.mean, float), exact.mean, atol=0.03)
    np.testing.assert_allclose(np.asarray(found.variance, float), exact.variance, atol=0.05)


@pytest.mark.parametrize("name", ["relu", "gelu", "softplus", "mish", "swish"])
def test_float32_stays_so_where_float64_is_allowed(name, x64):
    x = Uncertain(jnp.array([-1.0, 0.2], jnp.float32), jnp.array([0.5, 0.1], jnp.float32))
    found = moments(FUNCTIONS[name], x)
    assert found.mean.dtype == found.variance.dtype == jnp.float32


@pytest.mark.parametrize(
    ("mean", "variance"), [(30.0, 1e-4), (100.0, 1e-4), (1000.0, 1e-2), (1e10, 1.0), (1e20, 0.0)]
)
def test_a_rectifier_far_from_its_kink_keeps_the_variance(mean, variance):
    def both(mean, variance):
        found = moments(jax.nn.relu, Uncertain(mean[None], variance[None]))
        return found.mean[0], found.variance[0]

    inputs = jnp.float32(mean), jnp.float32(variance)
    found = jax.jit(both)(*inputs)
    np.testing.assert_allclose(found, (mean, variance), rtol=1e-5)
    slopes = jax.jit(jax.jacrev(both, (0, 1)))(*inputs)
    np.testing.assert_allclose(np.ravel(slopes)[[0, 1, 2]], [1, 0, 0], atol=1e-5)
