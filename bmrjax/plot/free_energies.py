"""Predicted against measured free energy."""

from typing import TYPE_CHECKING

import numpy as np

from bmrjax.judge.free_energy_report import FreeEnergyReport
from bmrjax.plot.axes import BLUE, GREEN, GREY, ORANGE, PURPLE, clean_axes, new_panels, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def free_energy(report: FreeEnergyReport) -> "Figure":
    """Plot predicted against actual VFE over the pruning rate, and the orders against each other.

    Args:
        report: From `bmrjax.free_energy_report`, with the order ``"bmr"``.

    Returns:
        A figure with two panels: along the largest ΔF, what was predicted and what was measured, with
        a dotted line where the criterion stops; and the VFE (solid) with its part from the data
        (dashed) by each order: by ΔF, by the ratio of mean to standard deviation (signal to noise), by
        their sum (`criteria.SignalPlusRobustness`) and by the mean alone (magnitude). Where curves shoot up,
        with the last elements, the axes cut them off.

    Raises:
        ValueError: If the report has no curve for ``"bmr"``.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> gone = np.arange(3)
        >>> curve = bmr.FreeEnergyCurve(gone, 9.0 - gone, 9.0 - 0.5 * gone, 5.0 + gone)
        >>> report = bmr.FreeEnergyReport({"bmr": curve}, 2, 1, 8.5, 10)
        >>> [axes.get_title(loc="left") for axes in bmr.plot.free_energy(report).axes]
        ['Largest ΔF first', 'VFE (solid), its part from the data (dashed)']

    References:
        Beckers et al. (2024), figures 2 and 3.
    """
    if "bmr" not in report.curves:
        raise ValueError("plot.free_energy: the report has no curve 'bmr'; leave it in `orders`.")
    figure, (left, right) = new_panels(2)
    colours = dict(zip(report.curves, (BLUE, ORANGE, GREEN, PURPLE), strict=False))
    main, rates = report.curves["bmr"], {}
    for name, curve in report.curves.items():
        rates[name] = curve.removed / max(report.num_kept, 1)
    left.plot(rates["bmr"], main.predicted, "--", color=GREY, label="predicted by ΔF")
    left.plot(rates["bmr"], main.actual, color=BLUE, label="measured")
    stop = f"criterion stops: {report.rate:.1%}"
    left.axvline(report.rate, color="black", linestyle=":", linewidth=1, label=stop)
    titled(left, "Largest ΔF first")
    for name, curve in report.curves.items():
        label = {"bmr": "ΔF", "snr": "signal to noise", "spr": "mean plus deviation"}.get(
            name, name
        )
        right.plot(rates[name], curve.actual, color=colours[name], label=label)
        right.plot(rates[name], curve.expected_nll, "--", color=colours[name], linewidth=1)
    titled(right, "VFE (solid), its part from the data (dashed)")
    values = np.concatenate([c.actual for c in report.curves.values()])
    inner = np.concatenate([c.expected_nll for c in report.curves.values()])
    low, start = min(np.nanmin(values), np.nanmin(inner), np.min(main.predicted)), report.start
    margin = 0.5 * max(start - low, 1e-6)
    for ax in (left, right):
        ax.set_ylim(low - 0.1 * margin, start + margin)
        ax.set_xlabel("Fraction removed, of what was kept")
        ax.set_ylabel("nats")
        ax.legend(frameon=False, fontsize=9)
        clean_axes(ax)
    return figure
