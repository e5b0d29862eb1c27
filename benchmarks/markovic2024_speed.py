"""What a step costs under the flat prior, with masks, and under the horseshoe, taken in turn.

Tiered-FF is the published prior: a scale a row and a layer. The full form has a scale a weight
besides, as the code of the paper has by default. Given a clone of that code, its own steps are
timed in the same run.
"""

import statistics
from typing import Any

import jax
import jax.numpy as jnp
import optax
import records
import step_cost
from bmr4pml_peer import import_peer
from numpyro import handlers
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta

from bmrjax import priors
from bmrjax.infer import AutoMeanField, Engine, init_to_network
from bmrjax.programs import classifier

# Steps a timing.
STEPS = {"lenet5": 20, "mlp": 100, "vit": 4, "mixer": 4}
# Training data that the steps see.
ROWS = 4096
SIDES = {
    "Flat-MAP": (priors.Flat(), False),
    "Flat-FF": (priors.Flat(), False),
    "BMR-S&S": (priors.Flat(), True),
    "Tiered-FF": (priors.RegularizedHorseshoePrior(0.01), False),
    "Tiered-FF, full": (priors.RegularizedHorseshoePrior(0.01, local=True), False),
}
# Rows of the comparison whose step is that of BMR-S&S.
MASKED = (
    "BMR-S&S, removed excluded", "BMR-S&S, verified", "BMR-S&S at prior, verified",
    "BMR-S&S, verified, 90 % a round",
    "BMR-S&S, verified from epoch 3", "BMR-shrinkage, verified from epoch 3", "BMR-shrinkage, verified",
)  # fmt: skip
# Whose step is divided by whose.
PAIRS = {
    "Tiered-FF": "BMR-S&S",
    "Tiered-FF, full": "BMR-S&S",
    "bmr4pml, Tiered": "bmr4pml, BMR",
    "bmr4pml, Tiered, full": "bmr4pml, BMR",
}


def stepper(
    network: Any, prior: priors.Prior, data: Any, batch: int, *, masks: bool, point: bool
) -> Any:
    """Return a function that takes n steps, and what a reduction needs."""
    model = classifier(network, prior)
    engine = Engine(
        model,
        AutoDelta(model, init_loc_fn=init_to_network) if point else AutoMeanField(model),
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


def peer_steppers(where: str, net: str, data: Any, batch: int) -> dict[str, Any]:
    """Return functions that take n steps of bmr4pml: reduced, and both forms of the horseshoe.

    Its own run retraces on every call; here its update is compiled once and dispatched.

    Args:
        where: Folder of a clone; see ``bmr4pml_peer.py``.
        net: ``"lenet5"`` or ``"mlp"``.
        data: Images of 28×28 and labels.
        batch: Data a step.
    """
    peer = import_peer(where)
    x, y = jnp.pad(data[0], ((0, 0), (0, 0), (2, 2), (2, 2))), data[1]
    key = jax.random.PRNGKey(0)
    if net == "lenet5":
        network = peer.nn.LeNet((1, 32, 32), activation=jax.nn.tanh, dropout_rate=0.0, key=key)
    else:
        x = data[0]
        network = peer.nn.MLP(784, 10, 400, 5, activation=jax.nn.swish, dropout_rate=0.0, key=key)
    network = peer.eqx.tree_inference(network, value=True)
    regressions = {
        "bmr4pml, BMR": (peer.models.BMRRegression, {"posterior": "normal"}, False),
        "bmr4pml, Tiered": (
            peer.models.SVIRegression,
            {"autoguide": "mean-field", "reduced": True},
            True,
        ),
        "bmr4pml, Tiered, full": (
            peer.models.SVIRegression,
            {"autoguide": "mean-field", "reduced": False},
            True,
        ),
    }

    def stepper(kind: Any, more: dict[str, Any], *, tiered: bool) -> Any:
        regression = kind(
            network, regtype="multinomial", optim_kwargs={"learning_rate": 5e-3}, **more
        )
        svi = SVI(
            handlers.scale(regression.model, 1 / len(x)),
            handlers.scale(regression.guide, 1 / len(x)),
            regression.optim,
            regression.loss,
        )
        given = {"batch_size": batch, "with_hyperprior": tiered}
        update = jax.jit(lambda state, x, y: svi.update(state, x, y=y, **given)[0])
        box = [svi.init(key, x, y=y, **given)]

        def run(n: int) -> None:
            for _ in range(n):
                box[0] = update(box[0], x, y)
            jax.block_until_ready(box[0])

        return run

    return {
        name: stepper(kind, more, tiered=tiered)
        for name, (kind, more, tiered) in regressions.items()
    }


def measure(
    network: Any,
    data: Any,
    batch: int,
    steps: int,
    repeats: int,
    peers: dict[str, Any] | None = None,
    *,
    full: bool = True,
) -> dict[str, Any]:
    """Time `steps` steps of each side, in turn, `repeats` times.

    Args:
        network: The network, without dropout.
        data: Training data.
        batch: Data a step.
        steps: Steps a timing.
        repeats: Timings a side.
        peers: Name to a function that takes n steps of another system.
        full: Whether the full form of the horseshoe is timed too; it takes long to compile.

    Returns:
        Milliseconds a step of each side, the ratios (median, least, largest, pair by pair) of each
        Tiered-FF to BMR-S&S, and the milliseconds of a reduction.
    """
    sides = {
        name: stepper(network, prior, data, batch, masks=masks, point=name == "Flat-MAP")
        for name, (prior, masks) in SIDES.items()
        if full or name != "Tiered-FF, full"
    }
    runs = {name: run for name, (run, _) in sides.items()} | (peers or {})
    times = step_cost.interleaved(runs, steps, repeats)
    reducing = statistics.median(sides["BMR-S&S"][1](repeats))
    ratios = {}
    for side, plain in PAIRS.items():
        if side not in times:
            continue
        pairs = zip(times[side], times[plain], strict=True)
        found = [tiered / reduced for tiered, reduced in pairs]
        ratios[side] = [statistics.median(found), min(found), max(found)]
    return {
        "milliseconds_a_step": times,
        "ratios": ratios,
        "reduction_ms": reducing,
        "reduction_share_of_500_steps": reducing / (500 * statistics.median(times["BMR-S&S"])),
        "repeats": repeats,
    }


def steps_of(rows: records.Rows) -> dict[tuple[str, str], dict[str, float]]:
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


def write_table(rows: records.Rows) -> None:
    """Write ``table.md``: a line a data set, network and prior, medians and ratios of pairs."""
    lines = []
    for row in rows.rows:
        times = {
            side: statistics.median(found) for side, found in row["milliseconds_a_step"].items()
        }
        for side, (middle, low, high) in row["ratios"].items():
            ours = PAIRS[side] == "BMR-S&S"
            lines.append(
                [
                    row["data"],
                    row["network"],
                    side,
                    f"{times[side]:.1f}",
                    f"{times[PAIRS[side]]:.1f}",
                    f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    f"{row['reduction_share_of_500_steps']:.2%}" if ours else "–",
                    f"{row['device']}, {row['cores']} cores",
                ]
            )
    header = [
        "data",
        "network",
        "horseshoe",
        "its step, ms",
        "BMR's step, ms",
        "ratio (range); the paper: 1.3 on average",
        "reduction, share of 500 steps",
        "device",
    ]
    (rows.path.parent / "table.md").write_text(records.table(header, lines))
