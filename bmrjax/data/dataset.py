"""A data set: inputs and targets, checked, split and standardised."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Shaped

from bmrjax.data.table_encoding import TableEncoding

Task = Literal["classification", "regression"]
Split = tuple[np.ndarray, np.ndarray]

# Whole numbers are taken for labels as long as they are few, or there are enough rows of each.
FEW_CLASSES, ROWS_PER_CLASS = 20, 10
# Beyond so many rows a random part has each class in proportion anyway.
MANY_ROWS = 10_000

# Or as many as there are rows, if these are more.
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Dataset:
    """Inputs and targets, split and standardised by the statistics of the training split.

    Attributes:
        name: What was loaded.
        train: (inputs, targets), one row per data point; inputs float32, labels int32, targets float32.
        test: The same for the held-out split.
        num_classes: Number of classes; None for regression.
        input_mean: Means of the raw training inputs: ``(raw - input_mean) / input_scale``.
        input_scale: Their standard deviations.
        target_mean: Mean of the raw training targets; None for classification.
        target_scale: Their standard deviation: an RMSE times it is in the targets' own unit.
        columns: Names of the inputs, of a table; a category has one for each of its values.
        target_names: Names of the targets, of a table.
        class_names: Name of each label, where classes have names.
        encoding: How the columns of a table become inputs.
        notes: What was decided about a table that one may want to decide otherwise, a sentence each.
    """

    name: str
    train: Split
    test: Split
    num_classes: int | None
    input_mean: np.ndarray
    input_scale: np.ndarray
    target_mean: np.ndarray | None = None
    target_scale: np.ndarray | None = None
    columns: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    encoding: TableEncoding | None = None
    notes: tuple[str, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input; (channels, height, width) for images."""
        return self.train[0].shape[1:]

    def split_train(self, *, validation: float = 0.15, seed: int = 0) -> tuple[Split, Split]:
        """Return the training rows in two parts: those to train on, and those to choose by.

        Args:
            validation: Fraction of the training rows that is kept out; of each class in proportion, unless
                there are more than 10,000 rows.
            seed: Of the draw. `bmrjax sparsify` takes its ``--seed``.

        Raises:
            ValueError: For a fraction that leaves no rows on one side.

        Example:
            >>> import bmrjax as bmr
            >>> train, validation = bmr.data.load_dataset("diabetes").split_train(validation=0.15)
            >>> len(train[0]), len(validation[0])
            (301, 53)
        """
        rows = len(self.train[0])
        size = round(validation * rows)
        if not 1 <= size < rows:
            raise ValueError(
                f"{self.name}: validation={validation} keeps {size} of {rows} rows out; it must leave "
                "some on both sides."
            )
        labels = self.train[1] if self.num_classes and rows <= MANY_ROWS else None
        kept, held = split_rows(rows, validation, seed, labels=labels, name=self.name)
        x, y = self.train
        return (x[kept], y[kept]), (x[held], y[held])


def from_arrays(
    x_train: Shaped[np.ndarray, "train ..."],
    y_train: Shaped[np.ndarray, "train ..."],
    x_test: Shaped[np.ndarray, "test ..."],
    y_test: Shaped[np.ndarray, "test ..."],
    *,
    task: Task | None = None,
    name: str = "arrays",
) -> Dataset:
    """Check and standardise arrays of your own.

    Inputs are standardised by the training split: images (four axes) by channel, others by
    feature; a feature that is constant is only centred.

    Args:
        x_train: Training inputs, one row per data point.
        y_train: Training targets: labels from 0, or numbers.
        x_test: Held-out inputs.
        y_test: Held-out targets.
        task: By default classification for integer targets, regression for others.
        name: For messages.

    Raises:
        ValueError: For rows that do not match, values that are not finite, labels that are not
            whole numbers from 0, or integer targets too many for labels where `task` is not given.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
        >>> data = bmr.data.from_arrays(x[:4], y[:4], x[4:], y[4:])
        >>> data.num_classes, data.train[0].mean(0).round(3).tolist(), data.test[0].round(1).tolist()
        (2, [0.0, 0.0], [[2.200000047683716, 2.200000047683716], [3.0999999046325684, 3.0999999046325684]])
    """
    parts = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    arrays = {part: np.asarray(value) for part, value in parts.items()}
    for part, array in arrays.items():
        _check_array(name, part, array)
    for split in ("train", "test"):
        rows = len(arrays[f"x_{split}"]), len(arrays[f"y_{split}"])
        if rows[0] != rows[1]:
            raise ValueError(f"{name}: x_{split} has {rows[0]} rows and y_{split} has {rows[1]}.")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise ValueError(
            f"{name}: training inputs have shape {arrays['x_train'].shape[1:]} per data point, "
            f"held-out ones {arrays['x_test'].shape[1:]}; they must agree."
        )
    if arrays["x_train"].ndim < 2:
        raise ValueError(
            f"{name}: x_train has shape {arrays['x_train'].shape}; give one row per data point."
        )
    x_mean, x_scale = _statistics(arrays["x_train"])
    x, x_held = (_standardise(arrays[part], x_mean, x_scale) for part in ("x_train", "x_test"))
    y, y_held = arrays["y_train"], arrays["y_test"]
    if task is None:
        task = _default_task(name, y)
    if task == "classification":
        num_classes = _check_labels(name, y, y_held)
        labels, held = y.astype(np.int32).ravel(), y_held.astype(np.int32).ravel()
        return Dataset(name, (x, labels), (x_held, held), num_classes, x_mean, x_scale)
    if task != "regression":
        raise ValueError(f"{name}: task must be 'classification' or 'regression', got {task!r}.")
    if y.ndim > 2 or y.shape[1:] != y_held.shape[1:]:
        raise ValueError(
            f"{name}: y_train has shape {y.shape} and y_test {y_held.shape}; both are (data,) or "
            "(data, targets)."
        )
    mean, scale = _statistics(y)
    targets, held = (_standardise(part, mean, scale) for part in (y, y_held))
    return Dataset(name, (x, targets), (x_held, held), None, x_mean, x_scale, mean, scale)


def split_arrays(
    x: np.ndarray, y: np.ndarray, fraction: float, task: Task | None, seed: int, name: str
) -> Dataset:
    """Hold out a fraction of the rows, drawn at random, and standardise."""
    for part, array in (("x", x), ("y", y)):
        if not np.ndim(array):
            raise ValueError(f"{name}: {part} is a single number; it needs a row per data point.")
    if len(x) != len(y):
        raise ValueError(f"{name}: x has {len(x)} rows and y has {len(y)}.")
    train, test = split_rows(len(x), fraction, seed, name=name)
    return from_arrays(x[train], y[train], x[test], y[test], task=task, name=name)


def split_rows(
    rows: int, fraction: float, seed: int, *, labels: np.ndarray | None = None, name: str = "data"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the training rows and of the held-out rows, in random order.

    Args:
        rows: How many rows there are.
        fraction: Of the rows that is held out; at least one row is.
        seed: Of the draw.
        labels: Classes, (rows,): each is held out in proportion, and none is held out whole.
        name: For messages.

    Raises:
        ValueError: For fewer than two rows.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> labels = np.array([0] * 16 + [1] * 4)
        >>> train, held_out = bmr.data.split_rows(20, 0.25, seed=0, labels=labels)
        >>> len(train), np.bincount(labels[held_out]).tolist()
        (15, [4, 1])
    """
    if rows < 2:
        raise ValueError(f"{name} has {rows} rows; a split needs at least 2.")
    rng = np.random.default_rng(seed)
    order = rng.permutation(rows)
    held = min(max(1, round(fraction * rows)), rows - 1)
    if labels is None:
        return order[held:], order[:held]
    kinds, of_row, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = held * counts / rows
    share = np.floor(quota).astype(int)
    # Whole rows for the largest remainders; a class of one row comes last.
    first = np.lexsort((rng.random(len(kinds)), share - quota, counts < 2))
    share[first[: held - share.sum()]] += 1
    rank = np.empty(rows, int)
    for kind in range(len(kinds)):
        members = order[of_row[order] == kind]
        rank[members] = np.arange(len(members))
    out = rank[order] < share[of_row[order]]
    return order[~out], order[out]


def _check_array(name: str, part: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{name}: {part} holds {array.dtype} values; give numbers.")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name}: {part} has shape {array.shape}; give one row per data point.")
    if array.dtype.kind == "f":
        # What float32 cannot hold would become infinite. NaN compares as false.
        bad = ~(np.abs(array.reshape(len(array), -1)) <= np.finfo(np.float32).max).all(1)
        if bad.any():
            raise ValueError(
                f"{name}: {part} has NaN or infinite values in {bad.sum()} of {len(array)} rows, first in "
                f"row {int(np.argmax(bad))}. Drop or impute them first."
            )


def _default_task(name: str, y: np.ndarray) -> Task:
    """Return the task that the targets stand for; raise ValueError if they could be labels or amounts."""
    if y.dtype.kind not in "iub":
        return "regression"
    if y.dtype.kind != "b" and y.max() >= max(FEW_CLASSES, len(y) / ROWS_PER_CLASS):
        raise ValueError(
            f"{name}: y_train holds whole numbers up to {y.max()} in {len(y)} rows. Are they labels or "
            "amounts? Say task='classification' or task='regression' (--task)."
        )
    return "classification"


def _check_labels(name: str, y: np.ndarray, held: np.ndarray) -> int:
    for part, labels in (("y_train", y), ("y_test", held)):
        if labels.size != len(labels):
            raise ValueError(
                f"{name}: {part} has shape {labels.shape}; give one label per data point, not one-hot rows."
            )
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            raise ValueError(f"{name}: {part} has labels that are not whole numbers.")
        if labels.min() < 0:
            raise ValueError(
                f"{name}: {part} has the label {labels.min()}; labels start at 0. If these are no labels, "
                "say task='regression' (--task regression)."
            )
        # A network has an output for each number up to the largest.
        most = max(MOST_CLASSES, len(y))
        if labels.max() >= most:
            raise ValueError(
                f"{name}: {part} has the label {labels.max()} in row {int(labels.argmax())}; labels count "
                f"classes from 0, and {most:,} is most for {len(y):,} rows. Number the classes anew, or say "
                "task='regression' (--task regression)."
            )
    num_classes = int(y.max()) + 1
    if held.max() >= num_classes:
        raise ValueError(
            f"{name}: y_test has the label {held.max()}, but the training labels end at "
            f"{num_classes - 1}."
        )
    if num_classes < 2:
        raise ValueError(f"{name}: every training label is 0; a classifier needs two classes.")
    return num_classes


def _slices(values: np.ndarray) -> list[slice]:
    # A float64 copy of a whole image set would be the peak memory of a run.
    return [slice(begin, begin + 4096) for begin in range(0, len(values), 4096)]


def _statistics(train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = (0, 2, 3) if train.ndim == 4 else (0,)
    mean = train.mean(axes, keepdims=True, dtype=np.float64)
    squares = np.zeros_like(mean)
    for part in _slices(train):
        squares += np.square(train[part] - mean).sum(axes, keepdims=True)
    scale = np.sqrt(squares * (mean.size / train.size))
    # Rounding leaves a constant column a scale of about 1e-17 of its size.
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def _standardise(values: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    result = np.empty(values.shape, np.float32)
    for part in _slices(values):
        # Centred before the cast: float32 has no room for a large mean and a small deviation.
        result[part] = (values[part] - mean) / scale
    return result
