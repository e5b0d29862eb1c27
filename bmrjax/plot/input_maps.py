"""What the first layer of a network reads, as images."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.plot.axes import BLUE, ORANGE, new_figure
from bmrjax.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def first_layer(
    result: Result,
    *inputs: Any,
    site: str | None = None,
    shape: Sequence[int] | None = None,
    most: int = 23,
) -> "Figure":
    """Plot the weights that read an image, one map per unit, and how many are kept at each pixel.

    Args:
        result: With its program.
        *inputs: Arguments of the program, as for `Result.posterior`.
        site: Name of the weights; by default the first judged site with two axes or more.
        shape: Height and width of the image, channels before them if there are several; by default
            a square. For the kernels of a convolution it is theirs.
        most: How many units are drawn at most, those that keep most weights; those without any are not.

    Returns:
        A figure whose first map counts kept weights per pixel; then the posterior means of each unit, blue
        below zero and orange above it, all on one scale. Removed weights are light grey. Of several channels
        the sum is drawn.

    Raises:
        ValueError: If there is no such site, or the shape does not fit it.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> weights = jnp.arange(8.0).reshape(2, 4) - 4
        >>> def program():
        ...     numpyro.sample("net.weight", dist.Normal(jnp.zeros((2, 4)), 1.0).to_event(2))
        >>> def guide():
        ...     numpyro.sample("net.weight", dist.Normal(weights, 0.1).to_event(2))
        >>> result = bmr.Result(
        ...     {}, {"net.weight": weights > -2}, {}, 100, unpruned_model=program, unpruned_guide=guide
        ... )
        >>> [axes.get_title(loc="left") for axes in bmr.plot.first_layer(result).axes[:3]]
        ['kept, of 2', 'unit 1, 4 weights', 'unit 0, 1 weight']
    """
    known = [name for name, mask in result.keep.items() if np.ndim(mask) > 1]
    if site is None and known:
        site = known[0]
    if site not in known:
        raise ValueError(f"plot.first_layer: there are no weights '{site}'; there are {known}.")
    mean = np.asarray(result.posterior(*inputs)[site].loc, np.float64)
    keep = np.asarray(result.keep[site])
    maps, kept = (_as_maps(array, site, shape) for array in (np.where(keep, mean, 0.0), keep))
    counts = kept.reshape(len(kept), -1).sum(1)
    order = [unit for unit in np.argsort(-counts, kind="stable")[:most] if counts[unit]]
    values, shown = maps.sum(1), kept.sum(1) > 0
    columns = min(6, len(order) + 1)
    rows = -(-(len(order) + 1) // columns)
    height, width = values.shape[1:]
    cell = 1.5
    figure = new_figure((cell * columns, (cell * min(max(height / width, 0.4), 2.5) + 0.3) * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    from matplotlib.colors import LinearSegmentedColormap

    signed = LinearSegmentedColormap.from_list("signed", [BLUE, "#F7F7F7", ORANGE])
    colours = signed.with_extremes(bad="#D9D9D9")
    counted = LinearSegmentedColormap.from_list("counted", ["#FFFFFF", BLUE])
    most_kept = max(int(kept.sum((0, 1)).max()), 1)
    axes[0].imshow(kept.sum((0, 1)), cmap=counted, vmin=0, vmax=most_kept)
    axes[0].set_title(f"kept, of {kept.shape[0] * kept.shape[1]}", fontsize=8.5, loc="left")
    largest = float(np.abs(values).max()) or 1.0
    for ax, unit in zip(axes[1:], order, strict=False):
        ax.imshow(
            np.ma.array(values[unit], mask=~shown[unit]), cmap=colours, vmin=-largest, vmax=largest
        )
        weights = "weight" if counts[unit] == 1 else "weights"
        ax.set_title(f"unit {unit}, {counts[unit]:,} {weights}", fontsize=8.5, loc="left")
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_color("#BBBBBB")
    for spare in axes[len(order) + 1 :]:
        spare.remove()
    return figure


def _as_maps(array: np.ndarray, site: str, shape: Sequence[int] | None) -> np.ndarray:
    """Return weights as (units, channels, height, width)."""
    kernel = site.endswith("kernel")  # Flax has the outputs last
    if array.ndim == 4:
        return array.transpose(3, 2, 0, 1) if kernel else array
    if array.ndim != 2:
        raise ValueError(
            f"plot.first_layer: '{site}' has shape {array.shape}; it draws matrices and kernels of images."
        )
    array = array.T if kernel else array
    size = array.shape[1]
    if shape is None:
        side = math.isqrt(size)
        shape = (side, side)
    if len(shape) not in (2, 3) or math.prod(shape) != size:
        raise ValueError(
            f"plot.first_layer: the units of '{site}' read {size} inputs, which are not an image of shape "
            f"{tuple(shape)}; give shape=(height, width), or (channels, height, width)."
        )
    return array.reshape(len(array), -1, *shape[-2:])
