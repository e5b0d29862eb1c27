"""How the package is laid out: one concept a file, in layers without circles."""

from pathlib import Path

import bmrjax

PACKAGE = Path(bmrjax.__file__).parent
MOST_LINES = 400
# Longer than they should be: (file, reason). A file that has been split leaves the list.
LONGER = {"streaming/reduce.py": "is being made safe against crashes, and split afterwards"}


def test_no_file_is_longer_than_one_concept_takes():
    counts = {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert len(counts) > 300
    assert {name for name, lines in counts.items() if lines > MOST_LINES} == set(LONGER)
