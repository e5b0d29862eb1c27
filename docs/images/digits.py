"""The picture of the README: a network of 17,610 weights on scikit-learn's digits, reduced while it trains.

    python docs/images/digits.py

Writes ``docs/images/digits.png``: what is kept against accuracy on test rows, and the weights of the first
layer that are left. The point was chosen on validation rows. The numbers are in ``digits.json``, and in the
description of the picture.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

import bmrjax as bmr

sys.path.insert(0, str(Path(__file__).parents[1] / "figures"))
from style import BLUE, ORANGE, rounded, write_numbers  # noqa: E402


def fit() -> tuple[bmr.Result, bmr.Result, bmr.data.Dataset]:
    """Return the README's network at the chosen point, the whole run, and the data."""
    digits = bmr.data.load_dataset("digits")
    train, validation = digits.split_train(validation=0.15)
    network = bmr.zoo.MLP(64, [100, 100], 10, key=jax.random.key(0))
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    run = bmr.sparsify(
        program, train, key=jax.random.key(0), steps_per_epoch=200, num_epochs=60, progress=False
    )
    return run.most_predictive(jax.random.key(1), validation), run, digits


def draw_path(
    ax: plt.Axes, best: bmr.Result, run: bmr.Result, digits: bmr.data.Dataset
) -> dict[str, Any]:
    """Draw accuracy on test rows against the weights that are kept, and return what is drawn."""
    stayed = [i for i, point in enumerate(run.path) if not point.taken_back]
    kept = [run.path[i].kept for i in stayed]
    accuracy = [
        100 * run.at(i).evaluate(jax.random.key(2), digits.test)["accuracy"] for i in stayed
    ]
    ax.plot(kept, accuracy, "-o", color=BLUE, markersize=4, linewidth=1)
    chosen = kept.index(best.num_kept)
    ax.scatter(
        kept[chosen], accuracy[chosen], s=130, facecolors="none", edgecolors=ORANGE, zorder=3
    )
    ax.annotate(
        f"{kept[chosen]:,} of {best.num_total:,} weights\n{accuracy[chosen]:.1f} %",
        (kept[chosen], accuracy[chosen]),
        xytext=(-120, -45),
        textcoords="offset points",
        color=ORANGE,
    )
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.invert_xaxis()
    ax.set_ylim(min(accuracy[chosen] - 4, 90), 100)
    ax.set_xlabel("weights kept")
    ax.set_title("accuracy on test rows, %")
    return {
        "total": best.num_total,
        "kept": best.num_kept,
        "accuracy, %": accuracy[chosen],
        "dense accuracy, %": accuracy[0],
        "points kept": kept,
    }


def draw_pixels(ax: plt.Axes, result: bmr.Result) -> None:
    """Draw for each pixel how many weights of the first layer use it."""
    site = next(name for name in result.keep if "layers.0" in name and "weight" in name)
    uses = np.asarray(result.keep[site]).reshape(-1, 64).sum(0).reshape(8, 8)
    ax.imshow(uses, cmap="Blues", vmin=0, vmax=uses.max() * 1.3)
    for (row, column), count in np.ndenumerate(uses):
        ax.text(column, row, str(count), ha="center", va="center", fontsize=7)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(True)
    ax.set_title("weights left of 100 per pixel")


def main(folder: Path | None = None) -> None:
    """Fit and draw."""
    folder = folder or Path(__file__).parent
    best, run, digits = fit()
    figure = plt.figure(figsize=(9.0, 3.0), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=[2.2, 1])
    numbers = rounded(draw_path(axes[0], best, run, digits))
    draw_pixels(axes[1], best)
    # Chunks of PNG are Latin-1, as all of this is.
    described = {"Description": json.dumps(numbers), "Software": None}
    figure.savefig(folder / "digits.png", dpi=150, metadata=described)
    plt.close(figure)
    write_numbers(folder / "digits.json", {"digits": numbers})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
