"""From the columns of a DataFrame to the inputs of a network, and back by name."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.data.formatted_numbers import formatted_numbers

if TYPE_CHECKING:
    import pandas as pd

# Text with more values than this is a category only if each has this many rows on average.
_FEW_LEVELS, _ROWS_PER_LEVEL = 20, 10
_MISSING_LEVEL = "missing"
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./-])\d{1,2}\1\d{2,4}")


@dataclass(frozen=True)
class InputColumn:
    """How one column of a table becomes inputs.

    Attributes:
        name: Of the column.
        levels: Of a category: its values, one input each; of two, one input for the second. None for numbers.
        fill: Of numbers: what stands for a missing cell; None if there must not be any.
    """

    name: str
    levels: tuple[str, ...] | None = None
    fill: float | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that the column becomes."""
        if self.levels is None:
            return (self.name,)
        shown = self.levels[1:] if len(self.levels) == 2 else self.levels
        return tuple(f"{self.name}={level}" for level in shown)


@dataclass(frozen=True)
class TableEncoding:
    """The columns that a network reads, with the categories of the training rows.

    Example:
        >>> import pandas as pd
        >>> from bmrjax.data.table_encoding import fit_encoding
        >>> frame = pd.DataFrame({"age": [31.0, 40.0, 28.0], "place": ["Oslo", "Rome", "Oslo"]})
        >>> encoding, notes = fit_encoding(frame, name="people")
        >>> encoding.names
        ('age', 'place=Rome')
        >>> encoding.encode(frame, name="people")
        array([[31.,  0.],
               [40.,  1.],
               [28.,  0.]])
    """

    columns: tuple[InputColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each input."""
        return tuple(name for column in self.columns for name in column.inputs)

    def encode(self, frame: "pd.DataFrame", *, name: str) -> np.ndarray:
        """Return the inputs, (rows, inputs) in float64.

        Args:
            frame: A table with at least the columns of this encoding. Others are not read.
            name: Of the table, for messages.

        Raises:
            ValueError: For a column that is not there, text where numbers are due, or cells that are
                missing or infinite.
        """
        lacking = [c.name for c in self.columns if c.name not in frame.columns]
        if lacking:
            raise ValueError(
                f"{name} lacks {listed(lacking)}, which the network reads; it has "
                f"{listed([str(c) for c in frame.columns])}."
            )
        parts, problems = [], []
        for column in self.columns:
            values: Any = frame[column.name]
            if column.levels is not None:
                parts.append(_one_hot(as_text(values), column.levels))
                continue
            numbers = as_numbers(values, name)
            if column.fill is not None:
                numbers = np.where(np.isnan(numbers), column.fill, numbers)
            if not np.isfinite(numbers).all():
                problems.append((column.name, ~np.isfinite(numbers)))
            parts.append(numbers[:, None])
        if problems:
            raise ValueError(missing_message(frame, problems, name))
        return np.concatenate(parts, 1)

    def unknown(self, frame: "pd.DataFrame") -> tuple[str, ...]:
        """Return a note on each column with cells that are none of its categories, which count as none.

        Of a category with two values, which is one input, they count as the first.

        Args:
            frame: A table with at least the columns of this encoding.
        """
        notes = []
        for column in self.columns:
            if column.levels is None or column.name not in frame.columns:
                continue
            cells = as_text(frame[column.name])
            text = [_MISSING_LEVEL if cell is None else cell for cell in cells]
            others = [cell for cell in text if cell not in column.levels]
            if others:
                counted = "none of its values"
                if len(column.levels) == 2:
                    counted = f"'{column.levels[0]}', the value without an input"
                notes.append(
                    f"'{column.name}': {len(others)} cells, such as '{others[0]}', are none of the "
                    f"{len(column.levels)} categories of the training rows; they count as {counted}"
                )
        return tuple(notes)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the columns as JSON."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> "TableEncoding":
        """Return the encoding that `to_json` wrote."""
        return cls(
            tuple(
                InputColumn(
                    c["name"], None if c["levels"] is None else tuple(c["levels"]), c["fill"]
                )
                for c in columns
            )
        )


def fit_encoding(
    frame: "pd.DataFrame", *, name: str, impute: bool = False
) -> tuple[TableEncoding, tuple[str, ...]]:
    """Decide how each column is read, by the training rows.

    Numbers and booleans are one input each. Text is a category, with an input for each value, and a missing
    cell is a value of its own. Columns that are constant are left out, and so is text with many values, which
    identifies rows rather than groups them.

    Args:
        frame: The training rows, without the targets.
        name: Of the table, for messages.
        impute: Whether a missing number is replaced by the median of its column.

    Returns:
        The encoding, and notes on what was left out, a sentence each.

    Raises:
        ValueError: For columns of dates and the like, and where nothing is left to read.
    """
    columns, constant, notes = [], [], []
    for column, values in frame.items():
        column = str(column)
        if is_text(values):
            text = as_text(values)
            levels = sorted({cell for cell in text if cell is not None})
            if None in text:
                levels.append(_MISSING_LEVEL)
            if len(levels) > max(_FEW_LEVELS, len(text) / _ROWS_PER_LEVEL):
                dates = all(_DATE.match(cell) for cell in levels)
                notes.append(
                    f"'{column}' is left out: it holds {len(levels)} different "
                    f"{'dates' if dates else 'texts'} in {len(text)} rows"
                    f"{'; turn them into numbers to use them' if dates else ''}"
                )
            elif len(levels) < 2:
                constant.append(column)
            else:
                columns.append(InputColumn(column, tuple(levels)))
            continue
        numbers = as_numbers(values, name)
        finite = numbers[np.isfinite(numbers)]
        if len(finite) == len(numbers) and np.ptp(finite) == 0:
            constant.append(column)
            continue
        if not len(finite):
            notes.append(f"'{column}' is left out: it is empty")
            continue
        fill = float(np.median(finite)) if impute else None
        absent = int(np.isnan(numbers).sum())
        if impute and absent:
            notes.append(f"'{column}': the median, {fill:.6g}, stands for {absent} missing cells")
        columns.append(InputColumn(column, None, fill))
    if constant:
        notes.append(f"{listed(constant)} left out: constant in the training rows")
    if not columns:
        raise ValueError(
            f"{name} has no column to predict from: {'; '.join(notes) or 'it has only targets'}."
        )
    return TableEncoding(tuple(columns)), tuple(notes)


def is_text(values: Any) -> bool:
    """Return whether a column holds categories rather than numbers."""
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_bool_dtype(values.dtype) or kinds.is_numeric_dtype(values.dtype):
        return False
    if isinstance(values.dtype, pd.CategoricalDtype):
        return True
    if not (kinds.is_object_dtype(values.dtype) or kinds.is_string_dtype(values.dtype)):
        return False
    return kinds.infer_dtype(values, skipna=True) not in (
        "floating",
        "integer",
        "boolean",
        "mixed-integer-float",
        "decimal",
    )


def as_text(values: Any) -> list[str | None]:
    """Return a column as strings, None where a cell is missing."""
    gone = values.isna().to_numpy()
    cells = values.astype(object).to_numpy()
    return [None if out else _label(cell) for cell, out in zip(cells, gone, strict=True)]


def _label(cell: Any) -> str:
    # The category 3 is called "3" whether its column came as integers or as floats.
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)


def as_numbers(values: Any, name: str) -> np.ndarray:
    """Return a column as float64, NaN where a cell is missing; texts such as ``$1,250`` are numbers too."""
    written = formatted_numbers(as_text(values), sure=False) if is_text(values) else None
    if written is not None:
        return np.array(written)
    try:
        if getattr(values.dtype, "kind", "O") in "mM":
            raise TypeError(f"it holds {values.dtype}")
        return values.astype("float64").to_numpy()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: column '{values.name}' cannot be read as numbers ({error}). Turn it into numbers "
            "or text, or leave it out (--drop)."
        ) from None


def missing_message(
    frame: "pd.DataFrame", problems: Sequence[tuple[str, np.ndarray]], name: str
) -> str:
    """Return which cells are missing or infinite, by line and column."""
    count = sum(int(bad.sum()) for _, bad in problems)
    unit = frame.index.name or "row"
    first = min(problems, key=lambda problem: int(np.argmax(problem[1])))
    where = [
        f"'{column}' ({int(bad.sum())}: {unit} {', '.join(str(i) for i in frame.index[bad][:5])}"
        f"{', ...' if bad.sum() > 5 else ''})"
        for column, bad in problems[:8]
    ]
    more = f" and {len(problems) - 8} more columns" if len(problems) > 8 else ""
    position = list(map(str, frame.columns)).index(first[0]) + 1
    return (
        f"{name}: {count} cells are empty, NaN or infinite, first in {unit} "
        f"{frame.index[int(np.argmax(first[1]))]}, column {position}: {', '.join(where)}{more}. Drop "
        "these rows or fill them in; or say --impute (impute=True) to take the medians of the columns for "
        "missing inputs."
    )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names in quotes, the first few of many, each in one line and not too long."""
    shown = ", ".join(f"'{' '.join(name.split()):.60}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _one_hot(text: list[str | None], levels: tuple[str, ...]) -> np.ndarray:
    """Return a column for each level; one for the second of two. A value that is none of them gives zeros."""
    position = {level: i for i, level in enumerate(levels)}
    at = [position.get(_MISSING_LEVEL if cell is None else cell, -1) for cell in text]
    hot = np.asarray(at)[:, None] == np.arange(len(levels))
    return hot[:, 1:].astype(np.float64) if len(levels) == 2 else hot.astype(np.float64)
