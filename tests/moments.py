"""Uncertain arrays and their moments, for tests of propagation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.infer.propagate import Uncertain, is_uncertain, propagate

KEY = jax.random.key(0)


# What follows is compiled as a whole: operation by operation, each shape of each would be a program.


@partial(jax.jit, static_argnums=0)
def _source(shape, seed, spread):
    keys = jax.random.split(jax.random.key(seed))
    mean = jax.random.normal(keys[0], shape)
    return mean, spread * jax.random.uniform(keys[1], shape, minval=0.05, maxval=1.0)


def source(shape, seed=0, spread=1.0):
    return Uncertain(*_source(shape, seed, spread), distinct=True)


@partial(jax.jit, static_argnums=2)
def _draws(mean, variance, count, seed):
    return mean + jnp.sqrt(variance) * jax.random.normal(jax.random.key(seed), (count, *mean.shape))


def draws(value, count, seed=1):
    return _draws(value.mean, value.variance, count, seed)


def of_draws(function, *many):
    """Return a function of each draw."""
    return jax.jit(jax.vmap(function))(*many)


def moments(function, *args):
    """Propagate moments; what comes back no longer knows what it is a function of."""
    leaves, structure = jax.tree.flatten(args)
    returned = []

    @jax.jit
    def run(values):
        given = [
            Uncertain(*value, distinct=leaf.distinct) if is_uncertain(leaf) else value
            for leaf, value in zip(leaves, values, strict=True)
        ]
        found = propagate(function, "moments", KEY, *jax.tree.unflatten(structure, given))
        parts, of_found = jax.tree.flatten(found)
        returned.append((of_found, [is_uncertain(part) for part in parts]))
        return [(v.mean, v.variance) if is_uncertain(v) else v for v in parts]

    values = [(leaf.mean, leaf.variance) if is_uncertain(leaf) else leaf for leaf in leaves]
    parts = run(values)
    of_found, uncertain = returned[-1]
    pairs = zip(parts, uncertain, strict=True)
    return jax.tree.unflatten(of_found, [Uncertain(*v) if is_ else v for v, is_ in pairs])


def sampled(function, *args, count=20_000):
    """Return draws of the function by local sampling."""

    @jax.jit
    @jax.vmap
    def run(key):
        found = propagate(function, "local", key, *args)
        last = jax.random.fold_in(key, 99)
        return jax.tree.map(lambda v: drawn(v, last), found, is_leaf=is_uncertain)

    return run(jax.random.split(KEY, count))


def drawn(value, key):
    """Return what a linear last operation leaves, sampled."""
    if not is_uncertain(value):
        return value
    return value.mean + jnp.sqrt(value.variance) * jax.random.normal(key, value.shape)


def assert_moments(found, exact, *, rtol=2e-2, atol=2e-2):
    """Compare with draws of the function under samples of its arguments."""
    np.testing.assert_allclose(found.mean, exact.mean(0), rtol=rtol, atol=atol)
    np.testing.assert_allclose(found.variance, exact.var(0), rtol=3 * rtol, atol=atol)


FUNCTIONS = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "swish": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu, tanh": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "mish": jax.nn.mish,
    "product with itself": lambda x: x * x,
    "product of sums": lambda x: (2 * x + 1) * (x - 0.5),
    "cube": lambda x: x**3 - 0.5 * x,
    "chosen": lambda x: jnp.where(x > 3.0, 0.0, jnp.exp(-jnp.square(x - 1))),
    "two steps": lambda x: jnp.tanh(2.0 * jax.nn.sigmoid(1.0 - x) + 0.1 * x),
    "division": lambda x: 2.0 / (1.0 + jnp.square(x)),
}


def linear(seed=0):
    """Return weights of three units, and what they are applied to."""
    return source((3, 3), seed, 0.5), jnp.array([0.5, 1.0, -0.8])
