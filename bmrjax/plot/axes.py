"""Figures and axes in the style of the library."""

import math
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that readers with any colour vision tell apart (Okabe and Ito, 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
PURPLE, YELLOW, SKY = "#CC79A7", "#E69F00", "#56B4E9"
# Of several runs in one figure, in their order.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, GREY)
TITLES = {"accuracy": "Accuracy", "rmse": "RMSE", "nll": "NLL, nats per data point", "ece": "ECE"}
_TICK, _LABEL, _TITLE = 9, 9.5, 10.5


def log_axis(ax: "Axes", axis: str, *, inches: float = 3.2) -> None:
    """Make an axis logarithmic, with plain numbers at as many ticks as there is room for.

    Call it when everything is drawn.

    Args:
        ax: Whose axis.
        axis: ``"x"`` or ``"y"``.
        inches: Its length.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    which = getattr(ax, f"{axis}axis")
    getattr(ax, f"set_{axis}scale")("log")
    low, high = getattr(ax, f"get_{axis}lim")()
    decades = abs(math.log10(high / low))
    if decades < 0.7:
        which.set_major_locator(MaxNLocator(4))
    elif decades < 0.8 * inches:
        which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        which.set_major_locator(LogLocator(numticks=max(3, int(1.6 * inches))))
    which.set_major_formatter(StrMethodFormatter("{x:,g}"))
    which.set_minor_formatter(NullFormatter())


def new_figure(size: tuple[float, float]) -> "Figure":
    """Return an empty figure that belongs to no window; raise ImportError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"Plots need the package matplotlib ({error}). Install it by pip install 'bmrjax[plots]'."
        ) from None
    return Figure(figsize=size, dpi=120, layout="constrained")


def new_panels(count: int) -> tuple["Figure", list["Axes"]]:
    """Return a figure with so many panels, and their axes."""
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = new_figure((4.2 * columns, 3.2 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    for ax in axes[:count]:
        clean_axes(ax)
    return figure, axes[:count]


def clean_axes(ax: "Axes") -> None:
    """Take off what carries no data, and set the sizes of texts."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=_TICK)
    ax.xaxis.label.set_fontsize(_LABEL)
    ax.yaxis.label.set_fontsize(_LABEL)


def titled(ax: "Axes", title: str, *, inches: float = 3.4) -> None:
    """Set a title at the left, in lines that fit the width of the axes.

    Args:
        ax: The axes.
        title: The text.
        inches: Width of the axes.
    """
    width = max(int(inches * 72 / (0.52 * _TITLE)), 12)
    ax.set_title(textwrap.fill(title, width), fontsize=_TITLE, loc="left")


def true_values(truth: ArrayLike, count: int, what: str, things: str) -> np.ndarray:
    """Return one true value for each row that a plot may have; raise ValueError for another number.

    Args:
        truth: The values.
        count: How many there have to be.
        what: Name of the plot.
        things: Name of what has values.
    """
    values = np.asarray(truth, float).ravel()
    if len(values) != count:
        raise ValueError(f"plot.{what}: truth has {len(values)} values for {count} {things}.")
    return values


def mark_truth(ax: "Axes", values: Iterable[float]) -> None:
    """Mark a true value in each row, with a legend above the axes, where no row is.

    Args:
        ax: The axes.
        values: One per row.
    """
    values = list(values)
    marks = {"marker": "|", "s": 160, "color": "black", "zorder": 4, "label": "truth"}
    ax.scatter(values, range(len(values)), **marks)
    ax.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0))


def rows_height(count: int) -> float:
    """Return the height in inches of a figure with so many rows."""
    return 1.3 + 0.26 * count
