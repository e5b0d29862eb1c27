"""A constraint for the Cholesky factor of a joint guide: lower triangular with a positive diagonal."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.nn import softplus
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ParameterFreeTransform, biject_to

_OfNumPyro: Any = type(constraints.scaled_unit_lower_cholesky)


class _ScaleTril(_OfNumPyro):
    """Lower Cholesky factors, as `numpyro.distributions.constraints.scaled_unit_lower_cholesky`."""


class _ToScaleTril(ParameterFreeTransform):
    """Scale the rows of a unit lower triangular matrix by positive numbers.

    The map is NumPyro's: the strict lower part of x with ones on the diagonal, its rows times the softplus of
    the diagonal of x. But x is a square matrix, of which the upper part does nothing, where NumPyro has a
    vector of n (n + 1) / 2 numbers. To put these in their places takes a scatter, which XLA does one element
    after the other on a CPU, in every step, and a fifth of the program to compile.
    """

    domain = constraints.independent(constraints.real, 2)
    codomain: Any = _ScaleTril()

    def __call__(self, x: Float[Array, "... n n"]) -> Float[Array, "... n n"]:
        lower, diagonal = _parts(x)
        return (lower + np.eye(x.shape[-1], dtype=x.dtype)) * softplus(diagonal)[..., None]

    def _inverse(self, y: Float[Array, "... n n"]) -> Float[Array, "... n n"]:
        _, scale = _parts(y)
        lower, _ = _parts(y / scale[..., None])
        before = scale + jnp.log(-jnp.expm1(-scale))
        return lower + np.eye(y.shape[-1], dtype=y.dtype) * before[..., None]

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Array:
        _, before = _parts(x)
        _, scale = _parts(y)
        powers = np.arange(x.shape[-1], dtype=x.dtype)
        return (jnp.log(scale) * powers - softplus(-before)).sum(-1)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


def _parts(x: Array) -> tuple[Array, Array]:
    """Return the strict lower triangle of a matrix and its diagonal, by elementwise operations."""
    n = x.shape[-1]
    lower = jnp.where(np.tri(n, k=-1, dtype=bool), x, 0.0)
    return lower, jnp.where(np.eye(n, dtype=bool), x, 0.0).sum(-1)


scale_tril: Any = _ScaleTril()


@biject_to.register(_ScaleTril)
def _to_scale_tril(constraint: Any) -> _ToScaleTril:
    return _ToScaleTril()
