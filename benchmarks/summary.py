"""The first table of docs/results.md: the headline of each benchmark, out of the committed rows.

    python benchmarks/summary.py

Writes ``benchmarks/results/summary/table.md``; nothing is run.
"""

import json
from pathlib import Path
from typing import Any

import records

RESULTS = Path(__file__).parent / "results"


def rows(name: str, **what: Any) -> list[dict[str, Any]]:
    """Return the rows of a benchmark with these values."""
    found = json.loads((RESULTS / name / "results.json").read_text())
    return [row for row in found if all(row.get(key) == value for key, value in what.items())]


def mean(found: list[dict[str, Any]], value: Any, digits: int, factor: float = 1.0) -> str:
    """Return mean ± standard error of a key, or of what a function says of a row."""
    pick = value if callable(value) else lambda row: row[value]
    return records.mean_and_error([factor * pick(row) for row in found], digits)


def classification() -> list[str]:
    found = rows("markovic2024", data="fashion_mnist", network="lenet5", method="BMR-S&S, verified")
    ours = (
        f"accuracy {mean(found, 'accuracy', 1, 100)} %, NLL {mean(found, 'nll', 3)}, "
        f"ECE {mean(found, 'ece', 3)}; {mean(found, 'sparsity', 1, 100)} % of the weights gone"
    )
    paper = "90 %, .28, –; 81 % gone, as many epochs (Marković et al., read off figures)"
    return ["LeNet-5 on Fashion-MNIST, reduced while it trains", ours, paper, str(len(found))]


def few_weights() -> list[str]:
    found = rows("few_weights")
    ours = f"{mean(found, 'kept', 0)} weights at {mean(found, 'accuracy', 2, 100)} %"
    return ["Weights for 97 % on MNIST", ours, "935 (arXiv 2503.10496)", str(len(found))]


def file(net: str, paper: str) -> list[str]:
    found = rows("federici2017", net=net, method="VD")
    files = [row["files"]["ours"] for row in found]
    ours = f"{mean(files, 'ratio', 0)} times smaller at {mean(files, 'test_accuracy', 2)} %"
    name = {"lenet-300-100": "LeNet-300-100", "lenet-5-caffe": "LeNet-5-Caffe"}[net]
    return [f"{name} on MNIST as a file, decoded", ours, paper, str(len(found))]


def units(net: str, paper: str) -> list[str]:
    found = rows("neklyudov2017", net=net, random_labels=False, quick=False, validation=0)
    ours = (
        f"{mean(found, 'flops_ratio', 1)} times fewer FLOPs, error "
        f"{mean(found, lambda row: 100 - row['accuracy'], 2)} %"
    )
    name = {"lenet-500-300": "LeNet-500-300", "lenet-5-caffe": "LeNet-5-Caffe"}[net]
    return [f"{name} on MNIST, whole units", ours, paper, str(len(found))]


def compression(data: str, net: str, what: str, paper: str) -> list[str]:
    found = rows(
        "wright2024", data=data, net=net, rule="ours", study=None, quick=False, validation=0
    )
    ours = f"{mean(found, 'compression', 1)} % smaller at {mean(found, 'accuracy', 2)} %"
    return [what, ours, paper, str(len(found))]


def regression() -> list[str]:
    found = rows("beckers2024", data="boston", estimator="local", rows="all")
    ours = (
        f"VFE {mean(found, lambda row: row['start']['vfe'], 0)} → "
        f"{mean(found, lambda row: row['iterative']['vfe'], 0)} nats"
    )
    paper = "1601 → 1451 (Beckers et al.)"
    return ["Boston housing, `local`, pruned until nothing more goes", ours, paper, str(len(found))]


def peer() -> list[str]:
    (ours,), (theirs,) = rows("peer", schedule="Every()"), rows("peer", system="bmr4pml")
    told = [
        f"{row['seconds_evaluated_at_end']:.0f} s to {100 * row['accuracy']:.1f} %"
        for row in (ours, theirs)
    ]
    what = (
        "10 epochs of LeNet-5 on Fashion-MNIST, evaluated at the end, beside bmr4pml (one run each)"
    )
    return [what, told[0], told[1], "1"]


def main() -> None:
    lines = [
        classification(),
        few_weights(),
        file("lenet-300-100", "161 times at 98.24 % (Federici et al.)"),
        file("lenet-5-caffe", "482 times at 99.14 % (Federici et al.)"),
        units("lenet-500-300", "11.2 times, 1.55 % (Neklyudov et al.)"),
        units("lenet-5-caffe", "10.5 times, .86 % (Neklyudov et al.)"),
        compression(
            "fashion_mnist", "lenet5", "LeNet5 on Fashion-MNIST, whole units",
            "87.6 % at 77.23 % (Wright et al., BMRS-U)",
        ),
        compression(
            "cifar10", "lenet5", "LeNet5 on CIFAR-10, whole units",
            "62.5 % at 66.28 % (Wright et al., BMRS-U)",
        ),
        regression(),
        peer(),
    ]  # fmt: skip
    out = RESULTS / "summary"
    out.mkdir(exist_ok=True)
    (out / "table.md").write_text(
        records.table(["what", "bmrjax", "published, or a peer", "seeds"], lines)
    )
    print((out / "table.md").read_text())


if __name__ == "__main__":
    main()
