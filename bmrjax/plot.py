"""Pictures of a run. Each function returns a matplotlib figure."""

from typing import Any

from bmrjax.result import Result

# Okabe and Ito's palette: told apart by colour-blind readers.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_NAMES = {"accuracy": "accuracy", "nll": "NLL, nats a datum", "ece": "ECE", "rmse": "RMSE"}


def _subplots(rows: int, columns: int, **options: Any) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("Plots need matplotlib: pip install 'bmrjax[plots]'.") from None
    figure = Figure(layout="constrained", **options)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(visible=True, alpha=0.25)
    return figure, axes


def learning_curves(result: Result) -> Any:
    """Plot VFE, held-out metrics and weights kept over epochs; epochs taken back are pale.

    Args:
        result: A run.

    Returns:
        A matplotlib figure.
    """
    history = result.history
    scores = [name for name in _NAMES if any(name in row for row in history)]
    panels = ["vfe", *scores, *(["kept"] if result.keep else [])]
    figure, axes = _subplots(1, len(panels), figsize=(3.2 * len(panels), 2.9))
    for axis, panel in zip(axes[0], panels, strict=True):
        points = [
            (
                row["epoch"],
                row[panel] / (result.num_data if panel == "vfe" else 1),
                row["taken_back"],
            )
            for row in history
            if panel in row
        ]
        kept = [(x, y) for x, y, back in points if not back]
        back = [(x, y) for x, y, gone in points if gone]
        axis.plot(*zip(*kept, strict=True), color=_BLUE, marker=".", ms=4, lw=1.2)
        if back:
            axis.plot(
                *zip(*back, strict=True), ".", color=_ORANGE, alpha=0.4, ms=5, label="taken back"
            )
            axis.legend(frameon=False, fontsize=8)
        title = {"vfe": "VFE, nats a datum (training)", "kept": "weights kept"}.get(panel)
        axis.set_title(title or f"{_NAMES[panel]} (held out)", fontsize=9)
        axis.set_xlabel("epoch")
        if panel == "kept":
            axis.set_yscale("log")
        if panel == "vfe":
            low, values = min(y for _, y in kept), sorted(y for _, y in kept)
            high = values[int(0.9 * (len(values) - 1))]
            axis.set_ylim(low - 0.05 * (high - low), high + 0.3 * (high - low) + 1e-6)
    return figure


def sparsity_per_layer(result: Result) -> Any:
    """Plot the fraction of weights that each layer keeps.

    Args:
        result: A run with masks.

    Returns:
        A matplotlib figure.
    """
    layers = result.sparsity_per_layer
    figure, axes = _subplots(1, 1, figsize=(6, 0.9 + 0.38 * len(layers)))
    axis = axes[0, 0]
    names = list(layers)[::-1]
    kept = [100 * (1 - layers[name]) for name in names]
    bars = axis.barh(names, kept, color=_GREEN)
    axis.bar_label(bars, [f"{value:.2g} %" for value in kept], padding=4, fontsize=8)
    axis.set_xlim(0, max(kept) * 1.18 + 1e-3)
    axis.set_xlabel(f"weights kept, % (whole model {100 * (1 - result.sparsity):.2g} %)")
    return figure


def path(result: Result) -> Any:
    """Plot the VFE and the held-out score of each restorable point against the weights kept.

    Args:
        result: A run with a path.

    Returns:
        A matplotlib figure.
    """
    points = result.path
    score = next((n for n in ("accuracy", "rmse") if any(n in p.metrics for p in points)), None)
    figure, axes = _subplots(1, 2 if score else 1, figsize=(7.2 if score else 3.8, 3.0))
    best = min(points, key=lambda p: p.vfe)
    series = [("VFE, nats a datum (training)", _BLUE, lambda p: p.vfe / result.num_data)]
    if score:
        series.append((f"{score} (held out)", _PURPLE, lambda p: p.metrics.get(score)))
    for axis, (title, colour, value) in zip(axes[0], series, strict=True):
        shown = [(p.kept, value(p)) for p in points if value(p) is not None]
        axis.plot(*zip(*shown, strict=True), color=colour, marker="o", ms=4, lw=1.2)
        if value(best) is not None:
            axis.plot(best.kept, value(best), "*", color=_ORANGE, ms=13, label="best VFE")
            axis.legend(frameon=False, fontsize=8)
        axis.set_xscale("log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("weights kept")
    return figure
