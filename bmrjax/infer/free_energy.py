"""The variational free energy of a fitted program, measured on data."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.infer import TraceMeanField_ELBO

from bmrjax.backend.on_device import floats_on_device, on_device
from bmrjax.backend.quick_compile import quick_jit
from bmrjax.fast_noise import normal_shapes
from bmrjax.handlers import draws, fast_noise, hide_data, inference, prune, scale_elbo
from bmrjax.infer.arguments import Data, Keep, arguments, length
from bmrjax.infer.estimate import drawn_shapes
from bmrjax.infer.loop import STEPS_OF_A_MEASUREMENT, Loop, LoopMode
from bmrjax.infer.placement import Placement

# A VFE that decides averages over at least so many posterior samples: on small data, one pass has so few
# that their noise, not the reduction, would decide which rounds are taken back.
_DRAWS = 100


class FreeEnergy:
    """Measure the variational free energy (negative ELBO) of a program and its guide.

    Args:
        model: NumPyro program.
        guide: Its guide.
        loss: A NumPyro ELBO.
        batch_size: Data at a time; each batch has a fresh posterior sample.
        row_sites: Names of the observed sites with a log density per row, or a mapping from them to the axis
            of the rows; by default those whose log density has an axis as long as the batch.
        loop: See `bmrjax.infer.loop.Loop`.
        placement: Where arrays live; on one device by default.

    Example:
        A posterior that is the prior has no divergence from it; the rest is minus the log likelihood.

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro.infer
        >>> from bmrjax.infer import FreeEnergy
        >>> def program(y):
        ...     w = numpyro.sample("w", dist.Normal(0, 1))
        ...     numpyro.sample("y", dist.Normal(w, 0.5), obs=y)
        >>> def guide(y):
        ...     numpyro.sample("w", dist.Normal(0, 1))
        >>> measure = FreeEnergy(program, guide, loss=numpyro.infer.TraceMeanField_ELBO(), batch_size=10)
        >>> divergence = measure.divergence({}, {}, (jnp.ones(10),), jax.random.key(0))
        >>> abs(divergence), measure({}, {}, (jnp.ones(10),), jax.random.key(1)) > 0
        (0.0, True)
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        *,
        loss: Any,
        batch_size: int,
        row_sites: Collection[str] | None = None,
        loop: LoopMode = "auto",
        placement: Placement | None = None,
    ):
        self._placement = Placement() if placement is None else placement
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide
        self.loss: Any = loss
        self.batch_size: int = batch_size
        self.row_sites = row_sites
        self._loop = Loop(self._step, loop, num_steps=STEPS_OF_A_MEASUREMENT)
        self._each = Loop(self._note, loop, num_steps=STEPS_OF_A_MEASUREMENT)
        self._divergence = quick_jit(self._divergence_on, static_argnames="num_samples")

    def _step(
        self, total: Array, i: Array, params: Any, keep: Keep, data: Data, key: Array
    ) -> Array:
        return total + self.of_batch(i, params, keep, data, key)

    def _note(
        self,
        values: Array,
        i: Array,
        numbers: Array,
        params: Any,
        keep: Keep,
        data: Data,
        key: Array,
    ) -> Array:
        return values.at[i].set(self.of_batch(numbers[i], params, keep, data, key))

    def of_batch(self, i: Array, params: Any, keep: Keep, data: Data, key: Array) -> Array:
        """Return the VFE by one batch, with one posterior sample: an estimate of that of all data, in nats.

        Over the batches of a pass, the mean is that of all rows. To be differentiated and compiled.

        Args:
            i: Number of the batch, which may be of a later pass.
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: All of the data.
            key: PRNG key of all batches.
        """
        rows = length(data)
        size = min(self.batch_size, rows)
        shapes = drawn_shapes(self.loss, self.guide)
        model, guide = (
            inference(prune(self.model, keep)),
            inference(prune(fast_noise(self.guide, shapes=shapes), keep)),
        )
        batch = data
        if size < rows:
            count = -(-rows // size)
            at = i % count
            # The last batch is shifted back to full size; rows that were in the one before count no more.
            start = jnp.minimum(at * size, rows - size)
            batch = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), data)
            is_new = start + jnp.arange(size) >= at * size
            # The mean over the batches of a pass is the sum over the rows.
            weight = jnp.where(is_new, count, 0) * jnp.ones(())
            scaled: dict[str, Any] = {
                "likelihood": weight,
                "subsampled": weight * (size / rows),
                "sites": self.row_sites,
                "rows": size,
            }
            model, guide = scale_elbo(model, **scaled), scale_elbo(guide, **scaled)
        args, kwargs = arguments(self._placement.constrain_rows(batch))
        model, guide = draws(model, size), draws(guide, size)
        key = jax.random.fold_in(key, i)
        with self._placement.tracing():
            return self.loss.loss(key, params, model, guide, *args, **kwargs)

    def __call__(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
        *,
        num_passes: int = 1,
    ) -> float:
        """Return the VFE in nats for all of `data`.

        With the same key, two states are compared under the same random numbers.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: The data, every row of which counts.
            key: PRNG key.
            num_passes: Passes over the data to average over, each with fresh posterior samples.
        """
        batches = num_passes * -(-length(data) // self.batch_size)
        total, key = self._placement.everywhere((jnp.zeros(()), key))
        args = (dict(params), self._placement.parted(dict(keep)), data, key)
        return float(self._loop(total, batches, *args)) / batches

    def num_batches(self, rows: int) -> int:
        """Return of how many batches `measured` is the mean: those of whole passes, a hundred at least."""
        batches = -(-rows // self.batch_size)
        return batches * -(-_DRAWS // batches)

    def measured(self, params: Mapping[str, Any], keep: Keep, data: Data, key: Array) -> float:
        """Return the VFE that decides, in nats for all of `data`: the mean over `by_batch`.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: The data, every row of which counts.
            key: PRNG key; with the same one, states are compared under the same random numbers.
        """
        every = np.arange(self.num_batches(length(data)))
        return float(np.mean(self.by_batch(params, keep, data, key, every)))

    def by_batch(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
        numbers: np.ndarray,
    ) -> np.ndarray:
        """Return what some batches say of the VFE, each in nats for all of `data`; see `of_batch`.

        With the same key, two states are compared batch by batch under the same random numbers.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: All of the data.
            key: PRNG key.
            numbers: Which batches, from 0 to ``num_batches(rows) - 1``; one program serves any of them.
        """
        size = self.num_batches(length(data))
        padded = np.zeros(size, np.int32)
        padded[: len(numbers)] = numbers
        values = floats_on_device(np.zeros(size))
        values, padded, key = self._placement.everywhere((values, on_device(padded), key))
        args = (padded, dict(params), self._placement.parted(dict(keep)), data, key)
        values = self._each(values, len(numbers), *args)
        return np.asarray(values, np.float64)[: len(numbers)]

    def divergence(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
        *,
        num_samples: int = 1,
    ) -> float:
        """Return the divergence of the posterior from the prior, the complexity, in nats.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: The data, of which only the shape counts, unless a prior looks at them.
            key: PRNG key, for sites whose divergence has no closed form.
            num_samples: Posterior samples of theirs to average over.
        """
        args = (dict(params), dict(keep), data, key)
        return float(self._divergence(*args, num_samples=num_samples))

    def _divergence_on(
        self, params: Any, keep: Keep, data: Data, key: Array, *, num_samples: int
    ) -> Array:
        batch = jax.tree.map(lambda a: a[: self.batch_size], data)
        args, kwargs = arguments(batch)
        model = hide_data(inference(prune(self.model, keep)))
        guide = inference(prune(fast_noise(self.guide, shapes=normal_shapes(self.guide)), keep))
        elbo = TraceMeanField_ELBO()

        def once(key: Array) -> Array:
            return jnp.asarray(elbo.loss(key, params, model, guide, *args, **kwargs))

        return jnp.mean(jax.lax.map(once, jax.random.split(key, num_samples)))
