"""Bayesian model reduction for a matrix-normal posterior under independent normal priors."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bmrjax.reduction import removal
from bmrjax.reduction.full_precision import full_precision
from bmrjax.reduction.multivariate_normal import MultivariateNormal, multivariate_normal
from bmrjax.reduction.normal import Normal, normal, spike
from bmrjax.reduction.power_of_two import norm, power_of_two


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MatrixNormal:
    """Matrix-normal distribution: elements (i, j) and (k, l) have covariance U[i, k] V[j, l].

    Attributes:
        loc: Means, shape ``(n, p)``.
        row_scale_tril: Lower Cholesky factor of the covariance U of the rows, shape ``(n, n)``.
        column_scale_tril: That of the covariance V of the columns, shape ``(p, p)``.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> rows = jnp.linalg.cholesky(0.1 * jnp.array([[1.0, 0.9], [0.9, 1.0]]))
        >>> q = reduction.MatrixNormal(jnp.array([[0.5], [0.1]]), rows, 0.5 * jnp.eye(1))
        >>> reduction.delta_f_each(q, reduction.Normal(0.0, 1.0)).round(1).ravel()
        Array([-3.2,  1.6], dtype=float32)
    """

    loc: Float[Array, "n p"]
    row_scale_tril: Float[Array, "n n"]
    column_scale_tril: Float[Array, "p p"]


class MatrixReduction(NamedTuple):
    """What a reduction gives: the evidence difference and the reduced marginals."""

    delta_f: Float[Array, ""]
    reduced: Normal


def _one_a_row(prior: Normal, num_rows: int) -> Normal:
    """Return the prior with one loc and one scale per row, shape ``(n,)``."""
    for name in ("loc", "scale"):
        shape = jnp.shape(getattr(prior, name))
        if shape not in ((), (num_rows,)):
            raise ValueError(
                f"a matrix-normal reduction takes one prior {name} for all elements, shape (), or "
                f"one per row, shape ({num_rows},), but got shape {shape}; for a prior that varies "
                "along a row use a MultivariateNormal posterior"
            )
    return Normal(
        jnp.broadcast_to(prior.loc, (num_rows,)), jnp.broadcast_to(prior.scale, (num_rows,))
    )


def _marginal_scales(
    posterior: MatrixNormal,
) -> tuple[Float[Array, " n"], Float[Array, " p"]]:
    """Return the square roots of the diagonals of the row and column covariances."""
    return (
        norm(posterior.row_scale_tril),
        norm(posterior.column_scale_tril),
    )


@full_precision
def matrix_normal(posterior: MatrixNormal, prior: Normal, reduced_prior: Normal) -> MatrixReduction:
    r"""Compute the evidence difference and the marginals under a reduced prior of each row.

    With ``V = Q Λ Qᵀ``, the columns of ``Z Q`` are independent under the posterior, with
    covariances ``λ_j U``. A prior that is the same along each row is not changed by the rotation
    Q, so the reduction falls into p multivariate ones of n variables, and

    .. math::  ΔF = \ln E_q[\tilde p / p] = \sum_j ΔF_j

    in nats. **Positive favours the reduced prior.** The reduced posterior is not matrix-normal
    any more; its marginals are returned. Exact when the posterior is the exact one; O(p n³).
    Gradients need distinct eigenvalues of V.

    Args:
        posterior: Matrix-normal posterior of an (n, p) matrix (batch with `jax.vmap`).
        prior: The independent normal prior it was fitted under; loc and scale are scalars or of
            shape ``(n,)``, one per row. Positive scale.
        reduced_prior: The prior to put in its place, of the same form; a scale of zero is a
            point mass at its loc.

    Returns:
        `delta_f`, and the marginals of the `reduced` posterior, shape ``(n, p)``. Infinite and
        not a number where the expectation diverges, as for `multivariate_normal`.

    Raises:
        ValueError: If a prior's loc or scale has another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MatrixNormal(
        ...     jnp.array([[0.1, 0.0, -0.1], [1.0, 0.5, 2.0]]),
        ...     jnp.array([[0.3, 0.0], [0.1, 0.2]]),
        ...     jnp.eye(3),
        ... )
        >>> p = reduction.Normal(jnp.zeros(()), jnp.array(2.0))
        >>> without_first = reduction.Normal(jnp.zeros(2), jnp.array([0.0, 2.0]))
        >>> delta_f, reduced = reduction.matrix_normal(q, p, without_first)
        >>> print(f"{delta_f:.2f} nats", reduced.scale[:, 0].round(3))
        5.58 nats [0.  0.2]

    References:
        Gupta and Nagar (1999), Matrix Variate Distributions, chapter 2; Friston, Parr and Zeidman
        (2019), arXiv:1805.07092, the reduction of a Gaussian.
    """
    num_rows, num_columns = jnp.shape(posterior.loc)
    prior, reduced_prior = _one_a_row(prior, num_rows), _one_a_row(reduced_prior, num_rows)
    # The singular values of the factor are the roots of the eigenvalues, to full precision.
    rotation, roots, _ = jnp.linalg.svd(jnp.asarray(posterior.column_scale_tril))
    # Measured from the reduced prior's mean: a point mass stays there, rotated or not, and a
    # prior that does not move has exactly no shift.
    origin = reduced_prior.loc[:, None]
    columns = MultivariateNormal(
        ((posterior.loc - origin) @ rotation).T,
        roots[:, None, None] * posterior.row_scale_tril[None],
    )
    before = jnp.sum(rotation, axis=0)[:, None] * (prior.loc - reduced_prior.loc)[None, :]
    shape = (num_columns, num_rows)
    delta_f, reduced = multivariate_normal(
        columns,
        Normal(before, jnp.broadcast_to(prior.scale, shape)),
        Normal(jnp.zeros_like(before), jnp.broadcast_to(reduced_prior.scale, shape)),
    )
    # In units of each row, since the squares of its elements may not be there.
    units = power_of_two(jnp.max(jnp.abs(reduced.scale_tril), axis=(0, 2)))
    variance = jnp.sum(jnp.square(reduced.scale_tril / units[None, :, None]), axis=-1)
    marginals = Normal(
        origin + (rotation @ reduced.loc).T,
        units[:, None] * jnp.sqrt((jnp.square(rotation) @ variance).T),
    )
    return MatrixReduction(jnp.maximum(jnp.sum(delta_f), jnp.finfo(delta_f.dtype).min), marginals)


@removal.delta_f_each.register(MatrixNormal)
def delta_f_each(posterior: MatrixNormal, prior: Normal) -> Float[Array, "n p"]:
    """See `bmrjax.reduction.delta_f_each`; only the marginals N(loc[i, j], U[i, i] V[j, j]) matter.

    The prior is a scalar or one per row; another shape is a ValueError.
    """
    rows, columns = _marginal_scales(posterior)
    marginal = Normal(posterior.loc, rows[:, None] * columns[None, :])
    prior = _one_a_row(prior, rows.size)
    return normal(
        marginal, Normal(prior.loc[:, None], prior.scale[:, None]), spike(marginal)
    ).delta_f


@full_precision
def delta_f_rows(posterior: MatrixNormal, prior: Normal) -> Float[Array, " n"]:
    r"""Compute the evidence difference of removing each whole row.

    Row i is jointly N(loc[i], U[i, i] V), and ``ΔF = ln q(row = 0) - ln p(row = 0)``, in nats,
    positive where the evidence favours removing that row and no other.

    Args:
        posterior: Matrix-normal posterior of an (n, p) matrix.
        prior: The independent normal prior, scalars or one per row, positive scale.

    Returns:
        The evidence differences, shape ``(n,)``.

    Raises:
        ValueError: If the prior's loc or scale has another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MatrixNormal(jnp.array([[0.1], [1.0]]), 0.2 * jnp.eye(2), jnp.eye(1))
        >>> p = reduction.Normal(jnp.array(0.0), jnp.array(2.0))
        >>> print(reduction.delta_f_rows(q, p).round(2))
        [  2.18 -10.2 ]

    References:
        Dickey (1971), Annals of Mathematical Statistics 42; Gupta and Nagar (1999), Matrix Variate
        Distributions, theorem 2.3.12.
    """
    num_columns = jnp.shape(posterior.loc)[1]
    rows, _ = _marginal_scales(posterior)
    prior = _one_a_row(prior, rows.size)
    tril = posterior.column_scale_tril
    whitened = solve_triangular(tril, (posterior.loc / rows[:, None]).T, lower=True)
    log_ratio = num_columns * jnp.log(rows / prior.scale) + jnp.sum(jnp.log(jnp.diagonal(tril)))
    at_prior = 0.5 * num_columns * jnp.square(prior.loc / prior.scale)
    return at_prior - log_ratio - 0.5 * jnp.sum(jnp.square(whitened), axis=0)


@full_precision
def delta_f_columns(posterior: MatrixNormal, prior: Normal) -> Float[Array, " p"]:
    r"""Compute the evidence difference of removing each whole column.

    Column j is jointly N(loc[:, j], V[j, j] U), and ``ΔF = ln q(column = 0) - ln p(column = 0)``,
    in nats, positive where the evidence favours removing that column and no other.

    Args:
        posterior: Matrix-normal posterior of an (n, p) matrix.
        prior: The independent normal prior, scalars or one per row, positive scale.

    Returns:
        The evidence differences, shape ``(p,)``.

    Raises:
        ValueError: If the prior's loc or scale has another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MatrixNormal(jnp.array([[0.1, 1.0]]), jnp.eye(1), 0.2 * jnp.eye(2))
        >>> p = reduction.Normal(jnp.array(0.0), jnp.array(2.0))
        >>> print(reduction.delta_f_columns(q, p).round(2))
        [  2.18 -10.2 ]

    References:
        Dickey (1971), Annals of Mathematical Statistics 42; Gupta and Nagar (1999), Matrix Variate
        Distributions, theorem 2.3.12.
    """
    _, columns = _marginal_scales(posterior)
    tril = posterior.row_scale_tril
    prior = _one_a_row(prior, jnp.shape(tril)[0])
    whitened = solve_triangular(tril, posterior.loc / columns[None, :], lower=True)
    at_prior = jnp.sum(
        jnp.log(prior.scale / jnp.diagonal(tril)) + 0.5 * jnp.square(prior.loc / prior.scale)
    )
    log_ratio = jnp.shape(tril)[0] * jnp.log(columns)
    return at_prior - log_ratio - 0.5 * jnp.sum(jnp.square(whitened), axis=0)
