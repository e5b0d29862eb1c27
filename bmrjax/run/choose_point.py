"""The point of the path that a run ends with, by rows that were kept out."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from bmrjax import metrics
from bmrjax.backend.on_device import on_device
from bmrjax.infer.evaluate import Evaluator
from bmrjax.run.facts import Examination
from bmrjax.run.sparsest import STRONG, excess, sparsest_within

# On four splits of a table of pure noise the best network beat a constant by 1 nat at most, and on ten other
# tables by 88 or more, where `STRONG` asks for 3.
# Standard errors beyond which the validation rows alone decide against a constant.
_NO_DOUBT = 5.0


class ChosenPoint(NamedTuple):
    """A point of a path.

    Attributes:
        result: At the point that was chosen.
        log_prob: Its log predictive density of each validation row, in nats.
        fit_kept: How many elements the fit ended with; None where no point was chosen.
    """

    result: Any
    log_prob: Float[np.ndarray, " rows"]
    fit_kept: int | None = None


def constant_by_evidence(
    log_probs: Float[Any, "points rows"], vfes: Sequence[float], constants: Sequence[int]
) -> int | None:
    """Return the constant that the evidence does not rule out, if there is one.

    A network has to show that it is better than a constant. The score of a few validation rows is not enough
    for either: the best of many points is better by chance where there is nothing to find, and of a rare
    class there are too few rows to tell. All rows together are: the log evidence of the training rows, which
    the VFE bounds, and the log predictive density of the validation rows given these.

    Args:
        log_probs: Log predictive density of each validation row, at each point, in nats.
        vfes: VFE of the training rows at each point, in nats for all of them.
        constants: Positions of the points that do not read the inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.run.choose_point import constant_by_evidence
        >>> log_probs = jnp.array([[-1.0, -1.0, -1.5], [-1.2, -1.2, -1.2]])
        >>> constant_by_evidence(log_probs, [131.0, 130.0], [1])
        1
        >>> constant_by_evidence(log_probs, [82.0, 130.0], [1]) is None
        True
    """
    totals = np.asarray(log_probs, np.float64).sum(1) - np.asarray(vfes, np.float64)
    totals = np.where(np.isfinite(totals), totals, -np.inf)
    best, constant = totals.max(), max(constants, key=lambda i: totals[i], default=None)
    if constant is None or not np.isfinite(totals[constant]):
        return None
    return constant if best - totals[constant] <= STRONG else None


def choose_point(
    result: Any,
    train: Any,
    validation: Any,
    test: Any,
    key: Array,
    *,
    num_samples: int,
    within: float,
    first_layer: str,
) -> ChosenPoint:
    """Return the result at the point that the validation rows choose, with its metrics on the test rows.

    With `within`, one more point is compared: the last one without anything that reads the inputs. It is the
    answer unless the evidence is against it, see `constant_by_evidence`, and joins the path only then. The
    other points of the path get their metrics on the test rows too, for reporting only.

    Args:
        result: Of a fit with a path.
        train: Inputs and targets that it was fitted to.
        validation: Inputs and targets that were kept out of training.
        test: Inputs and targets of the metrics.
        key: PRNG key; all points see the same noise.
        num_samples: Posterior samples.
        within: See `sparsest_within`.
        first_layer: Name of the site of the weights that read the inputs.
    """
    rows = len(validation[0])
    constant = without_inputs(result.path, first_layer) if within else None
    points = list(result.path) if constant is None else [*result.path, constant]
    # Validation and test rows go through one compiled program.
    both: Any = tuple(np.concatenate(parts) for parts in zip(validation, test, strict=True))
    evaluator = Evaluator(*result._programs(), latent_sites=result.latent_sites)
    log_probs = []
    for point in points:
        params, keep = on_device((dict(point.params), dict(point.keep)))
        found = evaluator.predict(params, keep, both, key, num_samples=num_samples)
        log_prob, mean, value = map(np.asarray, (found.log_prob, found.mean, found.value))
        log_probs.append(log_prob[:rows])
        log_prob, mean, value = log_prob[rows:], mean[rows:], value[rows:]
        scores = {"nll": metrics.negative_log_likelihood(log_prob)}
        if found.is_probability:
            labels = value.astype(np.int32)
            scores["accuracy"] = metrics.accuracy(mean, labels)
            scores["ece"] = metrics.expected_calibration_error(mean, labels)
        else:
            scores["rmse"] = metrics.root_mean_squared_error(mean, value)
        point.metrics.update({name: float(score) for name, score in scores.items()})
    index = _index(
        result, points, np.stack(log_probs), train, key, within=within, first_layer=first_layer
    )
    if index == len(result.path):
        result = dataclasses.replace(result, path=points)
    chosen = result.at(index)
    # What `Result.diagnose` reads was measured where the fit ended.
    facts = Examination(*result._programs())(
        chosen.params, chosen.keep, test, whole=False, metrics=chosen.metrics
    )
    chosen.facts = {**facts, "criterion": result.facts.get("criterion")}
    return ChosenPoint(chosen, log_probs[index], result.num_kept)


def _index(
    result: Any,
    points: list[Any],
    log_probs: Float[np.ndarray, "points rows"],
    train: Any,
    key: Array,
    *,
    within: float,
    first_layer: str,
) -> int:
    """Return the position of the point that the validation rows choose; see `choose_point`.

    The VFE of a constant that is not measured is measured here, if the scores leave a doubt.
    """
    constants = [i for i, point in enumerate(points) if _reads_no_input(point, first_layer)]
    values = np.nan_to_num(np.asarray(log_probs, np.float64), nan=-np.inf)
    best = values[int(np.argmax(values.mean(1)))]
    if within and any(excess(best, values[i]) <= _NO_DOUBT for i in constants):
        unmeasured = dataclasses.replace(result, path=points)
        for i in constants:
            if not np.isfinite(points[i].vfe):
                vfe = unmeasured.at(i).free_energy(
                    key, train, num_samples=10, temperature=result.temperature
                )
                points[i] = dataclasses.replace(points[i], vfe=vfe)
        found = constant_by_evidence(log_probs, [point.vfe for point in points], constants)
        if found is not None:
            return found
    # Without `within`, the best point is chosen, whatever it is.
    networks = [i for i in range(len(points)) if not (within and i in constants)]
    networks = networks or constants
    index = sparsest_within(
        log_probs[np.array(networks)], [points[i].kept for i in networks], within=within
    )
    return networks[index]


def without_inputs(path: Sequence[Any], first_layer: str) -> Any:
    """Return the last point that was not taken back, without the weights that read the inputs.

    What is left passes on a constant, which was fitted as such.

    Args:
        path: Points of a run on a network whose layers follow one another.
        first_layer: Name of the site of the weights that read the inputs.

    Returns:
        A new point, whose VFE is not measured; None for other networks, and where no input is read anyway.
    """
    last = [point for point in path if not point.taken_back][-1]
    first = last.keep.get(first_layer)
    if first is None or _reads_no_input(last, first_layer):
        return None
    keep = {**last.keep, first_layer: np.zeros_like(first)}
    kept = last.kept - int(np.sum(first))
    params = dict(last.params)
    return dataclasses.replace(
        last, keep=keep, kept=kept, vfe=float("nan"), metrics={}, params=params
    )


def _reads_no_input(point: Any, first_layer: str) -> bool:
    first = point.keep.get(first_layer)
    return first is not None and not first.any()
