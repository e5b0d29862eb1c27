"""A result as a tree of data sets, the format of ArviZ."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpyro
from jaxtyping import Array

from bmrjax import __version__
from bmrjax.handlers import draws, inference
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.draws import log_likelihoods, model_draws, posterior_draws
from bmrjax.run.element_names import AxisNames, named_axes

if TYPE_CHECKING:
    from xarray import DataTree

_SAMPLE = ("chain", "draw")


def data_tree(
    result: Any, key: Array, data: Data, *, num_samples: int, prior_samples: int
) -> "DataTree":
    """Return draws of a fitted program as an `xarray.DataTree`; see `Result.to_arviz`.

    Args:
        result: A result with its program.
        key: PRNG key.
        data: Arguments of the program; ``()`` for none.
        num_samples: Draws from the posterior.
        prior_samples: Draws from the prior; 0 for none.
    """
    try:
        import xarray as xr
    except ImportError as error:
        raise ImportError(
            f"to_arviz needs the package xarray ({error}). Install it by pip install 'bmrjax[arviz]'."
        ) from None
    model, guide, params = result.unpruned_model, result.unpruned_guide, result.params
    keep = result.keep
    draw_key, model_key, prior_key = jax.random.split(key, 3)
    latents = posterior_draws(guide, params, keep, draw_key, num_samples, data)
    groups: dict[str, dict[str, Any]] = {"posterior": dict(latents)}
    if data:
        drawn, fixed = model_draws(model, latents, params, keep, model_key, data)
        groups["posterior"] |= fixed
        densities, observed = log_likelihoods(model, latents, params, keep, data)
        if observed:
            groups["posterior_predictive"] = {n: drawn[n] for n in observed if n in drawn}
            groups["log_likelihood"] = densities
            groups["observed_data"] = observed
        else:
            groups["predictions"] = drawn
    if prior_samples:
        groups["prior"] = _prior(model, latents, prior_key, data, prior_samples)
    groups["masks"] = dict(keep)
    names = _Names(result, {n: v.shape[1:] for n, v in groups["posterior"].items()})
    tree = {}
    for group, values in groups.items():
        if not values:
            continue
        variables, coords = {}, {}
        for name, value in values.items():
            array = np.asarray(value)
            if group not in ("observed_data", "masks"):
                array = array[None]  # one chain
            dims, labels = names.of(name, array.shape, group)
            variables[name] = (dims, array)
            coords |= labels
        tree[group] = xr.Dataset(variables, coords=coords, attrs=_attributes())
    return xr.DataTree.from_dict(tree)


class _Names:
    """The names of dimensions, the same in all groups, and their coordinates."""

    def __init__(self, result: Any, shapes: Mapping[str, tuple[int, ...]]):
        self._axes: dict[str, list[AxisNames]] = named_axes(
            shapes, result.columns, result.class_names
        )

    def of(
        self, name: str, shape: tuple[int, ...], group: str
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        has_draws = group not in ("observed_data", "masks")
        inner = shape[2:] if has_draws else shape
        dims = [f"{name}_dim_{i}" for i in range(len(inner))]
        labels: dict[str, Any] = {d: np.arange(n) for d, n in zip(dims, inner, strict=True)}
        for dim, axis in zip(dims, self._axes.get(name, []), strict=False):
            if axis is not None:
                labels[dim] = list(axis)
        if has_draws:
            labels |= {d: np.arange(n) for d, n in zip(_SAMPLE, shape[:2], strict=True)}
        return ((*_SAMPLE, *dims) if has_draws else tuple(dims)), labels


def _prior(
    model: Any, latents: Mapping[str, Array], key: Array, data: Data, num_samples: int
) -> dict[str, Array]:
    """Draw the latent sites from the prior of the program, with all of its elements."""

    @jax.jit
    def run(key: Array, data: Data) -> dict[str, Array]:
        args, kwargs = arguments(data)
        program = draws(inference(model), at_mean=True)
        names = list(latents)
        predictive = numpyro.infer.Predictive(program, num_samples=num_samples, return_sites=names)
        found: Any = predictive(key, *args, **kwargs)
        return found

    return run(key, data)


def _attributes() -> dict[str, str]:
    return {"inference_library": "bmrjax", "inference_library_version": __version__}
