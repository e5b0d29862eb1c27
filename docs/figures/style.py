"""One style for the figures of the site: colours that colour-blind readers tell apart, small SVG files."""

from pathlib import Path

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
