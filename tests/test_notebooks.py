"""The committed notebooks: a question, a picture, an answer, and the outputs of one run in order."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="the notebooks are not installed")


def test_the_notebooks_are_numbered_without_a_gap():
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{i:02d}" for i in range(1, 1 + len(NOTEBOOKS))
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_asks_shows_and_answers(path):
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert texts[0].startswith("# ")
    assert "?" in texts[0]
    assert "Answer" in " ".join(texts[1:]) or "What to take away" in texts[-1]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_of_one_run(path):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    assert not any(o["output_type"] == "error" for cell in cells for o in cell["outputs"])
