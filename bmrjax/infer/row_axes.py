"""The axes of log densities that stand for the rows of the data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from bmrjax.handlers import draws, inference, log_density_shape, row_axis
from bmrjax.infer.arguments import Data, arguments, length
from bmrjax.infer.draws import is_factor
from bmrjax.infer.init import at_start
from bmrjax.infer.tracing import sites_of


def row_axes(
    model: Callable,
    observed: Mapping[str, Mapping[str, Any]],
    batch: Data,
    params: Mapping[str, Any],
    *,
    subsamples: bool = False,
) -> dict[str, int]:
    """Return the axis of the rows in the log density of each observed site that has one, the first or last.

    It is as long as the data. Where another axis, or that of another site, may be so long by chance (three
    outputs of three rows), the program is traced once more, with one row more: the axis of the rows grows.

    Args:
        model: NumPyro program.
        observed: Its observed sites, as NumPyro describes them, by name.
        batch: Its arguments.
        params: Its parameters.
        subsamples: Whether a plate of the program takes some rows itself; these do not grow.
    """
    rows = length(batch)
    shapes = {name: log_density_shape(site) for name, site in observed.items()}
    found = {n: axis for n, s in shapes.items() if (axis := row_axis(s, rows)) is not None}
    twice = any(len(shapes[n]) > 1 and shapes[n][0] == shapes[n][-1] for n in found)
    if not (twice or len(found) > 1 or (found and subsamples)):
        return found
    if not jax.tree.leaves(batch):
        return found  # the program reads the values of all arrays, so none can grow
    more = _with_a_row_more(model, batch, params)
    if more is None or any(len(more.get(n, ())) != len(shapes[n]) for n in found):
        return found
    return {
        name: grown[0]
        for name in found
        if (
            grown := [
                axis
                for axis in dict.fromkeys((0, len(shapes[name]) - 1))
                if shapes[name][axis] == rows and more[name][axis] == rows + 1
            ]
        )
    }


def with_targets(names: Iterable[str], sites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sites that have values, factors among them; where none has, those that are predicted.

    Args:
        names: Of sites with an axis of rows that the guide does not draw.
        sites: As NumPyro describes them, by name.
    """
    given = [name for name in names if sites[name]["is_observed"]]
    if any(not is_factor(sites[name]["fn"]) for name in given):
        return given
    # A discrete site that the loss sums over is latent.
    return [
        name
        for name in names
        if name in given or not (sites[name].get("infer") or {}).get("enumerate")
    ]


def _with_a_row_more(
    model: Callable, batch: Data, params: Mapping[str, Any]
) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of the log densities of all sites for one row more; None if there are none."""
    shapes: dict[str, tuple[int, ...]] = {}

    def look(batch: Data) -> None:
        program = draws(inference(at_start(model)), at_mean=True)
        for name, site in sites_of(program, *arguments(batch), values=params).items():
            if site["type"] == "sample":
                shapes[name] = log_density_shape(site)

    longer = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((a.shape[0] + 1, *a.shape[1:]), a.dtype), batch
    )
    try:
        jax.eval_shape(look, longer)
    except Exception:  # a program of a fixed number of rows may raise anything for another one
        return None
    return shapes
