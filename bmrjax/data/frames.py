"""Data sets from tables with named columns: a DataFrame, or a CSV file."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.data.csv_file import numbers_among, read_csv
from bmrjax.data.dataset import FEW_CLASSES, ROWS_PER_CLASS, Dataset, Task, from_arrays, split_rows
from bmrjax.data.formatted_numbers import formatted_numbers
from bmrjax.data.table_encoding import (
    as_numbers,
    as_text,
    fit_encoding,
    is_text,
    listed,
    missing_message,
)

if TYPE_CHECKING:
    import pandas as pd

# What pandas calls a first column without a name, such as the row names that R and pandas write.
PANDAS_UNNAMED = "Unnamed: 0"


def from_frame(
    frame: "pd.DataFrame",
    *,
    target: str | Sequence[str] | None = None,
    num_targets: int = 1,
    task: Task | None = None,
    drop: Sequence[str] = (),
    impute: bool = False,
    held_out: float = 0.1,
    seed: int = 0,
    name: str = "frame",
) -> Dataset:
    """Make a data set of a table.

    Numbers and booleans are inputs as they are, standardised, and so are numbers with a currency, a percent
    sign or separated thousands, such as ``"$1,250.00"``; text and categories are one-hot encoded, with
    names such as ``"colour=red"`` (of two values, one input), and a missing text is a value of its own.
    Columns that are constant are left out, and so are text with too many values to be categories, and a
    first column ``"Unnamed: 0"`` that counts the rows; `Dataset.notes` says which.

    Without `task`, a target of text, categories or booleans is a class, and so is one of whole numbers
    if they are two, or at most 20 with ten rows each on average. Other targets are amounts.

    Args:
        frame: One row per data point.
        target: Name of the target's column, or names of several.
        num_targets: Without `target`: how many of the last columns are targets.
        task: ``"classification"`` or ``"regression"``.
        drop: Columns to leave out.
        impute: Replace missing numbers by the median of their column, of the training rows.
        held_out: Fraction of the rows that is held out; of each class in proportion.
        seed: Of the split.
        name: For messages.

    Returns:
        Standardised splits, with the names of inputs, targets and classes.

    Raises:
        ValueError: For columns that are not there, missing values, targets that do not fit the task, or
            fewer than two classes; the message names the column and the rows.

    Example:
        >>> import pandas as pd
        >>> import bmrjax as bmr
        >>> frame = pd.DataFrame(
        ...     {"size": range(40), "colour": ["red", "blue"] * 20, "price": [0.5 * i for i in range(40)]}
        ... )
        >>> found = bmr.data.from_frame(frame, target="price")
        >>> found.columns, found.target_names, found.num_classes
        (('size', 'colour=red'), ('price',), None)
    """
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise ValueError(f"{name} has two columns of the name '{twice}'.")
    frame = frame.set_axis(names, axis=1)
    targets = _targets(names, target, num_targets, drop, name)
    frame, notes = _read_formatted(frame, drop)
    if len(frame) < 2:
        raise ValueError(f"{name} has {len(frame)} rows; a split needs at least 2.")
    _check_targets(frame, targets, name)
    if task is None:
        task, reason = _task_of(frame, targets)
        notes.append(reason)
    if task == "classification":
        y, class_names = _labels(frame, targets, name)
        train, test = split_rows(len(frame), held_out, seed, labels=y, name=name)
    elif task == "regression":
        y, class_names = _amounts(frame, targets, name), None
        train, test = split_rows(len(frame), held_out, seed, name=name)
    else:
        raise ValueError(f"{name}: task must be 'classification' or 'regression', got {task!r}.")
    inputs = frame.drop(columns=[*targets, *drop])
    if PANDAS_UNNAMED not in (*targets, *drop) and _row_numbers(frame, PANDAS_UNNAMED):
        inputs = inputs.drop(columns=PANDAS_UNNAMED)
        notes.append(
            f"'{PANDAS_UNNAMED}', a column that had no name, is left out: it counts the rows; to keep it, "
            "rename it"
        )
    notes += [
        f"'{column}' counts the rows; leave it out by --drop {shlex.quote(column)} (drop=) unless it is a "
        "time"
        for column in inputs
        if _counts_the_rows(inputs[column])
    ]
    inputs = inputs.iloc[train]
    encoding, left_out = fit_encoding(inputs, name=name, impute=impute)
    x = encoding.encode(frame, name=name)
    notes += encoding.unknown(frame)
    found = from_arrays(x[train], y[train], x[test], y[test], task=task, name=name)
    return dataclasses.replace(
        found,
        columns=encoding.names,
        target_names=tuple(targets),
        class_names=class_names,
        num_classes=None if class_names is None else len(class_names),
        encoding=encoding,
        notes=(*notes, *left_out),
    )


def from_csv(
    path: str | Path,
    *,
    target: str | Sequence[str] | None = None,
    num_targets: int = 1,
    task: Task | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    impute: bool = False,
    held_out: float = 0.1,
    seed: int = 0,
) -> Dataset:
    r"""Make a data set of a CSV file; see `from_frame`.

    Args:
        path: The file; comma, semicolon, tab or space between cells, quoted or not, a header or none (columns
            are then called ``column 1`` and so on).
        target: Name of the target's column, or names of several.
        num_targets: Without `target`: how many of the last columns are targets.
        task: ``"classification"`` or ``"regression"``; see `from_frame` for the default.
        categories: Names of columns whose numbers, or numbers and text, are names of categories.
        drop: Columns to leave out. An unnamed first column that counts the rows is left out anyway.
        impute: Replace missing numbers by the median of their column, of the training rows.
        held_out: Fraction of the rows that is held out.
        seed: Of the split.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For a file that is not a table, and as `from_frame` does.

    Example:
        >>> import pathlib, tempfile
        >>> import bmrjax as bmr
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "houses.csv"
        >>> rows = [f"{n};{n % 3};{'red' if n % 2 else 'blue'};{0.5 * n}" for n in range(40)]
        >>> _ = path.write_text("size;rooms;colour;price\n" + "\n".join(rows))
        >>> data = bmr.data.from_csv(path, target="price", drop=["rooms"])
        >>> data.columns, len(data.train[0]), len(data.test[0])
        (('size', 'colour=red'), 36, 4)
    """
    frame = read_csv(path, categories=categories)
    notes = [
        f"'{column}': {some} of {len(frame)} cells are numbers; it is taken as text"
        for column in frame.columns
        if is_text(frame[column]) and column not in (*categories, *drop)
        if formatted_numbers(cells := as_text(frame[column])) is None
        if (some := numbers_among(cells))
    ]
    frame = frame.astype(dict.fromkeys(categories, "category"))
    counts = [] if target == "column 1" or "column 1" in drop else _row_numbers(frame, "column 1")
    found = from_frame(
        frame,
        target=target,
        num_targets=num_targets,
        task=task,
        drop=(*drop, *counts),
        impute=impute,
        held_out=held_out,
        seed=seed,
        name=str(path),
    )
    if counts:
        notes.append("the first column, which has no name, is left out: it counts the rows")
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _row_numbers(frame: "pd.DataFrame", unnamed: str) -> list[str]:
    """Return the first column if it is called as unnamed ones are, beside others, and counts the rows."""
    first, *others = frame.columns
    if first != unnamed or "column 2" in others or not others:
        return []
    starts = frame[first].iloc[0] in (0, 1)
    return [first] if starts and _counts_the_rows(frame[first]) else []


def _counts_the_rows(column: Any) -> bool:
    """Return whether the cells of a column are whole numbers, each one more than that above."""
    values = column.to_numpy()
    if values.dtype.kind not in "iuf" or len(values) < 3 or values[0] != np.round(values[0]):
        return False
    return bool(np.array_equal(values, values[0] + np.arange(len(values))))


def _read_formatted(frame: Any, drop: Sequence[str]) -> tuple[Any, list[str]]:
    """Turn columns of formatted numbers, such as ``$1,250``, into numbers; return notes as well."""
    read, notes = {}, []
    for column in frame.columns:
        values = frame[column]
        if column in drop or not is_text(values) or hasattr(values, "cat"):
            continue
        text = as_text(values)
        numbers = formatted_numbers(text)
        if numbers is not None:
            read[column] = numbers
            example = next(
                cell for cell in text if cell and cell.strip() and not cell.strip().isdigit()
            )
            notes.append(f"'{column}': texts such as '{example}' are read as numbers")
    return frame.assign(**read) if read else frame, notes


def _targets(
    names: list[str],
    target: str | Sequence[str] | None,
    num_targets: int,
    drop: Sequence[str],
    name: str,
) -> list[str]:
    known = set(names)
    wanted = [target] if isinstance(target, str) else list(target or ())
    for column in (*wanted, *drop):
        if column not in known:
            raise ValueError(f"{name} has no column '{column}'. It has {listed(names)}.")
    rest = [column for column in names if column not in drop]
    if wanted:
        both = [column for column in wanted if column in drop]
        if both:
            raise ValueError(f"{name}: '{both[0]}' is the target, and is to be left out.")
    elif 1 <= num_targets < len(rest):
        wanted = rest[-num_targets:]
    if not wanted or len(wanted) >= len(rest):
        count = len(wanted) or num_targets
        raise ValueError(f"{name} has {len(rest)} columns, too few for {count} target(s).")
    return wanted


def _check_targets(frame: Any, targets: list[str], name: str) -> None:
    """Refuse targets with missing cells, or that do not vary."""
    problems = []
    for column in targets:
        values = frame[column]
        bad = values.isna().to_numpy()
        if not is_text(values):
            bad = bad | ~np.isfinite(as_numbers(values, name))
        if bad.any():
            problems.append((column, bad))
    if problems:
        raise ValueError(f"{missing_message(frame, problems, name)} A target is never filled in.")
    for column in targets:
        if frame[column].nunique() < 2:
            value = as_text(frame[column])[0]
            raise ValueError(
                f"{name}: the target '{column}' is '{value}' in every row; there is "
                "nothing to predict. Name another column by --target."
            )


def _task_of(frame: Any, targets: list[str]) -> tuple[Task, str]:
    """Return the task that the targets stand for, and a note that says so."""
    if len(targets) > 1:
        return "regression", f"{len(targets)} targets, taken as amounts"
    (column,) = targets
    values = frame[column]
    kinds = values.nunique()
    if is_text(values) or values.dtype.kind == "b":
        classes = listed(sorted({str(cell) for cell in as_text(values)}))
        return "classification", f"target '{column}': {kinds} classes, {classes}"
    numbers = values.to_numpy(np.float64)
    whole = bool((numbers == np.round(numbers)).all())
    if whole and (kinds <= 2 or kinds <= min(FEW_CLASSES, len(values) / ROWS_PER_CLASS)):
        return "classification", (
            f"target '{column}': {kinds} different whole numbers, taken as classes; --task regression "
            "takes them as amounts"
        )
    override = "; --task classification takes them as classes" if whole else ""
    return "regression", f"target '{column}': numbers, taken as amounts{override}"


def _labels(frame: Any, targets: list[str], name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels from 0, and the name of each class."""
    if len(targets) > 1:
        raise ValueError(f"{name}: classification has one target, got {listed(targets)}.")
    values = frame[targets[0]]
    text = as_text(values)
    cells: list[Any] = text if is_text(values) else values.tolist()
    classes = sorted(set(cells))
    if len(classes) > max(2, len(cells) / 2):
        raise ValueError(
            f"{name}: the target '{targets[0]}' has {len(classes)} different values in {len(cells)} "
            "rows, too many for classes. Name the right column by --target, or say --task regression."
        )
    position = {value: i for i, value in enumerate(classes)}
    labels = np.array([position[cell] for cell in cells], np.int64)
    names = {labels[i]: str(text[i]) for i in range(len(text))}
    return labels, tuple(names[i] for i in range(len(classes)))


def _amounts(frame: Any, targets: list[str], name: str) -> np.ndarray:
    """Return the targets as numbers, (rows,) or (rows, targets)."""
    for column in targets:
        if is_text(frame[column]):
            raise ValueError(
                f"{name}: the target '{column}' holds text, such as '{frame[column].iloc[0]}', and "
                "--task regression needs numbers. Leave --task out for classes, or name another column "
                "by --target."
            )
    columns = [as_numbers(frame[column], name) for column in targets]
    return columns[0] if len(columns) == 1 else np.stack(columns, 1)
