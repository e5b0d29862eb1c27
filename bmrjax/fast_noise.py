"""A handler that draws the normal latent sites of a guide by few, fast hashes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.infer.autoguide import AutoNormal
from numpyro.primitives import Messenger

from bmrjax.backend.noise import normal_noises, with_fast_noise

# Other sites beyond so many have their keys one from the other, as without this handler.
_KEYS = 64


class fast_noise(Messenger):
    """Draw normal latent sites by `bmrjax.backend.noise`, which is faster than JAX's generator.

    Where the shapes of sites are known, their noise is drawn by one hash for all of them. Other sites have
    their keys from one, rather than each from the one before. That is less to compile, and fewer kernels.

    Args:
        fn: A NumPyro guide or program.
        shapes: Shapes of the normals from which latent sites are drawn, by name; see `normal_shapes`. A
            site of another shape is drawn by itself.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> from bmrjax import handlers
        >>> def program():
        ...     return numpyro.sample("w", dist.Normal(2.0, 0.5).expand([10_000]).to_event(1))
        >>> w = numpyro.handlers.seed(handlers.fast_noise(program), jax.random.key(0))()
        >>> w.mean().round(1), w.std().round(1)  # other numbers of the same distribution
        (Array(2., dtype=float32), Array(0.5, dtype=float32))
    """

    def __init__(
        self,
        fn: Callable | None = None,
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ):
        self.shapes: dict[str, tuple[int, ...]] = dict(shapes or {})
        self._noise: dict[str, Array] = {}
        self._keys: Iterator[Array] = iter(())
        super().__init__(fn)

    def __enter__(self) -> "fast_noise":
        super().__enter__()
        key = numpyro.prng_key()
        self._noise, self._keys = {}, iter(())
        if key is not None:
            keys = jax.random.split(key, 1 + len(self.shapes) + _KEYS)
            self._noise = normal_noises(keys[0], self.shapes) if self.shapes else {}
            self._keys = map(keys.__getitem__, range(1, len(keys)))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._noise, self._keys = {}, iter(())  # they may be of a trace that is over
        super().__exit__(*raised)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Put the faster sampler in place of the site's own."""
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        if msg["kwargs"].get("rng_key") is None:
            msg["kwargs"]["rng_key"] = next(self._keys, None)
        msg["fn"] = with_fast_noise(msg["fn"], self._noise.get(msg["name"]))


def normal_shapes(guide: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the normals from which a guide draws its sites, by name; none where unknown.

    A site in a plate that subsamples is left out: it has a location for each of all rows, and few are drawn.

    Args:
        guide: A NumPyro guide that has been run once.
    """
    if not isinstance(guide, AutoNormal) or guide.prototype_trace is None:
        return {}
    sites = guide.prototype_trace

    def is_whole(name: str, loc: Array) -> bool:
        return loc.dtype == jnp.float32 and loc.shape == jnp.shape(sites[name]["value"])

    return {name: loc.shape for name, loc in guide._init_locs.items() if is_whole(name, loc)}
