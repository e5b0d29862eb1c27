"""What a page consists of, as plain data. Texts are escaped when they become HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FactList:
    """Names and values, as in a list of settings.

    Attributes:
        rows: Pairs of a name and a value.
        code: Whether values are shown as code.
    """

    rows: Sequence[tuple[str, str]]
    code: bool = False

    kind = "facts"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: What it shows, in one sentence.
        columns: Titles.
        rows: Cells, as texts; a number between 0 and 1 is shown as a bar with its percentage.
        numeric: Numbers of the columns that are aligned to the right.
        summary: Text of the line that opens it; empty for a table that is always open.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    numeric: frozenset[int] = frozenset()
    summary: str = ""

    kind = "table"


@dataclass(frozen=True)
class Notes:
    """Notes to the reader, such as the findings of a diagnosis.

    Attributes:
        rows: Heading, text and advice of each.
        none: What is said where there are none.
    """

    rows: Sequence[tuple[str, str, str]]
    none: str = ""

    kind = "notes"


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows.
        description: The same for readers who do not see it, with the numbers that matter.
        spec: Vega-Lite, with its data; see `charts`.
        wide: Whether it takes the full width of the page.
    """

    title: str
    description: str
    spec: Mapping[str, Any]
    wide: bool = False

    kind = "chart"


@dataclass(frozen=True)
class Measure:
    """One quantity along a path.

    Attributes:
        name: Key of its values.
        label: Name for readers, with the unit.
        shown: Its value at each point, as text; empty where it was not measured.
        values: The same as numbers, None where it was not measured.
    """

    name: str
    label: str
    shown: Sequence[str]
    values: Sequence[float | None]


@dataclass(frozen=True)
class PathStep:
    """A point of a path.

    Attributes:
        title: What it is called, such as "epoch 12".
        kept: Elements that it keeps; the horizontal axis.
        mark: Remark, such as "taken back"; empty for none.
        hollow: Whether it is drawn as a point that was left.
    """

    title: str
    kept: float
    mark: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Explorer:
    """A slider along a path that shows all measures of a point together, with a chart of each.

    Attributes:
        axis: Name of the horizontal axis.
        steps: The points, from dense to sparse.
        measures: What is shown of each.
        present: Number of the point at which the result is.
    """

    axis: str
    steps: Sequence[PathStep]
    measures: Sequence[Measure]
    present: int

    kind = "explorer"


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: Short, for the link to it.
        title: Heading.
        text: What the reader sees here, in a sentence or two.
        blocks: Its contents.
    """

    name: str
    title: str
    text: str
    blocks: Sequence[FactList | Table | Notes | Chart | Explorer]


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: Heading.
        lead: The result in one or two sentences.
        figures: Label, value and remark of the numbers at the top.
        sections: The parts.
        version: Of the library.
    """

    title: str
    lead: str
    figures: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
    version: str = ""
    language: str = field(default="en")
