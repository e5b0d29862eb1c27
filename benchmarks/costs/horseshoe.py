"""What a step costs under the flat prior, with masks, and under the horseshoe, taken in turn.

Tiered-FF is the published prior: a scale for each row and layer. The full form has a scale for each weight
besides, as the code of the paper has by default. Given a clone of that code, its own steps are
timed in the same run. ``python -m benchmarks.papers.markovic2024 --speed`` runs it.
"""

import statistics
from typing import Any

from benchmarks.common import steps
from benchmarks.common.rows import Rows, table
from bmrjax import criteria

# Steps of a turn.
STEPS = {"lenet5": 20, "mlp": 100, "vit": 4, "mixer": 4}
# Training data that the steps see.
ROWS = 4096
SIDES = {
    "Flat-MAP": "map",
    "Flat-FF": "unmasked",
    "BMR-S&S": "global",
    "Tiered-FF": "horseshoe",
    "Tiered-FF, full": "horseshoe, full",
}
# Rows of the comparison whose step is that of BMR-S&S.
MASKED = (
    "BMR-S&S, removed excluded", "BMR-S&S, verified", "BMR-S&S at prior, verified",
    "BMR-S&S, verified, 90 % a round",
    "BMR-S&S, verified from epoch 3", "BMR-shrinkage, verified",
)  # fmt: skip
# Whose step is divided by whose.
PAIRS = {
    "Tiered-FF": "BMR-S&S",
    "Tiered-FF, full": "BMR-S&S",
    "bmr4pml, Tiered": "bmr4pml, BMR",
    "bmr4pml, Tiered, full": "bmr4pml, BMR",
}


def measure(
    network: Any, data: Any, batch: int, turn: int, repeats: int, peers: dict[str, Any], *, full: bool
) -> dict[str, Any]:  # fmt: skip
    """Time the steps of each side, in turn, `repeats` times."""
    sides = {
        name: steps.warm(steps.side(kind, network, data, batch, turn, "auto"))
        for name, kind in SIDES.items()
        if full or name != "Tiered-FF, full"
    }
    sides |= {name: steps.warm(steps.Side(run, turn)) for name, run in peers.items()}
    steps.take_turns(sides, repeats)
    times = {name: side.milliseconds for name, side in sides.items()}
    rule, parts = criteria.SpikeAndSlab(), sides["BMR-S&S"].parts
    reducing = steps.reduction(parts, rule, repeats)["median_ms"]
    return {
        "milliseconds_a_step": times,
        "ratios": {a: steps.spread(times[a], times[b]) for a, b in PAIRS.items() if a in times},
        "reduction_ms": reducing,
        "reduction_share_of_500_steps": reducing / (500 * sides["BMR-S&S"].median),
        "repeats": repeats,
    }


def steps_of(rows: Rows) -> dict[tuple[str, str], dict[str, float]]:
    """Return data and network to method to its median step, milliseconds; nothing if not timed."""
    found = {}
    for row in rows.rows:
        steps = {name: statistics.median(t) for name, t in row["milliseconds_a_step"].items()}
        # Whatever decides which masks are set, the step with masks is the same.
        same = dict.fromkeys(MASKED, steps["BMR-S&S"])
        found[row["data"], row["network"]] = steps | same
    # Images of one shape make steps of one length.
    for data, network in list(found):
        if data == "fashion_mnist":
            found.setdefault(("mnist", network), found[data, network])
    return found


def write_table(rows: Rows) -> None:
    """Write ``table.md``: a line for each data set, network and prior, medians and ratios of pairs."""
    lines = []
    for row in rows.rows:
        times = {name: statistics.median(t) for name, t in row["milliseconds_a_step"].items()}
        for side, (middle, low, high) in row["ratios"].items():
            share = f"{row['reduction_share_of_500_steps']:.2%}"
            lines.append([
                row["data"], row["network"], side,
                f"{times[side]:.1f}", f"{times[PAIRS[side]]:.1f}",
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                share if PAIRS[side] == "BMR-S&S" else "–",
                f"{row['device']}, {row['cores']} cores",
            ])  # fmt: skip
    header = (
        "data | network | horseshoe | its step, ms | BMR's step, ms"
        " | ratio (range); the paper: 1.3 on average | reduction, share of 500 steps | device"
    )
    rows.write_table(table(header, lines))
