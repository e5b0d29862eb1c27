"""The tables of ``tables.py``: UCI sets from files, scikit-learn's own, and generated ones."""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "wine", "yacht")
BUNDLED = ("breast_cancer", "sk_wine", "iris", "diabetes", "digits")
GENERATED = ("noise", "one_column", "wide", "constant_columns", "imbalanced")


def names() -> list[str]:
    """Return all names, small tables first."""
    large = ("naval", "powerplant", "kin8nm", "wide", "digits")
    every = (*BUNDLED, *GENERATED, *UCI)
    return [*(name for name in every if name not in large), *reversed(large)]


def frame_of(name: str, data_root: Path) -> pd.DataFrame:
    """Return a table whose last column is the target, as a user would have it.

    Energy and naval have two targets: the first one of energy (heating load) and the last one of naval
    (turbine decay) are predicted, without the other.
    """
    if name in UCI:
        path = data_root / "uci" / f"{name}.csv"
        separator = "," if "," in path.read_text().splitlines()[0] else r"\s+"
        frame = pd.read_csv(path, header=None, sep=separator)
        if name == "energy":
            frame = frame.iloc[:, :-1]
        if name == "naval":
            frame = frame.drop(columns=frame.columns[-2])
        return frame.set_axis([*(f"x{i + 1}" for i in range(frame.shape[1] - 1)), "y"], axis=1)
    if name in BUNDLED:
        return _bundled(name)
    return _generated(name)


def _bundled(name: str) -> pd.DataFrame:
    if name == "diabetes":
        return datasets.load_diabetes(as_frame=True, scaled=False)["frame"]
    if name == "digits":
        return datasets.load_digits(as_frame=True)["frame"]
    loader = {
        "breast_cancer": datasets.load_breast_cancer,
        "sk_wine": datasets.load_wine,
        "iris": datasets.load_iris,
    }[name]
    found = loader(as_frame=True)
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
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(width)])
    return frame.assign(y=y)
