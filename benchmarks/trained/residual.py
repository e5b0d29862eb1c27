"""A residual network on CIFAR-10 with fewer channels: `reduce_network` beside Torch-Pruning.

    python -m benchmarks.trained.residual --data-root DIR --peer-python DIR/bin/python --seeds 0 1 2

Needs a Python with torch and torch_pruning, which may be another one. PyTorch trains the network on 45,000
rows, prunes it and scores all networks, those of `reduce_network` too, which cuts channels out and needs no
code of its own to run. All methods get the same 2,000 rows to calibrate by, with labels; `reduce_network`
takes its temperature from 5,000 more. A network stands at a target where it first has at most that share of
the operations in convolutions and matrix products. Each is scored as it is, with the running statistics of
batch normalisation measured anew on the 2,000 rows, and, by --tune, after so many passes of training with the
same settings for all.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.special import logsumexp

import bmrjax as bmr
from benchmarks.common import options
from benchmarks.common.rows import Rows, group, means, table
from bmrjax import zoo
from bmrjax.structure import named_arrays
from bmrjax.zoo.foreign import torchvision_resnet

TORCH = Path(__file__).with_name("torch_pruned.py")
CALIBRATION = 2000
TARGETS = (0.7, 0.5, 0.3)
METHODS = tuple(
    f"{importance}, {ratios}"
    for importance in ("L1", "group magnitude", "group Taylor")
    for ratios in ("uniform", "global")
)
# What is done after pruning, in the rows and in words.
AFTER = {"": "As it is", "statistics anew": "With new statistics of batch normalisation"}
# Of the mean negative log likelihood of some rows, in PyTorch and here.
TOLERANCE = 1e-3


def run(args: argparse.Namespace, seed: int, task: str, data: Path, **more: Any) -> list[Any]:
    """Return what a process with PyTorch says of networks."""
    given = {"data": data, "seed": seed, "threads": len(os.sched_getaffinity(0)), **more}
    words = [str(args.peer_python), str(TORCH), task]
    for name, value in given.items():
        values = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name}", *map(str, values)]
    found = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("{"):
                found.append(json.loads(line))
    if process.returncode:
        raise SystemExit(f"{task}: PyTorch's process ended with {process.returncode}.")
    return found


def network_of(tensors: dict[str, Any], args: argparse.Namespace) -> Any:
    """Return the network in Equinox, with its running statistics."""
    build = eqx.nn.make_with_state(zoo.ResNet)
    blocks = (args.blocks,) * 3
    pair = build(3, 10, blocks=blocks, width=args.width, small_images=True, key=jax.random.key(0))
    return bmr.nn.load_weights(pair, tensors, rename=torchvision_resnet)


def tensors_of(pair: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Return a network's arrays by torchvision's names."""
    arrays = named_arrays(pair)
    found = {name: torchvision_resnet(name) for name in names}
    return {name: np.asarray(arrays[ours]) for name, ours in found.items() if ours is not None}


def nll(pair: Any, x: Any, y: Any) -> float:
    """Return the mean negative log likelihood of a network in Equinox."""
    module, state = eqx.nn.inference_mode(pair[0]), pair[1]
    logits = np.asarray(jax.jit(jax.vmap(lambda row: module(row, state)[0]))(x), float)
    return float(np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]))


def sets_of(seed: int, data_root: Path | None) -> tuple[dict[str, Any], Any]:
    """Return training, calibration and test rows of CIFAR-10, and rows that are kept out."""
    data = bmr.data.load_dataset("cifar10", data_root=data_root)
    (x, y), held_out = data.split_train(validation=0.1, seed=seed)
    some = np.random.default_rng(seed).permutation(len(x))[:CALIBRATION]
    return {"train": (x, y), "calibrate": (x[some], y[some]), "test": data.test}, held_out


def write_sets(file: Path, sets: dict[str, Any]) -> None:
    """Write rows where the process with PyTorch reads them."""
    parts = {f"{name}_x": some[0] for name, some in sets.items()}
    parts |= {f"{name}_y": np.asarray(some[1], np.int64) for name, some in sets.items()}
    np.savez(file, **parts)


def trained(args: argparse.Namespace, seed: int, sets: dict[str, Any]) -> Path:
    """Return the file of the network that PyTorch has trained; train it if it is not there."""
    weights = args.cache / f"resnet-{args.blocks}-{args.width}-{args.epochs}-{seed}.npz"
    args.cache.mkdir(parents=True, exist_ok=True)
    if not weights.exists():
        if args.peer_python is None:
            raise SystemExit(f"{weights} is not there: --peer-python names a Python with torch.")
        made = {"blocks": args.blocks, "width": args.width, "epochs": args.epochs}
        with tempfile.TemporaryDirectory() as folder:
            write_sets(Path(folder) / "data.npz", sets)
            run(args, seed, "train", Path(folder) / "data.npz", weights=weights, **made)
    return weights


def compare(seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row of results per method, share of operations and what was done afterwards."""
    sets, held_out = sets_of(seed, args.data_root)
    weights = trained(args, seed, sets)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        write_sets(file, sets)
        tensors = dict(np.load(weights))
        pair = network_of(tensors, args)
        start = time.process_time()
        ours: Any = bmr.reduce_network(
            pair, sets["calibrate"], units=True, flops=TARGETS[-1], held_out=held_out,
            num_data=len(sets["train"][0]), seed=seed,
        )  # fmt: skip
        seconds = time.process_time() - start
        # The points by which the sparsest target is reached, from the first to the last.
        points = [next(i for i, p in enumerate(ours.path) if p.flops <= t) for t in TARGETS]
        networks = [pair, *(ours.network_at(i) for i in points)]
        files = [weights]
        for i, network in enumerate(networks[1:]):
            files.append(Path(folder) / f"{i}.npz")
            np.savez(files[-1], **tensors_of(network, list(tensors)))
        names = ["dense", *["reduce_network"] * len(points)]
        tune = {"tune": args.tune}
        found = run(args, seed, "report", file, weights=files, names=names, **tune)
        first = sets["test"][0][:500], sets["test"][1][:500]
        for number, network in enumerate(networks):
            mine = found[number * (len(found) // len(networks)) :]
            row = mine[0]
            difference = abs(nll(network, *first) - row["nll_of_few"])
            if difference > TOLERANCE * max(1.0, row["nll_of_few"]):
                raise SystemExit(f"{row['method']} is another network in PyTorch: {difference}.")
            for row in mine[: len(found) // len(networks)]:
                row["target"] = TARGETS[number - 1] if number else 1.0
                if number:
                    row["cpu_s"] = seconds
        methods = {"methods": args.methods, "flops": TARGETS}
        found += run(args, seed, "prune", file, weights=weights, **methods, **tune)
    return [{"network": label(args), "seed": seed} | row for row in found]


def label(args: argparse.Namespace) -> str:
    """Return the name of a network in the rows."""
    return f"ResNet-{6 * args.blocks + 2}, width {args.width}, {args.epochs} passes"


def _cell(rows: list[dict[str, Any]]) -> str:
    """Return accuracy, NLL and the share of the operations that is there."""
    accuracy, nll = means(rows, accuracy=3, nll=2)
    return f"{accuracy} / {nll} at {np.mean([row['flops'] for row in rows]):.0%}"


def write_table(rows: Rows) -> None:
    """Write ``table.md``: by network, accuracy by share of the operations, means over seeds."""
    parts = []
    for name, some in group(rows.rows, "network").items():
        seeds = len({row["seed"] for row in some})
        text = f"{name}, {seeds} {'seed' if seeds == 1 else 'seeds'}."
        for after, mine in group(some, "after").items():
            by_method = group(mine, "method")
            dense = " / ".join(means(by_method.pop("dense"), accuracy=3, nll=2))
            lines = []
            for method, these in by_method.items():
                by_target = group(these, "target")
                cells = [_cell(by_target[t]) if t in by_target else "–" for t in TARGETS]
                lines.append([method, *cells, *means(by_target.get(TARGETS[-1], []), cpu_s=1)])
            shares = " | ".join(f"at most {target:.0%}" for target in TARGETS)
            text += f"\n\n{AFTER.get(after, f'After {after} of training')}; dense {dense}:\n\n"
            text += table(f"operations kept | {shares} | CPU s", lines).rstrip()
        parts.append(f"{text}\n")
    rows.write_table("\n".join(parts))


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "residual", seeds=None, report=True)
    parser.add_argument("--peer-python", type=Path, help="Python with torch and torch_pruning")
    parser.add_argument("--blocks", type=int, default=3, help="of each stage: 3, ResNet-20")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data")
    parser.add_argument("--tune", type=int, default=0, help="passes after pruning: 0")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cache", type=Path, default=Path("runs/residual"))
    args = options.parse(parser)
    if args.peer_python is None and not args.report:
        parser.error("--peer-python names a Python with torch and torch_pruning")
    rows = Rows(args.out, shared=True)
    for seed in args.seeds if not args.report else []:
        if not rows.has(network=label(args), seed=seed):
            rows.rows += compare(seed, args)
            rows.save()
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()
