"""The figure of “Verification”: what ΔF predicts against what a reduction in one go does, and rounds.

    python docs/figures/verification.py

A network of 3,760 weights on scikit-learn's digits; about a minute. The numbers are in ``verification.json``.
"""

import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter
from style import BLUE, GREY, ORANGE, save, write_numbers

import bmrjax as bmr


def main(folder: Path | None = None) -> None:
    """Fit twice and draw."""
    digits = bmr.data.load_dataset("digits")
    network = bmr.zoo.MLP(64, [50], 10, key=jax.random.key(0))
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    dense = bmr.sparsify(
        program, digits.train, key=jax.random.key(1), criterion=None, num_epochs=40, progress=False
    )
    report = bmr.free_energy_report(
        program,
        dense.guide,
        dense.params,
        digits.train,
        key=jax.random.key(2),
        orders=["bmr"],
        points=41,
        num_samples=20,
    )
    run = bmr.sparsify(program, digits.train, key=jax.random.key(1), num_epochs=60, progress=False)
    rows = dense.num_data
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
    (curve,) = report.curves.values()
    rate = 100 * curve.removed / report.num_kept
    left.plot(rate, curve.predicted / rows, color=GREY, label="predicted by ΔF")
    left.plot(rate, curve.actual / rows, color=ORANGE, label="measured")
    stop = 100 * report.rate
    line = {"color": BLUE, "linewidth": 0.8, "linestyle": "--"}
    left.axvline(stop, label=f"criterion stops: {stop:.0f} %", **line)
    left.set(xlabel="weights removed in one go, %", title="free energy per row, nats")
    left.set_ylim(0, 1.08 * max(float(curve.actual[0]), run.path[0].vfe) / rows)
    left.legend(loc="lower left")
    kept = [point for point in run.path if not point.taken_back]
    back = [point for point in run.path if point.taken_back]
    right.plot([p.kept for p in kept], [p.vfe / rows for p in kept], "-o", color=BLUE, label="kept")
    if back:
        values = [p.vfe / rows for p in back]
        right.plot([p.kept for p in back], values, "x", color=ORANGE, label="taken back")
    right.set(xscale="log", xlabel="weights kept", title="rounds, each re-fitted and measured")
    right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.xaxis.set_major_formatter("{x:,g}")
    right.xaxis.set_minor_formatter(NullFormatter())
    right.invert_xaxis()
    right.set_ylim(left.get_ylim())
    right.legend()
    save(figure, "verification", folder)
    at = int(np.argmin(curve.actual))
    numbers = {
        "weights": report.num_kept,
        "dense, nats per row": float(curve.actual[0]) / rows,
        "criterion stops, % removed": stop,
        "there, nats per row": report.proposed_vfe / rows,
        "lowest in one go, nats per row": float(curve.actual[at]) / rows,
        "lowest in one go, % removed": float(rate[at]),
        "first round at, nats per row": run.path[0].vfe / rows,
        "rounds end at, nats per row": run.vfe / rows,
        "rounds end with weights": run.num_kept,
        "rounds taken back": len(back),
    }
    folder = folder or Path(__file__).parent
    write_numbers(folder / "verification.json", {"verification": numbers})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
