"""The figures that the README states are those of the committed rows."""

import json
import re
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]


def test_headline_figures() -> None:
    rows = json.loads((ROOT / "benchmarks/results/markovic2024/results.json").read_text())
    what = {"data": "fashion_mnist", "network": "lenet5", "method": "BMR-S&S, verified"}
    found = [row for row in rows if what.items() <= row.items()]
    assert len(found) >= 3
    text = (ROOT / "README.md").read_text()
    sentence = re.search(r"keeps (\d+) % of its weights at ([\d.]+) % accuracy", text)
    assert sentence is not None
    kept, accuracy = sentence.groups()
    assert float(kept) == round(100 * (1 - mean(row["sparsity"] for row in found)))
    assert float(accuracy) == round(100 * mean(row["accuracy"] for row in found), 1)


def test_selection_figures() -> None:
    rows = json.loads((ROOT / "benchmarks/results/trust/selection.json").read_text())
    found = [row for row in rows if row["kind"] == "README" and row["method"] == "default"]
    exact = sum(row["exact"] for row in found)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert len(found) == 20
    assert "Of twenty such data sets" in text
    assert exact == 18
    assert "eighteen end with exactly the five" in text
