"""Take out of notebooks what every run writes anew, so that a commit shows what their answers are.

    python tools/tidy_notebooks.py notebooks

Times of execution and versions of Python go; outputs stay. What is tidy is not written.
"""

import json
import sys
from pathlib import Path
from typing import Any


def tidy(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook without the traces of its run."""
    cells = []
    for cell in notebook["cells"]:
        kept = {k: v for k, v in cell.get("metadata", {}).items() if k != "execution"}
        cells.append(cell | {"metadata": kept})
    language = {"language_info": {"name": "python"}}
    return notebook | {"cells": cells, "metadata": notebook["metadata"] | language}


def main() -> None:
    """Tidy the notebooks of a folder."""
    for path in sorted(Path(sys.argv[1]).glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after = json.dumps(tidy(json.loads(before)), indent=1, ensure_ascii=False) + "\n"
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"tidied {path}")


if __name__ == "__main__":
    main()
