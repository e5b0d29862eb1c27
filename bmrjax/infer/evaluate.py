"""Held-out metrics and predictions from posterior samples, compiled, in batches."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array

from bmrjax import metrics
from bmrjax.handlers import draws, fast_noise, inference, prune
from bmrjax.infer.arguments import Data, Keep, arguments, length
from bmrjax.infer.loop import Loop, LoopMode
from bmrjax.infer.placement import DATA, Placement
from bmrjax.infer.prepare import prepare_guide
from bmrjax.infer.tracing import sites_of

_CLASSES = (
    dist.CategoricalLogits,
    dist.CategoricalProbs,
    dist.BernoulliLogits,
    dist.BernoulliProbs,
)


class Prediction(NamedTuple):
    """The posterior predictive of an observed site, averaged over posterior samples.

    Attributes:
        mean: Class probabilities (data, classes) for a categorical or Bernoulli site, else the
            predictive mean, shaped as the site. The data are the first axis, also of a site that
            has them last.
        log_prob: Log predictive density of the observed values, nats a datum; (data,).
        value: The observed values.
        is_probability: Whether `mean` holds class probabilities.
    """

    mean: Array
    log_prob: Array
    value: Array
    is_probability: bool


class Evaluator:
    """Draw from the posterior predictive of a program's observed site.

    Args:
        model: NumPyro program.
        guide: Its guide.
        batch_size: Data evaluated at a time.
        loop: See `bmrjax.infer.loop.Loop`.
        placement: Where arrays live; on one device by default.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        *,
        batch_size: int = 1000,
        loop: LoopMode = "auto",
        placement: Placement | None = None,
    ):
        self._placement = Placement() if placement is None else placement
        self.model, self.guide, self.batch_size = model, guide, batch_size
        self._loop = Loop(self._add_sample, loop)
        self._kind: tuple[str, bool] | None = None
        self._shapes: dict[Any, Any] = {}

    def _observe(
        self, params: Any, keep: Keep, key: Array, batch: Data
    ) -> tuple[Array, Array, Array]:
        args, kwargs = arguments(batch)
        guide_key, model_key = jax.random.split(key)
        guide = draws(prune(fast_noise(self.guide), keep), at_mean=True)
        drawn = sites_of(guide, args, kwargs, key=guide_key, values=params)
        program = draws(inference(prune(self.model, keep)), at_mean=True)
        model = numpyro.handlers.replay(program, drawn)
        observed = {
            name: site
            for name, site in sites_of(model, args, kwargs, key=model_key, values=params).items()
            if site["type"] == "sample" and name not in drawn
        }
        if not observed:
            raise ValueError("The program has no observed site, so there is nothing to predict.")
        rows = length(batch)
        log_probs = {n: site["fn"].log_prob(site["value"]) for n, site in observed.items()}
        each = [_by_datum(n, value, rows) for n, value in log_probs.items()]
        log_prob = jnp.sum(jnp.stack(each), 0)
        name, site = next(iter(observed.items()))
        base = site["fn"]
        while isinstance(base, dist.ExpandedDistribution | dist.MaskedDistribution):
            base = base.base_dist
        is_probability = isinstance(base, _CLASSES)
        mean: Any = base.probs if is_probability else site["fn"].mean
        if isinstance(base, dist.BernoulliLogits | dist.BernoulliProbs):
            mean = jnp.stack([1 - mean, mean], -1)
        self._kind = (name, is_probability)
        axis = _data_axis(name, log_probs[name], rows)
        return log_prob, jnp.moveaxis(mean, axis, 0), jnp.moveaxis(site["value"], axis, 0)

    def _add_sample(
        self,
        carry: tuple[Array, Array, Array],
        i: Array,
        params: Any,
        keep: Keep,
        key: Array,
        batch: Data,
    ) -> tuple[Array, Array, Array]:
        log_sum, mean_sum, _ = carry
        key = jax.random.fold_in(key, i)
        with self._placement.tracing():
            log_prob, mean, value = self._observe(params, keep, key, batch)
        return jnp.logaddexp(log_sum, log_prob), mean_sum + mean, value

    def _placed(self, batch: Data) -> Data:
        parted = length(batch) % self._placement.size(DATA) == 0
        return self._placement.by_rows(batch) if parted else self._placement.everywhere(batch)

    def _zeros(
        self, params: Any, keep: Keep, key: Array, batch: Data
    ) -> tuple[Array, Array, Array]:
        inputs = tuple((a.shape, str(a.dtype)) for a in jax.tree.leaves(batch))
        if inputs not in self._shapes:
            self._shapes[inputs] = jax.eval_shape(self._observe, params, keep, key, batch)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self._shapes[inputs])

    def predict(
        self, params: Mapping[str, Any], keep: Keep, data: Data, key: Array, *, num_samples: int
    ) -> Prediction:
        """Average the predictive over posterior samples.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks a site.
            data: Inputs and targets, as the program takes them.
            key: PRNG key; each sample of the weights is the same for all data.
            num_samples: Posterior samples.
        """
        rows = length(data)
        size = min(self.batch_size, rows)
        logs, means, values = [], [], []
        params, keep = dict(params), dict(keep)
        held = self._placement.parted((params, keep))
        prepare_guide(self.model, self.guide, params, jax.tree.map(lambda a: a[:size], data))
        for begin in range(0, rows, size):
            # The last batch is shifted back to full size, and its overlap dropped.
            first = min(begin, rows - size)
            batch = jax.tree.map(lambda a, f=first: a[f : f + size], data)
            log_sum, mean_sum, value = self._zeros(params, keep, key, batch)
            carry = (jnp.full_like(log_sum, -jnp.inf), mean_sum, value)
            carry, key = self._placement.everywhere((carry, key))
            args = (*held, key, self._placed(batch))
            log_sum, mean_sum, value = self._loop(carry, num_samples, *args)
            fresh = begin - first
            logs.append(log_sum[fresh:])
            means.append(mean_sum[fresh:])
            values.append(value[fresh:])
        assert self._kind is not None
        log_prob = jnp.concatenate(logs) - jnp.log(num_samples)
        mean = jnp.concatenate(means) / num_samples
        return Prediction(mean, log_prob, jnp.concatenate(values), self._kind[1])

    def metrics(
        self, params: Mapping[str, Any], keep: Keep, data: Data, key: Array, *, num_samples: int
    ) -> dict[str, float]:
        """Return accuracy, NLL and 20-bin ECE for classes, or NLL otherwise, and RMSE if there is a mean."""
        prediction = self.predict(params, keep, data, key, num_samples=num_samples)
        result = {"nll": metrics.negative_log_likelihood(prediction.log_prob)}
        if prediction.is_probability:
            labels = prediction.value.astype(jnp.int32)
            result["accuracy"] = metrics.accuracy(prediction.mean, labels)
            result["ece"] = metrics.expected_calibration_error(prediction.mean, labels)
        else:
            error = metrics.root_mean_squared_error(prediction.mean, prediction.value)
            if bool(jnp.isfinite(error)):  # a Cauchy likelihood has no mean
                result["rmse"] = error
        return {name: float(value) for name, value in result.items()}


def _by_datum(name: str, log_prob: Array, rows: int) -> Array:
    axis = _data_axis(name, log_prob, rows)
    return jnp.moveaxis(log_prob, axis, 0).reshape(rows, -1).sum(-1)


def _data_axis(name: str, log_prob: Array, rows: int) -> int:
    for axis in (0, log_prob.ndim - 1):
        if log_prob.ndim and log_prob.shape[axis] == rows:
            return axis
    raise ValueError(
        f"The observed site '{name}' has log probabilities of shape {log_prob.shape} for {rows} "
        "data: held-out metrics need one a datum, along the first or the last axis."
    )
