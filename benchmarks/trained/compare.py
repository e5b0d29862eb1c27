"""Trained networks with fewer weights, without training: `reduce_network` beside other ways to choose.

    python -m benchmarks.trained.compare --data-root DIR --networks mlp lenet5 --seeds 0 1 2

Each network is trained on 54,000 rows of Fashion-MNIST by plain AdamW, and kept in --cache. All methods get
the same 4,000 of these rows to calibrate by; `reduce_network` chooses its point, and its temperature, by
6,000 that neither training nor calibration has seen. Test data decide nothing. Baselines keep the shares
of weights at which the path of `reduce_network` has points.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import optax

import bmrjax as bmr
from benchmarks.common import networks, options
from benchmarks.common.rows import Rows, group, table
from bmrjax.files import write_atomically

# Network, and epochs of its training.
CASES = {"mlp": ("Equinox MLP 200-200", 10), "lenet5": ("LeNet-5", 6)}
BATCH = 128
CALIBRATION = 4000
# Points of the path: 52, 32, 20, 10 and 5 % of the weights.
POINTS = (4, 7, 10, 14, 18)


def trained(name: str, seed: int, rows: Any, folder: Path) -> Any:
    """Return a network trained by AdamW with a cosine schedule; read from `folder` if it is there."""
    built, epochs = CASES[name]
    network = networks.build(built, seed)
    file = folder / f"{name}-{epochs}-{seed}.eqx"
    if file.exists():
        return eqx.tree_deserialise_leaves(file, network)
    rate = optax.cosine_decay_schedule(1e-3, epochs * (len(rows[0]) // BATCH))
    network = networks.train(
        network, rows, optimizer=optax.adamw(rate, weight_decay=1e-4), batch=BATCH, epochs=epochs,
        seed=seed,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda staged: eqx.tree_serialise_leaves(staged, network))
    return network


def compare(name: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row of results per method and share of weights."""
    data = bmr.data.load_dataset("fashion_mnist", data_root=args.data_root)
    train, chosen_by = data.split_train(validation=0.1, seed=seed)
    network = trained(name, seed, train, args.cache)
    x, y = train
    some = np.random.default_rng(seed).permutation(len(x))[:CALIBRATION]
    given: Any = ((x[some], y[some]),)
    settings = {"held_out": chosen_by, "num_data": len(x), "seed": seed}
    found = []

    def add(method: str, kept: float, reduced: Any, **more: Any) -> None:
        log_probs = np.asarray(networks.log_probs(reduced, data.test[0], 500))
        row = {"network": name, "seed": seed, "method": method, "kept": round(kept, 4)}
        found.append(row | networks.scores(log_probs, data.test[1]) | more)
        print(found[-1], flush=True)

    add("dense", 1.0, network)
    start = time.process_time()
    ours = bmr.reduce_network(network, *given, **settings)
    seconds = round(time.process_time() - start, 1)
    more = {"cpu_s": seconds, "temperature": ours.temperature}
    add("reduce_network, its own choice", ours.kept, ours.network, **more)
    point = ours.evidence_point
    add("reduce_network, highest evidence", ours.path[point].kept, ours.network_at(point))
    points = [i for i in POINTS if i < len(ours.path)]
    for i in points:
        add("reduce_network", ours.path[i].kept, ours.network_at(i))
    for method in args.methods:
        start = time.process_time()
        keep = [ours.path[i].kept for i in points]
        others = bmr.trained.reduce_by(network, *given, method, keep=keep, **settings)
        seconds = round(time.process_time() - start, 1)
        for other in others:
            add(method, other.kept, other.network, cpu_s=seconds)
    return found


def write_table(rows: Rows) -> None:
    """Write ``table.md``: means over seeds, with their spread."""

    def key(row: dict[str, Any]) -> tuple:
        own = "its own" in row["method"] or "evidence" in row["method"] or row["method"] == "dense"
        return row["network"], row["method"], None if own else round(row["kept"], 2)

    lines = []
    for (network, method, _), some in group(rows.rows, key).items():
        cells = []
        for name, digits in (("kept", 3), ("accuracy", 4), ("nll", 3)):
            values = [row[name] for row in some]
            spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.{digits}f}{spread}")
        lines.append([network, method, *cells, str(len(some))])
    text = table("network | method | kept | accuracy | NLL | seeds", lines)
    rows.write_table(
        text.replace("| --- | --- | --- | --- | --- | --- |", "|---|---|---|---|---|---|")
    )


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "trained", seeds=None, report=True)
    parser.add_argument("--networks", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(bmr.trained.METHODS))
    parser.add_argument("--cache", type=Path, default=Path("runs/trained"))
    args = options.parse(parser)
    rows = Rows(args.out, shared=True)
    for name in args.networks if not args.report else []:
        for seed in args.seeds:
            if not rows.has(network=name, seed=seed):
                rows.rows += compare(name, seed, args)
                rows.save()
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()
