"""The table and the figures of `markovic2024`, from its rows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.common.rows import Rows, group, means, table
from benchmarks.costs import horseshoe
from benchmarks.papers import markovic2024_weights as weights

Row = dict[str, Any]

PUBLISHED_EPOCHS, PUBLISHED_STEPS, PUBLISHED_SAMPLES = 50, 500, 100
REDUCED = "BMR-S&S"
# Accuracy, NLL, pruned fraction of BMR-S&S, read off the plots of the paper, which prints no numbers.
PAPER = {
    ("fashion_mnist", "lenet5"): ("0.90", "0.28", "0.81"),
    ("fashion_mnist", "mlp"): ("0.87", "0.36", "0.99"),
    ("fashion_mnist", "vit"): ("0.855", "–", "> 0.99"),
    ("cifar10", "lenet5"): ("0.635", "–", "0.97"),
    ("cifar10", "mlp"): ("0.515", "–", "–"),
    ("cifar10", "vit"): ("0.525", "–", "–"),
    ("cifar10", "mixer"): ("0.565", "–", "–"),
}
FIGURES = {"fashion_mnist": "read off figs. 1, 2", "cifar10": "read off figs. 2, 5"}
# Colours that readers with any colour vision tell apart (Okabe and Ito, 2008).
COLOURS = {
    "Flat-MAP": "#777777",
    "Flat-FF": "#E69F00",
    "Tiered-FF": "#009E73",
    REDUCED: "#0072B2",
    "BMR-S&S, removed excluded": "#56B4E9",
    "BMR-S&S, verified": "#D55E00",
    "BMR-S&S, verified, 90 % a round": "#8B4513",
    "BMR-S&S, verified from epoch 3": "#800080",
    "BMR-S&S at prior, verified": "#F0E442",
    "BMR-shrinkage, verified": "#CC79A7",
}
ORDER = tuple(COLOURS)
PRUNED_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999)
# Panels side by side, for pictures that have to be read.
MOST_COLUMNS = 4
METRICS = {"accuracy": "Accuracy", "ece": "ECE", "nll": "NLL, nats per data point"}
TITLES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST", "cifar10": "CIFAR-10"}
IMAGES = {"fashion_mnist": 60_000, "mnist": 60_000, "cifar10": 50_000}
NETS = {"lenet5": "LeNet-5", "mlp": "MLP 5×400", "vit": "ViT", "mixer": "MLP-Mixer"}


def setting(row: Row) -> tuple:
    """Return what rows of one line of the table have in common."""
    lengths = row["epochs"], row["steps_per_epoch"], row["num_data"]
    return row["data"], row["network"], row["method"], *lengths


def place(row: Row) -> tuple[int, ...]:
    """Return where a row belongs, by data set, network, method and length."""
    first = list(TITLES).index(row["data"]), list(NETS).index(row["network"])
    return *first, ORDER.index(row["method"]), row["epochs"], row["steps_per_epoch"]


# --- the table ----------------------------------------------------------------------------


def write_table(rows: Rows) -> None:
    """Write ``table.md``: ours, mean ± standard error over seeds, beside the paper's."""
    lines = []
    timed = rows.path.parent / "speed"
    steps = horseshoe.steps_of(Rows(timed)) if timed.is_dir() else {}
    for found in group(sorted(rows.rows, key=place), setting).values():
        row, good = found[0], [r for r in found if "failed" not in r]
        case, method = (row["data"], row["network"]), row["method"]
        ours = method.startswith("BMR") and case in PAPER
        paper = PAPER[case] if ours else ("–",) * 3
        figures = means(good, accuracy=4, nll=4, ece=4, sparsity=4, vfe_per_datum=4)
        accuracy, nll, ece, sparsity, vfe = figures
        step, failed = steps.get(case, {}).get(method), len(found) - len(good)
        lines.append([
            *case, method, accuracy, paper[0], nll, paper[1], ece, sparsity, paper[2], vfe,
            "–" if step is None else f"{step:.1f}",
            f"{len(good)} ({failed} failed)" if failed else str(len(good)),
            length(row),
            FIGURES[row["data"]] if ours else "–",
        ])  # fmt: skip
    header = "data | network | method | ACC | ACC, paper | NLL | NLL, paper | ECE | sparsity"
    header += " | sparsity, paper | VFE, nats per data point | step, ms | seeds | epochs × steps"
    rows.write_table(table(header + " | the paper's figures", lines))


def length(row: Row) -> str:
    """Return how long a run was, and what is less than in the paper."""
    shown = f"{row['epochs']} × {row['steps_per_epoch']}"
    if row["epochs"] * row["steps_per_epoch"] < PUBLISHED_EPOCHS * PUBLISHED_STEPS:
        shown += f", shorter than the paper's {PUBLISHED_EPOCHS} × {PUBLISHED_STEPS}"
    if row["num_data"] < IMAGES[row["data"]]:
        shown += f"; {row['num_data']:,} images to train and to test on"
    if 1 < row["samples"] < PUBLISHED_SAMPLES:
        shown += f"; {row['samples']} samples for its {PUBLISHED_SAMPLES}"
    return shown


# --- the figures --------------------------------------------------------------------------


def write_figures(rows: Rows) -> None:
    """Write the figures that the rows allow, named after those of the paper.

    Of runs of different lengths the longest are shown.
    """
    out = rows.path.parent
    good = [row for row in sorted(rows.rows, key=place) if "failed" not in row]
    shown = []
    for found in group(good, "data network method").values():
        longest = max(setting(r)[3:] for r in found)
        shown += [r for r in found if setting(r)[3:] == longest]
    for data, found in group(shown, "data").items():
        curves(found).savefig(out / f"fig1_{data}.png")
        distributions(found).savefig(out / f"fig3_{data}.png")
    if any(row["sparsity"] for row in shown):
        pruned(shown).savefig(out / "fig2.png")
    stored = weights.load(out)
    for (data, network), found in group(shown, "data network").items():
        names = {r["method"]: weights.name_of(r) for r in found}
        units = {method: stored[name] for method, name in names.items() if name in stored}
        if units:
            first_layers(units, data, network).savefig(out / f"fig4_{data}_{network}.png")


def curves(rows: Sequence[Row]) -> Figure:
    """Plot accuracy, ECE and NLL over the epochs: a row a metric, a column a network.

    Lines are means over seeds, bands reach from the lowest to the highest.
    """
    nets = group(rows, "network")
    figure, axes = panels(len(METRICS), len(nets), f"{TITLES[rows[0]['data']]}, held out")
    for column, (net, of_net) in enumerate(nets.items()):
        for ax, (name, title) in zip(axes[:, column], METRICS.items(), strict=True):
            for method, found in group(of_net, "method").items():
                band(ax, found, name, color=COLOURS[method], label=method)
            # The first epoch or two would leave the rest no room.
            focus(ax, of_net, name)
            ax.set_title(f"{title}, {NETS[net]}", fontsize=10)
        axes[-1, column].set_xlabel("Epoch")
    legend(figure, axes)
    return figure


def pruned(rows: Sequence[Row]) -> Figure:
    """Plot the pruned fraction over the epochs: a row a data set, a column a network.

    The axis is logarithmic in what is kept, as 99 % and 99.9 % pruned are a tenfold difference.
    """
    rows = [row for row in rows if row["sparsity"]]
    sets = group(rows, "data")
    nets = [net for net in NETS if any(row["network"] == net for row in rows)]
    figure, axes = panels(len(sets), len(nets), "Pruned fraction of the weights")
    for line, (data, of_data) in zip(axes, sets.items(), strict=True):
        for ax, net in zip(line, nets, strict=True):
            of_net = [row for row in of_data if row["network"] == net]
            if not of_net:
                ax.set_axis_off()
                continue
            for method, found in group(of_net, "method").items():
                band(ax, found, "sparsity", color=COLOURS[method], label=method)
            ax.set_yscale("function", functions=(_decades, _fraction))
            ax.set_yticks(PRUNED_TICKS, [f"{100 * tick:g} %" for tick in PRUNED_TICKS])
            ax.set_ylim(0.0, 1.0)
            ax.set_title(f"{TITLES[data]}, {NETS[net]}", fontsize=10)
            ax.set_xlabel("Epoch")
    legend(figure, axes)
    return figure


def _decades(pruned: np.ndarray) -> np.ndarray:
    """Return how many decades of the weights are gone; what is all gone is drawn at four."""
    return -np.log10(np.clip(1 - np.asarray(pruned, float), 1e-4, None))


def _fraction(decades: np.ndarray) -> np.ndarray:
    return 1 - 10.0 ** -np.asarray(decades, float)


def distributions(rows: Sequence[Row]) -> Figure:
    """Plot the distribution of |posterior mean| of the weights: a row a network, a column a layer.

    Weights that are exactly zero are the height at which a curve starts. Of a deep network, six
    layers are shown, from the first to the last.
    """
    nets = group(rows, "network")
    layers = {net: chosen(list(found[0]["cdf"])) for net, found in nets.items()}
    columns = max(map(len, layers.values()))
    title = f"{TITLES[rows[0]['data']]}: fraction of a layer's weights with |posterior mean| ≤ x"
    figure, axes = panels(len(nets), columns, title, size=(2.7, 2.5))
    for line, (net, of_net) in zip(axes, nets.items(), strict=True):
        for ax, layer in zip(line, layers[net], strict=False):
            for method, found in group(of_net, "method").items():
                mean = np.mean([row["cdf"][layer] for row in found], axis=0)
                ax.plot(np.maximum(mean, 1e-9), weights.LEVELS, color=COLOURS[method], label=method)
            ax.set_xscale("log")
            ax.set_xlim(1e-5, 3)
            ax.set_ylim(0, 1.02)
            ax.set_title(f"{NETS[net]}, {layer}", fontsize=9)
        for spare in line[len(layers[net]) :]:
            spare.remove()
    for ax in axes[-1]:
        ax.set_xlabel("|posterior mean|")
    legend(figure, axes)
    return figure


def chosen(layers: list[str], most: int = 6) -> list[str]:
    """Return at most `most` layers, evenly spread, the first and the last among them."""
    if len(layers) <= most:
        return layers
    return [layers[round(i * (len(layers) - 1) / (most - 1))] for i in range(most)]


def first_layers(units: dict[str, np.ndarray], data: str, network: str) -> Figure:
    """Plot the posterior means of the first layer, a panel a method, all on one scale of colours."""
    pictures = {method: mosaic(found.astype(np.float32)) for method, found in units.items()}
    high, wide = next(iter(pictures.values())).shape
    title = f"{TITLES[data]}, {NETS[network]}: posterior means of the first layer"
    if len(next(iter(units.values()))) == weights.MOST_UNITS:
        title += f", {weights.MOST_UNITS} largest units"
    columns = min(len(units), MOST_COLUMNS)
    lines = math.ceil(len(units) / columns)
    figure, axes = panels(lines, columns, title, size=(3.0, 0.4 + 3.0 * high / wide))
    figure.get_layout_engine().set(wspace=0.06)
    every = np.concatenate([np.abs(p[np.isfinite(p)]) for p in pictures.values()])
    limit = float(np.quantile(every[every > 0], 0.995)) if every.any() else 1.0
    # What is removed is white, so what is between the units is not.
    colours = colormaps["RdBu_r"].with_extremes(bad="#C8C8C8")
    for spare in axes.flat[len(units) :]:
        spare.remove()
    for ax, (method, picture) in zip(axes.flat, pictures.items(), strict=False):
        image = ax.imshow(picture, cmap=colours, vmin=-limit, vmax=limit, interpolation="nearest")
        ax.set_title(method, fontsize=10)
        ax.axis("off")
    figure.colorbar(image, ax=list(axes.flat[: len(units)]), shrink=0.9 / lines, extend="both")
    return figure


def mosaic(units: np.ndarray) -> np.ndarray:
    """Return pictures side by side in rows, with NaN between them."""
    number, channels, height, width = units.shape
    pictures = units.reshape(number, channels * height, width)
    columns = math.ceil(math.sqrt(number * channels * height / width))
    lines = math.ceil(number / columns)
    gap = max(1, width // 14)
    high, wide = channels * height + gap, width + gap
    found = np.full((lines * high - gap, columns * wide - gap), np.nan, np.float32)
    for i, picture in enumerate(pictures):
        top, left = (i // columns) * high, (i % columns) * wide
        found[top : top + channels * height, left : left + width] = picture
    return found


def band(ax: Axes, rows: Sequence[Row], name: str, **style: Any) -> None:
    """Plot the mean over seeds of what `history` holds, and the range over seeds.

    Epochs at which nothing was measured are passed over. One epoch is a dot.
    """
    values = by_epoch(rows, name)
    measured = np.isfinite(values).all(0)
    epochs, values = 1 + np.flatnonzero(measured), values[:, measured]
    ax.plot(epochs, values.mean(0), "o" if len(epochs) == 1 else "-", linewidth=1.4, **style)
    if len(values) > 1:
        ax.fill_between(
            epochs, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0
        )


def by_epoch(rows: Sequence[Row], name: str) -> np.ndarray:
    """Return an array (seeds, epochs); what was not measured is NaN."""
    found = [[math.nan if e[name] is None else e[name] for e in row["history"]] for row in rows]
    shortest = min(map(len, found))
    return np.asarray([line[:shortest] for line in found], float)


def focus(ax: Axes, rows: Sequence[Row], name: str) -> None:
    """Set the limits of y to what the curves do after the first tenth of the epochs.

    A run that removed everything predicts a constant, and would leave the others no room.
    """
    values = [by_epoch([row], name)[0] for row in rows if row["sparsity"] < 1] or [np.zeros(0)]
    late = np.concatenate([v[len(v) // 10 + (len(v) > 4) :] for v in values])
    late = late[np.isfinite(late)]
    if late.size:
        low, high = float(late.min()), float(late.max())
        margin = 0.05 * (high - low) or 0.01
        ax.set_ylim(low - margin, high + margin)


def panels(
    rows: int, columns: int, title: str, size: tuple[float, float] = (4.2, 2.8)
) -> tuple[Figure, np.ndarray]:
    """Return a figure and its axes, an array (rows, columns)."""
    height = size[1] * rows + 0.7
    figure = Figure(figsize=(max(size[0] * columns, 5.0), height), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def legend(figure: Figure, axes: np.ndarray) -> None:
    """Put one legend, of all panels together, below them."""
    found: dict[str, Any] = {}
    for ax in axes.flat:
        handles, labels = ax.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    columns = max(1, min(len(found), int(figure.get_figwidth() / 2.8)))
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=columns, frameon=False
    )
