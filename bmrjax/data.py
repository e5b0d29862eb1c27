"""Data sets by name, from files, or from arrays of your own."""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from bmrjax.series import SIGNALS, periodic

Task = Literal["classification", "regression"]
Split = tuple[np.ndarray, np.ndarray]

HUB = {
    "mnist": "ylecun/mnist",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}
BUNDLED = ("digits", "diabetes")
# Whole numbers are taken for labels as long as they are few, or there are enough rows of each.
_FEW_CLASSES, _ROWS_PER_CLASS = 20, 10


@dataclass(frozen=True)
class Dataset:
    """Inputs and targets, split and standardised by the statistics of the training split.

    Attributes:
        name: What was loaded.
        train: (inputs, targets), one row a datum; inputs float32, labels int32, targets float32.
        test: The same for the held-out split.
        num_classes: Number of classes; None for regression.
        input_mean: Means of the raw training inputs: ``(raw - input_mean) / input_scale``.
        input_scale: Their standard deviations.
        target_mean: Mean of the raw training targets; None for classification.
        target_scale: Their standard deviation: an RMSE times it is in the targets' own unit.
    """

    name: str
    train: Split
    test: Split
    num_classes: int | None
    input_mean: np.ndarray
    input_scale: np.ndarray
    target_mean: np.ndarray | None = None
    target_scale: np.ndarray | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input; (channels, height, width) for images."""
        return self.train[0].shape[1:]


def load(
    name: str,
    *,
    data_root: str | Path | None = None,
    task: Task | None = None,
    num_targets: int = 1,
    seed: int = 0,
) -> Dataset:
    """Load a data set.

    Args:
        name: ``"digits"`` or ``"diabetes"`` (bundled with scikit-learn); ``"mnist"``,
            ``"fashion_mnist"`` or ``"cifar10"``; ``"sine"``, ``"sawtooth"`` or ``"square"``, windows of a
            noisy signal of that shape, the last fifth of them held out; or the path of an
            ``.npz`` or ``.csv`` file.
        data_root: Folder with a folder a data set, in the layout of the Hugging Face hub. By
            default the environment variable ``BMRJAX_DATA``; without either, the hub itself.
        task: For files: ``"classification"`` or ``"regression"``; by default told from the targets
            (whole numbers in an ``.npz`` are labels unless too many, a ``.csv`` is a regression).
        num_targets: For a ``.csv``: how many of the last columns are targets.
        seed: Of the split, where the source has none.

    Returns:
        Standardised splits.

    Raises:
        FileNotFoundError: If the file or folder is not there.
        ImportError: If the optional dependency is not installed.
        ValueError: For an unknown name, or data that cannot be used; the message says which.
    """
    if name in BUNDLED:
        return _bundled(name, seed)
    if name in HUB:
        return _images(name, data_root)
    if name in SIGNALS:
        x, y = periodic(name, seed=seed)
        end = len(x) * 4 // 5
        return from_arrays(x[:end], y[:end], x[end:], y[end:], task="regression", name=name)
    suffix = Path(name).suffix.lower()
    if suffix == ".npz":
        return _npz(Path(name), task, seed)
    if suffix in (".csv", ".txt", ".tsv"):
        return from_csv(name, num_targets=num_targets, task=task or "regression", seed=seed)
    known = ", ".join([*BUNDLED, *HUB, *SIGNALS])
    raise ValueError(
        f"Unknown data set '{name}'. Known names: {known}; or give the path of a .npz or .csv file."
    )


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

    Inputs are standardised by the training split: images (four axes) a channel, others a feature;
    a feature that is constant is only centred.

    Args:
        x_train: Training inputs, one row a datum.
        y_train: Training targets: labels from 0, or numbers.
        x_test: Held-out inputs.
        y_test: Held-out targets.
        task: By default classification for integer targets, regression for others.
        name: For messages.

    Raises:
        ValueError: For rows that do not match, values that are not finite, labels that are not
            whole numbers from 0, or integer targets too many for labels where `task` is not given.
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
            f"{name}: training inputs have shape {arrays['x_train'].shape[1:]} a datum, held-out ones "
            f"{arrays['x_test'].shape[1:]}; they must agree."
        )
    if arrays["x_train"].ndim < 2:
        raise ValueError(
            f"{name}: x_train has shape {arrays['x_train'].shape}; give one row a datum."
        )
    x_mean, x_scale = _statistics(arrays["x_train"])
    x, x_held = (_standardise(arrays[part], x_mean, x_scale) for part in ("x_train", "x_test"))
    y, y_held = arrays["y_train"], arrays["y_test"]
    if task is None:
        task = _told_by(name, y)
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


def from_csv(
    path: str | Path,
    *,
    num_targets: int = 1,
    task: Task = "regression",
    held_out: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Read a table of numbers whose last columns are the targets.

    Args:
        path: The file; comma, semicolon, tab or space between cells, a header or none.
        num_targets: How many of the last columns are targets.
        task: Whether the target is a number or a label.
        held_out: Fraction of the rows held out.
        seed: Of the split.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}).") from None
    lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty.")
    separator = next((mark for mark in ",;\t" if mark in lines[0][1]), None)
    cells = [(i, [cell.strip() for cell in line.split(separator)]) for i, line in lines]
    width = len(cells[0][1])
    # A header holds no number at all; a row with some is data with a bad cell.
    if not any(_is_number(cell) for cell in cells[0][1]):
        del cells[0]
    rows = []
    for number, row in cells:
        if len(row) != width:
            raise ValueError(f"{path}, line {number}: {len(row)} cells, expected {width}.")
        try:
            rows.append([float(cell) if cell else float("nan") for cell in row])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}. Give numbers only.") from None
    if not rows:
        raise ValueError(f"{path} has a header and no rows.")
    if not 1 <= num_targets < width:
        raise ValueError(f"{path} has {width} columns, too few for {num_targets} target(s).")
    values = np.asarray(rows, np.float64)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise ValueError(
            f"{path}: {len(bad)} cells are empty, NaN or infinite, first in line "
            f"{cells[bad[0][0]][0]}, column {bad[0][1] + 1}. Drop or impute them first."
        )
    targets = values[:, -num_targets:]
    targets = targets[:, 0] if num_targets == 1 else targets
    return _split(values[:, :-num_targets], targets, held_out, task, seed, str(path))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _npz(path: Path, task: Task | None, seed: int) -> Dataset:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file, or is cut short.")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as .npz ({error}).") from None
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        parts = (arrays[k] for k in ("x_train", "y_train", "x_test", "y_test"))
        return from_arrays(*parts, task=task, name=str(path))
    if {"x", "y"} <= set(arrays):
        return _split(arrays["x"], arrays["y"], 0.1, task, seed, str(path))
    raise ValueError(
        f"{path} holds the arrays {sorted(arrays)}; expected x_train, y_train, x_test and y_test, or x "
        "and y."
    )


def _split(
    x: np.ndarray, y: np.ndarray, fraction: float, task: Task | None, seed: int, name: str
) -> Dataset:
    if len(x) != len(y):
        raise ValueError(f"{name}: x has {len(x)} rows and y has {len(y)}.")
    if len(x) < 2:
        raise ValueError(f"{name} has {len(x)} rows; a split needs at least 2.")
    order = np.random.default_rng(seed).permutation(len(x))
    held = max(1, round(fraction * len(x)))
    test, train = order[:held], order[held:]
    return from_arrays(x[train], y[train], x[test], y[test], task=task, name=name)


def _bundled(name: str, seed: int) -> Dataset:
    try:
        from sklearn import datasets
    except ImportError:
        raise ImportError(
            f"'{name}' is bundled with scikit-learn: pip install 'bmrjax[data]'."
        ) from None
    if name == "diabetes":
        found: Any = datasets.load_diabetes(scaled=False)
        return _split(found["data"], found["target"], 0.2, "regression", seed, name)
    found = datasets.load_digits()
    return _split(found["images"][:, None], found["target"], 0.2, "classification", seed, name)


def _images(name: str, data_root: str | Path | None) -> Dataset:
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"'{name}' is read through Hugging Face datasets: pip install 'bmrjax[data]'."
        ) from None
    root = data_root or os.environ.get("BMRJAX_DATA")
    if root:
        folder = Path(root) / name
        missing = [s for s in ("train", "test") if not (folder / f"{s}.parquet").is_file()]
        if missing:
            raise FileNotFoundError(
                f"{folder} lacks {' and '.join(f'{s}.parquet' for s in missing)}. The data root (--data-root "
                f"or BMRJAX_DATA) must hold a folder '{name}' with train.parquet and test.parquet."
            )
        files = {s: str(folder / f"{s}.parquet") for s in ("train", "test")}
        found = {s: datasets.Dataset.from_parquet(path) for s, path in files.items()}
    else:
        try:
            found = datasets.load_dataset(HUB[name])
        except Exception as error:  # Whatever a network and its libraries raise.
            raise ConnectionError(
                f"'{name}' could not be had from the Hugging Face hub ({error}). Give a data root "
                f"(--data-root or BMRJAX_DATA) that holds a folder '{name}' with train.parquet and "
                "test.parquet."
            ) from error
    x_train, y_train = _decode(name, found["train"])
    x_test, y_test = _decode(name, found["test"])
    return from_arrays(x_train, y_train, x_test, y_test, task="classification", name=name)


def _decode(name: str, split: Any) -> Split:
    import io

    from datasets import Image as Encoded
    from PIL import Image

    column = next((c for c in ("image", "img") if c in split.column_names), None)
    if column is None or "label" not in split.column_names:
        raise ValueError(
            f"{name} has the columns {split.column_names}; expected 'image' (or 'img') and 'label'."
        )
    # Undecoded bytes are ten times faster to fetch than images, and are decoded once here.
    encoded = split.cast_column(column, Encoded(decode=False))[column]
    images = []
    for i, one in enumerate(encoded):
        try:
            images.append(np.asarray(Image.open(io.BytesIO(one["bytes"]))))
        except (OSError, TypeError) as error:
            raise ValueError(f"{name}: image {i} cannot be decoded ({error}).") from None
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise ValueError(f"{name}: the images have the shapes {sorted(shapes)}; they must agree.")
    stacked = np.stack(images)
    stacked = stacked[:, None] if stacked.ndim == 3 else np.moveaxis(stacked, -1, 1)
    return stacked, np.asarray(split["label"])


def _check_array(name: str, part: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{name}: {part} holds {array.dtype} values; give numbers.")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name}: {part} has shape {array.shape}; give one row a datum.")
    if array.dtype.kind == "f":
        # What float32 cannot hold would become infinite. NaN compares as false.
        bad = ~(np.abs(array.reshape(len(array), -1)) <= np.finfo(np.float32).max).all(1)
        if bad.any():
            raise ValueError(
                f"{name}: {part} has NaN or infinite values in {bad.sum()} of {len(array)} rows, first in "
                f"row {int(np.argmax(bad))}. Drop or impute them first."
            )


def _told_by(name: str, y: np.ndarray) -> Task:
    """Return what integer or other targets are for, unless they could be for either."""
    if y.dtype.kind not in "iub":
        return "regression"
    if y.dtype.kind != "b" and y.max() >= max(_FEW_CLASSES, len(y) / _ROWS_PER_CLASS):
        raise ValueError(
            f"{name}: y_train holds whole numbers up to {y.max()} in {len(y)} rows. Are they labels or "
            "amounts? Say task='classification' or task='regression' (--task)."
        )
    return "classification"


def _check_labels(name: str, y: np.ndarray, held: np.ndarray) -> int:
    for part, labels in (("y_train", y), ("y_test", held)):
        if labels.size != len(labels):
            raise ValueError(
                f"{name}: {part} has shape {labels.shape}; give one label a datum, not one-hot rows."
            )
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            raise ValueError(f"{name}: {part} has labels that are not whole numbers.")
        if labels.min() < 0:
            raise ValueError(
                f"{name}: {part} has the label {labels.min()}; labels start at 0. If these are no labels, "
                "say task='regression' (--task regression)."
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
