"""Trained networks with fewer weights, without training: `reduce_network` beside other ways to choose.

    python -m benchmarks.trained.compare --data-root DIR --networks mlp lenet5 lenet5_units --seeds 0 1 2
    python -m benchmarks.trained.compare --data-root DIR --networks resnet8 --peer-python DIR/bin/python

The residual network, on CIFAR-10, is that of ``benchmarks.trained.residual --blocks 1 --epochs 8``, with its
2,000 rows to calibrate by and 5,000 to choose by. PyTorch trains it, in another Python if need be.

Every other network is trained on 54,000 rows of Fashion-MNIST by plain AdamW, and kept in --cache. All
methods get the same 4,000 of these rows to calibrate by; `reduce_network` chooses its point, and its
temperature, by 6,000 that neither training nor calibration has seen. Test data are used for reporting only.
Baselines keep the shares of weights, or of parameters for whole units, at which the path of `reduce_network`
has points. Points of the
path are as the rounds left them; rows of ``reduce_network(keep=)`` are what such a call
returns for the shares of ``--keep``, with the last fit of all layers together.
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
from benchmarks.trained import residual
from bmrjax.files import write_atomically

# Network, and epochs of its training; the name of a case ends in ``_units`` where whole units are removed.
CASES = {"mlp": ("Equinox MLP 200-200", 10), "lenet5": ("LeNet-5", 6)}
UNITS = "_units"
RESIDUAL = "resnet8"
# Blocks of each stage, channels of the first, and passes over the data.
RESIDUAL_SIZE = {"blocks": 1, "width": 16, "epochs": 8}
TITLES = {
    "mlp": "784-200-200-10, single weights",
    "lenet5": "LeNet-5, single weights",
    f"lenet5{UNITS}": "LeNet-5, whole units",
    RESIDUAL: "ResNet-8 on CIFAR-10 (width 16, 8 passes), single weights",
}
BATCH = 128
CALIBRATION = 4000
# Shares that are looked at: the points of the path that are next to these.
SHARES = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
ASKED = "reduce_network(keep=)"
# SpaM's structured LeNet on Fashion-MNIST: share of parameters to accuracy, from a dense 0.880 (Dhahri et
# al., 2024, notebook).
SPAM = {0.4: 0.861, 0.2: 0.843, 0.1: 0.810, 0.05: 0.779}


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


def prepared(name: str, seed: int, args: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """Return a trained network, calibration rows, test rows, and what `reduce_network` is called with."""
    if name == RESIDUAL:
        sets, chosen_by = residual.sets_of(seed, args.data_root)
        sized = argparse.Namespace(**vars(args) | RESIDUAL_SIZE)
        tensors = dict(np.load(residual.trained(sized, seed, sets)))
        settings = {"num_data": len(sets["train"][0]), "seed": seed, "units": False}
        network = residual.network_of(tensors, sized)
        return network, sets["calibrate"], sets["test"], {"held_out": chosen_by, **settings}
    data = bmr.data.load_dataset("fashion_mnist", data_root=args.data_root)
    train, chosen_by = data.split_train(validation=0.1, seed=seed)
    network = trained(name.removesuffix(UNITS), seed, train, args.cache)
    x, y = train
    some = np.random.default_rng(seed).permutation(len(x))[:CALIBRATION]
    settings = {"num_data": len(x), "seed": seed, "units": name.endswith(UNITS)}
    return network, (x[some], y[some]), data.test, {"held_out": chosen_by, **settings}


def _log_probs(network: Any, x: Any) -> np.ndarray:
    """Return log class probabilities of a network, or of one with running statistics."""
    if isinstance(network, tuple):
        module, state = eqx.nn.inference_mode(network[0]), network[1]
        network = _Settled(module, state)
    return np.asarray(networks.log_probs(network, x, 500))


class _Settled(eqx.Module):
    """A network with state, as a function of a row."""

    module: Any
    state: Any

    def __call__(self, x: Any) -> Any:
        return self.module(x, self.state)[0]


def asked(name: str, seed: int, share: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of `reduce_network` with ``keep=share``."""
    network, given, test, settings = prepared(name, seed, args)
    start = time.process_time()
    found: Any = bmr.reduce_network(network, given, keep=share, **settings)
    seconds = round(time.process_time() - start, 1)
    log_probs = _log_probs(found.network, test[0])
    row = {"network": name, "seed": seed, "method": ASKED, "kept": round(found.kept, 4)}
    row |= networks.scores(log_probs, test[1]) | {"asked": share, "cpu_s": seconds}
    print(row, flush=True)
    return row


def compare(name: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row of results per method and share of weights."""
    network, given, test, settings = prepared(name, seed, args)
    units = settings["units"]
    found = []

    def add(method: str, kept: float, reduced: Any, **more: Any) -> None:
        log_probs = _log_probs(reduced, test[0])
        row = {"network": name, "seed": seed, "method": method, "kept": round(kept, 4)}
        found.append(row | networks.scores(log_probs, test[1]) | more)
        print(found[-1], flush=True)

    add("dense", 1.0, network)
    start = time.process_time()
    ours: Any = bmr.reduce_network(network, given, smallest=0.04, **settings)
    seconds = round(time.process_time() - start, 1)
    more: dict[str, Any] = {"cpu_s": seconds, "temperature": ours.temperature}

    def at(i: int) -> dict[str, Any]:
        return {"flops": round(ours.path[i].flops, 4)} if units else {}

    add("reduce_network, its own choice", ours.kept, ours.network, **more, **at(ours.chosen))
    point = ours.evidence_point
    add(
        "reduce_network, highest evidence",
        ours.path[point].kept,
        ours.network_at(point),
        **at(point),
    )
    points = [_nearest(share, [p.kept for p in ours.path]) for share in SHARES]
    for i in points:
        add("reduce_network", ours.path[i].kept, ours.network_at(i), **at(i))
    known = bmr.trained.UNIT_METHODS if units else bmr.trained.METHODS
    for method in [m for m in args.methods if m in known]:
        start = time.process_time()
        keep = [ours.path[i].kept for i in points]
        others = bmr.trained.reduce_by(network, given, method, keep=keep, **settings)
        seconds = round(time.process_time() - start, 1)
        for other in others:
            cost = {"flops": round(other.flops, 4)} if units else {}
            add(method, other.kept, other.network, cpu_s=seconds, **cost)
    return found


def _nearest(share: float, kept: list[float]) -> int:
    """Return the place of the number that is next to a share, as a ratio."""
    return int(np.argmin(np.abs(np.log(np.array(kept) / share))))


def _cell(rows: list[dict[str, Any]]) -> str:
    return " / ".join(f"{np.mean([row[name] for row in rows]):.3f}" for name in ("accuracy", "nll"))


def _share(row: dict[str, Any]) -> float | None:
    """Return which of the shares a row is of; None for one without a share of its own."""
    if row["method"] == "dense" or "its own" in row["method"] or "evidence" in row["method"]:
        return None
    return SHARES[_nearest(row["kept"], list(SHARES))]


def write_table(rows: Rows) -> None:
    """Write ``table.md``: by network, accuracy and NLL of each method by share, means over seeds."""
    parts = []
    for name, some in group(rows.rows, lambda row: row["network"]).items():
        dense = [row for row in some if row["method"] == "dense"]
        by_method = group([r for r in some if _share(r)], lambda row: row["method"])
        ours = group(by_method["reduce_network"], _share)
        units = name.endswith(UNITS)
        lines = []
        for method, mine in by_method.items():
            cells = group(mine, _share)
            lines.append([method, *(_cell(cells[x]) if x in cells else "–" for x in ours)])
        if units:
            published = [f"{SPAM[share]:.3f}" if share in SPAM else "–" for share in ours]
            lines.append(["SpaM, from 0.880, as published", *published])
        kept = [f"{np.mean([row['kept'] for row in some]):.1%}" for some in ours.values()]
        text = table(f"{'parameters' if units else 'weights'} kept | {' | '.join(kept)}", lines)
        if units:
            flops = [f"{np.mean([row['flops'] for row in some]):.0%}" for some in ours.values()]
            text += f"\nOf the operations, `reduce_network` keeps {', '.join(flops)} there.\n"
        own = {}
        for which in ("its own choice", "highest evidence"):
            mine = [row for row in some if row["method"].endswith(which)]
            own[which] = f"{np.mean([row['kept'] for row in mine]):.1%} ({_cell(mine)})"
        seconds = np.mean([row["cpu_s"] for row in some if row["method"].endswith("own choice")])
        parts.append(
            f"{TITLES[name]}, dense {_cell(dense)}, {len(dense)} "
            f"{'seed' if len(dense) == 1 else 'seeds'}:\n\n{text}\n"
            f"Its own choice keeps {own['its own choice']}; the evidence is highest at "
            f"{own['highest evidence']}. It took {seconds:.0f} CPU seconds.\n"
        )
    rows.write_table("\n".join(parts))


def main() -> None:
    """Run what is missing and write the table."""
    parser = options.parser(__doc__, "trained", seeds=None, report=True)
    cases = list(TITLES)
    parser.add_argument("--networks", nargs="+", choices=cases, default=cases[:-1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    methods = list(dict.fromkeys([*bmr.trained.METHODS, *bmr.trained.UNIT_METHODS]))
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument(
        "--keep",
        nargs="*",
        type=float,
        default=[0.1, 0.05],
        help="shares for rows of reduce_network(keep=)",
    )
    parser.add_argument("--cache", type=Path, default=Path("runs/trained"))
    parser.add_argument("--peer-python", type=Path, help=f"Python with torch, to train {RESIDUAL}")
    args = options.parse(parser)
    rows = Rows(args.out, shared=True)
    for name in args.networks if not args.report else []:
        for seed in args.seeds:
            if not rows.has(network=name, seed=seed, method="dense"):
                rows.rows += compare(name, seed, args)
                rows.save()
            for share in args.keep:
                if not rows.has(network=name, seed=seed, method=ASKED, asked=share):
                    rows.add(asked(name, seed, share, args))
    write_table(rows)
    print((args.out / "table.md").read_text())


if __name__ == "__main__":
    main()
