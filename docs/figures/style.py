"""One style for the figures of the site: colours that colour-blind readers tell apart, small SVG files.

Each script writes the numbers that its pictures show into a small file of JSON beside them. Tests compare
the pictures and the pages with that file, and slow tests compare the file with what the scripts compute.
"""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#777777"

mpl.use("Agg")
plt.rcParams.update(
    {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "font.size": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.5,
        "svg.fonttype": "none",  # words stay words: a fifth of the size, and they can be searched
        "svg.hashsalt": "bmrjax",
    }
)


def save(figure: Figure, name: str, folder: Path | None = None) -> None:
    """Write a figure beside this file, as SVG; the same figure is the same file."""
    path = (folder or Path(__file__).parent) / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def write_numbers(path: Path, numbers: dict[str, Any]) -> None:
    """Write what pictures show: name of a picture to its numbers, or to its texts, as JSON."""
    path.write_text(json.dumps(rounded(numbers), indent=1, ensure_ascii=False) + "\n")


def rounded(value: Any) -> Any:
    """Return numbers, in dicts and lists, with four digits."""
    if isinstance(value, dict):
        return {str(name): rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value


def texts(figure: Figure) -> list[str]:
    """Return the titles, legends and labels of a figure that say something of its data."""
    found = []
    for ax in figure.axes:
        found += [ax.get_title(loc="left"), *(text.get_text() for text in ax.texts)]
        for axis in (ax.xaxis, ax.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            found += [label for label in labels if re.search("[A-Za-z]", label)]
    legends = [ax.get_legend() for ax in figure.axes] + figure.legends
    found += [text.get_text() for legend in legends if legend for text in legend.get_texts()]
    return [" ".join(text.split()) for text in found if text]
