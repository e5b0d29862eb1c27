"""The mean-field guide that `sparsify` uses by default."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoNormal
from numpyro.primitives import Messenger

from bmrjax.distributions import (
    LogGamma,
    PerDatum,
    RelaxedSpikeAndSlab,
    SpikeAndSlab,
    StraightThroughSpikeAndSlab,
    TruncatedLogNormal,
    atoms_are_known,
    center,
    elementwise,
    spike_and_slab_parameters,
)
from bmrjax.handlers import noise_draws, training_step
from bmrjax.infer.init import init_to_network
from bmrjax.infer.log_scale import log_scale

# Noise starts all but at one, with what a network has learned intact.
_NOISE_SCALE = math.exp(-5)

Temperature = float | optax.Schedule


class AutoMeanField(AutoNormal):
    """A factorised guide: normal on the real line, spike-and-slab where the prior is.

    It is `numpyro.infer.autoguide.AutoNormal`, started at the network, with scales that are learned
    as logarithms: one exponential an element, where the softplus takes four with its derivative. A
    site of `bmrjax.distributions.SpikeAndSlab` gets a spike-and-slab posterior with log odds of its
    own for every element; its indicators are relaxed while training, and exact everywhere else, so
    that predictions and the measured VFE are those of the discrete model. Its divergence is that of the
    discrete variables, which `TraceMeanField_ELBO` takes; a loss of densities, such as `Trace_ELBO`, has
    no gradient for them. In NumPyro's own `SVI`, draws are exact with the gradients of relaxed ones.

    A site with a gamma prior, a precision say, gets a log-normal posterior, or a gamma one if the
    program asks for it: ``numpyro.sample("precision", dist.Gamma(1, 1), infer={"posterior":
    "gamma"})``. Of that, the parameter ``loc`` is the logarithm of the mean, and ``scale`` the
    standard deviation over the mean. A site that asks for ``"point"`` gets a point estimate. The noise
    of a `nn.MultiplicativeNoise` gets a truncated log-normal posterior, whose parameters are those of
    ln θ.

    Args:
        model: NumPyro program.
        prefix: Of the guide's parameters.
        init_loc_fn: Where each site starts.
        init_scale: Standard deviation that each site starts with.
        init_inclusion: Probability that each spike-and-slab indicator starts with.
        temperature: Of the relaxation: a number, or an optax schedule of the training step.

    References:
        Marković, Friston and Kiebel (2024), equation 8; Bai, Song and Cheng (2020).
    """

    scale_constraint = log_scale

    def __init__(
        self,
        model: Callable,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_network,
        init_scale: float = 0.1,
        init_inclusion: float = 0.9,
        temperature: Temperature = 0.5,
        create_plates: Callable | None = None,
    ):
        if not 0 < init_inclusion < 1:
            raise ValueError(
                f"AutoMeanField: init_inclusion must be between 0 and 1, got {init_inclusion}."
            )
        if not callable(temperature) and not temperature > 0:
            raise ValueError(f"AutoMeanField: temperature must be positive, got {temperature}.")
        self.init_inclusion, self.temperature = init_inclusion, temperature
        super().__init__(
            model,
            prefix=prefix,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            create_plates=create_plates,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Sample every latent site."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        with _InPlace(self), atoms_are_known():
            return super().__call__(*args, **kwargs)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        with atoms_are_known():
            super()._setup_prototype(*args, **kwargs)

    def site_posterior(self, name: str, fn: Any) -> dist.Distribution:
        """Return the posterior of a site, given the independent normals `fn` that it starts from."""
        trace: Any = self.prototype_trace
        if isinstance(prior := trace[name]["fn"], PerDatum):
            return _noise_posterior(prior, elementwise(fn.base_dist))
        family = self._asked(name)
        if family == "point":
            return dist.Delta(center(fn), event_dim=fn.event_dim)
        if family == "gamma":
            event_dim = fn.event_dim
            normal: Any = elementwise(fn.base_dist)
            return dist.Gamma(*_gamma_parameters(normal.loc, normal.scale)).to_event(event_dim)
        spiked = spike_and_slab_parameters(trace[name]["fn"]) is not None
        return self.with_spike(name, fn) if spiked else fn

    def sites_of(self, family: str) -> set[str]:
        """Return the names of the sites that ask for a posterior, once the guide has met its model."""
        return {name for name in self._init_locs if self._asked(name) == family}

    def _asked(self, name: str) -> str | None:
        """Return the family of posterior that a site asks for."""
        trace: Any = self.prototype_trace
        family = trace[name].get("infer", {}).get("posterior")
        if family in (None, "point"):
            return family
        if family != "gamma":
            raise ValueError(
                f"AutoMeanField: site '{name}' asks for a posterior {family!r}; there is 'gamma', for "
                "positive sites, and 'point'. Without infer={'posterior': ...} it is normal on the real line."
            )
        if elementwise(trace[name]["fn"]).support is not constraints.positive:
            raise ValueError(
                f"AutoMeanField: site '{name}' asks for a gamma posterior, and its prior is not on the "
                "positive numbers. Give it a Gamma prior, or take infer={'posterior': 'gamma'} away."
            )
        return family

    def spike_and_slab_sites(self) -> set[str]:
        """Return the names of the spike-and-slab sites, once the guide has met its model."""
        trace: Any = self.prototype_trace
        return {
            name
            for name, site in trace.items()
            if site["type"] == "sample"
            and not site["is_observed"]
            and spike_and_slab_parameters(site["fn"]) is not None
        }

    def starting_scale(self, param: str) -> float | None:
        """Return what the parameter of a noise site's scale starts with; None for any other parameter."""
        trace: Any = self.prototype_trace
        name = param.removesuffix(f"_{self.prefix}_scale")
        is_noise = name != param and name in trace and isinstance(trace[name]["fn"], PerDatum)
        return _NOISE_SCALE if is_noise else None

    def with_spike(self, name: str, slab: Any) -> dist.Distribution:
        """Return the spike-and-slab posterior of a site around its normal slab."""
        event_dim = slab.event_dim
        normal = slab.base_dist if event_dim else slab
        start = jnp.log(self.init_inclusion) - jnp.log1p(-self.init_inclusion)
        logits: Any = numpyro.param(
            f"{name}_{self.prefix}_logits",
            jnp.full(jnp.shape(normal.loc), start),
            event_dim=event_dim,
        )
        step, schedule = training_step(), self.temperature
        # Without a step, the guide is used for predictions, or trained by NumPyro's own SVI.
        kind = StraightThroughSpikeAndSlab if step is None else RelaxedSpikeAndSlab
        temperature = schedule(0 if step is None else step) if callable(schedule) else schedule
        return kind(normal.loc, normal.scale, logits, temperature).to_event(event_dim)

    def _of_sites(self, params: dict[str, Array]) -> dict[str, dist.Distribution]:
        spiked, gammas = self.spike_and_slab_sites(), self.sites_of("gamma")
        points = self.sites_of("point")
        found: dict[str, dist.Distribution] = {}
        for name in self._init_locs:
            loc, scale = (params[f"{name}_{self.prefix}_{part}"] for part in ("loc", "scale"))
            if (bounds := noise_bounds(self, name)) is not None:
                found[name] = _OnTheLine(loc, scale, *bounds)
            elif name in points:
                found[name] = _Point(loc)
            elif name in gammas:  # on the real line, as the others
                found[name] = LogGamma(*_gamma_parameters(loc, scale))
            elif name in spiked:
                found[name] = SpikeAndSlab(loc, scale, params[f"{name}_{self.prefix}_logits"])
            else:
                found[name] = dist.Normal(loc, scale)
        return found

    def _margins_of_sites(self, params: dict[str, Array]) -> dict[str, dist.Distribution]:
        return self._of_sites(params)

    def sample_posterior(
        self,
        rng_key: Array,
        params: dict[str, Array],
        *args: Any,
        sample_shape: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draw from the posterior, indicators exact; see NumPyro's `AutoGuide`."""
        sites = self._of_sites(params)
        keys = jax.random.split(rng_key, len(sites))
        latent = {
            name: fn.sample(key, sample_shape)
            for key, (name, fn) in zip(keys, sites.items(), strict=True)
        }
        return self._constrained(latent)

    def median(self, params: dict[str, Array]) -> dict[str, Array]:
        """Return the median of each latent variable."""
        return self._constrained(
            {n: fn.icdf(jnp.array(0.5)) for n, fn in self._margins_of_sites(params).items()}
        )

    def quantiles(
        self, params: dict[str, Array], quantiles: Float[Array, " q"]
    ) -> dict[str, Array]:
        """Return quantiles of each latent variable, along a leading axis."""
        levels = jnp.asarray(quantiles)
        latent = {
            name: fn.icdf(levels.reshape((-1,) + (1,) * len(fn.batch_shape)))
            for name, fn in self._margins_of_sites(params).items()
        }
        return self._constrained(latent)

    def _constrained(self, latent: dict[str, Any]) -> dict[str, Array]:
        with atoms_are_known():
            values: Any = self._constrain(latent)
        return values


def _gamma_parameters(loc: Array, scale: Array) -> tuple[Array, Array]:
    """Return concentration and rate of a gamma distribution with mean exp(loc)."""
    concentration = 1 / jnp.square(scale)
    return concentration, concentration * jnp.exp(-loc)


def _noise_posterior(prior: PerDatum, on_the_line: Any) -> PerDatum:
    """Return the posterior of multiplicative noise, drawn as the handlers around the guide want it."""
    bounds: Any = prior.base_dist
    posterior = TruncatedLogNormal(on_the_line.loc, on_the_line.scale, bounds.low, bounds.high)
    asked = noise_draws()
    return PerDatum(
        posterior,
        num_data=asked.num_data if prior.is_per_datum else None,
        at_mean=asked.at_mean,
        kl_weight=prior.kl_weight,
    )


def noise_bounds(guide: Any, name: str) -> tuple[Array, Array] | None:
    """Return the bounds of ln θ, if a guide that has met its model has a noise site of this name."""
    trace = getattr(guide, "prototype_trace", None) or {}
    prior = trace[name]["fn"] if name in trace else None
    if not isinstance(prior, PerDatum):
        return None
    bounds: Any = prior.base_dist
    return bounds.low, bounds.high


class _OnTheLine(TruncatedLogNormal):
    """The logarithm of multiplicative noise."""

    support: Any = constraints.real

    def icdf(self, q: Any) -> Array:
        return jnp.log(super().icdf(q))  # draws are quantiles too


class _Point(dist.Delta):
    """A point, all of whose quantiles it is."""

    def icdf(self, q: Any) -> Array:
        return jnp.broadcast_to(self.v, jnp.broadcast_shapes(jnp.shape(q), jnp.shape(self.v)))


class _InPlace(Messenger):
    """Put the guide's own posteriors in place of the normal ones of its base class."""

    def __init__(self, guide: AutoMeanField):
        self._guide = guide
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "param":
            start = self._guide.starting_scale(msg["name"])
            if start is not None:
                msg["args"] = (jnp.full_like(msg["args"][0], start), *msg["args"][1:])
        if msg["type"] == "sample":
            msg["fn"] = self._guide.site_posterior(msg["name"], msg["fn"])
