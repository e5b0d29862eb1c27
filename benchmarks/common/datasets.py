"""The data of all benchmarks: images, regressions in the targets' unit, signals, tables, simulations."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

import bmrjax as bmr
from bmrjax.data import Dataset
from bmrjax.data.csv_file import read_csv

# --- images ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def images(
    name: str, data_root: Path | None, *, rows: int | None = None, flat: bool = False, held_out: int = 0
) -> tuple[Any, Any]:  # fmt: skip
    """Return (train, test) as NumPy arrays, each images and labels.

    Args:
        name: Such as ``"fashion_mnist"``.
        data_root: Folder with the data.
        rows: Rows of each at most.
        flat: Whether an image is one row of numbers.
        held_out: So many of the last rows of the training data are the test data: for choosing settings.
    """
    found = bmr.data.load_dataset(name, data_root=data_root)

    def cut(split: Any) -> Any:
        x, y = (np.asarray(part)[:rows] for part in split)
        return x.reshape(len(x), -1) if flat else x, y

    train, test = cut(found.train), cut(found.test)
    if held_out:
        test = tuple(part[-held_out:] for part in train)
        train = tuple(part[:-held_out] for part in train)
    return train, test


def kept_out(train: Any, number: int) -> tuple[Any, Any]:
    """Return (rest, `number` rows drawn by seed 0), each inputs and labels."""
    order = np.random.default_rng(0).permutation(len(train[1]))
    parts = order[number:], order[:number]
    rest, out = (tuple(part[rows] for part in train) for rows in parts)
    return rest, out


def random_images(shape: tuple[int, ...], rows: int, *, seed: int = 0) -> Any:
    """Return random images and labels on the device: for steps of which only the time matters."""
    import jax

    key = jax.random.key(seed)
    return jax.random.normal(key, (rows, *shape)), jax.random.randint(key, (rows,), 0, 10)


# --- regressions in the targets' own unit ---------------------------------------------------------

SIGNALS = {
    "sine": lambda t: np.sin(t),
    "sawtooth": lambda t: np.sin(t) - np.sin(2 * t) / 2 + np.sin(3 * t) / 3 - np.sin(4 * t) / 4,
    "square": lambda t: np.sin(t) + np.sin(3 * t) / 3 + np.sin(5 * t) / 5 + np.sin(7 * t) / 7,
}
WINDOW = 8


def regression(name: str, data_root: Path | str | None) -> Dataset:
    """Return a data set, targets in their own unit; a signal as windows, and the sample after each.

    A tenth of the rows is held out, of a signal the last fifth.
    """
    if name in SIGNALS:
        signal = SIGNALS[name](np.arange(0, 8, 0.01) * np.pi)
        windows = np.lib.stride_tricks.sliding_window_view(signal[:-1], WINDOW)[..., None]
        following, end = signal[WINDOW:], len(windows) * 4 // 5
        arrays = windows[:end], following[:end], windows[end:], following[end:]
    else:
        targets = 2 if name in ("energy", "naval") else 1
        # Every column is kept, as in the paper: naval has some that are constant.
        table = read_csv(Path(data_root or ".") / "uci" / f"{name}.csv").to_numpy()
        x, y = table[:, :-targets], table[:, -targets:] if targets > 1 else table[:, -1]
        train, test = bmr.data.split_rows(len(table), 0.1, 0)
        arrays = x[train], y[train], x[test], y[test]
    found = bmr.data.from_arrays(*arrays, task="regression", name=name)
    assert found.target_scale is not None
    parts = [
        (x, (y * found.target_scale + found.target_mean).astype(np.float32))
        for x, y in (found.train, found.test)
    ]
    return replace(found, train=parts[0], test=parts[1])


# --- tables, as a user would have them ------------------------------------------------------------

UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "wine", "yacht")
BUNDLED = ("breast_cancer", "sk_wine", "iris", "diabetes", "digits")
GENERATED = ("noise", "one_column", "wide", "constant_columns", "imbalanced")


def table_names() -> list[str]:
    """Return the names of all tables, small ones first."""
    large = ("naval", "powerplant", "kin8nm", "wide", "digits")
    every = (*BUNDLED, *GENERATED, *UCI)
    return [*(name for name in every if name not in large), *reversed(large)]


def table(name: str, data_root: Path | None) -> pd.DataFrame:
    """Return a table whose last column is the target.

    Energy and naval have two targets: the first one of energy (heating load) and the last one of naval
    (turbine decay) are predicted, without the other.
    """
    if name in UCI:
        path = Path(data_root or ".") / "uci" / f"{name}.csv"
        separator = "," if "," in path.read_text().splitlines()[0] else r"\s+"
        frame = pd.read_csv(path, header=None, sep=separator)
        if name == "energy":
            frame = frame.iloc[:, :-1]
        if name == "naval":
            frame = frame.drop(columns=frame.columns[-2])
        return frame.set_axis([*(f"x{i + 1}" for i in range(frame.shape[1] - 1)), "y"], axis=1)
    return _bundled(name) if name in BUNDLED else _generated(name)


def _bundled(name: str) -> pd.DataFrame:
    if name == "diabetes":
        return datasets.load_diabetes(as_frame=True, scaled=False)["frame"]
    if name == "digits":
        return datasets.load_digits(as_frame=True)["frame"]
    loaders = {
        "breast_cancer": datasets.load_breast_cancer,
        "sk_wine": datasets.load_wine,
        "iris": datasets.load_iris,
    }
    found = loaders[name](as_frame=True)
    frame = found["frame"].copy()
    frame["target"] = [str(found["target_names"][i]) for i in frame["target"]]
    return frame


def _generated(name: str) -> pd.DataFrame:
    rng = np.random.default_rng(29)
    rows, width = {"wide": (200, 10_000), "imbalanced": (1000, 10)}.get(name, (300, 20))
    x = rng.normal(size=(rows, width))
    if name == "noise":
        y = rng.normal(size=rows)
    elif name == "wide":
        y = x[:, :5] @ np.array([1.5, -2.0, 1.0, -1.0, 2.0]) + 0.5 * rng.normal(size=rows)
    elif name == "imbalanced":
        # About three rows in a hundred are positive.
        y = np.where(x[:, 0] + 0.5 * x[:, 1] + 0.3 * rng.normal(size=rows) > 2.2, "yes", "no")
    else:
        y = 1.5 * x[:, 4] + 0.5 * rng.normal(size=rows)
    if name == "constant_columns":
        x[:, [0, 7, 13]] = [1.0, -3.5, 0.1]
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(width)]).assign(y=y)
