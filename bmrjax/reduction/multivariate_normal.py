"""Bayesian model reduction for a joint normal posterior under independent normal priors."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve, solve_triangular
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from bmrjax.reduction import removal
from bmrjax.reduction.full_precision import full_precision
from bmrjax.reduction.normal import Normal, narrowing, normal, spike
from bmrjax.reduction.power_of_two import in_units, norm, power_of_two


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultivariateNormal:
    """Joint normal distribution over the last axis.

    Attributes:
        loc: Means, shape ``(..., n)``.
        scale_tril: Lower Cholesky factors of the covariances, shape ``(..., n, n)``, with a
            positive diagonal. Only a reduced posterior may have zero rows: removed elements.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MultivariateNormal(
        ...     jnp.array([0.8, 0.1]), jnp.linalg.cholesky(jnp.array([[0.02, 0.01], [0.01, 0.02]]))
        ... )
        >>> found = reduction.remove(q, reduction.Normal(0.0, 1.0), jnp.array([True, False]))
        >>> found.delta_f.round(1), found.reduced.loc.round(2)
        (Array(1.7, dtype=float32), Array([0.75, 0.  ], dtype=float32))
    """

    loc: Float[Array, "... n"]
    scale_tril: Float[Array, "... n n"]


class MultivariateReduction(NamedTuple):
    """What a joint reduction gives: the evidence difference and the reduced posterior."""

    delta_f: Float[Array, "..."]
    reduced: MultivariateNormal


class Pruning(NamedTuple):
    """What a greedy path of removals gives."""

    keep: Bool[Array, " n"]
    delta_f: Float[Array, ""]
    reduced: MultivariateNormal


def multivariate_normal(
    posterior: MultivariateNormal, prior: Normal, reduced_prior: Normal
) -> MultivariateReduction:
    r"""Compute the joint evidence difference and the posterior under a reduced prior.

    With posterior N(μ, C), and prior N(m, S) and reduced prior N(m̃, R) of diagonal covariance,
    the mean of the prior moves first and its variance after it:

    .. math::

        ΔF = \ln E_q[\tilde p / p]
           = d^T S^{-1} (μ - \tfrac{m + \tilde m}{2}) + \tfrac12 d^T S^{-1} C S^{-1} d
           + \tfrac12 \ln \frac{|S|}{|R + C G|} - \tfrac12 e^T G (R + C G)^{-1} e,

        d = \tilde m - m, \quad G = I - R S^{-1}, \quad e = μ + C S^{-1} d - \tilde m,

    in nats. **Positive favours the reduced prior.** The reduced posterior is
    N(m̃ + R (R + C G)⁻¹ e, R (R + C G)⁻¹ C). Nothing divides by `R` or by `S - R`, so point
    masses (for some elements or all) are safe in float32, and an unchanged prior gives exactly
    zero. Exact when the posterior is the exact one; O(n³).

    Args:
        posterior: Joint normal posterior over n variables, batched over leading axes.
        prior: The independent normal prior it was fitted under, positive scale; loc and scale
            broadcast to ``(..., n)``.
        reduced_prior: The independent normal prior to put in its place; a scale of zero is a
            point mass at its loc.

    Returns:
        `delta_f`, shaped as the batch, and the `reduced` posterior. An element whose reduced
        prior is a point mass has a zero row and a zero column in ``scale_tril``. Where the
        expectation diverges (a reduced prior wider than the prior, in a direction that the
        data hardly narrowed) `delta_f` is infinite and the reduced posterior is not a number.
        Posterior correlation matrices are factorised: beyond condition numbers of about 1e4 in
        float32 digits are lost, beyond 1e6 the result may not be a number. `remove` works on
        ``scale_tril`` itself and keeps its accuracy there.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MultivariateNormal(
        ...     jnp.array([0.2, 1.0]), jnp.array([[0.3, 0.0], [0.2, 0.1]])
        ... )
        >>> p = reduction.Normal(jnp.zeros(2), jnp.full(2, 2.0))
        >>> without_first = reduction.Normal(jnp.zeros(2), jnp.array([0.0, 2.0]))
        >>> delta_f, reduced = reduction.multivariate_normal(q, p, without_first)
        >>> print(f"{delta_f:.2f} nats", reduced.loc.round(2))
        1.67 nats [0.   0.87]

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, the reduction of a Gaussian.
    """
    shape = jnp.shape(posterior.loc)
    priors = [
        jnp.broadcast_to(x, shape)
        for x in (prior.loc, prior.scale, reduced_prior.loc, reduced_prior.scale)
    ]
    delta_f, loc, scale_tril = _reduce(posterior.loc, posterior.scale_tril, *priors)
    return MultivariateReduction(delta_f, MultivariateNormal(loc, scale_tril))


@partial(jnp.vectorize, signature="(n),(n,n),(n),(n),(n),(n)->(),(n),(n,n)")
@full_precision
def _reduce(loc, scale_tril, prior_loc, prior_scale, reduced_loc, reduced_scale):
    tiny = jnp.finfo(loc.dtype).tiny
    units = power_of_two(jnp.maximum(norm(scale_tril), reduced_scale))
    scale_tril = scale_tril / units[:, None]
    loc, prior_loc, prior_scale, reduced_loc, reduced_scale = in_units(
        units, loc, prior_loc, prior_scale, reduced_loc, reduced_scale
    )
    # The mean of the prior moves: a tilt by exp(z · shift / S), which keeps the covariance.
    shift = (reduced_loc - prior_loc) / prior_scale
    whitened_shift = scale_tril.T @ (shift / prior_scale)
    midpoint = 0.5 * (prior_loc + reduced_loc)
    tilt = shift @ ((loc - midpoint) / prior_scale) + 0.5 * whitened_shift @ whitened_shift
    loc = loc + scale_tril @ whitened_shift
    deviation = loc - reduced_loc

    # The variance of the prior changes. In units of the marginal posterior scales t, and with
    # D = R + |G| t², R + C G = t E (D / t²) t for E = R / D + correlation · G t² / D, whose
    # elements are at most one whatever the scales; E = I where the prior is unchanged.
    marginal = norm(scale_tril)
    factor = scale_tril / marginal[:, None]
    gain = narrowing(prior_scale, reduced_scale)
    root = jnp.sqrt(
        jnp.maximum(jnp.square(reduced_scale) + jnp.abs(gain) * jnp.square(marginal), tiny)
    )
    from_prior, from_data = reduced_scale / root, gain * jnp.square(marginal / root)
    shrink, correlation = jnp.square(from_prior), factor @ factor.T
    lu = lu_factor(jnp.diag(shrink) + correlation * from_data[None, :])
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(lu[0]))))
    standardised = deviation / marginal
    # The quadratic form is taken in units of its largest element: its square may overflow, and
    # must then do so once, at the end, with its sign.
    unit = _largest(standardised)
    solved = lu_solve(lu, standardised / unit)
    quadratic = unit * (unit * jnp.sum(from_data * (standardised / unit) * solved))
    # Two forms of one mean: from the posterior's where that dominates, else from the prior's.
    little = loc - marginal * (correlation @ (from_data * solved)) * unit
    much = reduced_loc + marginal * (shrink * solved) * unit
    reduced_mean = jnp.where(shrink > 0.5, little, much)
    finite = tilt - jnp.sum(jnp.log(root / prior_scale)) - 0.5 * (log_det + quadratic)

    # The reduced covariance is t F (G t² / D + F correlation⁻¹ F)⁻¹ F t with F = from_prior: no
    # difference of covariances, so that a narrow reduced prior keeps its relative precision.
    inverse_factor = solve_triangular(factor, jnp.diag(from_prior), lower=True)
    precision = jnp.diag(from_data) + inverse_factor.T @ inverse_factor
    upper = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
    reduced_factor = solve_triangular(upper.T, jnp.eye(loc.size, dtype=loc.dtype), lower=True)
    proper = jnp.all(reduced_scale <= prior_scale) | jnp.isfinite(reduced_factor).all()
    point = reduced_scale == 0
    spread = (units * marginal * from_prior)[:, None] * reduced_factor
    nan = jnp.asarray(jnp.nan, loc.dtype)
    return (
        jnp.where(proper, jnp.maximum(finite, jnp.finfo(loc.dtype).min), jnp.inf),
        jnp.where(proper, units * reduced_mean, nan),
        jnp.where(proper, jnp.where(point[None, :], 0.0, spread), nan),
    )


def _largest(x: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the largest magnitude, or one if all are zero: a unit without a gradient."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0.0))
    return jnp.where(largest > 0, largest, 1.0)


@removal.remove.register(MultivariateNormal)
def remove(
    posterior: MultivariateNormal, prior: Normal, keep: Bool[Array, "... n"]
) -> MultivariateReduction:
    """See `bmrjax.reduction.remove`.

    Removed elements have a zero row and column in the reduced ``scale_tril``; what has them already
    is gone, and counts for nothing.
    """
    vectors = [posterior.loc, prior.loc, prior.scale, keep]
    shape = jnp.broadcast_shapes(*(jnp.shape(x) for x in vectors))
    loc, *others = (jnp.broadcast_to(x, shape) for x in vectors)
    factor = jnp.broadcast_to(posterior.scale_tril, (*shape, shape[-1]))
    delta_f, loc, scale_tril = _remove(loc, factor, *others)
    return MultivariateReduction(delta_f, MultivariateNormal(loc, scale_tril))


@partial(jnp.vectorize, signature="(n),(n,n),(n),(n),(n)->(),(n),(n,n)")
@full_precision
def _remove(loc, scale_tril, prior_loc, prior_scale, keep):
    # With L_S the rows of scale_tril that go, the evidence is N(0; μ_S, L_S L_Sᵀ) / p_S(0), and the rows
    # that stay lose what they have in the span of those. Covariances are never formed: a factor has
    # the root of their condition number.
    size, dtype = loc.shape[0], loc.dtype
    units = power_of_two(norm(scale_tril))
    scale_tril = scale_tril / units[:, None]
    loc, prior_loc, prior_scale = in_units(units, loc, prior_loc, prior_scale)
    variance = jnp.sum(jnp.square(scale_tril), axis=1)
    absent = variance == 0
    marginal = jnp.sqrt(jnp.where(absent, 1.0, variance))
    goes, stays = ~keep & ~absent, keep & ~absent
    rows = scale_tril / marginal[:, None]
    mean = jnp.where(goes, loc / marginal, 0.0)

    basis, triangle = _factor(rows, goes)
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(triangle))))
    unit = _largest(mean)
    solved = solve_triangular(triangle.T, mean / unit, lower=True)
    quadratic = unit * (unit * jnp.sum(jnp.square(solved)))
    of_prior = jnp.log(prior_scale / marginal) + 0.5 * jnp.square(prior_loc / prior_scale)
    delta_f = jnp.sum(jnp.where(goes, of_prior, 0.0)) - log_det - 0.5 * quadratic

    shared = rows @ basis
    left = rows - shared @ basis.T
    reduced_loc = jnp.where(stays, loc - marginal * (shared @ solved) * unit, 0.0)
    _, factor = _factor(left, stays)
    factor = factor.T * jnp.sign(jnp.diagonal(factor))[None, :]
    both = stays[:, None] & stays[None, :]
    return (
        jnp.maximum(delta_f, jnp.finfo(dtype).min),
        units * reduced_loc,
        jnp.where(both, (units * marginal)[:, None] * factor, jnp.zeros((size, size), dtype)),
    )


def _factor(
    rows: Float[Array, "n n"], chosen: Bool[Array, " n"]
) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Return the Q and R of the transposed rows that are chosen; the others are unit vectors apart."""
    columns = jnp.where(chosen[None, :], rows.T, 0.0)
    apart = jnp.diag(jnp.where(chosen, 0.0, 1.0).astype(rows.dtype))
    q, r = jnp.linalg.qr(jnp.concatenate([columns, apart]))
    return q[: rows.shape[0]], r


@removal.delta_f_each.register(MultivariateNormal)
def delta_f_each(posterior: MultivariateNormal, prior: Normal) -> Float[Array, "... n"]:
    """See `bmrjax.reduction.delta_f_each`; only the marginals matter."""
    marginal = Normal(posterior.loc, norm(posterior.scale_tril))
    shape = jnp.shape(posterior.loc)
    prior = Normal(jnp.broadcast_to(prior.loc, shape), jnp.broadcast_to(prior.scale, shape))
    absent = marginal.scale == 0
    there = Normal(marginal.loc, jnp.where(absent, 1.0, marginal.scale))
    return jnp.where(absent, 0.0, normal(there, prior, spike(there)).delta_f)


@full_precision
def prune_greedily(
    posterior: MultivariateNormal, prior: Normal, *, limit: int | Int[Array, ""] | None = None
) -> Pruning:
    """Remove one element after the other, each time the one that gains the most evidence.

    Each gain is that of a removal from the *current* reduced posterior, so the path knows about
    correlations: of two variables that stand in for each other it removes one. It ends when no
    removal gains. A step is a rank-one update, O(n²); the last reduced posterior is computed
    afresh. A greedy path need not find the best set. Not differentiable in reverse mode.

    Args:
        posterior: Joint normal posterior over n variables, without batch axes (use `jax.vmap`).
        prior: The independent normal prior it was fitted under, positive scale; broadcasts.
        limit: Most elements to remove; all of them by default. May be traced.

    Returns:
        `keep`, the total `delta_f` of the path in nats (at least zero, positive favours the
        reduced model) and the `reduced` posterior, as `remove` gives it.

    Example:
        Two variables of which the data determine only the sum:

        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MultivariateNormal(
        ...     jnp.array([0.6, 0.5]), jnp.array([[0.8, 0.0], [-0.79, 0.1]])
        ... )
        >>> p = reduction.Normal(jnp.zeros(2), jnp.ones(2))
        >>> print(reduction.delta_f_each(q, p).round(2))
        [-0.06  0.03]
        >>> reduction.prune_greedily(q, p).keep
        Array([ True, False], dtype=bool)

    References:
        Friston and Penny (2011), NeuroImage 56, post hoc model selection, there over all subsets.
    """
    loc = jnp.asarray(posterior.loc)
    shape, dtype = loc.shape, loc.dtype
    prior = Normal(jnp.broadcast_to(prior.loc, shape), jnp.broadcast_to(prior.scale, shape))
    if not loc.size:
        return Pruning(
            jnp.ones(shape, bool),
            jnp.zeros((), dtype),
            MultivariateNormal(loc, posterior.scale_tril),
        )
    limit = shape[0] if limit is None else limit
    units = power_of_two(norm(posterior.scale_tril))
    scale_tril = posterior.scale_tril / units[:, None]
    loc, *of_prior = in_units(units, loc, prior.loc, prior.scale)
    prior_in_units = Normal(*of_prior)
    start = scale_tril @ scale_tril.T
    every = jnp.diagonal(start) > 0
    # Conditioning can only take a variance to zero by rounding; it stops at the rounding error.
    least = jnp.finfo(dtype).eps * jnp.diagonal(start)

    def gains(loc, covariance, keep):
        current = Normal(loc, jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), least)))
        return jnp.where(keep, normal(current, prior_in_units, spike(current)).delta_f, -jnp.inf)

    def goes_on(state):
        _, _, keep, gain, _ = state
        return (jnp.max(gain, initial=-jnp.inf) > 0) & (jnp.sum(every & ~keep) < limit)

    def step(state):
        loc, covariance, keep, gain, total = state
        i = jnp.argmax(gain)
        stays = keep & (jnp.arange(shape[0]) != i)
        loc, covariance = without_one(loc, covariance, i, least[i])
        loc = jnp.where(stays, loc, 0.0)
        covariance = jnp.where(stays[:, None] & stays[None, :], covariance, 0.0)
        return loc, covariance, stays, gains(loc, covariance, stays), total + gain[i]

    state = (loc, start, every, gains(loc, start, every), jnp.zeros((), dtype))
    _, _, keep, _, total = jax.lax.while_loop(goes_on, step, state)
    return Pruning(keep, total, remove(posterior, prior, keep).reduced)


def without_one(
    loc: Float[Array, " n"],
    covariance: Float[Array, "n n"],
    i: Int[Array, ""],
    least: Float[ArrayLike, ""],
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Return mean and covariance given that element `i` is zero: a rank-one update, O(n²).

    Args:
        loc: Means.
        covariance: Covariance.
        i: Position of the element.
        least: Variance that it has at least, against rounding.
    """
    column = covariance[i]
    regression = column / jnp.maximum(column[i], least)
    return loc - regression * loc[i], covariance - regression[:, None] * column[None, :]
