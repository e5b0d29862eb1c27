"""Log-uniform and log-normal distributions between bounds: prior and posterior of multiplicative noise."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import promote_shapes, validate_sample
from numpyro.util import not_jax_tracer

from bmrjax.backend.noise import uniform
from bmrjax.families.base import (
    FamilyFacts,
    Shown,
    facts,
    has_closed_form,
    removed,
    shown_elements,
    stored,
)
from bmrjax.families.elements import elementwise
from bmrjax.families.guide_form import GuideForm, GuideSite, NormalForm, default_form
from bmrjax.families.log_quantile import log_quantile
from bmrjax.families.per_datum import PerDatum
from bmrjax.reduction.log_normal import LogNormal, LogUniform, divergence, exponent, integral


def _check_bounds(low: ArrayLike, high: ArrayLike) -> None:
    if not_jax_tracer(low) and not_jax_tracer(high) and not np.all(np.less(low, high)):
        raise ValueError(
            f"The bounds of ln θ must be low < high, got low {low} and high {high}. They are logarithms: "
            "for θ in [0.001, 1], give -6.9 and 0."
        )


class TruncatedLogUniform(dist.Distribution):
    r"""θ with ln θ uniform on [low, high].

    Args:
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.

    Raises:
        ValueError: Unless ``low < high``.

    Example:
        >>> from bmrjax.families import TruncatedLogUniform
        >>> TruncatedLogUniform().mean.round(3)
        Array(0.05, dtype=float32)

    References:
        Neklyudov et al. (2017), equation 14.
    """

    low: Any
    high: Any
    arg_constraints: dict[str, Any] = {"low": constraints.real, "high": constraints.dependent}
    reparametrized_params: list[str] = ["low", "high"]

    def __init__(
        self, low: ArrayLike = -20.0, high: ArrayLike = 0.0, *, validate_args: bool | None = None
    ):
        _check_bounds(low, high)
        parameters: Any = promote_shapes(low, high)
        self.low, self.high = (jnp.asarray(p, float) for p in parameters)
        shape = jax.lax.broadcast_shapes(jnp.shape(low), jnp.shape(high))
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """Between the exponentials of the bounds."""
        return constraints.interval(jnp.exp(self.low), jnp.exp(self.high))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw."""
        return self.icdf(jax.random.uniform(key, sample_shape + self.batch_shape))

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density, nats."""
        return -jnp.log(jnp.asarray(value)) - jnp.log(self.high - self.low)

    def cdf(self, value: ArrayLike) -> Array:
        """Probability of less than `value`."""
        return jnp.clip((jnp.log(jnp.asarray(value)) - self.low) / (self.high - self.low), 0.0, 1.0)

    def icdf(self, q: ArrayLike) -> Array:
        """Quantile."""
        return jnp.exp(self.low + (self.high - self.low) * jnp.asarray(q))

    @property
    def mean(self) -> Array:
        """E[θ]."""
        width = self.high - self.low
        return jnp.exp(self.high) * -jnp.expm1(-width) / width

    @property
    def variance(self) -> Array:
        """Var[θ]."""
        width = self.high - self.low
        square = jnp.exp(2 * self.high) * -jnp.expm1(-2 * width) / (2 * width)
        return square - jnp.square(self.mean)


class TruncatedLogNormal(dist.Distribution):
    r"""θ with ln θ ~ N(loc, scale²), truncated to [low, high].

    Safe in float32 for any `loc`, far outside the bounds too, and any positive `scale`: from a
    point to, in effect, the log-uniform distribution.

    Args:
        loc: Mean of ln θ before it is truncated.
        scale: Standard deviation of ln θ before that, positive.
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.

    Raises:
        ValueError: Unless ``low < high``.

    Example:
        >>> from bmrjax.families import TruncatedLogNormal
        >>> noise = TruncatedLogNormal(-1.0, 0.8)
        >>> noise.mean.round(4), noise.snr.round(4)
        (Array(0.3816, dtype=float32), Array(1.6728, dtype=float32))

    References:
        Neklyudov et al. (2017), equations 14 and 18 and appendix D.
    """

    loc: Any
    scale: Any
    low: Any
    high: Any
    arg_constraints: dict[str, Any] = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.real,
        "high": constraints.dependent,
    }
    reparametrized_params: list[str] = ["loc", "scale", "low", "high"]

    def __init__(
        self,
        loc: ArrayLike,
        scale: ArrayLike,
        low: ArrayLike = -20.0,
        high: ArrayLike = 0.0,
        *,
        validate_args: bool | None = None,
    ):
        _check_bounds(low, high)
        parameters: Any = promote_shapes(loc, scale, low, high)
        self.loc, self.scale, self.low, self.high = (jnp.asarray(p, float) for p in parameters)
        shape = jax.lax.broadcast_shapes(*(jnp.shape(p) for p in (loc, scale, low, high)))
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """Between the exponentials of the bounds."""
        return constraints.interval(jnp.exp(self.low), jnp.exp(self.high))

    @property
    def posterior(self) -> LogNormal:
        """The parameters, as `bmrjax.reduction` takes them."""
        return LogNormal(*jnp.broadcast_arrays(self.loc, self.scale, self.low, self.high))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw; differentiable in all parameters."""
        shape = sample_shape + self.batch_shape
        return self.icdf(uniform(key, shape, self.loc.dtype))

    def icdf(self, q: ArrayLike) -> Array:
        """Quantile."""
        z = log_quantile(jnp.asarray(q), self.loc, self.scale, self.low, self.high)
        return jnp.exp(jnp.broadcast_to(z, jax.lax.broadcast_shapes(z.shape, self.batch_shape)))

    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density, nats."""
        log_value = jnp.log(jnp.asarray(value))
        found = integral(*self.posterior.bounds)
        t = (log_value - self.loc) / self.scale
        density = exponent(found.mode, t - found.mode) - found.log_value
        return density - jnp.log(self.scale) - log_value

    @property
    def mean(self) -> Array:
        """E[θ]."""
        return self.posterior.mean

    @property
    def variance(self) -> Array:
        """Var[θ]."""
        return self.posterior.variance

    @property
    def snr(self) -> Array:
        """Signal-to-noise ratio E[θ] / sd[θ]; below one, the noise drowns what it multiplies."""
        return self.posterior.snr


@kl_divergence.register(TruncatedLogNormal, TruncatedLogUniform)
def _(q: TruncatedLogNormal, p: TruncatedLogUniform) -> Array:
    return divergence(q.posterior, LogUniform(p.low, p.high))


@stored.register(TruncatedLogNormal)
def _(fn: TruncatedLogNormal) -> LogNormal:
    return LogNormal(fn.loc, fn.scale, fn.low, fn.high)


@stored.register(TruncatedLogUniform)
def _(fn: TruncatedLogUniform) -> LogUniform:
    return LogUniform(fn.low, fn.high)


@facts.register(LogNormal)
def _(q: Any) -> FamilyFacts:
    del q
    return FamilyFacts("log-normal", criteria="criteria.BMRSNormal()")


@facts.register(LogUniform)
def _(q: Any) -> FamilyFacts:
    del q
    return FamilyFacts("log-uniform", posterior="log-normal")


@has_closed_form.register(LogNormal)
def _(posterior: Any, prior: Any) -> bool:
    return isinstance(prior, LogUniform)


@removed.register(LogNormal)
def _(q: LogNormal, keep: Any) -> LogNormal:
    low, high = (jnp.broadcast_to(bound, keep.shape) for bound in (q.low, q.high))
    return LogNormal(jnp.where(keep, q.loc, -jnp.inf), jnp.where(keep, q.scale, 0.0), low, high)


@shown_elements.register(LogNormal)
def _(q: LogNormal, keep: Any) -> Shown:
    loc, scale = jnp.where(keep, q.loc, q.low), jnp.where(keep, q.scale, 1.0)
    return Shown(TruncatedLogNormal(loc, scale, q.low, q.high), value=1.0)


class NoiseForm(GuideForm):
    """A truncated log-normal posterior, whose parameters are those of ln θ.

    It starts all but at one, with what a network has learned intact.
    """

    starting_scale = math.exp(-5)

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`; it is drawn as the handlers around the guide say."""
        bounds: Any = site.prior.base_dist
        on_the_line: Any = elementwise(normal.base_dist)
        posterior = TruncatedLogNormal(on_the_line.loc, on_the_line.scale, bounds.low, bounds.high)
        assert site.noise_draws is not None
        draws = site.noise_draws()
        return PerDatum(
            posterior,
            num_data=draws.num_data if site.prior.is_per_datum else None,
            at_mean=draws.at_mean,
            kl_weight=site.prior.kl_weight,
        )

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`."""
        bounds: Any = site.prior.base_dist
        return _OnTheLine(parameter("loc"), parameter("scale"), bounds.low, bounds.high)


class _OnTheLine(TruncatedLogNormal):
    """The logarithm of multiplicative noise."""

    support: Any = constraints.real

    def icdf(self, q: Any) -> Array:
        return jnp.log(super().icdf(q))  # draws are quantiles too


@default_form.register(LogNormal)
@default_form.register(LogUniform)
def _(prior: Any, site: GuideSite) -> GuideForm:
    del prior
    return NoiseForm() if isinstance(site.prior, PerDatum) else NormalForm()
