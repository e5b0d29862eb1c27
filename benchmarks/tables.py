"""All tables from the committed rows: those of each benchmark, the summary, and those of pages of docs.

    python -m benchmarks.tables

Nothing is run, and no figure is drawn: ``--report`` of a benchmark does that.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.common.options import RESULTS
from benchmarks.common.rows import Rows, mean_and_error, table

DOCS = Path(__file__).parents[1] / "docs"
# Pages with blocks that are filled.
PAGES = ("results.md", "scale.md", "trained.md")
# Module with `write_table`, and the folder of its rows.
TABLES = {
    "costs.codec": "codec",
    "costs.compact": "compact",
    "costs.compact_fit": "compact_fit",
    "costs.convolutions": "convolutions",
    "costs.device": "device",
    "costs.estimators": "estimators",
    "costs.horseshoe": "markovic2024/speed",
    "costs.memory": "memory",
    "costs.peer": "peer",
    "costs.precision": "precision",
    "costs.reduce_at_size": "reduce_at_size",
    "costs.scale": "scale",
    "costs.sharded_block": "scale/block",
    "costs.speed_report": "speed",
    "costs.step_cost": "step_cost",
    "costs.where": "where",
    "papers.beckers2024_report": "beckers2024",
    "papers.fashion_lenet5": "fashion_lenet5",
    "papers.federici2017": "federici2017",
    "papers.few_weights": "few_weights",
    "papers.markovic2024_report": "markovic2024",
    "papers.neklyudov2017": "neklyudov2017",
    "papers.schedules": "schedules",
    "papers.shrinkage_regression": "shrinkage_regression",
    "papers.wright2024": "wright2024",
    "rerun": "rerun",
    "trained.compare": "trained",
    "trained.real": "real_networks",
    "trained.residual": "residual",
    "trust.judges": "trust/judges.json",
    "trust.nested_widths": "trust/nested_widths.json",
    "trust.dcm": "trust/dcm.json",
    "trust.hierarchies": "trust/hierarchies.json",
    "trust.kulprit_sizes": "trust/kulprit_sizes.json",
    "trust.normal_check": "trust/normal_check.json",
    "trust.point_rules": "trust/point_rules.json",
    "trust.programs": "trust/programs.json",
    "trust.rows_per_element": "trust/rows_per_element.json",
    "trust.selection": "trust/selection.json",
    "trust.set_rules": "trust/set_rules.json",
    "trust.susie_sets": "trust/susie_sets.json",
    "trust.tables": "trust/tables.json",
}


def rows_of(where: str, results: Path = RESULTS) -> Rows:
    """Return the committed rows of a folder or file."""
    path = results / where
    return Rows(path.parent, path.name) if path.suffix else Rows(path)


def mean(rows: list[dict[str, Any]], value: Any, digits: int, factor: float = 1.0) -> str:
    """Return mean ± standard error of a key, or of a function of a row."""
    pick = value if callable(value) else lambda row: row[value]
    return mean_and_error([factor * pick(row) for row in rows], digits)


def _wrong(row: dict[str, Any]) -> float:
    return 100 - row["accuracy"]


def summary(results: Path = RESULTS) -> str:
    """Return the first table of docs/results.md: the headline of each benchmark."""

    def where(name: str, **what: Any) -> list[dict[str, Any]]:
        return rows_of(name, results).where(**what)

    lines = []
    found = where(
        "markovic2024", data="fashion_mnist", network="lenet5", method="BMR-S&S, verified"
    )
    ours = f"accuracy {mean(found, 'accuracy', 1, 100)} %, NLL {mean(found, 'nll', 3)}, "
    ours += f"ECE {mean(found, 'ece', 3)}; {mean(found, 'sparsity', 1, 100)} % of the weights gone"
    paper = "90 %, .28, –; 81 % gone, as many epochs (Marković et al., read off figures)"
    lines.append(["LeNet-5 on Fashion-MNIST, reduced while it trains", ours, paper, found])
    found = where("few_weights")
    ours = f"{mean(found, 'kept', 0)} weights at {mean(found, 'accuracy', 2, 100)} %"
    lines.append(["Weights for 97 % on MNIST", ours, "935 (arXiv 2503.10496)", found])
    for net, name, paper in (
        ("lenet-300-100", "LeNet-300-100", "161 times at 98.24 %"),
        ("lenet-5-caffe", "LeNet-5-Caffe", "482 times at 99.14 %"),
    ):
        found = where("federici2017", net=net, method="VD")
        files = [row["files"]["ours"] for row in found]
        ours = f"{mean(files, 'ratio', 0)} times smaller at {mean(files, 'test_accuracy', 2)} %"
        what = f"{name} on MNIST as a file, decoded"
        lines.append([what, ours, f"{paper} (Federici et al.)", found])
    for net, name, paper in (
        ("lenet-500-300", "LeNet-500-300", "11.2 times, 1.55 %"),
        ("lenet-5-caffe", "LeNet-5-Caffe", "10.5 times, .86 %"),
    ):
        found = where("neklyudov2017", net=net, random_labels=False, quick=False, validation=0)
        ours = (
            f"{mean(found, 'flops_ratio', 1)} times fewer FLOPs, error {mean(found, _wrong, 2)} %"
        )
        lines.append([f"{name} on MNIST, whole units", ours, f"{paper} (Neklyudov et al.)", found])
    for data, name, paper in (
        ("fashion_mnist", "Fashion-MNIST", "87.6 % at 77.23 %"),
        ("cifar10", "CIFAR-10", "62.5 % at 66.28 %"),
    ):
        kind = {"net": "lenet5", "rule": "ours", "study": None, "quick": False, "validation": 0}
        found = where("wright2024", data=data, **kind)
        ours = f"{mean(found, 'compression', 1)} % smaller at {mean(found, 'accuracy', 2)} %"
        paper = f"{paper} (Wright et al., BMRS-U)"
        lines.append([f"LeNet5 on {name}, whole units", ours, paper, found])
    found = where("beckers2024", data="boston", estimator="local", rows="all")
    start, end = (
        mean(found, lambda row, s=stage: row[s]["vfe"], 0) for stage in ("start", "iterative")
    )
    what, paper = "Boston housing, `local`, pruned until nothing more goes", "1601 → 1451"
    lines.append([what, f"VFE {start} → {end} nats", f"{paper} (Beckers et al.)", found])
    found = [*where("peer", schedule="Every()"), *where("peer", system="bmr4pml")]
    both = [
        f"{row['seconds_evaluated_at_end']:.0f} s to {100 * row['accuracy']:.1f} %" for row in found
    ]
    what = (
        "10 epochs of LeNet-5 on Fashion-MNIST, evaluated at the end, beside bmr4pml (one run each)"
    )
    lines.append([what, *both, found[:1]])
    cells = [[*line[:-1], str(len(line[-1]))] for line in lines]
    return table("what | bmrjax | published, or a peer | seeds", cells)


def main() -> None:
    """Write all tables, and fill the ``<!-- table: NAME -->`` blocks of the pages."""
    for module, where in TABLES.items():
        import_module(f"benchmarks.{module}").write_table(rows_of(where))
    Rows(RESULTS / "summary").write_table(summary())

    def fill(match: re.Match) -> str:
        text = (RESULTS / match["name"] / "table.md").read_text()
        return f"<!-- table: {match['name']} -->\n{text}<!-- end -->"

    pattern = r"<!-- table: (?P<name>[\w/]+) -->\n.*?<!-- end -->"
    for name in PAGES:
        page = DOCS / name
        page.write_text(re.sub(pattern, fill, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
