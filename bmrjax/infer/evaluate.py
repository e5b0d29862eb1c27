"""Held-out metrics and predictions from posterior samples, compiled, in batches."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array

from bmrjax import metrics
from bmrjax.backend.on_device import in_precision, on_device
from bmrjax.backend.quick_compile import quick_jit
from bmrjax.handlers import draws, fast_noise, inference, log_density_shape, prune
from bmrjax.infer.arguments import Data, Keep, arguments, length
from bmrjax.infer.check_program import check_observed_shape
from bmrjax.infer.distribution_moments import is_probability, moments_of, of_classes
from bmrjax.infer.draws import is_factor
from bmrjax.infer.loop import STEPS_OF_A_MEASUREMENT, Loop, LoopMode
from bmrjax.infer.masked_values import counted_values
from bmrjax.infer.placement import DATA, Placement
from bmrjax.infer.prediction import LEVELS, Prediction, quantiles_of
from bmrjax.infer.predictive_scores import PredictiveScores
from bmrjax.infer.prepare_guide import prepare_guide
from bmrjax.infer.row_axes import row_axes, with_targets
from bmrjax.infer.row_sites import subsampling
from bmrjax.infer.tracing import sites_of

# What is summed over posterior samples, and not needed as a sum.
_SUMS = {"log_prob", "square", "variance"}
# Draws of one batch that are held at once, in elements: 128 MiB of float32.
_DRAWS = 2**25


class _Seen(NamedTuple):
    """What was seen of a program where it was traced.

    Attributes:
        has_targets: Whether the values of all sites by row are given.
        is_probability: Whether the predicted site is one of classes; None if no site can be predicted.
        site: Its name.
    """

    has_targets: bool = False
    is_probability: bool | None = None
    site: str | None = None


class Evaluator:
    """Draw from the posterior predictive of a program's observed site.

    Args:
        model: NumPyro program.
        guide: Its guide.
        batch_size: Data points evaluated at a time; None for all of them at once.
        loop: See `bmrjax.infer.loop.Loop`.
        placement: Where arrays live; on one device by default.
        latent_sites: Names of the latent sites, where the guide has not met the program yet and they are
            known; see `bmrjax.infer.prepare_guide`.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        *,
        batch_size: int | None = 1000,
        loop: LoopMode = "auto",
        placement: Placement | None = None,
        latent_sites: Collection[str] | None = None,
    ):
        self._latent_sites = latent_sites
        self._placement = Placement() if placement is None else placement
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide
        self.batch_size: int | None = batch_size
        self._loop = Loop(self._add_sample, loop, num_steps=STEPS_OF_A_MEASUREMENT)
        # Of the batch that was last looked at.
        self._seen: _Seen = _Seen()
        self._shapes: dict[Any, Any] = {}

    def _observe(
        self, params: Any, keep: Keep, key: Array, batch: Data, start: Any = 0, *, spread: bool
    ) -> dict[str, Array]:
        """Return what one posterior sample predicts; with `spread`, a variance and a draw too."""
        args, kwargs = arguments(batch)
        guide_key, model_key = jax.random.split(key)
        guide = draws(prune(fast_noise(self.guide), keep), at_mean=True)
        drawn = sites_of(guide, args, kwargs, key=guide_key, values=params)
        program = draws(inference(prune(self.model, keep)), at_mean=True)
        model = numpyro.handlers.replay(program, drawn)
        sites = sites_of(model, args, kwargs, key=model_key, values=params)
        observed = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and name not in drawn
        }
        if not observed:
            raise ValueError("The program has no observed site, so there is nothing to predict.")
        for name, site in observed.items():
            if site["is_observed"]:
                check_observed_shape(name, site["fn"], site["value"], caller="predict")
        rows = length(batch)
        log_probs = {n: site["fn"].log_prob(site["value"]) for n, site in observed.items()}
        parted = subsampling(sites)
        axes = row_axes(self.model, observed, batch, params, subsamples=bool(parted))
        axes = {name: axes[name] for name in with_targets(axes, observed)}
        if not axes:
            for plate, (total, taken) in parted.items():
                raise ValueError(
                    f"The plate '{plate}' takes {taken} of {total} rows itself, so that predictions do not "
                    "belong to the rows that are given: held-out metrics need one per data point. Let the "
                    "plate take all rows here, by subsample_size=None, say."
                )
            shapes = {name: value.shape for name, value in log_probs.items()}
            name, shape = next(iter(shapes.items()))
            raise ValueError(
                f"The observed site '{name}' has log probabilities of shape {shape} for {rows} data points, "
                "and no other site has them by data point: predictions and held-out metrics need one per "
                "data point, along the first or the last axis. Result.predictive draws sites of any shape."
            )
        self._seen = _Seen(all(observed[name]["is_observed"] for name in axes))
        each = [jnp.moveaxis(log_probs[n], axis, 0).reshape(rows, -1) for n, axis in axes.items()]
        found = {"log_prob": jnp.sum(jnp.stack([jnp.sum(part, -1) for part in each]), 0)}
        counted = {
            n: jnp.moveaxis(of_site, axis, 0)
            for n, axis in axes.items()
            if (of_site := _counted(observed[n])) is not None
        }
        if len(counted) == len(axes):
            in_any = [jnp.any(part.reshape(rows, -1), -1) for part in counted.values()]
            found["counted_rows"] = jnp.any(jnp.stack(in_any), 0)
        predicted = [name for name in axes if not is_factor(observed[name]["fn"])]
        if predicted:
            name, site = predicted[0], observed[predicted[0]]
            # One distribution may stand for the values of all rows.
            shape = log_density_shape(site)
            fn = site["fn"] if shape == site["fn"].batch_shape else site["fn"].expand(shape)
            of_class = is_probability(fn)
            self._seen = self._seen._replace(is_probability=of_class, site=name)
            moments = of_classes(fn) if of_class else moments_of(fn)
            if spread or "mean" not in moments:
                # Drawn anew, also where the value is observed, and with other noise in every batch.
                draw_key = jax.random.fold_in(jax.random.fold_in(model_key, 1), start)
                draw = fn.sample(draw_key)
                moments = {"draw": draw, "mean": draw, "variance": jnp.zeros(draw.shape)} | moments
            moments["value"] = site["value"]
            if not spread:
                moments = {part: moments[part] for part in ("mean", "value")}
            found |= {n: jnp.moveaxis(value, axes[name], 0) for n, value in moments.items()}
            if name in counted:
                found["counted"] = counted[name]
        return found

    def _add_sample(
        self,
        carry: dict[str, Array],
        i: Array,
        params: Any,
        keep: Keep,
        key: Array,
        batch: Data,
        start: Array,
    ) -> dict[str, Array]:
        key = jax.random.fold_in(key, i)
        with self._placement.tracing():
            found = self._observe(params, keep, key, batch, start, spread="square" in carry)
        total = {"log_prob": jnp.logaddexp(carry["log_prob"], found["log_prob"])}
        total |= {name: found[name] for name in ("counted", "counted_rows") if name in carry}
        if "value" in carry:
            # Welford's running mean, and sum of squares around it.
            mean = found["mean"].astype(carry["mean"].dtype)
            step = mean - carry["mean"]
            total["mean"] = carry["mean"] + step / (i + 1).astype(step.dtype)
            total["value"] = found["value"]
        if "square" in carry:
            total["square"] = carry["square"] + step * (mean - total["mean"])
            variance = found["variance"].astype(step.dtype)
            total["variance"] = carry["variance"] + variance
        if "draws" in carry:
            total["draws"] = carry["draws"].at[i].set(found["draw"])
        return total

    def _placed(self, batch: Data) -> Data:
        parted = length(batch) % self._placement.size(DATA) == 0
        return self._placement.by_rows(batch) if parted else self._placement.everywhere(batch)

    def _shapes_of(
        self, params: Any, keep: Keep, key: Array, batch: Data, *, spread: bool
    ) -> dict[str, Any]:
        leaves, structure = jax.tree.flatten(batch)
        inputs = (structure, tuple((a.shape, str(a.dtype)) for a in leaves), spread)
        if inputs not in self._shapes:
            observe = functools.partial(self._observe, spread=spread)
            shapes = jax.eval_shape(observe, params, keep, key, batch)
            self._shapes[inputs] = shapes, self._seen
        shapes, self._seen = self._shapes[inputs]
        return shapes

    def _totals(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
        *,
        num_samples: int,
        spread: bool = False,
        levels: tuple[float, ...] = (),
        return_samples: bool = False,
    ) -> dict[str, Any]:
        """Add up the posterior samples, batch by batch, and return what is found for all rows."""
        rows = length(data)
        size = min(self.batch_size or rows, rows)
        params, keep = in_precision(dict(params)), dict(keep)
        batch = jax.tree.map(lambda a: a[:size], data)
        prepare_guide(self.model, self.guide, params, batch, latent_sites=self._latent_sites)
        held = self._placement.parted((params, keep))
        with_draws = bool(levels) or return_samples
        if with_draws:
            first = jax.tree.map(lambda a: a[:size], data)
            shapes = self._shapes_of(params, keep, key, first, spread=spread)
            if "draw" in shapes and self.batch_size is not None:
                per_row = max(num_samples * shapes["draw"].size // size, 1)
                size = min(size, max(_DRAWS // per_row, 1))
        parts: dict[str, list[Any]] = {}
        for begin in range(0, rows, size):
            # The last batch is shifted back to full size, and its overlap dropped.
            first = min(begin, rows - size)
            batch = jax.tree.map(lambda a, f=first: a[f : f + size], data)
            shapes = dict(self._shapes_of(params, keep, key, batch, spread=spread))
            draw = shapes.pop("draw", None)
            # Filled by NumPy, which compiles nothing.
            carry = {name: np.zeros(s.shape, s.dtype) for name, s in shapes.items()}
            carry["log_prob"] = np.full_like(carry["log_prob"], -np.inf)
            # Sums have the type of the means, and are real where those are counts.
            for name in {"mean", "variance"} & set(carry):
                of_sums = jnp.promote_types(shapes["mean"].dtype, jnp.float32)
                carry[name] = carry[name].astype(of_sums)
            if "variance" in carry:
                carry["square"] = np.zeros_like(carry["mean"])
            if draw is not None and with_draws:
                carry["draws"] = np.zeros((num_samples, *draw.shape), draw.dtype)
            carry, start = on_device((carry, np.int32(first)))
            carry, key, start = self._placement.everywhere((carry, key, start))
            found = dict(self._loop(carry, num_samples, *held, key, self._placed(batch), start))
            drawn = found.pop("draws", None)
            if drawn is not None and levels:
                found["at_levels"] = np.moveaxis(
                    np.asarray(quantiles_of(np.asarray(drawn), levels)), 0, 1
                )
            if drawn is not None and return_samples:
                found["samples"] = np.moveaxis(np.asarray(drawn), 0, 1)
            for name, value in found.items():
                parts.setdefault(name, []).append(value[begin - first :])
        joined = {
            name: (np if name in ("samples", "at_levels") else jnp).concatenate(values)
            for name, values in parts.items()
        }
        return joined | _finished({name: joined[name] for name in _SUMS & set(joined)}, num_samples)

    def predict(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
        *,
        num_samples: int,
        levels: Sequence[float] = LEVELS,
        return_samples: bool = False,
    ) -> Prediction:
        """Average the predictive over posterior samples.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: Inputs and targets, as the program takes them.
            key: PRNG key; each sample of the weights is the same for all data.
            num_samples: Posterior samples.
            levels: Of the quantiles; samples are held for one batch at a time.
            return_samples: Whether to return all samples.

        Raises:
            ValueError: If the program has no observed site that can be predicted, or for levels that are
                not between 0 and 1.
        """
        bad = [level for level in levels if not 0 < level < 1]
        if bad:
            raise ValueError(f"predict: levels are between 0 and 1, got {bad}.")
        levels = tuple(float(level) for level in levels)
        found = self._totals(
            params,
            keep,
            data,
            key,
            num_samples=num_samples,
            spread=True,
            levels=levels,
            return_samples=return_samples,
        )
        if "mean" not in found:
            raise ValueError(
                "The likelihood of the program is a numpyro.factor, which has no values to predict. Its log "
                "density is measured by evaluate and free_energy."
            )
        assert self._seen.is_probability is not None
        at_levels, samples = found.get("at_levels"), found.get("samples")
        return Prediction(
            found["mean"],
            found["log_prob"],
            found["value"],
            self._seen.is_probability,
            std=found["std"],
            levels=levels,
            at_levels=None if at_levels is None else jnp.asarray(np.moveaxis(at_levels, 1, 0)),
            samples=None if samples is None else np.moveaxis(samples, 1, 0),
            counted=np.asarray(found["counted"]) if "counted" in found else None,
            site=self._seen.site,
        )

    def metrics(
        self, params: Mapping[str, Any], keep: Keep, data: Data, key: Array, *, num_samples: int
    ) -> dict[str, float]:
        """Return accuracy, NLL and 20-bin ECE for classes, or NLL otherwise, and RMSE if there is a mean.

        Values that the program masks do not count, nor do rows of which all are masked.

        Raises:
            ValueError: For data without targets, or if all rows are masked.
        """
        return self.scores(params, keep, data, key, num_samples=num_samples)[0]

    def scores(
        self, params: Mapping[str, Any], keep: Keep, data: Data, key: Array, *, num_samples: int
    ) -> PredictiveScores:
        """Return what `metrics` returns, and what it is the mean of."""
        found = self._totals(params, keep, data, key, num_samples=num_samples)
        log_prob = found["log_prob"]
        if not self._seen.has_targets:
            raise ValueError(
                "The data have no targets, so there is nothing to compare predictions with. Give them as to "
                "sparsify, such as (x, y); predict takes inputs alone."
            )
        if "counted_rows" in found:
            log_prob = log_prob[np.asarray(found["counted_rows"])]
            if not len(log_prob):
                raise ValueError(
                    "All rows are masked by the program, so there is nothing to score."
                )
        result = {"nll": metrics.negative_log_likelihood(log_prob)}
        probs = labels = None
        if "mean" in found:
            mean, value = found["mean"], found["value"]
            if "counted" in found:
                counted = np.asarray(found["counted"])
                mean, value = mean[counted], value[counted]
            if self._seen.is_probability:
                probs, labels = mean, value.astype(jnp.int32)
                result["accuracy"] = metrics.accuracy(probs, labels)
                result["ece"] = metrics.expected_calibration_error(probs, labels)
            else:
                error = metrics.root_mean_squared_error(mean, value)
                if bool(jnp.isfinite(error)):  # a Cauchy likelihood has no mean
                    result["rmse"] = error
        numbers = {name: float(value) for name, value in result.items()}
        return PredictiveScores(numbers, log_prob, probs, labels)


@quick_jit
def _finished(sums: dict[str, Array], num_samples: int) -> dict[str, Array]:
    """Return what sums over posterior samples come to: the log mean density, and the standard deviation."""
    found = {"log_prob": sums["log_prob"] - jnp.log(num_samples)}
    if "square" in sums:
        found["std"] = jnp.sqrt((sums["square"] + sums["variance"]) / num_samples)
    return found


def _counted(site: Mapping[str, Any]) -> Array | None:
    return counted_values(site["fn"], jnp.shape(site["value"]))
