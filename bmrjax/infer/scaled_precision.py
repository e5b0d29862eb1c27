"""How much the correlations are worth that a factorised posterior leaves out."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from numpyro.distributions.transforms import IdentityTransform

from bmrjax.infer.arguments import Data, Keep, length
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.normal_sites import NormalSite, normal_sites
from bmrjax.infer.spectral_sum import SpectralSum, spectral_sum

# Eigenvalues of the scaled precision are 1 where the fit has converged and nothing is correlated. Below this
# one, noise of the posterior samples counts for more than curvature.
_FLOOR = 1e-3
# All eigenvalues are computed for so many elements.
EXACT_UP_TO = 256
# Products at a time.
_COLUMNS = 32


class ScaledPrecision:
    """M = S Λ S around the means of a factorised posterior, of the elements that are kept.

    Λ is the Hessian of the expected negative log joint, S the posterior's standard deviations. Only products
    are computed: each is the derivative of a gradient along a direction, summed over all batches.

    Args:
        measure: Of the free energy.
        sites: Whose means are moved; the others stay.
        num_samples: Posterior samples that Λ is averaged over, at least.
    """

    def __init__(self, measure: FreeEnergy, sites: list[NormalSite], *, num_samples: int):
        self._measure = measure
        self.sites: list[NormalSite] = sites
        self._num_samples = num_samples
        self._products = jax.jit(self._along, static_argnames="batches")

    def overcharge(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        key: Array,
        *,
        num_probes: int,
        num_steps: int,
    ) -> tuple[SpectralSum, int]:
        """Return ½ tr (M − I − ln M) in nats, and of how many elements.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: The data, every row of which counts.
            key: PRNG key, of the posterior samples and the probes.
            num_probes: See `spectral_sum`.
            num_steps: See `spectral_sum`.
        """
        locs = {site.loc: jnp.asarray(params[site.loc]) for site in self.sites}
        scales, kept = (
            {site.loc: jnp.broadcast_to(of(site), locs[site.loc].shape) for site in self.sites}
            for of in (lambda site: params[site.scale], lambda site: keep.get(site.name, True))
        )
        where = np.flatnonzero(np.asarray(ravel_pytree(kept)[0]))
        scale = np.asarray(ravel_pytree(scales)[0], np.float64)[where][:, None]
        rest = {name: value for name, value in params.items() if name not in locs}
        count = -(-length(data) // self._measure.batch_size)
        batches = count * -(-self._num_samples // count)
        flat = ravel_pytree(locs)[0]

        def product(vectors: np.ndarray) -> np.ndarray:
            found = []
            for begin in range(0, vectors.shape[1], _COLUMNS):
                some = vectors[:, begin : begin + _COLUMNS]
                full = np.zeros((some.shape[1], flat.size))
                full[:, where] = (scale * some).T
                along = jnp.asarray(full, flat.dtype)
                rows = self._products(along, locs, rest, dict(keep), data, key, batches=batches)
                found.append(scale * np.asarray(rows, np.float64)[:, where].T)
            return np.concatenate(found, axis=1)

        words = np.asarray(jax.random.key_data(key)).ravel().astype(np.uint32)
        total = spectral_sum(
            product,
            len(where),
            lambda x: 0.5 * (x - 1 - np.log(x)),
            rng=np.random.default_rng(words),
            num_probes=num_probes,
            num_steps=num_steps,
            floor=_FLOOR,
            exact_up_to=EXACT_UP_TO,
        )
        return total, len(where)

    def _along(
        self,
        vectors: Array,
        locs: Any,
        rest: Any,
        keep: Any,
        data: Any,
        key: Array,
        *,
        batches: int,
    ) -> Array:
        """Return the derivative of the gradient along each of some directions."""
        unflatten = ravel_pytree(locs)[1]

        def gradient(i: Array, locs: Any) -> Any:
            of = self._measure.of_batch
            return jax.grad(lambda at: of(i, {**rest, **at}, keep, data, key))(locs)

        def one(vector: Array) -> Array:
            direction = unflatten(vector)

            def add(i: Array, total: Any) -> Any:
                found = jax.jvp(lambda at: gradient(i, at), (locs,), (direction,))[1]
                return jax.tree.map(jnp.add, total, found)

            total = jax.lax.fori_loop(0, batches, add, jax.tree.map(jnp.zeros_like, locs))
            return ravel_pytree(total)[0] / batches

        return jax.vmap(one)(vectors)


def moved_sites(guide: Callable, params: Mapping[str, Any], batch: Data) -> list[NormalSite]:
    """Return the sites whose posterior is a function of a normal with a location and a scale of its own."""
    identity = {name: IdentityTransform() for name in params}
    return normal_sites(guide, params, identity, batch, transformed=True)
