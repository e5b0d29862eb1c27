"""Normal matrices with correlated rows and columns, of which elements can be removed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from bmrjax.backend.noise import normal_noise
from bmrjax.families.elements import Prunable
from bmrjax.families.normal import normal_parameters
from bmrjax.families.pruned import PrunedElements
from bmrjax.reduction.full_precision import full_precision


class ScaledMatrixNormal(Prunable):
    r"""A matrix normal with a scale of its own for every element.

    .. math:: Z = M + S \circ (R E C^\top), \quad E_{kl} \sim N(0, 1)

    with R and C lower triangular and ones on their diagonals. With S of rank one it is the matrix normal
    with row covariance R Rᵀ and column covariance C Cᵀ, rescaled; with R and C the identity, its elements
    are independent. Removed elements are zero and take their own noise E with them, so that what stays
    keeps the exact density of a normal with the triangular factor's rows and columns that stay.

    Args:
        loc: M; its first axis are the rows, all others together the columns.
        scale: S, positive, shaped as `loc`.
        row_factor: R, shape ``(n, n)``; only what is strictly below the diagonal is read.
        column_factor: C, shape ``(p, p)``, alike.
        keep: True stays, shaped as `loc`; everything by default.

    References:
        Louizos and Welling (2016), Structured and efficient variational deep learning with matrix
        Gaussian posteriors, for the matrix normal as a posterior of weights.
    """

    arg_constraints: dict[Any, Any] = {}
    pytree_data_fields: tuple[str, ...] = ("loc", "scale", "row_factor", "column_factor", "keep")
    reparametrized_params: list[str] = ["loc", "scale", "row_factor", "column_factor"]

    def __init__(
        self,
        loc: Float[Array, "n ..."],
        scale: Float[Array, "n ..."],
        row_factor: Float[Array, "n n"],
        column_factor: Float[Array, "p p"],
        keep: Bool[Array, "n ..."] | None = None,
        *,
        validate_args: bool | None = None,
    ):
        self.loc: Array = jnp.asarray(loc)
        self.scale: Array = jnp.asarray(scale)
        self.row_factor: Array = row_factor
        self.column_factor: Array = column_factor
        self.keep: Array = jnp.ones(self.loc.shape, bool) if keep is None else keep
        super().__init__((), self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        """The real line, an element."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def without(self, keep: Bool[Array, "n ..."]) -> "ScaledMatrixNormal":
        """See `Prunable.without`."""
        return ScaledMatrixNormal(
            self.loc, self.scale, self.row_factor, self.column_factor, self.keep & keep
        )

    def _matrix(self, x: Any) -> Array:
        """Return `x`, shaped as draws, with the columns' axes as one."""
        n = self.event_shape[0]
        batch = jnp.shape(x)[: jnp.ndim(x) - len(self.event_shape)]
        return jnp.reshape(x, (*batch, n, math.prod(self.event_shape[1:])))

    def correlated(self, noise: Float[Array, "... n p"]) -> Float[Array, "... n p"]:
        """Return R E Cᵀ."""
        return unit_lower(self.row_factor) @ noise @ unit_lower(self.column_factor).T

    @full_precision
    def covariance_of_unit(self, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """Return the product with the covariance of the elements at S = 1, zero where removed."""
        rows, columns = unit_lower(self.row_factor), unit_lower(self.column_factor)
        keep, inside = self._matrix(self.keep), self._matrix(jnp.where(self.keep, x, 0.0))
        noise = jnp.where(keep, rows.T @ inside @ columns, 0.0)
        return jnp.where(keep, rows @ noise @ columns.T, 0.0).reshape(self.event_shape)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw; removed elements are zero."""
        dtype = jnp.result_type(self.loc, self.scale, float)
        shape = sample_shape + self._matrix(self.loc).shape
        noise = jnp.where(self._matrix(self.keep), normal_noise(key, shape, dtype), 0.0)
        noise = self.correlated(noise).reshape(sample_shape + self.event_shape)
        return jnp.where(self.keep, self.loc + self.scale * noise, 0.0)

    @full_precision
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density of the elements that stay."""
        del intermediates
        keep = self._matrix(self.keep)
        scale = jnp.where(self.keep, self.scale, 1.0)
        unit = self._matrix(jnp.where(self.keep, (value - self.loc) / scale, 0.0))
        flat = jnp.reshape(unit, (-1, *keep.shape))
        noise = jax.vmap(self._noise_of)(flat).reshape(unit.shape)
        each = -0.5 * jnp.square(noise) - 0.5 * math.log(2 * math.pi)
        each = each - jnp.log(self._matrix(scale))
        return jnp.sum(jnp.where(keep, each, 0.0), axis=(-2, -1))

    def _noise_of(self, unit: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """Solve keep ∘ (R E Cᵀ) = unit for E, zero where removed: forwards, a row at a time."""
        keep = self._matrix(self.keep)
        rows, columns = unit_lower(self.row_factor), unit_lower(self.column_factor)
        identity = jnp.eye(columns.shape[0], dtype=columns.dtype)

        def solve(noise: Array, i: Array) -> tuple[Array, None]:
            # What the rows above explain of row i; the row's own noise is still zero there.
            above = columns @ (rows[i] @ noise)
            both = keep[i][:, None] & keep[i][None, :]
            right = jnp.where(keep[i], unit[i] - above, 0.0)
            found = solve_triangular(
                jnp.where(both, columns, identity), right, lower=True, unit_diagonal=True
            )
            return noise.at[i].set(found), None

        return lax.scan(solve, jnp.zeros_like(unit), jnp.arange(unit.shape[0]))[0]

    @property
    def mean(self) -> Array:
        """Mean an element; zero where removed."""
        return jnp.where(self.keep, self.loc, 0.0)

    @property
    @full_precision
    def variance(self) -> Array:
        """Variance an element; zero where removed."""
        rows, columns = unit_lower(self.row_factor), unit_lower(self.column_factor)
        kept = self._matrix(self.keep).astype(rows.dtype)
        unit = jnp.square(rows) @ kept @ jnp.square(columns).T
        scaled = jnp.square(self.scale) * unit.reshape(self.event_shape)
        return jnp.where(self.keep, scaled, 0.0)


def unit_lower(factor: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the strictly lower part of `factor` with ones on the diagonal."""
    return jnp.tril(factor, -1) + jnp.eye(factor.shape[0], dtype=factor.dtype)


@full_precision
def _kl_from_normals(q: ScaledMatrixNormal, p: Any) -> Array:
    prior = normal_parameters(p)
    if prior is None:
        raise NotImplementedError
    loc, scale = (jnp.reshape(x, q.event_shape) for x in prior)
    distance = (jnp.square(q.loc - loc) + q.variance) / jnp.square(scale)
    # The triangular factors have ones on the diagonal, also without some rows and columns.
    each = 0.5 * (distance - 1.0) - jnp.log(q.scale) + jnp.log(scale)
    return jnp.sum(jnp.where(q.keep, each, 0.0))


for _prior in (
    dist.Distribution, dist.Independent, dist.ExpandedDistribution, dist.Normal, PrunedElements,
):  # fmt: skip
    kl_divergence.register(ScaledMatrixNormal, _prior)(_kl_from_normals)
