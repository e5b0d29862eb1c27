"""Trained networks with fewer weights, without training: `reduce_network` beside other ways to choose.

    python benchmarks/trained.py --data-root DIR --networks mlp lenet5 --seeds 0 1 2

Each network is trained on 54,000 rows of Fashion-MNIST by plain AdamW (`trained_networks.py`). All get
the same 4,000 of these rows to calibrate by; `reduce_network` chooses its point, and its temperature, by
6,000 that neither training nor calibration has seen. Test data decide nothing. Baselines keep the shares
of weights at which the path of `reduce_network` has points.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import records
import trained_networks as networks

import bmrjax as bmr

EPOCHS = {"mlp": 10, "lenet5": 6}
CALIBRATION = 4000
# Points of the path: 52, 32, 20, 10 and 5 % of the weights.
POINTS = (4, 7, 10, 14, 18)


def tested(network: Any, rows: Any) -> dict[str, float]:
    """Return accuracy and negative log likelihood on test rows."""
    x, y = rows
    run = jax.jit(jax.vmap(network))
    logits = np.concatenate([run(jnp.asarray(x[i : i + 500])) for i in range(0, len(x), 500)])
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    return {
        "accuracy": float(np.mean(log_probs.argmax(1) == y)),
        "nll": float(-np.mean(log_probs[np.arange(len(y)), y])),
    }


def compare(name: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row of results per method and share of weights."""
    rows = networks.fashion_mnist(args.data_root, seed)
    network = networks.trained(name, seed, rows["train"], EPOCHS[name], args.cache)
    x, y = rows["train"]
    some = np.random.default_rng(seed).permutation(len(x))[:CALIBRATION]
    given: Any = ((x[some], y[some]),)
    options = {"held_out": rows["held_out"], "num_data": len(x), "seed": seed}
    found = []

    def add(method: str, kept: float, reduced: Any, **more: Any) -> None:
        row = {"network": name, "seed": seed, "method": method, "kept": round(kept, 4)}
        found.append(row | tested(reduced, rows["test"]) | more)
        print(found[-1], flush=True)

    add("dense", 1.0, network)
    start = time.process_time()
    ours = bmr.reduce_network(network, *given, **options)
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
        others = bmr.trained.reduce_by(network, *given, method, keep=keep, **options)
        seconds = round(time.process_time() - start, 1)
        for other in others:
            add(method, other.kept, other.network, cpu_s=seconds)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return means over seeds, with their spread, as a table in Markdown."""
    groups = defaultdict(list)
    for row in rows:
        own = "its own" in row["method"] or "evidence" in row["method"] or row["method"] == "dense"
        groups[row["network"], row["method"], None if own else round(row["kept"], 2)].append(row)
    lines = ["| network | method | kept | accuracy | NLL | seeds |", "|---|---|---|---|---|---|"]
    for (network, method, _), some in groups.items():
        cells = []
        for name, digits in (("kept", 3), ("accuracy", 4), ("nll", 3)):
            values = [row[name] for row in some]
            spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.{digits}f}{spread}")
        lines.append(f"| {network} | {method} | {' | '.join(cells)} | {len(some)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=["mlp", "lenet5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(bmr.trained.METHODS))
    parser.add_argument("--cache", type=Path, default=Path("runs/trained"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/trained")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.json"
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    for name in args.networks:
        for seed in args.seeds:
            if any(row["network"] == name and row["seed"] == seed for row in old):
                continue
            old += compare(name, seed, args)
            text = json.dumps({"environment": records.environment(), "rows": old}, indent=1)
            file.write_text(text + "\n")
    (args.out / "table.md").write_text(table(old))
    print(table(old))


if __name__ == "__main__":
    main()
