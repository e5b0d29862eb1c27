"""The pictures of the gallery of plots: runs the page and saves each `figure` under the name below its block.

python docs/figures/plots.py
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
from style import save

PAGE = Path(__file__).parents[1] / "plots.md"
# A block of code, and the picture that follows it, if one does.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n!\[[^]]*\]\(figures/(\w+)\.svg\))?", re.M | re.S)


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Return the code of each block of a page, with the name of the picture that it makes."""
    return [(code, name or None) for code, name in BLOCK.findall(text)]


def main() -> None:
    """Run the blocks in their order, and save the pictures."""
    names: dict = {}
    for code, name in blocks(PAGE.read_text()):
        exec(compile(code, str(PAGE), "exec"), names)
        if name is not None:
            save(names["figure"], name)
    plt.close("all")


if __name__ == "__main__":
    main()
