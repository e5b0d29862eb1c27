"""Figures and axes in the style of the library."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that readers with any colour vision tell apart (Okabe and Ito, 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
PURPLE = "#CC79A7"
TITLES = {"accuracy": "Accuracy", "rmse": "RMSE", "nll": "NLL, nats per data point", "ece": "ECE"}


def log_axis(ax: "Axes", axis: str) -> None:
    """Make an axis logarithmic, with plain numbers at its ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    which = getattr(ax, f"{axis}axis")
    getattr(ax, f"set_{axis}scale")("log")
    which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
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
    """Take off what carries no data."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)
