"""Sets of candidates that stand in for each other, each with an effect in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bmrjax.fitted.joint_normal import JointNormal


@dataclass(frozen=True)
class CredibleSet:
    """Candidates of which at least one has an effect; `FitReduction.credible_sets` makes it.

    Attributes:
        names: Names of the candidates, the most probable first.
        prob: Probability that at least one of them is in the model.
        expected_effects: Expected number of them in the model; above one if several may have an effect.
        correlation: Least absolute correlation of two of them in the likelihood; one for a single candidate.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> x = np.random.default_rng(0).normal(size=(50, 3))
        >>> x[:, 1] = x[:, 0]  # an exact copy
        >>> covariance = np.linalg.inv(x.T @ x + np.eye(3))
        >>> found = bmr.reduce_fit(
        ...     loc=covariance @ x.T @ x[:, 0],
        ...     covariance=covariance,
        ...     prior=bmr.reduction.Normal(0.0, 1.0),
        ...     names=["dose", "dose_again", "age"],
        ... )
        >>> effect = found.credible_sets()[0]
        >>> sorted(effect.names), round(effect.prob, 3), round(effect.correlation, 2)
        (['dose', 'dose_again'], 1.0, 1.0)
    """

    names: tuple[str, ...]
    prob: float
    expected_effects: float
    correlation: float

    def __str__(self) -> str:
        """Return the names and the probability as one line."""
        listed = ", ".join(self.names[:8]) + (
            f", ... ({len(self.names)})" if self.names[8:] else ""
        )
        if len(self.names) == 1:
            return f"{{{listed}}}: probability {self.prob:.3f}"
        return (
            f"{{{listed}}}: probability {self.prob:.3f}, expected effects {self.expected_effects:.2f}, "
            f"correlation at least {self.correlation:.2f}"
        )


def likelihood_correlation(
    normal: JointNormal, units: Sequence[Int[np.ndarray, " k"]]
) -> Float[np.ndarray, "units units"]:
    r"""Return the largest absolute correlation of the elements of two units in the likelihood.

    The posterior's precision less the prior's is that of the likelihood, :math:`X^T X / σ^2` in a linear
    regression, whose correlations are those of the columns.

    Args:
        normal: Posterior and prior.
        units: Elements of each unit.
    """
    scale = normal.prior_scale
    if normal.precision is None:
        relative = normal.covariance / scale / scale[:, None]
        precision = np.linalg.inv(0.5 * (relative + relative.T))
    else:
        precision = normal.precision * scale * scale[:, None]
    information = precision - np.eye(len(scale))
    diagonal = np.diag(information)
    # Elements that the data say nothing of are correlated with none.
    spread = np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    between = np.minimum(np.abs(information) / spread / spread[:, None], 1.0)
    order = np.concatenate(units)
    starts = np.cumsum([0, *(len(unit) for unit in units[:-1])])
    between = np.maximum.reduceat(between[np.ix_(order, order)], starts, axis=0)
    found = np.maximum.reduceat(between, starts, axis=1)
    np.fill_diagonal(found, 1.0)
    return found


def find_credible_sets(
    weight: Float[np.ndarray, " terms"],
    sets: Bool[np.ndarray, "terms units"],
    correlation: Float[np.ndarray, "units units"],
    names: Sequence[str],
    *,
    coverage: float,
    least_correlation: float,
) -> tuple[CredibleSet, ...]:
    """Return disjoint sets, each with an effect in it with at least some probability.

    A set grows from the most probable candidate that is in no set yet. What raises the probability that
    one of the set is in the model most is added, out of what is correlated with all of its members, until the
    probability is reached; then members that are not needed are left out again.

    Args:
        weight: Weight of each submodel; they add up to one, and corrections may be negative.
        sets: Units that are in, by submodel.
        correlation: Absolute correlation of each pair of units.
        names: Name of each unit.
        coverage: Least probability of a set.
        least_correlation: Least absolute correlation of two members.
    """
    held = np.asarray(sets, bool)
    alone = weight @ held
    free = np.ones(len(names), bool)
    found = []
    for seed in np.argsort(-alone, kind="stable"):
        if not free[seed]:
            continue
        near = free & (correlation[seed] >= least_correlation)
        if weight @ held[:, near].any(1) < coverage:
            continue
        members = _grown(weight, held, correlation >= least_correlation, near, int(seed), coverage)
        if members is None:
            continue
        members = _pruned(weight, held, members, alone, coverage)
        free[members] = False
        members.sort(key=lambda unit: -alone[unit])
        pairs = correlation[np.ix_(members, members)]
        found.append(
            CredibleSet(
                tuple(names[unit] for unit in members),
                min(float(weight @ held[:, members].any(1)), 1.0),
                float(alone[members].sum()),
                float(pairs.min()),
            )
        )
    return tuple(found)


def _grown(
    weight: np.ndarray,
    held: np.ndarray,
    related: np.ndarray,
    near: np.ndarray,
    seed: int,
    coverage: float,
) -> list[int] | None:
    """Return the members of a set that reaches the coverage, or None if there is none."""
    members, open_to = [seed], near & related[seed]
    open_to[seed] = False
    missed = ~held[:, seed]
    while weight @ ~missed < coverage:
        candidates = np.flatnonzero(open_to)
        if not len(candidates):
            return None
        gain = (weight * missed) @ held[:, candidates]
        best = int(candidates[np.argmax(gain)])
        members.append(best)
        missed &= ~held[:, best]
        open_to &= related[best]
        open_to[best] = False
    return members


def _pruned(
    weight: np.ndarray,
    held: np.ndarray,
    members: list[int],
    alone: np.ndarray,
    coverage: float,
) -> list[int]:
    """Leave out members, the least probable first, while the coverage is reached without them."""
    kept = list(members)
    for unit in sorted(members, key=lambda unit: alone[unit]):
        rest = [other for other in kept if other != unit]
        if rest and weight @ held[:, rest].any(1) >= coverage:
            kept = rest
    return kept
