"""Spike-and-slab variables, exact and relaxed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.nn import log_sigmoid, sigmoid, softplus
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.transforms import biject_to
from numpyro.distributions.util import promote_shapes

from bmrjax import reduction
from bmrjax.backend.noise import normal_noise
from bmrjax.families.base import (
    FamilyFacts,
    Shown,
    facts,
    has_closed_form,
    read,
    removed,
    shown_elements,
    stored,
)
from bmrjax.families.guide_form import GuideForm, GuideSite, default_form

_atoms_are_known = ContextVar("_atoms_are_known", default=False)


class _WithAtom(constraints.ParameterFreeConstraint):
    """The real line with an atom at zero, which no bijection to the real line knows of."""

    def __call__(self, x: Any) -> Any:
        return constraints.real(x)

    def feasible_like(self, prototype: Any) -> Array:
        """Return zeros: see NumPyro's `Constraint`."""
        return jnp.zeros_like(prototype)

    def __repr__(self) -> str:
        return "real line with an atom at zero"


_with_atom = _WithAtom()


@biject_to.register(_WithAtom)
def _no_bijection(constraint: _WithAtom) -> Any:
    raise NotImplementedError(
        "A spike-and-slab variable is zero with a positive probability, and neither MCMC nor this guide "
        "would ever see that. Fit it with bmrjax.infer.AutoMeanField and TraceMeanField_ELBO, as "
        "bmrjax.sparsify does by default, or use priors.RegularizedHorseshoePrior."
    )


@contextmanager
def atoms_are_known() -> Iterator[None]:
    """Let spike-and-slab sites pass for real ones, for a guide that gives them indicators."""
    token = _atoms_are_known.set(True)
    try:
        yield
    finally:
        _atoms_are_known.reset(token)


class DiscreteSpikeAndSlab(dist.Distribution):
    r"""z = λ x with λ ~ Bernoulli(σ(logits)) and x ~ N(loc, scale²): zero, or a normal variable.

    The log density is taken with respect to a point mass at zero plus the Lebesgue measure, so
    it is ln P(λ = 0) at zero and ln P(λ = 1) + ln N(z) elsewhere. No bijection maps that to the real
    line, so MCMC and guides that know nothing of the indicators refuse it.

    Args:
        loc: Mean of the slab.
        scale: Standard deviation of the slab, positive.
        logits: Log odds of λ = 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.families import DiscreteSpikeAndSlab
        >>> DiscreteSpikeAndSlab(0.0, 1.0, logits=0.0).log_prob(jnp.array([0.0, 1.0])).round(3)
        Array([-0.693, -2.112], dtype=float32)

    References:
        Mitchell and Beauchamp (1988); Marković, Friston and Kiebel (2024), section II-E.
    """

    loc: Any
    scale: Any
    logits: Any
    arg_constraints: dict[str, Any] = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "logits": constraints.real,
    }
    reparametrized_params: list[str] = ["loc", "scale"]

    def __init__(
        self,
        loc: ArrayLike,
        scale: ArrayLike,
        logits: ArrayLike,
        *,
        validate_args: bool | None = None,
    ):
        parameters: Any = promote_shapes(loc, scale, logits)
        self.loc, self.scale, self.logits = parameters
        shape = jax.lax.broadcast_shapes(*(jnp.shape(a) for a in (loc, scale, logits)))
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """The real line, for which a guide has to know that zero has a probability of its own."""
        return constraints.real if _atoms_are_known.get() else _with_atom

    @property
    def inclusion_prob(self) -> Array:
        """P(λ = 1), shaped as the batch."""
        return jnp.broadcast_to(sigmoid(self.logits), self.batch_shape)

    def _gate(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.bernoulli(key, sigmoid(self.logits), shape).astype(float)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw; what is excluded is exactly zero."""
        slab_key, gate_key = jax.random.split(key)
        shape = sample_shape + self.batch_shape
        slab = self.loc + self.scale * normal_noise(slab_key, shape)
        return self._gate(gate_key, shape) * slab

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density; see the class for the measure."""
        slab = dist.Normal(self.loc, self.scale).log_prob(value) + log_sigmoid(self.logits)
        return jnp.where(jnp.asarray(value) == 0, log_sigmoid(-self.logits), slab)

    @property
    def mean(self) -> Array:
        """P(λ = 1) loc."""
        return jnp.broadcast_to(sigmoid(self.logits) * self.loc, self.batch_shape)

    @property
    def variance(self) -> Array:
        """Variance of the mixture."""
        prob = sigmoid(self.logits)
        variance = prob * (jnp.square(self.scale) + (1 - prob) * jnp.square(self.loc))
        return jnp.broadcast_to(variance, self.batch_shape)

    def icdf(self, q: ArrayLike) -> Array:
        """Quantile; zero over a whole interval of `q`."""
        q = jnp.asarray(q)
        prob = jnp.maximum(sigmoid(self.logits), jnp.finfo(float).tiny)
        below = prob * jax.scipy.stats.norm.cdf(-self.loc / self.scale)
        above = q > below + sigmoid(-self.logits)
        level = jnp.where(above, q - sigmoid(-self.logits), q) / prob
        unit = jax.scipy.stats.norm.ppf(jnp.clip(level, 0.0, 1.0))
        return jnp.where((q < below) | above, self.loc + self.scale * unit, 0.0)


class RelaxedSpikeAndSlab(DiscreteSpikeAndSlab):
    """A spike-and-slab variable whose draws are differentiable in the log odds.

    The indicator is a binary concrete variable, σ((logits + logistic noise) / temperature); the
    Kullback-Leibler divergence stays that of the exact variable, so at a temperature of zero the
    ELBO is the one of the discrete model.

    Args:
        loc: Mean of the slab.
        scale: Standard deviation of the slab, positive.
        logits: Log odds of λ = 1.
        temperature: Of the relaxation, positive.

    References:
        Maddison, Mnih and Teh (2017); Bai, Song and Cheng (2020), for networks.
    """

    reparametrized_params: list[str] = ["loc", "scale", "logits"]
    pytree_data_fields: tuple[str, ...] = ("temperature",)

    def __init__(
        self,
        loc: ArrayLike,
        scale: ArrayLike,
        logits: ArrayLike,
        temperature: ArrayLike,
        *,
        validate_args: bool | None = None,
    ):
        self.temperature = temperature
        super().__init__(loc, scale, logits, validate_args=validate_args)

    def _gate(self, key: Array, shape: tuple[int, ...]) -> Array:
        return sigmoid((self.logits + jax.random.logistic(key, shape)) / self.temperature)


class StraightThroughSpikeAndSlab(RelaxedSpikeAndSlab):
    """A spike-and-slab variable with exact draws, and the gradients of relaxed ones in the log odds.

    References:
        Jang, Gu and Poole (2017), the straight-through estimator.
    """

    def _gate(self, key: Array, shape: tuple[int, ...]) -> Array:
        level = jax.random.uniform(key, shape)  # the exact variable is included below σ(logits)
        noise = jnp.log1p(-level) - jnp.log(jnp.maximum(level, jnp.finfo(level.dtype).tiny))
        relaxed = sigmoid((self.logits + noise) / self.temperature)
        exact = (level < sigmoid(self.logits)).astype(relaxed.dtype)
        return exact + (relaxed - jax.lax.stop_gradient(relaxed))


@kl_divergence.register(DiscreteSpikeAndSlab, DiscreteSpikeAndSlab)
def _kl_spike_and_slab(q: DiscreteSpikeAndSlab, p: DiscreteSpikeAndSlab) -> Array:
    slab = kl_divergence(dist.Normal(q.loc, q.scale), dist.Normal(p.loc, p.scale))
    # In terms of softplus, -ln σ(x) = softplus(-x): finite for any log odds.
    included = slab + softplus(-p.logits) - softplus(-q.logits)
    excluded = softplus(p.logits) - softplus(q.logits)
    return sigmoid(q.logits) * included + sigmoid(-q.logits) * excluded


@stored.register(DiscreteSpikeAndSlab)
def _(fn: DiscreteSpikeAndSlab) -> reduction.ZeroOrNormal:
    return reduction.ZeroOrNormal(fn.loc, fn.scale, fn.logits)


@facts.register(reduction.ZeroOrNormal)
def _(q: Any) -> FamilyFacts:
    del q
    return FamilyFacts("spike-and-slab", criteria="criteria.Inclusion()")


@has_closed_form.register(reduction.ZeroOrNormal)
def _(posterior: Any, prior: Any) -> bool:
    return isinstance(prior, reduction.ZeroOrNormal)


@removed.register(reduction.ZeroOrNormal)
def _(q: reduction.ZeroOrNormal, keep: Any) -> reduction.ZeroOrNormal:
    loc, scale = jnp.where(keep, q.loc, 0.0), jnp.where(keep, q.scale, 0.0)
    return reduction.ZeroOrNormal(loc, scale, jnp.where(keep, q.logits, -jnp.inf))


@shown_elements.register(reduction.ZeroOrNormal)
def _(q: reduction.ZeroOrNormal, keep: Any) -> Shown:
    scale, logits = jnp.where(keep, q.scale, 1.0), jnp.where(keep, q.logits, 0.0)
    included = jnp.broadcast_to(q.inclusion_prob, q.loc.shape)
    return Shown(DiscreteSpikeAndSlab(q.loc, scale, logits), inclusion_prob=included)


class SpikeAndSlabForm(GuideForm):
    """A spike-and-slab posterior, with a third parameter: ``logits``, the log odds of the indicators."""

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`; the indicators are relaxed in a step of training."""
        event_dim = normal.event_dim
        slab = normal.base_dist if event_dim else normal
        start = jnp.log(site.init_inclusion) - jnp.log1p(-site.init_inclusion)
        logits: Any = numpyro.param(
            site.parameter("logits"), jnp.full(jnp.shape(slab.loc), start), event_dim=event_dim
        )
        step, schedule = site.training_step(), site.temperature
        # Without a step, the guide is used for predictions, or trained by NumPyro's own SVI.
        kind = StraightThroughSpikeAndSlab if step is None else RelaxedSpikeAndSlab
        temperature = schedule(0 if step is None else step) if callable(schedule) else schedule
        return kind(slab.loc, slab.scale, logits, temperature).to_event(event_dim)

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`; the indicators are exact."""
        del site
        return DiscreteSpikeAndSlab(parameter("loc"), parameter("scale"), parameter("logits"))


@default_form.register(reduction.ZeroOrNormal)
def _(prior: Any, site: GuideSite) -> SpikeAndSlabForm:
    del prior, site
    return SpikeAndSlabForm()


def spike_and_slab_parameters(fn: dist.Distribution) -> tuple[Array, Array, Array] | None:
    """Return (loc, scale, logits), shaped as the site, of spike-and-slab variables; else None."""
    found = read(fn)
    if not isinstance(found, reduction.ZeroOrNormal):
        return None
    return found.loc, found.scale, found.logits
