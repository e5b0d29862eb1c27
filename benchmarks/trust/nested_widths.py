"""Networks wider than the one that made the data: what a factorised free energy overcharges.

A teacher of 4 hidden units makes 800 data; students of 4 to 64 units are fitted to them by a factorised
posterior. For each: the free energy (VFE), the overcharge from all eigenvalues and by Lanczos quadrature, the
VFE less it, the VFE of a joint normal posterior where the student is small, and the NLL of rows kept out.

    python -m benchmarks.trust.nested_widths
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, group, means, table
from bmrjax.infer import scaled_precision

TEACHER, INPUTS, ROWS, NOISE = 4, 6, 800, 0.3
WIDTHS = (4, 8, 16, 32, 64)
# Joint posteriors have a matrix of as many rows as the student has weights.
JOINT_UP_TO = 16


def student(width: int):
    """Return a program with a hidden layer of this width; the scale of its outputs does not depend on it."""

    def program(x: Any, y: Any = None) -> None:
        first = numpyro.sample("first", dist.Normal(0, 1).expand([INPUTS, width]).to_event(2))
        bias = numpyro.sample("bias", dist.Normal(0, 1).expand([width]).to_event(1))
        second = numpyro.sample("second", dist.Normal(0, 1).expand([width]).to_event(1))
        mean = jnp.tanh(x @ first + bias) @ second * (TEACHER / width) ** 0.5
        numpyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    return program


def data_of(seed: int):
    """Return rows to fit and rows kept out, made by a teacher."""
    keys = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(keys[0], (2 * ROWS, INPUTS))
    weights = jax.random.normal(keys[1], (INPUTS + 2, TEACHER))
    mean = jnp.tanh(x @ weights[:INPUTS] + weights[INPUTS]) @ weights[INPUTS + 1]
    y = mean + NOISE * jax.random.normal(keys[2], (2 * ROWS,))
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])


def fit(program: Any, guide: Any, data: Any, seed: int, epochs: int):
    """Fit a student without reducing it, at a rate that falls to zero."""
    return bmr.sparsify(
        program,
        data,
        guide=guide,
        key=jax.random.key(100 + seed),
        batch_size=None,
        criterion=bmr.criteria.Shrinkage(),
        options=bmr.FitOptions(kl_warmup=0),
        schedule=bmr.schedules.Verified(wait=epochs, cooldown=epochs // 2, refit=1),
        num_epochs=epochs,
        steps_per_epoch=200,
        progress=False,
    )


def one(seed: int, width: int, epochs: int) -> dict[str, Any]:
    """Return a row: one student on one set of data."""
    train, test = data_of(seed)
    program = student(width)
    result = fit(program, bmr.infer.AutoMeanField(program), train, seed, epochs)
    vfe = result.free_energy(jax.random.key(1), train, num_samples=1000)
    whole, scaled_precision.EXACT_UP_TO = scaled_precision.EXACT_UP_TO, 0
    lanczos = bmr.overcharge(result, train, key=jax.random.key(2), num_samples=64, num_probes=16)
    scaled_precision.EXACT_UP_TO = 10**6
    exact = bmr.overcharge(result, train, key=jax.random.key(2), num_samples=64)
    scaled_precision.EXACT_UP_TO = whole
    row = {
        "seed": seed,
        "width": width,
        "weights": exact.size,
        "kept": result.num_kept,
        "vfe": vfe,
        "overcharge": exact.nats,
        "by_lanczos": lanczos.nats,
        "off_by": abs(lanczos.nats - exact.nats) / exact.nats,
        "clipped": exact.clipped,
        "corrected": vfe - exact.nats,
        "nll": result.evaluate(jax.random.key(3), test)["nll"],
    }
    if width <= JOINT_UP_TO:
        joint = fit(program, bmr.infer.AutoMultivariate(program), train, seed, epochs)
        row["joint"] = joint.free_energy(jax.random.key(1), train, num_samples=1000)
    return row


def write_table(rows: Rows) -> None:
    """Write the table of a row a width."""
    digits = {
        "weights": 0, "vfe": 1, "overcharge": 1, "by_lanczos": 1, "off_by": 3, "corrected": 1,
        "joint": 1, "nll": 4,
    }  # fmt: skip
    header = (
        "width | weights | VFE | overcharge | by Lanczos | off by | VFE less it | joint VFE | NLL"
    )
    lines = [
        [str(width), *means(some, **digits)] for width, some in group(rows.rows, "width").items()
    ]
    rows.write_table(table(header, lines), "nested_widths.md")


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", seeds=3, data=False, report=True)
    parser.add_argument("--epochs", type=int, default=60, help="of 200 steps each")
    args = options.parse(parser)
    rows = Rows(args.out, "nested_widths.json", shared=True)
    for width in () if args.report else WIDTHS:
        for seed in range(args.seeds):
            if not rows.has(width=width, seed=seed):
                rows.add(one(seed, width, args.epochs))
                print(rows.rows[-1], flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()
