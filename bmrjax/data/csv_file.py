"""Reading a CSV file into a DataFrame: numbers, text, and what is missing."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bmrjax.data.formatted_numbers import formatted_numbers
from bmrjax.data.table_encoding import listed

if TYPE_CHECKING:
    import pandas as pd

# Numbers with decimal commas. 0.125 has no thousands.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?(,\d*)?([eE][+-]?\d+)?")
# How people and programs write that a value is missing, in lower case.
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


def read_csv(path: str | Path, *, categories: Sequence[str] = ()) -> "pd.DataFrame":
    r"""Read a table in which each column holds numbers or text.

    Cells are separated by commas, semicolons, tabs or spaces, and may be quoted, numbers too. Between
    semicolons a number may have a decimal comma; then points between groups of three digits separate
    thousands, in all of its column. The first line holds names if none of its cells is a number and none
    occurs again in its own column, or if it counts the columns from 0.

    A column that holds more texts than numbers is text, such as the names of cars, some of which are numbers.

    Args:
        path: The file, UTF-8 text.
        categories: Names of columns to keep as text even if they hold numbers.

    Returns:
        A DataFrame whose index holds the line numbers, with float columns (missing cells are NaN) and
        columns of strings (missing cells are None). Columns without a name are called ``column 1`` and so on.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For a file that is not a table, or a column of numbers with some text in it; with the
            name of the file and the line.

    Example:
        >>> import tempfile, pathlib
        >>> from bmrjax.data.csv_file import read_csv
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
        >>> _ = path.write_text('age,"place of birth"\n31,Oslo\n,Rome\n')
        >>> read_csv(path).shape
        (2, 2)
        >>> list(read_csv(path).columns)
        ['age', 'place of birth']
    """
    import pandas as pd

    path = Path(path)
    rows, separator = _cells(path)
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            raise ValueError(f"{path}, line {line}: {len(row)} cells, expected {width}.")
    names = [f"column {i + 1}" for i in range(width)]
    if _is_header(rows):
        given = [cell or name for cell, name in zip(rows[0][1], names, strict=True)]
        names = _distinct(given)
        rows = rows[1:]
    if not rows:
        raise ValueError(f"{path} has a header and no rows.")
    unknown = sorted(set(categories) - set(names))
    if unknown:
        raise ValueError(f"{path} has no column '{unknown[0]}'. It has {listed(names)}.")
    lines = [line for line, _ in rows]
    columns = {
        name: _parsed(path, name, lines, cells, comma=separator != ",", text=name in categories)
        for name, cells in zip(names, zip(*(row for _, row in rows), strict=True), strict=True)
    }
    return pd.DataFrame(columns, index=pd.Index(lines, name="line"), copy=False)


def _cells(path: Path) -> tuple[list[tuple[int, list[str]]], str | None]:
    """Return the line number and the cells of each row that is not blank, and the separator."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error}). Save it as UTF-8; pandas reads other encodings by "
            "read_csv(path, encoding=...), and bmr.data.from_frame takes what it returns."
        ) from None
    # Not by splitlines, which ends lines at form feeds and the like too, within cells.
    lines = list(io.StringIO(text, newline=""))
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise ValueError(f"{path} is empty.")
    outside_quotes = re.sub(r'"[^"]*"', "", first)
    separator = next((mark for mark in "\t;," if mark in outside_quotes), None)
    reader = csv.reader(lines, delimiter=separator or " ", skipinitialspace=True, strict=True)
    rows = []
    try:
        for row in reader:
            cells = [_unquoted(cell.strip()) for cell in row]
            if separator is None:
                cells = [cell for cell in cells if cell]
            if any(cells):
                rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from None
    return rows, separator


def _unquoted(cell: str) -> str:
    """Return a cell without quotes that the reader leaves: single ones, or those of a cell quoted twice."""
    for mark in ("'", '"'):
        if len(cell) > 2 and cell[0] == cell[-1] == mark and mark not in cell[1:-1]:
            return cell[1:-1].strip()
    return cell


def _is_header(rows: list[tuple[int, list[str]]]) -> bool:
    first, rest = rows[0][1], [row for _, row in rows[1:]]
    if first == [str(i) for i in range(len(first))] and len(first) > 1:
        return True
    if any(_number(cell) is not None or cell.lower() in _MISSING - {""} for cell in first):
        return False
    # The first row of a table without a header has values that come again.
    return not any(cell and any(cell == row[i] for row in rest) for i, cell in enumerate(first))


def _distinct(names: list[str]) -> list[str]:
    """Return the names, with a number behind those that occur again."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return result


def numbers_among(cells: Sequence[str | None]) -> int:
    """Return how many cells are numbers."""
    return sum(cell is not None and _number(cell) is not None for cell in cells)


def _number(cell: str) -> float | None:
    if "_" in cell:  # 2020_01 is a name, though Python would read it as a number
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _with_comma(cell: str) -> float | None:
    """Return a number of a column with decimal commas, in which points separate thousands."""
    if "," not in cell and not _THOUSANDS.fullmatch(cell):
        return _number(cell)
    if not _DECIMAL_COMMA.fullmatch(cell):
        return None
    return _number(cell.replace(".", "").replace(",", "."))


def _parsed(
    path: Path, name: str, lines: list[int], cells: Sequence[str], *, comma: bool, text: bool
) -> np.ndarray:
    """Return a column as float64, or as objects if it holds text."""
    missing = [cell.lower() in _MISSING for cell in cells]
    strings = [None if gone else cell for cell, gone in zip(cells, missing, strict=True)]
    if text:
        return np.array(strings, object)
    numbers = [float("nan") if cell is None else _number(cell) for cell in strings]
    wrong = [i for i, number in enumerate(numbers) if number is None]
    if wrong and comma:
        # 1.234,5 between semicolons: only if it makes all of the column numbers.
        localised = [float("nan") if cell is None else _with_comma(cell) for cell in strings]
        if None not in localised:
            numbers, wrong = localised, []
    if not wrong:
        return np.array(numbers, np.float64)
    if len(wrong) + sum(missing) == len(cells) or formatted_numbers(strings) is not None:
        return np.array(strings, object)
    counted = len(cells) - len(wrong) - sum(missing)
    if counted < len(wrong):
        return np.array(strings, object)
    raise ValueError(
        f"{path}, line {lines[wrong[0]]}: could not convert {listed([cells[wrong[0]]])} to a number, in "
        f"column {listed([name])}, where {counted} of {len(cells)} cells are numbers. Give "
        "numbers only; or, if the cells are names of categories, say so by --categories, or leave the "
        "column out by --drop."
    )
