"""Data sets by name, from files, or from arrays of your own."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bmrjax.data.dataset import Dataset, Task, from_arrays, split_arrays
from bmrjax.data.frames import from_csv
from bmrjax.data.images import load_images
from bmrjax.data.numpy_file import read_arrays
from bmrjax.data.signals import SIGNALS, periodic

HUB = {
    "mnist": "ylecun/mnist",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}
BUNDLED = ("digits", "diabetes")
# Where scikit-learn has them.
_DIGITS = ("datasets", "data", "digits.csv.gz")


def load_dataset(
    name: str,
    *,
    data_root: str | Path | None = None,
    task: Task | None = None,
    num_targets: int = 1,
    target: str | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    impute: bool = False,
    seed: int = 0,
) -> Dataset:
    """Load a data set.

    Args:
        name: ``"digits"`` or ``"diabetes"`` (bundled with scikit-learn); ``"mnist"``,
            ``"fashion_mnist"`` or ``"cifar10"``; ``"sine"``, ``"sawtooth"`` or ``"square"``, windows of a
            noisy signal of that shape, the last fifth of them held out; or the path of an
            ``.npz`` or ``.csv`` file.
        data_root: Folder that holds a folder for each data set, in the layout of the Hugging Face hub. By
            default the environment variable ``BMRJAX_DATA``; without either, the hub itself.
        task: For files: ``"classification"`` or ``"regression"``; by default chosen by the targets. Whole
            numbers in an ``.npz`` are labels unless there are too many; for a ``.csv`` see `from_frame`.
        num_targets: For a ``.csv``: how many of the last columns are targets.
        target: For a ``.csv``: the name of the target's column, in place of `num_targets`.
        categories: For a ``.csv``: see `from_csv`.
        drop: For a ``.csv``: see `from_csv`.
        impute: For a ``.csv``: see `from_csv`.
        seed: Of the split, where the source has none.

    Returns:
        Standardised splits.

    Raises:
        FileNotFoundError: If the file or folder is not there.
        ImportError: If the optional dependency is not installed.
        ValueError: For an unknown name, or data that cannot be used; the message says which.

    Example:
        >>> import bmrjax as bmr
        >>> data = bmr.data.load_dataset("diabetes", seed=1)
        >>> data.columns[:3], data.train[0].shape, data.test[0].shape
        (('age', 'sex', 'bmi'), (354, 10), (88, 10))
    """
    if name in BUNDLED:
        return _bundled(name, seed)
    if name in HUB:
        return load_images(name, HUB[name], data_root)
    if name in SIGNALS:
        x, y = periodic(name, seed=seed)
        end = len(x) * 4 // 5
        return from_arrays(x[:end], y[:end], x[end:], y[end:], task="regression", name=name)
    suffix = Path(name).suffix.lower()
    if suffix == ".npz":
        return _npz(Path(name), task, seed)
    if suffix in (".csv", ".txt", ".tsv"):
        return from_csv(
            name,
            target=target,
            num_targets=num_targets,
            task=task,
            categories=categories,
            drop=drop,
            impute=impute,
            seed=seed,
        )
    known = ", ".join([*BUNDLED, *HUB, *SIGNALS])
    raise ValueError(
        f"Unknown data set '{name}'. Known names: {known}; or give the path of a .npz or .csv file."
    )


def _npz(path: Path, task: Task | None, seed: int) -> Dataset:
    arrays = read_arrays(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        parts = (arrays[k] for k in ("x_train", "y_train", "x_test", "y_test"))
        return from_arrays(*parts, task=task, name=str(path))
    if {"x", "y"} <= set(arrays):
        return split_arrays(arrays["x"], arrays["y"], 0.1, task, seed, str(path))
    raise ValueError(
        f"{path} holds the arrays {sorted(arrays)}; expected x_train, y_train, x_test and y_test, or x "
        "and y."
    )


def _bundled(name: str, seed: int) -> Dataset:
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ImportError(f"'{name}' is bundled with scikit-learn: pip install 'bmrjax[data]'.")
    places = package.submodule_search_locations or ()
    digits = [path for place in places if (path := Path(place, *_DIGITS)).is_file()]
    if name == "digits" and digits:
        # Importing scikit-learn takes longer than all that is done with the data, 1.5 s of a core.
        table = np.loadtxt(digits[0], delimiter=",")
        images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].astype(int)
        return split_arrays(images, labels, 0.2, "classification", seed, name)
    from sklearn import datasets

    if name == "diabetes":
        found: Any = datasets.load_diabetes(scaled=False)
        split = split_arrays(found["data"], found["target"], 0.2, "regression", seed, name)
        names = tuple(found["feature_names"])
        return replace(split, columns=names, target_names=("progression",))
    found = datasets.load_digits()
    return split_arrays(
        found["images"][:, None], found["target"], 0.2, "classification", seed, name
    )
