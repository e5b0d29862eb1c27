"""Bayesian model reduction for univariate normal posteriors and priors."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.reduction import removal
from bmrjax.reduction.power_of_two import in_units, power_of_two


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normal:
    """Independent normal distributions, one per element.

    Attributes:
        loc: Means, any shape.
        scale: Standard deviations, broadcastable with `loc`. Zero is a point mass, which
            only a reduced prior may be.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Normal(jnp.array([0.05, 2.0]), jnp.array([0.2, 0.2]))
        >>> q.snr
        Array([ 0.25, 10.  ], dtype=float32)
        >>> reduction.delta_f_each(q, reduction.Normal(jnp.zeros(2), jnp.ones(2))).round(1)
        Array([  1.6, -48.4], dtype=float32)
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    @property
    def standard_deviation(self) -> Float[Array, "..."]:
        """The scale."""
        return self.scale

    @property
    def magnitude(self) -> Float[Array, "..."]:
        """Size of the mean."""
        return jnp.abs(self.loc)

    @property
    def snr(self) -> Float[Array, "..."]:
        """Signal-to-noise ratio: size of the mean over standard deviation."""
        return jnp.abs(self.loc) / self.scale


class Reduction(NamedTuple):
    """What a reduction gives: the evidence difference and the reduced posterior."""

    delta_f: Float[Array, "..."]
    reduced: Normal


def spike(like: Normal) -> Normal:
    """Return the point mass at zero, shaped as `like`: the prior of a removed variable.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q, prior = reduction.Normal(jnp.array([0.05]), jnp.array([0.2])), reduction.Normal(0.0, 1.0)
        >>> found = reduction.normal(q, prior, reduction.spike(q))
        >>> found.delta_f.round(1), found.reduced.scale
        (Array([1.6], dtype=float32), Array([0.], dtype=float32))
    """
    zero = jnp.zeros_like(like.loc)
    return Normal(zero, zero)


def narrowing(scale: Any, reduced_scale: Any) -> Any:
    """Return 1 - r / s, of the variances of a prior and a reduced one: exactly zero where they agree.

    One less the quotient would not be: on GPUs a number divided by itself is not always one.
    """
    return ((scale - reduced_scale) / scale) * ((scale + reduced_scale) / scale)


def normal(posterior: Normal, prior: Normal, reduced_prior: Normal) -> Reduction:
    r"""Compute the evidence difference and the posterior under a reduced normal prior.

    With posterior N(μ, v), prior N(m, s) and reduced prior N(m̃, r) (variances),

    .. math::

        ΔF = \ln E_q[\tilde p / p]
           = \tfrac12 \ln \frac{s}{D}
           + \frac{v (\tilde m - m)^2 - s (μ - \tilde m)^2 + r (μ - m)^2}{2 s D},
        \qquad D = r + v - r v / s,

    in nats, an element at a time. **Positive favours the reduced prior.** Nothing divides by
    `r` or by `s - r`, so a point mass (``r = 0``) and an unchanged prior (exactly zero) are
    both safe in float32. Exact when the posterior is the exact one.

    Args:
        posterior: Normal posterior, any shape, positive scale.
        prior: The normal prior it was fitted under, positive scale; broadcasts.
        reduced_prior: The normal prior to put in its place; scale zero is allowed.

    Returns:
        `delta_f`, shaped as the broadcast of the inputs, and the `reduced` posterior
        N((μ r + m̃ v - m r v / s) / D, r v / D). Where ``D <= 0`` the expectation
        diverges (a reduced prior wider than the prior, and a posterior that the data
        hardly narrowed): `delta_f` is infinite and the reduced posterior is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Normal(jnp.array([0.05, 2.0]), jnp.array([0.2, 0.2]))
        >>> p = reduction.Normal(jnp.zeros(2), jnp.ones(2))
        >>> reduction.normal(q, p, reduction.spike(q)).delta_f.round(1)
        Array([  1.6, -48.4], dtype=float32)

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092; Marković, Friston and Kiebel
        (2024), section II-G, which is the case m = m̃ = 0, s = 1.
    """
    # What is squared is in units of the larger scale; all else are ratios.
    unit = power_of_two(jnp.maximum(posterior.scale, reduced_prior.scale))
    variance, reduced_variance = map(
        jnp.square, in_units(unit, posterior.scale, reduced_prior.scale)
    )
    gain = narrowing(prior.scale, reduced_prior.scale)
    denominator = reduced_variance + variance * gain
    dtype = denominator.dtype
    proper = (reduced_prior.scale <= prior.scale) | (denominator > 0)
    safe = jnp.where(proper, jnp.maximum(denominator, jnp.finfo(dtype).tiny), 1.0)
    root = unit * jnp.sqrt(safe)
    # The quadratic form is arranged so that nothing cancels when the prior keeps its mean, and
    # so that no two small variances are multiplied: in float32 they reach 1e-36. A quotient of
    # a quotient counts as a product, since XLA rewrites (a / b) / c as a / (b c).
    shift = reduced_prior.loc - prior.loc
    to_reduced, to_prior = posterior.loc - reduced_prior.loc, posterior.loc - prior.loc
    quadratic = (
        (reduced_variance / safe) * (shift / prior.scale) * ((to_reduced + to_prior) / prior.scale)
        + (variance / safe) * jnp.square(shift / prior.scale)
        - (gain / safe) * jnp.square(in_units(unit, to_reduced)[0])
    )
    # ln(D / s), from its distance to one where the prior changes little.
    little = proper & (gain < 0.5)
    distance = gain * (jnp.square(posterior.scale / prior.scale) - 1.0)
    log_ratio = -jnp.where(
        little, jnp.log1p(jnp.where(little, distance, 0.0)), 2.0 * jnp.log(root / prior.scale)
    )
    finite = jnp.maximum(0.5 * (log_ratio + quadratic), jnp.finfo(dtype).min)
    delta_f = jnp.where(proper, finite, jnp.inf)
    loc = posterior.loc * (reduced_variance / safe) + (shift + prior.loc * gain) * (variance / safe)
    scale = reduced_prior.scale * (posterior.scale / root)
    nan = jnp.asarray(jnp.nan, loc.dtype)
    return Reduction(delta_f, Normal(jnp.where(proper, loc, nan), jnp.where(proper, scale, nan)))


@functools.singledispatch
def delta_f_under(prior: Any, posterior: Normal, reduced_prior: Normal) -> Float[Array, "..."]:
    r"""Compute \ln E_q[\tilde p / p] of a normal posterior whose prior becomes another normal.

    It dispatches on the prior that the posterior was fitted under; see `normal` for the sign and the units.

    Args:
        prior: The prior that it was fitted under; broadcasts.
        posterior: Normal posterior, any shape, positive scale.
        reduced_prior: The normal prior to put in its place; scale zero is allowed.

    Raises:
        TypeError: For a prior without such a formula.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Normal(jnp.array([0.05, 2.0]), jnp.array([0.2, 0.2]))
        >>> for prior in (reduction.Normal(0.0, 1.0), reduction.Laplace(0.0, 1.0)):
        ...     nats = reduction.delta_f_under(prior, q, reduction.spike(q))
        ...     print([f"{each:.1f}" for each in nats])
        ['1.6', '-48.4']
        ['1.4', '-48.6']
    """
    raise TypeError(
        f"There is no closed form for a normal posterior under a prior that is {type(prior).__name__}."
    )


@delta_f_under.register(Normal)
def _(prior: Normal, posterior: Normal, reduced_prior: Normal) -> Float[Array, "..."]:
    return normal(posterior, prior, reduced_prior).delta_f


@removal.delta_f_each.register(Normal)
def _(posterior: Normal, prior: Any) -> Float[Array, "..."]:
    return delta_f_under(prior, posterior, spike(posterior))
