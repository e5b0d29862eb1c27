"""The Cholesky factor of a joint guide as a square matrix: NumPyro's map, without its scatter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

from bmrjax.infer.scale_tril import scale_tril

OURS, NUMPYROS = biject_to(scale_tril), biject_to(constraints.scaled_unit_lower_cholesky)


def a_vector(n):
    return jax.random.normal(jax.random.key(n), (n * (n + 1) // 2,))


def as_matrix(vector, n):
    """Put NumPyro's numbers where ours are: below the diagonal row by row, then the diagonal."""
    found = np.zeros((n, n), vector.dtype)
    found[np.tril_indices(n, -1)] = vector[:-n]
    found[np.diag_indices(n)] = vector[-n:]
    return jnp.asarray(found)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_map_is_numpyros(n):
    vector = a_vector(n)
    x = as_matrix(vector, n)
    y = OURS(x)
    np.testing.assert_allclose(y, NUMPYROS(vector), rtol=1e-6, atol=1e-7)
    assert bool(scale_tril(y))
    there = OURS.log_abs_det_jacobian(x, y)
    np.testing.assert_allclose(
        there, NUMPYROS.log_abs_det_jacobian(vector, NUMPYROS(vector)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("n", [1, 2, 7])
def test_there_and_back(n):
    y = NUMPYROS(a_vector(n))
    np.testing.assert_allclose(OURS(OURS.inv(y)), y, rtol=1e-5, atol=1e-6)
    assert OURS.forward_shape((n, n)) == OURS.inverse_shape((n, n)) == (n, n)


def test_small_and_large_scales_come_back():
    y = jnp.diag(jnp.array([1e-6, 1e-2, 1.0, 50.0]))
    np.testing.assert_allclose(jnp.diag(OURS(OURS.inv(y))), jnp.diag(y), rtol=1e-5)


def test_what_is_above_the_diagonal_does_nothing():
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(OURS(x))))(jnp.ones((4, 4)))
    assert np.all(np.asarray(gradient)[np.triu_indices(4, 1)] == 0)
    assert np.all(np.asarray(gradient)[np.tril_indices(4)] != 0)
    text = jax.jit(jax.grad(lambda x: OURS(x).sum())).lower(jnp.ones((4, 4))).as_text()
    assert "scatter" not in text
    assert "gather" not in text
