"""What held-out data say at each point of a path, and the section of a page on calibration."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from bmrjax.infer.arguments import length
from bmrjax.report import Chart, Section
from bmrjax.report.charts import reliability_chart
from bmrjax.run.calibration import (
    PROBS,
    interval_coverage,
    predicted_classes,
    reliability_bins,
)

_INTERVAL = (0.9,)
# Rows of which draws are held, at most, where rows do not depend on each other.
_MOST_ROWS = 5000


def point_metrics(
    result: Any, data: Any | None, key: Array | None, *, num_samples: int, anew: bool = True
) -> list[dict[str, float]]:
    """Return the held-out metrics of each point of the path.

    Args:
        result: A `Result`.
        data: Held-out data with their targets; None for what the run has measured.
        key: PRNG key; all points see the same noise.
        num_samples: Posterior samples.
        anew: Whether what the run has measured is measured again.
    """
    if data is None:
        return [dict(point.metrics) for point in result.path]
    evaluator, found = result._evaluator(), []
    for i in range(len(result.path)):
        at = result.at(i)
        metrics = dict(at.metrics)
        if anew or not metrics:
            metrics, *_ = evaluator.scores(at.params, at.keep, data, key, num_samples=num_samples)
        if "rmse" in metrics:
            coverage = _coverage(at, data, key, _INTERVAL, num_samples=num_samples)
            metrics["coverage"] = float(coverage["observed"][0])
        found.append(metrics)
    return found


def calibration_section(
    result: Any, data: Any | None, key: Array | None, *, num_samples: int
) -> Section:
    """Return whether predicted probabilities come true, at the point that the result is at.

    Args:
        result: A `Result`.
        data: Held-out data with their targets, or None.
        key: PRNG key.
        num_samples: Posterior samples.
    """
    name, title = "calibration", "Calibration"
    if data is None:
        text = "Not measured: this needs held-out data, result.report(path, data=(x, y), key=key)."
        return Section(name, title, text, [])
    prediction = result._evaluator().predict(
        result.params, result.keep, data, key, num_samples=num_samples, levels=()
    )
    if prediction.is_probability and prediction.mean.ndim == 2:
        found = reliability_bins(*predicted_classes(prediction))
        rows = int(found["count"].sum())
        error = float(np.sum(np.abs(found["observed"] - found["expected"]) * found["count"]) / rows)
        text = (
            f"On {rows:,} held-out rows. On the dashed line, predictions of 80% are right in 80% of cases; "
            f"below it, the program is too sure. The mean gap is {error:.3f} (ECE, 20 bins). Larger points "
            "stand for more rows."
        )
        least = min(1 / prediction.mean.shape[1], float(found["expected"].min()))
        spec = reliability_chart(
            _rows(found),
            x="Probability of the predicted class",
            y="Fraction that is right",
            least=least,
        )
        return Section(name, title, text, [Chart("Reliability", _described(found), spec)])
    if prediction.is_probability:
        return Section(name, title, "Not shown for more than one label per row.", [])
    found = _coverage(result, data, key, PROBS, num_samples=num_samples)
    values = int(found["count"][0])
    text = (
        f"On {values:,} held-out values. On the dashed line, intervals of 90% hold 90% of the values; "
        "below it, they are too narrow."
    )
    spec = reliability_chart(
        _rows(found), x="Probability of the interval", y="Fraction of values in it"
    )
    return Section(name, title, text, [Chart("Coverage of intervals", _described(found), spec)])


def _coverage(
    result: Any, data: Any, key: Array | None, probs: Sequence[float], *, num_samples: int
) -> dict[str, np.ndarray]:
    rows = length(data)
    if result.by_rows and rows > _MOST_ROWS:
        few = np.linspace(0, rows - 1, _MOST_ROWS).astype(int)
        data = jax.tree.map(lambda a: a[few], data)
    prediction = result._evaluator().predict(
        result.params,
        result.keep,
        data,
        key,
        num_samples=num_samples,
        levels=(),
        return_samples=True,
    )
    return interval_coverage(prediction, probs)


def _rows(found: dict[str, np.ndarray]) -> list[dict[str, float]]:
    return [
        {"expected": round(float(e), 5), "observed": round(float(o), 5), "count": int(n)}
        for e, o, n in zip(found["expected"], found["observed"], found["count"], strict=True)
        if np.isfinite(e) and np.isfinite(o)
    ]


def _described(found: dict[str, np.ndarray]) -> str:
    pairs = [
        f"{100 * e:.0f}% predicted, {100 * o:.0f}% observed"
        for e, o in zip(found["expected"], found["observed"], strict=True)
    ]
    return "; ".join(pairs) + "."
