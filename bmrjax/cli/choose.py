"""The point of the path that a run ends with, by rows that were kept out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bmrjax import metrics
from bmrjax.infer.evaluate import Evaluator
from bmrjax.run.facts import Examination
from bmrjax.run.sparsest import excess, sparsest_within


def constant_within(
    log_probs: Float[Array, "points rows"], constants: Sequence[int], *, within: float
) -> int | None:
    """Return the constant that predicts about as well as the best point, if there is one.

    A network has to show that it is better than a constant. The best of many points is better on a few
    validation rows by chance: by more than one standard error in two of ten tables of pure noise (60 and 300
    rows, 15 % kept out), and in none of them by more than two.

    Args:
        log_probs: Log predictive density of each validation row, at each point, in nats.
        constants: Positions of the points that do not read the inputs.
        within: Standard errors.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.cli.choose import constant_within
        >>> log_probs = jnp.array([[-1.0, -2.0, -1.5], [-1.2, -2.2, -1.2]])
        >>> constant_within(log_probs, [1], within=2.0)
        1
        >>> constant_within(log_probs, [], within=2.0) is None
        True
    """
    values = np.asarray(log_probs, np.float64)
    means = np.where(np.isfinite(values).all(1), values.mean(1), -np.inf)
    best, constant = int(np.argmax(means)), max(constants, key=lambda i: means[i], default=None)
    if constant is None or not np.isfinite(means[constant]):
        return None
    return constant if excess(values[best], values[constant]) <= within else None


# How many times the standard errors that a denser point has to be better by.
_FOR_A_NETWORK = 2.0


def choose_point(
    result: Any,
    train: Any,
    validation: Any,
    test: Any,
    key: Array,
    *,
    num_samples: int,
    within: float,
) -> Any:
    """Return the result at the point that the validation rows choose, with its metrics on the test rows.

    With `within`, one more point is compared: the last one without anything that reads the inputs. It is the
    answer unless the best point is better by twice as many standard errors, and joins the path only then.
    The other points of the path get their metrics on the test rows too, for reporting only.

    Args:
        result: Of a fit with a path.
        train: Inputs and targets that it was fitted to.
        validation: Inputs and targets that were kept out of training.
        test: Inputs and targets of the metrics.
        key: PRNG key; all points see the same noise.
        num_samples: Posterior samples.
        within: See `sparsest_within`.
    """
    rows = len(validation[0])
    constant = without_inputs(result.path) if within else None
    points = result.path if constant is None else [*result.path, constant]
    # Validation and test rows go through one compiled program.
    both: Any = tuple(np.concatenate(parts) for parts in zip(validation, test, strict=True))
    evaluator = Evaluator(*result._programs())
    log_probs = []
    for point in points:
        params, keep = jax.tree.map(jnp.asarray, (dict(point.params), dict(point.keep)))
        found = evaluator.predict(params, keep, both, key, num_samples=num_samples)
        log_probs.append(found.log_prob[:rows])
        mean, value = found.mean[rows:], found.value[rows:]
        scores = {"nll": metrics.negative_log_likelihood(found.log_prob[rows:])}
        if found.is_probability:
            labels = value.astype(jnp.int32)
            scores["accuracy"] = metrics.accuracy(mean, labels)
            scores["ece"] = metrics.expected_calibration_error(mean, labels)
        else:
            scores["rmse"] = metrics.root_mean_squared_error(mean, value)
        point.metrics.update({name: float(score) for name, score in scores.items()})
    kept = [point.kept for point in points]
    index = sparsest_within(jnp.stack(log_probs), kept, within=within)
    constants = [i for i, point in enumerate(points) if _reads_no_input(point)]
    if within and index not in constants:
        found = constant_within(jnp.stack(log_probs), constants, within=_FOR_A_NETWORK * within)
        index = index if found is None else found
    if points[index] is constant:
        unmeasured = dataclasses.replace(result, path=points).at(index)
        vfe = unmeasured.free_energy(key, train, num_samples=10)
        measured = dataclasses.replace(points[index], vfe=vfe)
        result = dataclasses.replace(result, path=[*result.path, measured])
    chosen = result.at(index)
    # What `Result.diagnose` reads was measured where the fit ended.
    facts = Examination(*result._programs())(
        chosen.params, chosen.keep, test, whole=False, metrics=chosen.metrics
    )
    chosen.facts = {**facts, "criterion": result.facts.get("criterion")}
    return chosen


def without_inputs(path: Sequence[Any]) -> Any:
    """Return the last point that was not taken back, without the weights that read the inputs.

    What is left passes on a constant, which was fitted as such.

    Args:
        path: Points of a run on an `nn.MLP`.

    Returns:
        A new point, whose VFE is not measured; None for other networks, and where no input is read anyway.
    """
    last = [point for point in path if not point.taken_back][-1]
    first = last.keep.get("net.layers.0.weight")
    if first is None or _reads_no_input(last):
        return None
    keep = {**last.keep, "net.layers.0.weight": np.zeros_like(first)}
    kept = last.kept - int(np.sum(first))
    params = dict(last.params)
    return dataclasses.replace(
        last, keep=keep, kept=kept, vfe=float("nan"), metrics={}, params=params
    )


def _reads_no_input(point: Any) -> bool:
    first = point.keep.get("net.layers.0.weight")
    return first is not None and not first.any()
