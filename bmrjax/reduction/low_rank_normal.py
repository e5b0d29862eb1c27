"""Bayesian model reduction for a normal posterior of low-rank plus diagonal covariance."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from bmrjax.reduction import removal
from bmrjax.reduction.full_precision import full_precision
from bmrjax.reduction.normal import Normal, narrowing, normal, spike
from bmrjax.reduction.power_of_two import in_units, power_of_two


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRankNormal:
    """Normal distribution with covariance W Wᵀ + diag(D).

    Attributes:
        loc: Means, shape ``(n,)``.
        cov_factor: The factor W, shape ``(n, r)``.
        cov_diag: The diagonal D (variances), shape ``(n,)``, positive; only a reduced posterior
            may have zeros, with zero rows in W: removed elements.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.LowRankNormal(
        ...     jnp.array([0.8, 0.1]), cov_factor=jnp.full((2, 1), 0.1), cov_diag=jnp.full(2, 0.01)
        ... )
        >>> found = reduction.remove(q, reduction.Normal(0.0, 1.0), jnp.array([True, False]))
        >>> found.delta_f.round(1), found.reduced.loc.round(2)
        (Array(1.7, dtype=float32), Array([0.75, 0.  ], dtype=float32))
    """

    loc: Float[Array, " n"]
    cov_factor: Float[Array, "n r"]
    cov_diag: Float[Array, " n"]


class LowRankReduction(NamedTuple):
    """What a reduction gives: the evidence difference and the reduced posterior."""

    delta_f: Float[Array, ""]
    reduced: LowRankNormal


@full_precision
def low_rank_normal(
    posterior: LowRankNormal, prior: Normal, reduced_prior: Normal
) -> LowRankReduction:
    r"""Compute the joint evidence difference and the posterior under a reduced prior.

    As `multivariate_normal` for C = W Wᵀ + D, in O(n r²) and without any n × n matrix. With
    prior N(m, S), reduced prior N(m̃, R), ``G = I - R / S`` and ``B = R + D G`` (all diagonal),

    .. math::

        |R + C G| = |B|\,|N|, \qquad N = I + W^T G B^{-1} W,

    and the reduced covariance is again of the form: factor ``R B⁻¹ W N^{-1/2}``, diagonal
    ``D R B⁻¹``. Nothing divides by `R` or by `S - R`, so point masses are safe in float32, and
    an unchanged prior gives exactly zero. Exact when the posterior is the exact one.

    Args:
        posterior: Low-rank normal posterior over n variables (batch with `jax.vmap`).
        prior: The independent normal prior it was fitted under, positive scale; loc and scale
            broadcast to ``(n,)``.
        reduced_prior: The independent normal prior to put in its place; a scale of zero is a
            point mass at its loc.

    Returns:
        `delta_f` in nats, **positive favours the reduced prior**, and the `reduced` posterior
        of the same rank. An element whose reduced prior is a point mass has a zero row in
        ``cov_factor`` and a zero in ``cov_diag``. Where the expectation diverges (a reduced
        prior wider than the prior, in a direction that the data hardly narrowed) `delta_f` is
        infinite and the reduced posterior is not a number. Where the factor so outweighs the
        diagonal that ``N`` has no Cholesky factor in the precision at hand (``W² / D`` beyond
        about 1e6 in float32), or where a variance in ``cov_diag`` is too small for the dtype (below 1e-38
        in float32), all is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.LowRankNormal(
        ...     jnp.array([0.2, 1.0]), jnp.array([[0.3], [0.2]]), jnp.array([0.01, 0.02])
        ... )
        >>> p = reduction.Normal(jnp.zeros(2), jnp.full(2, 2.0))
        >>> without_first = reduction.Normal(jnp.zeros(2), jnp.array([0.0, 2.0]))
        >>> delta_f, reduced = reduction.low_rank_normal(q, p, without_first)
        >>> print(f"{delta_f:.2f} nats", reduced.loc.round(2))
        1.64 nats [0.   0.88]

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, the reduction of a Gaussian, with the
        matrix inversion lemma.
    """
    loc, factor = jnp.asarray(posterior.loc), jnp.asarray(posterior.cov_factor)
    diag = _diagonal(posterior)
    tiny = jnp.finfo(loc.dtype).tiny
    prior_loc, prior_scale, reduced_loc, reduced_scale = (
        jnp.broadcast_to(x, loc.shape)
        for x in (prior.loc, prior.scale, reduced_prior.loc, reduced_prior.scale)
    )
    # The mean of the prior moves: a tilt by exp(z · shift / S), which keeps the covariance.
    shift = (reduced_loc - prior_loc) / prior_scale
    weights = shift / prior_scale
    along = factor.T @ weights
    tilt = shift @ ((loc - 0.5 * (prior_loc + reduced_loc)) / prior_scale)
    tilt = tilt + 0.5 * (along @ along + jnp.sum((diag * weights) * weights))
    loc = loc + factor @ along + diag * weights
    deviation = loc - reduced_loc

    # The variance of the prior changes, element by element but for the r × r matrix N.
    reduced_variance = jnp.square(reduced_scale)
    gain = narrowing(prior_scale, reduced_scale)
    total = reduced_variance + diag * gain
    narrower = reduced_scale <= prior_scale
    positive = jnp.all(narrower | (total > 0))
    total = jnp.where(narrower | (total > 0), jnp.maximum(total, tiny), 1.0)
    root = jnp.sqrt(total)
    shrink = reduced_variance / total
    scaled, standardised = factor / root[:, None], deviation / root
    inner = jnp.eye(factor.shape[1], dtype=loc.dtype) + (scaled * gain[:, None]).T @ scaled
    chol = jnp.linalg.cholesky(inner)
    proper = jnp.all(narrower) | (positive & jnp.isfinite(chol).all())
    # In units of the largest element, so that only the final square can overflow.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(standardised)))
    unit = jnp.where(largest > 0, largest, 1.0)
    half = solve_triangular(chol, scaled.T @ (gain * (standardised / unit)), lower=True)
    explained = solve_triangular(chol.T, half, lower=False)
    # A sum of squares for a narrower prior, where the textbook's difference of two would cancel.
    residual = standardised / unit - scaled @ explained
    form = jnp.sum(gain * jnp.square(residual)) + jnp.sum(jnp.square(explained))
    quadratic = unit * (unit * form)
    log_det = jnp.sum(jnp.log(root / prior_scale)) + jnp.sum(jnp.log(jnp.diagonal(chol)))
    finite = jnp.maximum(tilt - log_det - 0.5 * quadratic, jnp.finfo(loc.dtype).min)

    nan = jnp.asarray(jnp.nan, loc.dtype)
    reduced_factor = solve_triangular(chol, (shrink[:, None] * factor).T, lower=True).T
    # Two forms of one mean: from the posterior's where that dominates, else from the prior's.
    little = loc - unit * ((diag / root) * (gain * residual) + factor @ explained)
    much = reduced_loc + shrink * (root * (unit * residual))
    reduced = LowRankNormal(jnp.where(shrink > 0.5, little, much), reduced_factor, diag * shrink)
    return LowRankReduction(
        jnp.where(proper, finite, jnp.inf),
        jax.tree.map(lambda x: jnp.where(proper, x, nan), reduced),
    )


def _diagonal(posterior: LowRankNormal) -> Float[Array, " n"]:
    """Return the variances; not a number where the dtype has the factor and not the variance."""
    diag = jnp.asarray(posterior.cov_diag)
    return jnp.where((diag == 0) & (posterior.cov_factor != 0).any(1), jnp.nan, diag)


@removal.remove.register(LowRankNormal)
def remove(posterior: LowRankNormal, prior: Normal, keep: Bool[Array, " n"]) -> LowRankReduction:
    """See `bmrjax.reduction.remove`; O(n r²), without batch axes (use `jax.vmap`).

    The reduced posterior keeps its diagonal and changes its factor; a removed element has a zero
    row in ``cov_factor`` and a zero in ``cov_diag``.
    """
    shape = jnp.shape(posterior.loc)
    loc, scale = jnp.broadcast_to(prior.loc, shape), jnp.broadcast_to(prior.scale, shape)
    without = Normal(jnp.where(keep, loc, 0.0), jnp.where(keep, scale, 0.0))
    return low_rank_normal(posterior, Normal(loc, scale), without)


@removal.delta_f_each.register(LowRankNormal)
def delta_f_each(posterior: LowRankNormal, prior: Normal) -> Float[Array, " n"]:
    """See `bmrjax.reduction.delta_f_each`; only the marginals matter, O(n r)."""
    factor, diag = posterior.cov_factor, _diagonal(posterior)
    largest = jnp.max(jnp.abs(factor), axis=1, initial=0.0)
    units = power_of_two(jnp.maximum(largest, jnp.sqrt(diag)))
    (diag,) = in_units(units, *in_units(units, diag))
    variance = jnp.sum(jnp.square(factor / units[:, None]), axis=1) + diag
    marginal = Normal(posterior.loc, units * jnp.sqrt(variance))
    shape = jnp.shape(posterior.loc)
    prior = Normal(jnp.broadcast_to(prior.loc, shape), jnp.broadcast_to(prior.scale, shape))
    return normal(marginal, prior, spike(marginal)).delta_f
