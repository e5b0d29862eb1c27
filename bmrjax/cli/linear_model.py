"""What a linear model predicts of a table: it stands beside the figures of a run."""

import importlib.util
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from bmrjax.run.diagnose import Finding

# Numbers of the training inputs up to which the model costs a second or two.
MOST_INPUTS = 2_000_000

# A difference of so many standard errors over the test rows is more than chance.
_ERRORS = 2.0
# And of so many nats per row more than nothing.
_LEAST = 0.02


@dataclass(frozen=True)
class LinearModel:
    """A linear model of a table, fitted to all training rows and scored on the test rows.

    Attributes:
        name: "a ridge regression" or "a logistic regression".
        metrics: ``"rmse"`` of the standardised targets or ``"accuracy"``, and ``"nll"`` in nats per row.
        log_prob: Log predictive density or probability of each test row.
    """

    name: str
    metrics: dict[str, float]
    log_prob: Float[np.ndarray, " rows"]


def linear_model(found: Any) -> LinearModel | None:
    """Fit a ridge or logistic regression, its penalty chosen by cross-validation.

    The NLL of a ridge regression is that of a normal with the variance of the errors of leaving one out.

    Args:
        found: A `bmrjax.data.Dataset`.

    Returns:
        The model; None for data that are no table or large, and without scikit-learn.

    Example:
        >>> import numpy as np, pandas as pd
        >>> import bmrjax as bmr
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> table = pd.DataFrame(x, columns=["a", "b"]).assign(y=x[:, 0] - x[:, 1])
        >>> model = linear_model(bmr.data.from_frame(table, target="y"))
        >>> model.name, model.metrics["rmse"] < 0.01
        ('a ridge regression', True)
    """
    if found.encoding is None or np.size(found.train[0]) > MOST_INPUTS:
        return None
    if importlib.util.find_spec("sklearn") is None:
        return None
    # Threads of BLAS cost nine times as much here as they bring.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        # A solver that stops early is still a fair beginning.
        warnings.simplefilter("ignore")
        return _ridge(found) if found.num_classes is None else _logistic(found)


def _ridge(found: Any) -> LinearModel:
    from sklearn.linear_model import RidgeCV

    (x, y), (x_test, y_test) = found.train, found.test
    y, y_test = (np.asarray(part, np.float64).reshape(len(part), -1) for part in (y, y_test))
    model = RidgeCV(np.logspace(-3, 5, 25), store_cv_results=True).fit(x, y)
    # Rows, targets, penalties.
    squares = model.cv_results_.reshape(*y.shape, -1)
    variance = squares[..., squares.mean((0, 1)).argmin()].mean(0)
    variance = np.maximum(variance, 1e-12)
    square = np.square(np.reshape(model.predict(x_test), y_test.shape) - y_test)
    log_prob = -0.5 * (square / variance + np.log(2 * math.pi * variance)).sum(1)
    metrics = {"rmse": float(np.sqrt(square.mean())), "nll": float(-log_prob.mean())}
    return LinearModel("a ridge regression", metrics, log_prob)


def _logistic(found: Any) -> LinearModel | None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    (x, y), (x_test, y_test) = found.train, found.test
    counts = np.bincount(y, minlength=found.num_classes)
    if counts.min() < 2:
        return None
    model = GridSearchCV(
        LogisticRegression(max_iter=200, tol=1e-3),
        {"C": np.logspace(-3, 1, 5)},
        cv=min(3, int(counts.min())),
        scoring="neg_log_loss",
    ).fit(x, y)
    log_probs = model.predict_log_proba(x_test)
    log_prob = log_probs[np.arange(len(y_test)), y_test]
    accuracy = float(np.mean(log_probs.argmax(1) == y_test))
    metrics = {"accuracy": accuracy, "nll": float(-log_prob.mean())}
    return LinearModel("a logistic regression", metrics, log_prob)


def worse_than_linear(linear: LinearModel, log_prob: Float[np.ndarray, " rows"]) -> Finding | None:
    """Return a finding if a linear model predicts the test rows better than a run does.

    Args:
        linear: The linear model.
        log_prob: Log predictive probability of each test row by the run.
    """
    gap = linear.log_prob - np.asarray(log_prob, np.float64)
    if not np.isfinite(gap).all():
        return None  # the summary shows which of the two is not finite
    mean = float(gap.mean())
    error = float(gap.std(ddof=1) / math.sqrt(len(gap))) if len(gap) > 1 else math.inf
    if not mean > max(_LEAST, _ERRORS * error):
        return None
    return Finding(
        "worse-than-linear",
        f"{linear.name[0].upper()}{linear.name[1:]} on all inputs predicts the test rows better: its "
        f"negative log likelihood is lower by {mean:.3g} ± {error:.2g} nats per row, and is "
        f"{linear.metrics['nll']:.4g}.",
        "Take a linear model: SparseRegressor and SparseClassifier say which columns have an effect, and "
        "--hidden without a width fits a linear network. Or give more rows: those kept out for validation "
        "(--validation) choose how much is removed.",
    )
