"""The charts of the results page and of the home page, from the committed rows of the benchmarks.

    python docs/figures/claims.py

Nothing is run. Each function draws one claim, and returns the numbers that it has drawn; all of them are in
``claims.json``.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from style import BLUE, GREEN, GREY, ORANGE, PURPLE, save, write_numbers

ROWS = Path(__file__).parents[2] / "benchmarks" / "results"


def rows(name: str, **what: Any) -> list[dict[str, Any]]:
    """Return the rows of a benchmark that agree with `what`."""
    path = ROWS / name
    found = json.loads((path if path.suffix else path / "results.json").read_text())
    found = found["rows"] if isinstance(found, dict) else found
    return [row for row in found if what.items() <= row.items()]


def while_training(ax: plt.Axes) -> dict[str, tuple[float, float]]:
    """Draw accuracy and share of weights removed of LeNet-5 on Fashion-MNIST, seed by seed."""
    names = {
        "Flat-MAP": ("point estimate", GREY),
        "Flat-FF": ("mean field", ORANGE),
        "BMR-S&S, verified": ("bmrjax", BLUE),
        "BMR-shrinkage, verified": ("bmrjax, Shrinkage", GREEN),
    }
    found = {}
    for method, (label, colour) in names.items():
        some = rows("markovic2024", data="fashion_mnist", network="lenet5", method=method)
        points = [(100 * row["sparsity"], 100 * row["accuracy"]) for row in some]
        ax.scatter(*zip(*points, strict=True), color=colour, s=22, label=label)
        found[label] = (mean(x for x, _ in points), mean(y for _, y in points))
    found["Marković et al. 2024"] = (81.0, 90.0)
    ax.scatter([81], [90], marker="x", color=PURPLE, label="Marković et al. 2024")
    ax.set(xlabel="weights removed, %", title="LeNet-5 on Fashion-MNIST: accuracy, %")
    ax.legend(loc="lower center", fontsize=8)
    return found


def variables(ax: plt.Axes) -> dict[str, tuple[float, float]]:
    """Draw precision and recall of the selected columns, beside the lasso."""
    found = {}
    for method, label, colour in (("default", "bmrjax", BLUE), ("lasso", "lasso", ORANGE)):
        points = []
        for columns, number in ((20, 50), (20, 200), (100, 50), (100, 200)):
            some = rows("trust/selection.json", kind="linear", method=method)
            some = [row for row in some if (row["columns"], row["rows"]) == (columns, number)]
            points.append((mean(r["recall"] for r in some), mean(r["precision"] for r in some)))
            found[f"{label}, {columns} columns, {number} rows"] = points[-1]
        ax.scatter(*zip(*points, strict=True), color=colour, s=30, label=label)
    ax.set(xlabel="recall", xticks=[0.7, 0.8, 0.9, 1.0], ylim=(0, 1.05))
    ax.set_title("Which columns have an effect? Precision")
    ax.legend(loc="lower left")
    return found


def trained(ax: plt.Axes, network: str = "mlp") -> dict[str, Any]:
    """Draw accuracy against the weights kept of a trained network, without training: means over seeds."""
    names = {
        "reduce_network": ("bmrjax", BLUE, "o"),
        "obs_global": ("Optimal Brain Surgeon", GREEN, "s"),
        "magnitude": ("magnitude", ORANGE, "^"),
        "wanda": ("Wanda", GREY, "v"),
    }
    found = {}
    for method, (label, colour, marker) in names.items():
        at = defaultdict(list)
        for row in rows("trained", network=network, method=method):
            at[round(100 * row["kept"])].append(100 * row["accuracy"])
        kept = sorted(at)
        accuracy = [mean(at[each]) for each in kept]
        found[label] = dict(zip(kept, accuracy, strict=True))
        ax.plot(kept, accuracy, f"-{marker}", color=colour, markersize=4, label=label)
    dense = mean(row["accuracy"] for row in rows("trained", network=network, method="dense"))
    found["dense"] = 100 * dense
    ax.axhline(100 * dense, color=GREY, linewidth=0.8, linestyle=":", label="dense")
    ax.invert_xaxis()
    ax.set(xlabel="weights kept, %", title="A trained perceptron: accuracy, %")
    ax.legend(fontsize=8)
    return found


def _bars(ax: plt.Axes, names: list[str], ours: list[float], theirs: list[float]) -> None:
    """Draw pairs of bars, each with its number."""
    for shift, values, colour, label in (
        (0.2, ours, BLUE, "bmrjax"),
        (-0.2, theirs, GREY, "published"),
    ):
        at = [i + shift for i in range(len(names))]
        drawn = ax.barh(at, values, height=0.36, color=colour, label=label)
        texts = [f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values]
        ax.bar_label(drawn, texts, padding=3, fontsize=8)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlim(0, 1.18 * max(ours + theirs))
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.1), ncols=2)


def files(ax: plt.Axes) -> dict[str, dict[str, float]]:
    """Draw how many times smaller a network is as a file."""
    names = {"LeNet-300-100": ("lenet-300-100", 161.0), "LeNet-5-Caffe": ("lenet-5-caffe", 482.0)}
    found = {}
    for name, (net, _) in names.items():
        some = rows("federici2017", net=net, method="VD")
        found[name] = mean(row["files"]["ours"]["ratio"] for row in some)
    published = {name: paper for name, (_, paper) in names.items()}
    _bars(ax, list(names), list(found.values()), list(published.values()))
    ax.set_title("MNIST networks as files: times smaller")
    return {"bmrjax": found, "published": published}


def units(ax: plt.Axes) -> dict[str, dict[str, float]]:
    """Draw how many times fewer FLOPs a network takes once whole units are gone."""
    names = {"LeNet-500-300": ("lenet-500-300", 11.2), "LeNet-5-Caffe": ("lenet-5-caffe", 10.5)}
    found = {}
    for name, (net, _) in names.items():
        some = rows("neklyudov2017", net=net, random_labels=False, quick=False, validation=0)
        found[name] = mean(row["flops_ratio"] for row in some)
    published = {name: paper for name, (_, paper) in names.items()}
    _bars(ax, list(names), list(found.values()), list(published.values()))
    ax.set_title("Whole units removed, MNIST: times fewer FLOPs")
    return {"bmrjax": found, "published": published}


def seconds(ax: plt.Axes) -> dict[str, float]:
    """Draw the time of ten epochs beside the paper's own code, evaluated at the end."""
    ours, theirs = rows("peer", schedule="Every()")[0], rows("peer", system="bmr4pml")[0]
    found = {
        f"{name}, {100 * row['accuracy']:.1f} %": row["seconds_evaluated_at_end"]
        for name, row in (("bmr4pml", theirs), ("bmrjax", ours))
    }
    drawn = ax.barh(list(found), list(found.values()), color=[GREY, BLUE], height=0.5)
    ax.bar_label(drawn, [f"{value:.0f}" for value in found.values()], padding=3, fontsize=8)
    ax.set_xlim(0, 1.15 * max(found.values()))
    ax.set_title("Ten epochs of LeNet-5, two CPU cores: seconds")
    return found


CLAIMS: dict[str, Callable[[plt.Axes], Any]] = {
    "while_training": while_training,
    "variables": variables,
    "trained": trained,
    "files": files,
    "units": units,
    "seconds": seconds,
}


def main(folder: Path | None = None) -> None:
    """Draw each claim; the home page shows four of them."""
    found = {}
    for name, draw in CLAIMS.items():
        figure, ax = plt.subplots(figsize=(5.0, 3.0), layout="constrained")
        found[f"claim_{name}"] = draw(ax)
        save(figure, f"claim_{name}", folder)
    write_numbers((folder or Path(__file__).parent) / "claims.json", found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
