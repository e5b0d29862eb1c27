"""The figures of “Evidence” and “Spike and slab”, from the library's own formulas.

python docs/figures/evidence.py

The numbers are in ``evidence.json``.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import digamma
from style import BLUE, GREEN, GREY, ORANGE, save, write_numbers

from bmrjax import criteria
from bmrjax.reduction import Normal, delta_f_each


def at_zero(folder: Path | None = None) -> dict[str, float]:
    """Draw prior and posterior of two weights: ΔF is the log ratio of their densities at zero."""
    figure, axes = plt.subplots(1, 2, figsize=(8.0, 2.9), layout="constrained", sharey=True)
    z, found = np.linspace(-2.5, 2.5, 501), {}
    for ax, loc in zip(axes, (0.15, 1.0), strict=True):
        q, p = Normal(jnp.array(loc), jnp.array(0.3)), Normal(jnp.array(0.0), jnp.array(1.0))
        density = {
            name: np.exp(-0.5 * ((z - m) / s) ** 2) / (s * np.sqrt(2 * np.pi))
            for name, m, s in (("prior", 0.0, 1.0), ("posterior", loc, 0.3))
        }
        ax.plot(z, density["prior"], color=GREY, label="prior p")
        ax.plot(z, density["posterior"], color=BLUE, label="posterior q")
        zero = len(z) // 2
        ax.vlines(0, *sorted(d[zero] for d in density.values()), color=ORANGE, linewidth=2.5)
        ax.plot([0, 0], [d[zero] for d in density.values()], "o", color=ORANGE, markersize=4)
        delta_f = float(delta_f_each(q, p))
        verdict = "removed" if delta_f > 0 else "kept"
        found[f"ΔF at a mean of {loc}"] = delta_f
        ax.set(xlabel="weight", title=f"ΔF = {delta_f:+.1f} nats: {verdict}", ylim=(0, 1.5))
    axes[0].legend()
    save(figure, "at_zero", folder)
    return found


def bar(folder: Path | None = None) -> dict[str, float]:
    """Draw ΔF against the distance of a posterior from zero, for three widths."""
    figure, ax = plt.subplots(figsize=(5.5, 3.0), layout="constrained")
    distance, found = jnp.linspace(0, 5, 201), {}
    for scale, colour in ((0.3, ORANGE), (0.03, BLUE), (0.003, GREEN)):
        q = Normal(distance * scale, jnp.full_like(distance, scale))
        p = Normal(jnp.zeros_like(distance), jnp.ones_like(distance))
        delta_f = np.asarray(delta_f_each(q, p))
        ax.plot(distance, delta_f, color=colour, label=f"posterior sd {scale}")
        crossing = float(np.interp(0.0, -delta_f, distance))
        ax.plot(crossing, 0, "o", color=colour)
        found[f"zero at, for a deviation of {scale}"] = crossing
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set(xlabel="|mean| / standard deviation of the posterior", title="ΔF, nats", ylim=(-7, 6.5))
    ax.text(5, 0.2, "removed above", color=GREY, fontsize=8, ha="right")
    ax.legend(loc="lower left")
    save(figure, "bar", folder)
    return found


def fixed_point(folder: Path | None = None) -> dict[str, Any]:
    """Draw the fixed point of a layer: the threshold falls as the layer gets sparser."""
    scale = 0.1
    kept = jax.random.normal(jax.random.key(0), (40,))
    noise = scale * jax.random.normal(jax.random.key(1), (960,))
    loc = jnp.concatenate([kept, noise])
    q = Normal(loc, jnp.full_like(loc, scale))
    p = Normal(jnp.zeros_like(loc), jnp.ones_like(loc))
    delta_f = np.asarray(delta_f_each(q, p), float)
    posteriors = criteria.SitePosteriors({"w": q}, {"w": p})
    bars = []
    for steps in range(1, 6):
        found = criteria.SpikeAndSlab(num_steps=steps)(posteriors).statistics
        bars.append(float(digamma(found["alpha"]["w"]) - digamma(found["beta"]["w"])))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 2.9), layout="constrained")
    bins = np.linspace(-15, 3, 60)
    shown = np.clip(delta_f, -14.9, None)  # the leftmost bar has all that is below, and says so
    below = int((delta_f < bins[1]).sum())
    left.hist([shown[40:], shown[:40]], bins, stacked=True, color=[GREY, BLUE])
    left.axvline(bars[-1], color=ORANGE)
    left.text(bars[-1] - 0.3, 1e2, "threshold", color=ORANGE, ha="right")
    left.set(yscale="log", xlabel="ΔF, nats", ylabel="weights, logarithmic")
    left.set_title("1,000 weights, of which 40 matter (blue)")
    left.annotate(
        f"{below} further left", (bins[0], below), xytext=(0, 3), textcoords="offset points"
    )
    right.plot(range(1, 6), bars, "-o", color=ORANGE)
    right.set_xticks(range(1, 6))
    right.set(xlabel="iteration", title="threshold for ΔF, nats: kept below", ylim=(-4.5, 0.5))
    right.axhline(0, color=GREY, linewidth=0.8)
    right.text(1, 0.1, "ΔF > 0, without a prior over masks", color=GREY, fontsize=8)
    save(figure, "fixed_point", folder)
    return {
        "threshold by iteration": bars,
        "further left": below,
        "weights": len(loc),
        "matter": 40,
    }


def main(folder: Path | None = None) -> None:
    """Draw all."""
    drawn = {draw.__name__: draw(folder) for draw in (at_zero, bar, fixed_point)}
    write_numbers((folder or Path(__file__).parent) / "evidence.json", drawn)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
