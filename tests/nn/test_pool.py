"""Pooling: its values are Equinox's, and so are its gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.zoo.pool import HalvingMaxPool2d


@pytest.mark.parametrize("shape", [(3, 4, 6), (2, 5, 7)])
def test_values_and_gradients_are_equinoxs(shape):
    ours, theirs = HalvingMaxPool2d(), eqx.nn.MaxPool2d(2, 2)
    x = jax.random.normal(jax.random.key(0), (5, *shape))

    def run(pool, x):
        return jnp.sum(jnp.sin(jax.vmap(pool)(x)))

    np.testing.assert_array_equal(jax.vmap(ours)(x), jax.vmap(theirs)(x))
    for derivative in (jax.grad, jax.jacfwd):
        found = derivative(run, argnums=1)(ours, x)
        np.testing.assert_allclose(found, derivative(run, argnums=1)(theirs, x), rtol=1e-6)
