"""The pictures of the gallery of plots: runs the page and saves each `figure` under the name below its block.

    python docs/figures/plots.py

The texts of each picture, such as titles with numbers, are written to ``plots.json``, with a digest of the
code.
"""

import ast
import hashlib
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from style import save, texts, write_numbers

PAGE = Path(__file__).parents[1] / "plots.md"
# A block of code, and the picture that follows it, if one does.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n!\[[^]]*\]\(figures/(\w+)\.svg\))?", re.M | re.S)


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Return the code of each block of a page, with the name of the picture that it makes."""
    return [(code, name or None) for code, name in BLOCK.findall(text)]


def digest(text: str) -> str:
    """Return a digest of the code of a page, however it is wrapped."""
    code = "\n".join(ast.unparse(ast.parse(code)) for code, _ in blocks(text))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def main(folder: Path | None = None) -> None:
    """Run the blocks in their order, and save the pictures and their texts."""
    names: dict = {}
    text = PAGE.read_text()
    found: dict = {"code": digest(text)}
    for code, name in blocks(text):
        exec(compile(code, str(PAGE), "exec"), names)
        if name is not None:
            found[name] = texts(names["figure"])
            save(names["figure"], name, folder)
    plt.close("all")
    write_numbers((folder or Path(__file__).parent) / "plots.json", found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
