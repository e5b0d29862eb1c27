"""Bayesian model reduction for conjugate families: beta, gamma, Dirichlet and categorical."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

Family = TypeVar("Family")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Beta:
    """Beta distributions: density ∝ z^(alpha - 1) (1 - z)^(beta - 1).

    Attributes:
        alpha: Positive, any shape.
        beta: Positive, broadcastable with `alpha`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> posterior, prior = reduction.Beta(jnp.array(9.0), jnp.array(8.0)), reduction.Beta(1.0, 1.0)
        >>> sharp = reduction.Beta(100.0, 100.0)  # nearly 1/2 for certain
        >>> reduction.beta(posterior, prior, sharp).delta_f.round(2)
        Array(1.11, dtype=float32)
    """

    alpha: Float[Array, "..."]
    beta: Float[Array, "..."]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gamma:
    """Gamma distributions: density ∝ z^(concentration - 1) exp(-rate z).

    Attributes:
        concentration: Positive, any shape.
        rate: Inverse scale, positive, broadcastable with `concentration`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> posterior = reduction.Gamma(jnp.array([11.0]), jnp.array([6.0]))
        >>> near_two = reduction.Gamma(200.0, 100.0)
        >>> found = reduction.gamma(posterior, reduction.Gamma(1.0, 1.0), near_two)
        >>> found.delta_f.round(2), found.reduced.rate
        (Array([1.51], dtype=float32), Array([105.], dtype=float32))
    """

    concentration: Float[Array, "..."]
    rate: Float[Array, "..."]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dirichlet:
    """Dirichlet distributions over the last axis.

    Attributes:
        concentration: Positive, shape ``(..., k)``.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> prior = reduction.Dirichlet(jnp.ones(3))
        >>> posterior = reduction.Dirichlet(jnp.array([9.0, 5.0, 1.0]))  # 8, 4 and 0 observations
        >>> rare = reduction.Dirichlet(jnp.array([1.0, 1.0, 1e-3]))
        >>> f"{reduction.dirichlet(posterior, prior, rare).delta_f:.2f} nats"
        '1.94 nats'
    """

    concentration: Float[Array, "... k"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """Categorical distributions over the last axis.

    Attributes:
        logits: Log probabilities up to a constant, shape ``(..., k)``; minus infinity is a
            category that cannot be.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> posterior = reduction.Categorical(jnp.log(jnp.array([0.7, 0.2, 0.1])))
        >>> prior = reduction.Categorical(jnp.zeros(3))
        >>> without_last = reduction.Categorical(jnp.array([0.0, 0.0, -jnp.inf]))
        >>> found = reduction.categorical(posterior, prior, without_last)
        >>> f"{found.delta_f:.2f} nats", jnp.exp(found.reduced.logits).round(2)
        ('0.30 nats', Array([0.78, 0.22, 0.  ], dtype=float32))
    """

    logits: Float[Array, "... k"]


class ConjugateReduction(NamedTuple, Generic[Family]):
    """What a reduction gives: the evidence difference and the reduced posterior."""

    delta_f: Float[Array, "..."]
    reduced: Family


def _combine(posterior, prior, reduced_prior):
    """Return posterior + reduced_prior - prior, and the change of the prior.

    The counts come first, so that a tiny parameter survives where the data said nothing. An
    unchanged prior leaves the posterior as it is.
    """
    change = reduced_prior - prior
    counts = posterior - prior
    return jnp.where(change == 0, posterior + change, reduced_prior + counts), change


def _log_quotient(x, y, change):
    """Return ln(y / x) for y = x + change, precise for small changes and for y near zero."""
    small = jnp.abs(change) < 0.5 * x
    near = jnp.log1p(jnp.where(small, change / x, 0.0))
    return jnp.where(small, near, jnp.log(y) - jnp.log(x))


def _log_gamma_increment(x, y, change):
    """Return ln Γ(y) - ln Γ(x) for y = x + change, exactly zero for no change.

    The difference of two `gammaln` has an error of a whole nat at 1e6 in float32. Here the
    recurrence moves both eight up, where Stirling's series is subtracted term by term.
    """
    x, y, change = jnp.broadcast_arrays(x, y, change)
    steps = jnp.arange(8, dtype=y.dtype).reshape(8, *[1] * y.ndim)
    recurrence = jnp.sum(_log_quotient(x[None] + steps, y[None] + steps, change[None]), axis=0)
    x, y = x + 8.0, y + 8.0
    stirling = (x - 0.5) * _log_quotient(x, y, change) + change * (jnp.log(y) - 1.0)
    # The series is in odd powers k of u = 1 / x and v = 1 / y, divided by v - u.
    u, v = 1.0 / x, 1.0 / y
    divided, power, series = jnp.ones_like(u), u, jnp.zeros_like(u)
    for coefficient in (1 / 12, -1 / 360, 1 / 1260, -1 / 1680):
        series = series + coefficient * divided
        divided, power = v * v * divided + power * (u + v), power * u * u
    return stirling - change * u * v * series - recurrence


def beta(posterior: Beta, prior: Beta, reduced_prior: Beta) -> ConjugateReduction[Beta]:
    r"""Compute the evidence difference and the posterior under a reduced beta prior.

    With posterior parameters (a, b), prior (α, β), reduced prior (α̃, β̃) and
    ``a' = a + α̃ - α``, ``b' = b + β̃ - β``,

    .. math::

        ΔF = \ln E_q[\tilde p / p]
           = \ln \frac{B(a', b')\, B(α, β)}{B(a, b)\, B(\tilde α, \tilde β)}

    in nats, an element at a time. **Positive favours the reduced prior.** An unchanged prior
    gives exactly zero. Exact when the posterior is the exact one.

    Args:
        posterior: Beta posterior, any shape.
        prior: The beta prior it was fitted under; broadcasts.
        reduced_prior: The beta prior to put in its place; broadcasts.

    Returns:
        `delta_f`, shaped as the broadcast of the inputs, and the `reduced` posterior
        Beta(a', b'). Where a parameter would not be positive the expectation diverges:
        `delta_f` is infinite and the reduced posterior is not a number.

    Example:
        Seven heads in ten; was the coin a fair one?

        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Beta(jnp.array(8.0), jnp.array(4.0))
        >>> p = reduction.Beta(jnp.array(1.0), jnp.array(1.0))
        >>> fair = reduction.Beta(jnp.array(50.0), jnp.array(50.0))
        >>> delta_f, reduced = reduction.beta(q, p, fair)
        >>> print(f"{delta_f:.2f} nats, Beta({reduced.alpha:.0f}, {reduced.beta:.0f})")
        0.28 nats, Beta(57, 53)

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, table of conjugate families.
    """

    def stacked(x: Beta) -> Dirichlet:
        return Dirichlet(jnp.stack(jnp.broadcast_arrays(x.alpha, x.beta), axis=-1))

    delta_f, reduced = dirichlet(stacked(posterior), stacked(prior), stacked(reduced_prior))
    concentration = reduced.concentration
    return ConjugateReduction(delta_f, Beta(concentration[..., 0], concentration[..., 1]))


def gamma(posterior: Gamma, prior: Gamma, reduced_prior: Gamma) -> ConjugateReduction[Gamma]:
    r"""Compute the evidence difference and the posterior under a reduced gamma prior.

    With posterior concentration and rate (a, b), prior (α, β), reduced prior (α̃, β̃) and
    ``a' = a + α̃ - α``, ``b' = b + β̃ - β``,

    .. math::

        ΔF = \ln E_q[\tilde p / p]
           = \ln \frac{Γ(a')\, Γ(α)}{Γ(a)\, Γ(\tilde α)}
           + a \ln b - a' \ln b' + \tilde α \ln \tilde β - α \ln β

    in nats, an element at a time. **Positive favours the reduced prior.** An unchanged prior
    gives exactly zero. Exact when the posterior is the exact one.

    Args:
        posterior: Gamma posterior, any shape.
        prior: The gamma prior it was fitted under; broadcasts.
        reduced_prior: The gamma prior to put in its place; broadcasts.

    Returns:
        `delta_f`, shaped as the broadcast of the inputs, and the `reduced` posterior
        Gamma(a', b'). Where a parameter would not be positive the expectation diverges:
        `delta_f` is infinite and the reduced posterior is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Gamma(jnp.array(12.0), jnp.array(5.0))
        >>> p = reduction.Gamma(jnp.array(2.0), jnp.array(1.0))
        >>> narrow = reduction.Gamma(jnp.array(20.0), jnp.array(10.0))
        >>> delta_f, reduced = reduction.gamma(q, p, narrow)
        >>> print(f"{delta_f:.2f} nats, Gamma({reduced.concentration:.0f}, {reduced.rate:.0f})")
        0.61 nats, Gamma(30, 14)

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, table of conjugate families.
    """
    concentration, more = _combine(
        posterior.concentration, prior.concentration, reduced_prior.concentration
    )
    rate, faster = _combine(posterior.rate, prior.rate, reduced_prior.rate)
    proper = (concentration > 0) & (rate > 0)
    safe, safe_rate = jnp.where(proper, concentration, 1.0), jnp.where(proper, rate, 1.0)
    # The logarithms of the rates appear as quotients, so that large concentrations multiply
    # only small numbers.
    delta_f = (
        _log_gamma_increment(posterior.concentration, safe, more)
        - _log_gamma_increment(prior.concentration, reduced_prior.concentration, more)
        - posterior.concentration * _log_quotient(posterior.rate, safe_rate, faster)
        + prior.concentration * _log_quotient(prior.rate, reduced_prior.rate, faster)
        + more * (jnp.log(reduced_prior.rate) - jnp.log(safe_rate))
    )
    reduced = Gamma(jnp.where(proper, concentration, jnp.nan), jnp.where(proper, rate, jnp.nan))
    return ConjugateReduction(jnp.where(proper, delta_f, jnp.inf), reduced)


def dirichlet(
    posterior: Dirichlet, prior: Dirichlet, reduced_prior: Dirichlet
) -> ConjugateReduction[Dirichlet]:
    r"""Compute the evidence difference and the posterior under a reduced Dirichlet prior.

    With posterior concentrations a, prior α, reduced prior α̃, ``a' = a + α̃ - α`` and the
    multivariate beta function B,

    .. math::

        ΔF = \ln E_q[\tilde p / p] = \ln \frac{B(a')\, B(α)}{B(a)\, B(\tilde α)}

    in nats, for each vector. **Positive favours the reduced prior.** An unchanged prior gives
    exactly zero. Exact when the posterior is the exact one.

    Args:
        posterior: Dirichlet posterior over k categories, batched over leading axes.
        prior: The Dirichlet prior it was fitted under; broadcasts over the batch, and over the
            categories if it has one concentration for all.
        reduced_prior: The Dirichlet prior to put in its place; broadcasts in the same way.

    Returns:
        `delta_f`, shaped as the batch, and the `reduced` posterior Dirichlet(a'). Where a
        concentration would not be positive the expectation diverges: `delta_f` is infinite and
        the whole reduced vector is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Dirichlet(jnp.array([31.0, 28.0, 1.0]))
        >>> p = reduction.Dirichlet(jnp.ones(3))
        >>> sparse = reduction.Dirichlet(jnp.array([1.0, 1.0, 0.01]))
        >>> delta_f, reduced = reduction.dirichlet(q, p, sparse)
        >>> print(f"{delta_f:.2f} nats", reduced.concentration)
        3.35 nats [3.1e+01 2.8e+01 1.0e-02]

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, table of conjugate families.
    """
    # One concentration for all categories counts as often as there are categories.
    learned, before, after = jnp.broadcast_arrays(
        posterior.concentration, prior.concentration, reduced_prior.concentration
    )
    concentration, change = _combine(learned, before, after)
    proper = jnp.all(concentration > 0, axis=-1)
    safe = jnp.where(proper[..., None], concentration, 1.0)
    terms = _log_gamma_increment(learned, safe, change)
    terms = terms - _log_gamma_increment(before, after, change)

    def total(x):
        return jnp.sum(x, axis=-1)

    increments = _log_gamma_increment(total(learned), total(safe), total(change))
    increments = increments - _log_gamma_increment(total(before), total(after), total(change))
    return ConjugateReduction(
        jnp.where(proper, total(terms) - increments, jnp.inf),
        Dirichlet(jnp.where(proper[..., None], concentration, jnp.nan)),
    )


def categorical(
    posterior: Categorical, prior: Categorical, reduced_prior: Categorical
) -> ConjugateReduction[Categorical]:
    r"""Compute the evidence difference and the posterior under a reduced categorical prior.

    .. math::  ΔF = \ln E_q[\tilde p / p] = \ln \sum_k q_k \tilde p_k / p_k

    in nats, for each vector. **Positive favours the reduced prior.** An unchanged prior gives
    exactly zero. Exact when the posterior is the exact one.

    Args:
        posterior: Categorical posterior over k categories, batched over leading axes.
        prior: The prior it was fitted under; broadcasts over the batch. Where it is impossible
            the posterior must be too.
        reduced_prior: The prior to put in its place; broadcasts over the batch. A logit of
            minus infinity removes the category.

    Returns:
        `delta_f`, shaped as the batch, and the `reduced` posterior, q p̃ / p normalised as the
        posterior is. `delta_f` is minus infinity, and the reduced posterior not a number, where
        the reduced prior excludes all that the posterior allows; it is infinite, and the reduced
        posterior not a number, where the posterior allows what the prior excludes.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Categorical(jnp.log(jnp.array([0.7, 0.2, 0.1])))
        >>> p = reduction.Categorical(jnp.zeros(3))
        >>> without_last = reduction.Categorical(jnp.array([0.0, 0.0, -jnp.inf]))
        >>> delta_f, reduced = reduction.categorical(q, p, without_last)
        >>> print(f"{delta_f:.2f} nats", jnp.exp(reduced.logits).round(2))
        0.30 nats [0.78 0.22 0.  ]

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, table of conjugate families.
    """
    logits, before, after = jnp.broadcast_arrays(
        posterior.logits, prior.logits, reduced_prior.logits
    )
    allowed, possible = logits > -jnp.inf, before > -jnp.inf
    log_prior = before - logsumexp(before, axis=-1, keepdims=True)
    log_reduced = after - logsumexp(after, axis=-1, keepdims=True)
    log_ratio = jnp.where(possible, log_reduced - jnp.where(possible, log_prior, 0.0), jnp.inf)
    moved = jnp.where(allowed, logits + log_ratio, -jnp.inf)
    delta_f = logsumexp(moved, axis=-1) - logsumexp(logits, axis=-1)
    finite = jnp.isfinite(delta_f)[..., None]
    normalised = jnp.where(finite, moved - jnp.where(finite, delta_f[..., None], 0.0), jnp.nan)
    return ConjugateReduction(delta_f, Categorical(normalised))
