"""What each layer keeps."""

from typing import TYPE_CHECKING

import numpy as np

from bmrjax.plot.axes import BLUE, clean_axes, new_figure, titled
from bmrjax.run.page_words import short_names
from bmrjax.run.result import Result
from bmrjax.trained.network_reduction import NetworkReduction
from bmrjax.trained.unit_reduction import UnitReduction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sparsity_per_layer(result: Result | NetworkReduction | UnitReduction) -> "Figure":
    """Plot the removed fraction of each layer, with the number of elements that it keeps.

    Args:
        result: Of a run with masks, or of `bmrjax.reduce_network`: its arrays, or with ``units=True`` its
            kinds of units.

    Returns:
        A figure with one horizontal bar per layer, the first layer on top.

    Raises:
        ValueError: If the result has no masks.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> keep = {"w": jnp.array([True, False, False, True])}
        >>> figure = bmr.plot.sparsity_per_layer(bmr.Result({}, keep, {"w": "first layer"}, 10))
        >>> figure.axes[0].get_title(loc="left")
        'Sparsity 50.0%: 2 of 4 kept'
    """
    kept = _kept(result)
    names = list(kept)
    stay, all_of_them = (sum(counts) for counts in zip(*kept.values(), strict=True))
    fractions = [1 - left / total for left, total in kept.values()]
    rows = range(len(names))
    figure = new_figure((8.0, 1.3 + 0.4 * len(names)))
    ax = figure.subplots()
    ax.barh(rows, fractions, color=BLUE, height=0.7)
    ax.barh(rows, [1 - f for f in fractions], left=fractions, color="#DDDDDD", height=0.7)
    for i, (left, total) in enumerate(kept.values()):
        ax.text(1.01, i, f"{left:,} of {total:,} kept", va="center", color="#333333", fontsize=9)
    ax.set_yticks(rows, short_names(names))
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("Fraction removed")
    units = "units " if isinstance(result, UnitReduction) else ""
    gone = 1 - stay / all_of_them
    titled(ax, f"Sparsity {gone:.1%}: {stay:,} of {all_of_them:,} {units}kept", inches=5.0)
    clean_axes(ax)
    ax.spines["left"].set_visible(False)
    ax.tick_params(left=False)
    return figure


def _kept(result: Result | NetworkReduction | UnitReduction) -> dict[str, tuple[int, int]]:
    """Return how many elements of each layer are kept, and how many there were."""
    if isinstance(result, UnitReduction):
        rows = result.layers().itertuples(index=False)
        return {str(units): (int(after), int(before)) for units, before, after in rows}
    masks = result.masks if isinstance(result, NetworkReduction) else result.keep
    layers = {} if isinstance(result, NetworkReduction) else result.layers
    if not masks:
        raise ValueError(
            "sparsity_per_layer: this result has no masks, so there is nothing to plot."
        )
    kept: dict[str, tuple[int, int]] = {}
    for name, mask in masks.items():
        layer = layers.get(name, name)
        left, total = kept.get(layer, (0, 0))
        kept[layer] = (left + int(np.asarray(mask).sum()), total + mask.size)
    return kept
