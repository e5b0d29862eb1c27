"""What the weights of a fitted network are: posterior means, their distribution, the first layer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

import bmrjax as bmr
from bmrjax.files import write_atomically
from bmrjax.infer.posterior import central_values

LEVELS = np.linspace(0.0, 1.0, 101)
# Units that a heat map shows at most: of more, those with the largest weights, largest first.
MOST_UNITS = 24

Layers = dict[str, dict[str, np.ndarray]]


def posterior_means(
    network: Any, prior: bmr.priors.Prior, result: bmr.Result, key: Any, *, num_draws: int = 64
) -> Layers:
    r"""Return the posterior mean of every weight on the weight's own scale.

    A weight is a scale times what its site holds, w = γ ŵ, and a factorised posterior has
    E[w] = E[γ] E[ŵ]. The second factor is read off the guide; the first (the layer's scale, the
    horseshoe's) is averaged over posterior draws, as the centre of a wide log-normal is not its
    mean. With ŵ at its mean, the draws add no noise of its own, and what was removed is exactly 0.

    Args:
        network: The network of the program, as ``"net"``.
        prior: The prior of its weights.
        result: Of the fit.
        key: PRNG key of the draws.
        num_draws: Draws of the scales.

    Returns:
        Layer path to tensor name to means, in the order of the network.
    """

    def values() -> Any:
        return bmr.random_module("net", network, prior).values

    guide: Any = result.unpruned_guide
    centre = central_values(guide, result.params, (), {}, {})
    with numpyro.handlers.trace() as trace, numpyro.handlers.substitute(data=centre):
        at_centre = values()
    tensors = [name for name, site in trace.items() if "layer" in site.get("infer", {})]
    fixed = {
        name: jnp.where(result.keep[name], centre[name], 0.0)
        if name in result.keep
        else centre[name]
        for name in tensors
    }

    def draw(key: Any, params: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
        fitted = numpyro.handlers.substitute(guide, data=dict(params))
        drawn = numpyro.handlers.seed(fitted, key)()
        known = numpyro.handlers.substitute(values, data={**drawn, **fixed})
        return numpyro.handlers.seed(known, key)()

    @jax.jit
    def mean(key: Any, params: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, at_centre)

        def add(total: Any, key: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, draw(key, params, fixed)), None

        total, _ = jax.lax.scan(add, zeros, jax.random.split(key, num_draws))
        return jax.tree.map(lambda s: s / num_draws, total)

    found = jax.tree.map(np.asarray, mean(key, dict(result.params), fixed))
    # A compiled program returns its dicts sorted by name.
    return {path: dict(found[path]) for path in at_centre}


def quantiles(means: Layers) -> dict[str, list[float]]:
    """Return the quantiles of |posterior mean| at `LEVELS` for each layer, all tensors together."""
    found = {}
    for path, tensors in means.items():
        sizes = np.abs(np.concatenate([np.ravel(mean) for mean in tensors.values()]))
        found[path] = [float(f"{q:.4g}") for q in np.quantile(sizes, LEVELS)]
    return found


def first_layer(means: Layers, input_shape: tuple[int, ...]) -> np.ndarray:
    """Return the weights of the first layer as pictures: all units, or the largest."""
    weight = next(t["weight"] for t in means.values() if t["weight"].ndim > 1)
    if weight.ndim == 2:
        channels, *sides = input_shape
        if weight.shape[1] == channels * sides[0] * sides[1]:
            weight = weight.reshape(-1, *input_shape)
        else:
            # A patch is flattened with its channels last.
            side = round((weight.shape[1] / channels) ** 0.5)
            weight = np.moveaxis(weight.reshape(-1, side, side, channels), -1, 1)
    if len(weight) > MOST_UNITS:
        norms = np.square(weight).sum(axis=(1, 2, 3))
        weight = weight[np.argsort(-norms, kind="stable")[:MOST_UNITS]]
    return weight.astype(np.float16)


def name_of(row: Mapping[str, Any]) -> str:
    """Return the name under which a row's first layer is stored."""
    return f"{row['data']}/{row['network']}/{row['method']}"


def store(directory: Path, name: str, units: np.ndarray) -> None:
    """Put an array into ``DIR/first_layer.npz``, which is complete or not there."""
    stored = {**load(directory), name: units}
    path = directory / "first_layer.npz"
    write_atomically(path, lambda staged: np.savez_compressed(staged, allow_pickle=False, **stored))


def load(directory: Path) -> dict[str, np.ndarray]:
    """Return what `store` has put there."""
    path = directory / "first_layer.npz"
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}
