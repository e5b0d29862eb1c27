"""The mean-field guide that `sparsify` uses by default."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float
from numpyro.infer.autoguide import AutoNormal
from numpyro.primitives import Messenger

from bmrjax.families import (
    GuideForm,
    GuideSite,
    NormalForm,
    PerDatum,
    asked_form,
    atoms_are_known,
    default_form,
    is_real,
    read,
    read_as_stored,
)
from bmrjax.handlers import current_masks, known_masks, noise_draws, training_step
from bmrjax.infer.arguments import Keep
from bmrjax.infer.init import init_to_network
from bmrjax.infer.log_scale import log_scale
from bmrjax.infer.readable_guide import ReadableGuide

Temperature = float | optax.Schedule


class AutoMeanField(ReadableGuide, AutoNormal):
    """A factorised guide: normal on the real line, spike-and-slab where the prior is.

    It is `numpyro.infer.autoguide.AutoNormal`, started at the network, with scales that are learned
    as logarithms: one exponential an element, where the softplus takes four with its derivative. A
    site of `bmrjax.distributions.DiscreteSpikeAndSlab` gets a spike-and-slab posterior with log odds of its
    own for every element; its indicators are relaxed while training, and exact everywhere else, so
    that predictions and the measured VFE are those of the discrete model. Its divergence is that of the
    discrete variables, which `TraceMeanField_ELBO` takes; a loss of densities, such as `Trace_ELBO`, has
    no gradient for them. In NumPyro's own `SVI`, draws are exact with the gradients of relaxed ones.

    A site with a gamma prior, a precision say, gets a log-normal posterior, or a gamma one if the
    program asks for it: ``numpyro.sample("precision", dist.Gamma(1, 1), infer={"posterior":
    "gamma"})``. Of that, the parameter ``loc`` is the logarithm of the mean, and ``scale`` the
    standard deviation over the mean. A site that asks for ``"laplace"`` gets a Laplace posterior, one
    that asks for ``"point"`` a point estimate, and one that asks for ``"collapsed"`` that of
    `families.CollapsedForm`. The noise
    of a `nn.MultiplicativeNoise` gets a truncated log-normal posterior, whose parameters are those of
    ln θ.

    Args:
        model: NumPyro program.
        prefix: Of the guide's parameters.
        init_loc_fn: Where each site starts.
        init_scale: Standard deviation that each site starts with, but where the program specifies
            ``infer={"init_scale": ...}``, as `priors.Flat` does with ``collapsed=True``.
        init_inclusion: Probability that each spike-and-slab indicator starts with.
        temperature: Of the relaxation: a number, or an optax schedule of the training step.

    Example:
        In NumPyro's own SVI:

        >>> import jax, numpyro, numpyro.distributions as dist, optax
        >>> from numpyro.infer import SVI, TraceMeanField_ELBO
        >>> from bmrjax.infer import AutoMeanField
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 2))
        >>> guide = AutoMeanField(program)
        >>> svi = SVI(program, guide, optax.adabelief(0.02), TraceMeanField_ELBO())
        >>> fit = svi.run(jax.random.key(1), 500, x, 2.0 * x[:, 0], progress_bar=False)
        >>> guide.median(fit.params)["w"].round(1)[0]
        Array(2., dtype=float32)
        >>> guide.posterior(fit.params, {})["w"].scale.round(2)
        Array([0.06, 0.06], dtype=float32)

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
        self.init_inclusion: float = init_inclusion
        self.temperature = temperature
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

    @classmethod
    def with_params(cls, params: Mapping[str, Any]) -> Callable[[Callable], Any] | None:
        """See `ReadableGuide.with_params`."""
        return cls if any(name.endswith("_auto_loc") for name in params) else None

    def site_posterior(self, name: str, fn: Any) -> dist.Distribution:
        """Return the posterior of a site, given the independent normals `fn` that it starts from."""
        return self._form(name).distribution(self._site(name), fn)

    def posterior(self, params: Mapping[str, Any], keep: Keep) -> dict[str, Any]:
        """Return the family of the posterior of each latent site that has one; see `ReadableGuide`."""
        with known_masks(keep):
            fitted = self._of_sites(dict(params))
        return {name: q for name in self._readable() if (q := read(fitted[name])) is not None}

    def _readable(self) -> list[str]:
        """Return the names of the sites whose posterior on the real line is that of the site itself."""
        trace: Any = self.prototype_trace
        with atoms_are_known():
            return [
                name
                for name in self._init_locs
                if is_real(trace[name]["fn"]) or isinstance(trace[name]["fn"], PerDatum)
            ]

    def _site(self, name: str, params: Mapping[str, Array] | None = None) -> GuideSite:
        trace: Any = self.prototype_trace
        return GuideSite(
            name,
            trace[name]["fn"],
            self.prefix,
            self.init_inclusion,
            self.temperature,
            training_step,
            noise_draws,
            trace[name].get("infer", {}),
            functools.partial(self._normal_of, name, params),
        )

    def _normal_of(
        self, precision: str, params: Mapping[str, Array] | None, name: str
    ) -> tuple[Any, Any, Any]:
        """Return loc and scale of a site, fitted or those of the guide that runs, and its mask."""
        self._check_scaled(precision, name)
        loc, scale = (f"{name}_{self.prefix}_{part}" for part in ("loc", "scale"))
        if params is not None:
            found: tuple[Any, Any] = params[loc], params[scale]
        else:
            init = self._init_locs[name]
            start = jnp.full(jnp.shape(init), self._init_scale)
            found = (
                numpyro.param(loc, init),
                numpyro.param(scale, start, constraint=self.scale_constraint),
            )
        return *found, current_masks().get(name, True)

    def _check_scaled(self, precision: str, name: str) -> None:
        """Refuse a site that a precision with a collapsed posterior cannot be that of."""
        trace: Any = self.prototype_trace
        subject = (
            f"AutoMeanField: site '{precision}' has a collapsed posterior, and scales '{name}'"
        )
        if name not in self._init_locs:
            raise ValueError(
                f"{subject}, which is not a latent site of the program: it has "
                f"{sorted(self._init_locs)[:5]}. A site that is observed or conditioned cannot be scaled so; "
                "inside a scope, give infer={'name': ...}, the precision's own name, too."
            )
        scaled, own = trace[name], trace[precision]
        if type(self._form(name)) is not NormalForm or not is_real(scaled["fn"]):
            raise ValueError(f"{subject}, whose posterior is not normal on the real line.")
        plates = own["cond_indep_stack"]
        if not plates and not own["fn"].shape():
            return
        is_part = any(
            frame.size != self._prototype_frame_full_sizes[frame.name] for frame in plates
        )
        if is_part or own["fn"].shape() != scaled["fn"].batch_shape:
            raise ValueError(
                f"{subject}; then both are in the same plates, without subsampling, or the precision is in "
                f"none. It has shape {own['fn'].shape()}, and the other {scaled['fn'].batch_shape}."
            )

    def _form(self, name: str) -> GuideForm:
        """Return how the posterior of a site is written."""
        trace: Any = self.prototype_trace
        site, asked = self._site(name), trace[name].get("infer", {}).get("posterior")
        return asked_form(asked, site) if asked else default_form(read_as_stored(site.prior), site)

    def starting_scale(self, param: str) -> float | None:
        """Return what a parameter for a scale starts with, if site or form say; None for any other."""
        name = param.removesuffix(f"_{self.prefix}_scale")
        if name == param or name not in self._init_locs:
            return None
        trace: Any = self.prototype_trace
        start = trace[name].get("infer", {}).get("init_scale")
        if start is None:
            return self._form(name).starting_scale
        if isinstance(start, int | float) and not start > 0:
            raise ValueError(
                f"AutoMeanField: site '{name}' has infer={{'init_scale': {start}}}; it must be positive."
            )
        return start

    def _of_sites(self, params: dict[str, Array]) -> dict[str, dist.Distribution]:
        found: dict[str, dist.Distribution] = {}
        for name in self._init_locs:
            site = self._site(name, params)
            parameter = functools.partial(_parameter, params, site)
            found[name] = self._form(name).unconstrained(site, parameter)
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


def _parameter(params: Mapping[str, Array], site: GuideSite, part: str) -> Array:
    return params[site.parameter(part)]


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
