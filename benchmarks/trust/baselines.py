"""What scikit-learn reaches on the rows that a run of the command line was given."""

import math
import time
import warnings
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor

from bmrjax.data import Dataset


def baselines(found: Dataset, seed: int) -> dict[str, dict[str, float]]:
    """Return the test metrics of each baseline, and its seconds.

    All see the standardised training rows, those included that bmrjax keeps out for validation. The NLL of a
    regression is that of a normal with the variance of the cross-validated residuals.
    """
    regression = found.num_classes is None
    linear: Any = RidgeCV(alphas=np.logspace(-3, 5, 33))
    if not regression:
        grid = {"C": np.logspace(-4, 3, 15)}
        linear = GridSearchCV(
            LogisticRegression(max_iter=2000), grid, cv=_folds(found), scoring="neg_log_loss"
        )
    models: dict[str, Any] = {
        "linear": linear,
        "mlp": (MLPRegressor if regression else MLPClassifier)(random_state=seed),
        "boosting": (
            HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
        )(random_state=seed),
    }
    result = {"trivial": _trivial(found)}
    for name, model in models.items():
        begin = time.perf_counter()
        with warnings.catch_warnings():
            # Defaults do not always converge; that is what they are compared as.
            warnings.simplefilter("ignore")
            result[name] = (_regression if regression else _classification)(found, model)
        result[name]["seconds"] = time.perf_counter() - begin
    return result


def _folds(found: Dataset) -> int:
    rarest = int(np.bincount(found.train[1].astype(int)).min()) if found.num_classes else 5
    return max(2, min(5, rarest))


def _regression(found: Dataset, model: Any) -> dict[str, float]:
    (x, y), (x_test, y_test) = found.train, found.test
    residuals = y - cross_val_predict(model, x, y, cv=3)
    return _normal(model.fit(x, y).predict(x_test), float(np.mean(residuals**2)), y_test)


def _normal(mean: np.ndarray, variance: float, y: np.ndarray) -> dict[str, float]:
    square = np.square(np.asarray(y, np.float64) - mean)
    nll = 0.5 * (math.log(2 * math.pi * variance) + square / variance)
    return {"rmse": float(np.sqrt(square.mean())), "nll": float(nll.mean())}


def _classification(found: Dataset, model: Any) -> dict[str, float]:
    (x, y), (x_test, y_test) = found.train, found.test
    probs = model.fit(x, y).predict_proba(x_test)
    labels = list(range(found.num_classes or 0))
    return {
        "accuracy": float(np.mean(probs.argmax(1) == y_test)),
        "nll": float(log_loss(y_test, probs, labels=labels)),
    }


def _trivial(found: Dataset) -> dict[str, float]:
    y, y_test = found.train[1], found.test[1]
    if found.num_classes is None:
        return _normal(np.zeros(len(y_test)), float(np.var(y)), y_test)
    shares = np.bincount(y, minlength=found.num_classes) / len(y)
    return {
        "accuracy": float(np.mean(y_test == shares.argmax())),
        "nll": float(-np.mean(np.log(shares[y_test]))),
    }
