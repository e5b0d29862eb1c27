"""What a step costs under the flat prior, with masks, and under the horseshoe, taken in turn."""

import statistics
from typing import Any

import jax
import jax.numpy as jnp
import optax
import records
import step_cost
from numpyro.infer import TraceMeanField_ELBO

from bmrjax import priors
from bmrjax.infer import AutoMeanField, Engine
from bmrjax.programs import classifier

# Steps a timing.
STEPS = {"lenet5": 20, "mlp": 100, "vit": 4, "mixer": 4}
SIDES = {
    "Flat-FF": (priors.Flat(), False),
    "BMR-S&S": (priors.Flat(), True),
    "Tiered-FF": (priors.RegularizedHorseshoe(0.01), False),
}


def stepper(network: Any, prior: priors.Prior, data: Any, batch: int, *, masks: bool) -> Any:
    """Return a function that takes n steps, and what a reduction needs."""
    model = classifier(network, prior)
    engine = Engine(
        model,
        AutoMeanField(model),
        optimizer=optax.adabelief(5e-3),
        loss=TraceMeanField_ELBO(),
        num_data=len(data[0]),
        batch_size=batch,
    )
    example = tuple(part[:batch] for part in data)
    box = [engine.init(jax.random.key(0), example)]
    keep = {}
    if masks:
        found = engine.site_posteriors(box[0], example).posterior
        keep = {name: jnp.ones(q.loc.shape, bool) for name, q in found.items()}

    def run(n: int) -> None:
        state, info = engine.epoch(box[0], keep, data, jax.random.key(1), num_steps=n)
        jax.block_until_ready(info.losses)
        box[0] = state

    return run, lambda repeats: step_cost.reduction_ms(engine, box[0], keep, example, repeats)


def measure(network: Any, train: Any, batch: int, steps: int, repeats: int) -> dict[str, Any]:
    """Time `steps` steps of each side, in turn, `repeats` times.

    Args:
        network: The network, without dropout.
        train: Training data, of which the first 4096 are used.
        batch: Data a step.
        steps: Steps a timing.
        repeats: Timings a side.

    Returns:
        Milliseconds a step of each side, the ratios of Tiered-FF to BMR-S&S, pair by pair, and the
        milliseconds of a reduction.
    """
    data = tuple(jnp.asarray(part[:4096]) for part in train)
    sides = {
        name: stepper(network, prior, data, batch, masks=masks)
        for name, (prior, masks) in SIDES.items()
    }
    times = step_cost.interleaved({name: run for name, (run, _) in sides.items()}, steps, repeats)
    reducing = statistics.median(sides["BMR-S&S"][1](repeats))
    pairs = zip(times["Tiered-FF"], times["BMR-S&S"], strict=True)
    ratios = sorted(tiered / reduced for tiered, reduced in pairs)
    return {
        "milliseconds_a_step": times,
        "ratio_median": statistics.median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
        "reduction_ms": reducing,
        "reduction_share_of_500_steps": reducing / (500 * statistics.median(times["BMR-S&S"])),
        "repeats": repeats,
    }


def write_table(rows: records.Rows) -> None:
    """Write ``table.md``: medians, and the published ratio."""
    lines = [
        [
            row["data"],
            row["network"],
            *(f"{statistics.median(row['milliseconds_a_step'][side]):.1f}" for side in SIDES),
            f"{row['ratio_median']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})",
            "1.3 on average (section III-B)",
            f"{row['reduction_ms']:.1f}",
            f"{row['reduction_share_of_500_steps']:.2%}",
            f"{row['device']}, {row['cores']} cores",
        ]
        for row in rows.rows
    ]
    header = [
        "data",
        "network",
        *(f"{side} step, ms" for side in SIDES),
        "Tiered-FF / BMR-S&S (range)",
        "paper",
        "reduction, ms",
        "share of 500 steps",
        "device",
    ]
    (rows.path.parent / "table.md").write_text(records.table(header, lines))
