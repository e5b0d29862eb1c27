"""Posterior scales from the curvature at a point: the diagonal of the Fisher information, in one pass."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.infer import TraceMeanField_ELBO
from numpyro.primitives import Messenger

from bmrjax.backend.noise import normal_noise
from bmrjax.backend.quick_compile import quick_jit
from bmrjax.backend.random_keys import split_keys
from bmrjax.families import inside
from bmrjax.handlers import draws, fast_noise, hide_data, inference, prune, scale_elbo
from bmrjax.infer.arguments import Data, Keep, arguments, first_rows, length
from bmrjax.infer.engine import Engine
from bmrjax.infer.loop import STEPS_OF_A_MEASUREMENT, Loop, LoopMode
from bmrjax.infer.normal_sites import NormalSite
from bmrjax.infer.placement import Placement
from bmrjax.infer.tracing import is_latent, sites_of

# The square of a gradient has one degree of freedom: a mean over so many is right to 9 %, a scale to 5 %.
_GRADIENTS = 256
# Factors on the variances that are tried, and the batches on which they are.
_FACTORS = np.concatenate([[0.0], 0.25 ** np.arange(10.0)[::-1]])
_TRIALS = 16


class Curvature:
    """Measure the posterior scales of normal sites at their means.

    Targets are drawn from the program itself at the means. Then the gradients of different rows are
    independent with mean zero, so the square of a batch's gradient estimates the sum of theirs: the diagonal
    of the Fisher information, which is the diagonal of the Gauss-Newton matrix for classes and for normal
    targets. A scale is √τ (curvature / `kl_weight` + prior precision)^(−1/2): with τ = 1, the optimum of the
    mean-field free energy where that is quadratic. Where the sum of so many independent errors would be
    felt (their optimum may cost a large network its accuracy), τ is the largest power of 1/4 at which the
    expected log likelihood, measured on the data, is at most 0.01 nats per data point, or 20 nats in all,
    below that at the means.

    Args:
        model: NumPyro program.
        guide: Its guide.
        num_data: Number of data in the whole set.
        batch_size: Data at a time.
        row_sites: Names of the observed sites with a log density per row, by default all that have one.
        kl_weight: Factor on the divergence.
        loop: See `bmrjax.infer.loop.Loop`.
        placement: Where arrays live.

    Example:
        The scales of a conjugate regression, (sum of squares / noise variance + prior precision)^(-1/2):

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro.infer, optax
        >>> from bmrjax.infer import AutoMeanField, Curvature, Engine
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (1000, 2))
        >>> engine = Engine(
        ...     program, AutoMeanField(program), optimizer=optax.adam(0.01), num_data=1000,
        ...     batch_size=10, loss=numpyro.infer.TraceMeanField_ELBO(),
        ... )
        >>> state = engine.init(jax.random.key(1), (x, x[:, 0]))
        >>> params, data = engine.constrain(state), (x, x[:, 0])
        >>> sites, keep = engine.normal_sites(params, data), {"w": jnp.ones(2, bool)}
        >>> found = Curvature.of(engine)(sites, params, keep, data, jax.random.key(2))
        >>> {name: scale.round(3) for name, scale in found.items()}
        {'w_auto_scale': Array([0.015, 0.015], dtype=float32)}

    References:
        Kunstner, Balles and Hennig (2019), why targets are drawn; Liu et al. (2024), the square of a
        batch's gradient.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        *,
        num_data: int,
        batch_size: int,
        row_sites: Collection[str] | None = None,
        kl_weight: float = 1.0,
        loop: LoopMode = "auto",
        placement: Placement,
    ):
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide
        self.num_data: int = num_data
        self.batch_size: int = batch_size
        self.row_sites: Collection[str] | None = row_sites
        self.kl_weight: float = kl_weight
        self._placement = placement
        self._loop = Loop(self._step, loop, num_steps=STEPS_OF_A_MEASUREMENT)
        self._trials = Loop(self._trial, loop, num_steps=STEPS_OF_A_MEASUREMENT)
        self._precisions = quick_jit(self._prior_precisions)

    @classmethod
    def of(cls, engine: Engine) -> "Curvature":
        """Return the curvature of an engine's program."""
        return cls(
            engine.model,
            engine.guide,
            num_data=engine.num_data,
            batch_size=engine.batch_size,
            row_sites=engine.row_sites,
            kl_weight=engine.kl_weight,
            loop=engine.loop,
            placement=engine.placement,
        )

    def __call__(
        self,
        sites: Sequence[NormalSite],
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
    ) -> dict[str, Array]:
        """Return the scales by the names of their parameters.

        Args:
            sites: The sites that are wanted.
            params: Constrained parameters and mutable sites; scales of the sites are not used.
            keep: Masks by site.
            data: All data, or some rows of them, of which batches are drawn.
            key: PRNG key.

        Raises:
            ValueError: If no observed site can be drawn from the program.
        """
        if not sites:
            return {}
        of_name = {site.name: params[site.loc] for site in sites}
        zeros = self._placement.parted(jax.tree.map(jnp.zeros_like, of_name))
        names = _Names(tuple((site.name, site.loc) for site in sites))
        placed = self._placement.parted((dict(params), dict(keep)))
        squares = self._loop(
            zeros, _GRADIENTS, names, *placed, data, self._placement.everywhere(key)
        )
        scales = {site.scale: params[site.scale] for site in sites}
        batch = first_rows(data, min(self.batch_size, length(data)))
        priors = self._precisions(scales, dict(params), batch, key)
        scales = {
            site.scale: (squares[site.name] / (_GRADIENTS * self.kl_weight) + priors[site.scale])
            ** -0.5
            for site in sites
        }
        factor = self._largest(names, sites, {**params, **scales}, keep, data, key) ** 0.5
        return {name: factor * scale for name, scale in scales.items()}

    def _largest(
        self,
        names: "_Names",
        sites: Sequence[NormalSite],
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
    ) -> float:
        """Return the largest factor on the variances that the log likelihood hardly feels."""
        of_site = {site.name: params[site.scale] for site in sites}
        placed = self._placement.parted((dict(params), dict(keep), of_site))
        start = self._placement.everywhere((jnp.zeros(len(_FACTORS)), key))
        total = self._trials(start[0], _TRIALS, names, *placed, data, start[1])
        logs = np.asarray(total) / _TRIALS
        good = logs >= logs[0] - max(0.01 * self.num_data, 20.0)
        # All up to the first that costs too much; the first factor is zero.
        count = len(good) if good.all() else int(np.argmin(good))
        return float(_FACTORS[max(count - 1, 1)])

    def _step(
        self,
        total: dict[str, Array],
        i: Array,
        names: "_Names",
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
    ) -> dict[str, Array]:
        factor = (self.num_data / min(self.batch_size, length(data))) ** 0.5
        with self._placement.tracing():
            at = self._batch(params, keep, names, data, jax.random.fold_in(key, i))

            def log_likelihood(shift: Mapping[str, Array]) -> Array:
                # The square of the gradient is taken, so the scale of the rows is the root.
                return self._log_likelihood(at, shift, factor, draw=True)

            zeros = {name: jnp.zeros_like(params[loc]) for name, loc in names.pairs}
            gradient = jax.grad(log_likelihood)(zeros)
        return jax.tree.map(lambda t, g: t + g**2, total, gradient)

    def _trial(
        self,
        total: Array,
        i: Array,
        names: "_Names",
        params: Mapping[str, Any],
        keep: Keep,
        scales: Mapping[str, Array],
        data: Data,
        key: Array,
    ) -> Array:
        factor = self.num_data / min(self.batch_size, length(data))
        key = jax.random.fold_in(key, i)
        with self._placement.tracing():
            at = self._batch(params, keep, names, data, key)
            keys = split_keys(jax.random.fold_in(key, 1), len(names.pairs))
            noise = {
                name: scales[name] * normal_noise(k, scales[name].shape, scales[name].dtype)
                for k, (name, _) in zip(keys, names.pairs, strict=True)
            }

            def one(tau: Array) -> Array:
                shift = jax.tree.map(lambda x: jnp.sqrt(tau).astype(x.dtype) * x, noise)
                return self._log_likelihood(at, shift, factor, draw=False)

            found = jax.lax.map(one, jnp.asarray(_FACTORS, total.dtype))
        return total + found

    def _batch(
        self, params: Mapping[str, Any], keep: Keep, names: "_Names", data: Data, key: Array
    ) -> "_At":
        """Return a random batch, and the latent sites at their means, others drawn."""
        rows = length(data)
        size = min(self.batch_size, rows)
        draw, latent, chosen = jax.random.split(key, 3)
        batch = data
        if size < rows:
            at = jax.random.randint(chosen, (size,), 0, rows)
            batch = jax.tree.map(lambda a: jnp.take(a, at, axis=0, mode="clip"), data)
        batch = self._placement.constrain_rows(batch)
        guide = prune(fast_noise(self.guide), keep)
        found = sites_of(guide, *arguments(batch), key=latent, values=params)
        values = {name: site["value"] for name, site in found.items() if is_latent(site)}
        values |= {name: params[loc] for name, loc in names.pairs}
        return _At(batch, {**params, **values}, keep, draw, latent)

    def _log_likelihood(
        self, at: "_At", shift: Mapping[str, Array], factor: float, *, draw: bool
    ) -> Array:
        size = length(at.batch)
        model = inference(prune(self.model, at.keep))
        if size < self.num_data:
            model = scale_elbo(model, likelihood=factor, sites=self.row_sites, rows=size)
        model = draws(model, size, at_mean=True)
        if draw:
            model = _Redrawn(model, at.draw)
        given = {**at.values, **{name: at.values[name] + x for name, x in shift.items()}}
        found = sites_of(model, *arguments(at.batch), key=at.key, values=given)
        observed = [
            s
            for s in found.values()
            if s["type"] == "sample" and s["is_observed"] and not (draw and _is_fixed(s["fn"]))
        ]
        if not observed:
            raise ValueError(
                "start: scales are taken from the curvature, for which targets are drawn from the program, "
                "and it has no observed site that can be drawn. Start from a fit that has scales."
            )
        scales = [1.0 if s["scale"] is None else s["scale"] for s in observed]
        logs = [s["fn"].log_prob(s["value"]) for s in observed]
        return sum((jnp.sum(x * y) for x, y in zip(scales, logs, strict=True)), jnp.zeros(()))

    def _prior_precisions(
        self, scales: Mapping[str, Array], params: Mapping[str, Any], batch: Data, key: Array
    ) -> dict[str, Array]:
        """Return s⁻² (1 + ∂KL/∂ln s), which for a normal prior is its precision, at any s."""
        args, kwargs = arguments(batch)

        def divergence(log_scales: Mapping[str, Array]) -> Any:
            moved = {name: jnp.exp(x) for name, x in log_scales.items()}
            model = hide_data(inference(self.model))
            return TraceMeanField_ELBO().loss(
                key, {**params, **moved}, model, inference(self.guide), *args, **kwargs
            )

        gradient = jax.grad(divergence)({name: jnp.log(s) for name, s in scales.items()})
        least = 1e-6  # a scale is at most a thousand times what it was
        return {name: jnp.maximum(1 + g, least) / scales[name] ** 2 for name, g in gradient.items()}


class _At(NamedTuple):
    """A batch, and the values of latent sites and parameters for it."""

    batch: Data
    values: dict[str, Any]
    keep: Keep
    draw: Array
    key: Array


@jax.tree_util.register_static
class _Names:
    """Names of sites and of the parameters of their means, which are no arrays."""

    def __init__(self, pairs: tuple[tuple[str, str], ...]):
        self.pairs = pairs

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Names) and other.pairs == self.pairs


class _Redrawn(Messenger):
    """Draw the observed values of a program anew, as constants of the gradient."""

    def __init__(self, fn: Callable, key: Array):
        self._key = key
        self._count = 0
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace an observed value."""
        if msg["type"] != "sample" or not msg["is_observed"] or _is_fixed(msg["fn"]):
            return
        self._count += 1
        drawn = msg["fn"].sample(jax.random.fold_in(self._key, self._count))
        like = jnp.result_type(msg["value"])
        msg["value"] = jax.lax.stop_gradient(jnp.asarray(drawn).astype(like))


def _is_fixed(fn: Any) -> bool:
    base = inside(fn, (dist.Distribution,))
    return isinstance(base, dist.Unit | dist.ImproperUniform | dist.Delta)
