"""The sparsest point that predicts as well as the best one, by rows that were kept out."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bmrjax.infer.predictive_scores import PredictiveScores

# Nats by which one fit must beat another: a Bayes factor of 20, strong evidence by Kass and Raftery (1995).
STRONG = 3.0
# Rows below which a standard error says little, and no fit beats another.
FEWEST = 20


class NoFiniteScoreError(ValueError):
    """No point of a path has a finite score on the rows that were kept out."""


def sparsest_within(log_probs: Float[Any, "points rows"], kept: list[int], *, within: float) -> int:
    """Return the sparsest point that predicts about as well as the best one.

    A point is eligible if its negative log likelihood exceeds the lowest one by at most `within`
    standard errors of their difference, paired over the rows, where the error counts as 0.005 nats at least.

    Args:
        log_probs: Log predictive density of each validation row, at each point of the path, in nats.
        kept: Weights that each point keeps.
        within: Standard errors; 0 for the lowest negative log likelihood itself.

    Returns:
        The position of the point.

    Raises:
        NoFiniteScoreError: If no point has a finite score.
        ValueError: For a negative `within`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.run.sparsest import sparsest_within
        >>> log_probs = jnp.array([[-1.0, -2.0, -1.5], [-1.2, -1.9, -1.5], [-4.0, -4.0, -4.2]])
        >>> sparsest_within(log_probs, [90, 20, 3], within=1.0)
        1
        >>> sparsest_within(log_probs, [90, 20, 3], within=0.0)
        0

    References:
        Breiman, Friedman, Olshen and Stone (1984), Classification and regression trees, section 3.4.3,
        for the rule of one standard error.
    """
    if not within >= 0:
        raise ValueError(f"within counts standard errors and must not be negative, got {within}.")
    values = np.asarray(log_probs, np.float64)
    means = np.where(np.isfinite(values).all(1), values.mean(1), -np.inf)
    best = int(np.argmax(means))
    if not np.isfinite(means[best]):
        raise NoFiniteScoreError(
            "No point of the path has a finite negative log likelihood on the rows that were kept out. Look "
            "for values far outside what the program was fitted on."
        )
    if not within:
        return best
    as_good = [
        i
        for i in range(len(values))
        if np.isfinite(means[i]) and excess(values[best], values[i]) <= within
    ]
    return min(as_good, key=lambda i: (kept[i], -means[i]))


def sparsest_as_good(
    points: Sequence[PredictiveScores], kept: list[int], than: PredictiveScores, *, within: float
) -> int | None:
    """Return the sparsest point that predicts about as well as something else, a trained network say.

    A point is eligible if neither its negative log likelihood nor, for classes, its error rate exceeds the
    other one by more than `within` standard errors of the difference, paired over the rows; the errors count
    as 0.005 nats and 0.1 points at least.

    Args:
        points: PredictiveScores on the validation rows at each point of the path.
        kept: Weights that each point keeps.
        than: PredictiveScores of what they are compared with.
        within: Standard errors.

    Returns:
        The position of the point; None if no point is as good.

    Raises:
        ValueError: For a negative `within`, and for scores of other rows.
    """
    if not within >= 0:
        raise ValueError(f"within counts standard errors and must not be negative, got {within}.")
    reference = np.asarray(than.log_prob, np.float64)
    found = []
    for i, point in enumerate(points):
        values = np.asarray(point.log_prob, np.float64)
        if values.shape != reference.shape:
            raise ValueError(
                f"as_good_as: it was scored on {len(reference)} rows, and the path on {len(values)}."
            )
        if not np.isfinite(values).all() or excess(reference, values) > within:
            continue
        if point.correct is not None and than.correct is not None:
            one, other = (np.ravel(each).astype(float) for each in (than.correct, point.correct))
            if excess(one, other, least=0.001) > within:
                continue
        found.append((kept[i], -values.mean(), i))
    return min(found)[-1] if found else None


def warn_none_as_good(points: Sequence[PredictiveScores], than: PredictiveScores) -> None:
    """Warn that no point of a path is as good as what they were compared with.

    Args:
        points: Scores on the validation rows at each point of the path.
        than: Scores of what they were compared with.
    """
    best = max(points, key=lambda point: float(np.mean(point.log_prob)))
    warnings.warn(
        f"most_predictive: as_good_as reaches {_in_words(than)} on these rows, and no point of the path is "
        f"as good; the best one reaches {_in_words(best)}. The point is chosen as without as_good_as. To get "
        "one, train for longer before the first round, or allow more by within=.",
        stacklevel=4,
    )


def _in_words(scores: PredictiveScores) -> str:
    found = f"{-float(np.mean(scores.log_prob)):.4g} nats per data point"
    if scores.correct is None:
        return found
    return f"{found} and an accuracy of {float(np.mean(scores.correct)):.4f}"


def excess(best: Float[Any, " rows"], other: Float[Any, " rows"], *, least: float = 0.005) -> float:
    """Return by how many standard errors, paired over the rows, one point is worse than another.

    Args:
        best: Log predictive density of each row at the better point, in nats, or another score.
        other: The same at the other point.
        least: The standard error counts as this at least. A difference of so few nats per data point is of
            no use, however certain it is.
    """
    loss = best - other
    error = loss.std(ddof=1) / np.sqrt(len(loss)) if len(loss) > 1 else 0.0
    return loss.mean() / max(error, least)


def clearly_better(one: Float[Any, " rows"], other: Float[Any, " rows"]) -> bool:
    """Say whether rows, `FEWEST` at least, are predicted better by a standard error and `STRONG` nats in all.

    Args:
        one: Log predictive density of each row, in nats.
        other: The same of what it must beat.
    """
    if not np.isfinite(one).all():
        return False
    if not np.isfinite(other).all():
        return True
    return len(one) >= FEWEST and bool(excess(one, other) > 1 and np.sum(one - other) > STRONG)
