"""A covariate of one subject, predicted from its posterior and from the other subjects."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from bmrjax.group.between import IntegratedLevel, VarianceComponents, integrate_level
from bmrjax.group.design import Design
from bmrjax.group.second_level import SecondLevel

if TYPE_CHECKING:
    from pandas import DataFrame

# Nodes of the integral over the standard deviations of the others, and values of a covariate that are
# looked at, within so many standard deviations of the prior.
_NODES, _POINTS, _REACH = 128, 161, 8.0


@dataclass(frozen=True, repr=False)
class LeaveOneOut:
    """Predictions of a covariate, each without the subject's own value; `GroupFit.leave_one_out` makes it.

    Attributes:
        covariate: Name of the covariate.
        subjects: Name of each subject.
        actual: Its value of each subject.
        mean: Mean of the prediction.
        sd: Its standard deviation.
        prob: Of a covariate with two values: probability of the larger one, else None.
        log_score: ln of the density (or probability) that the prediction gives to the actual value, less that
            which the other subjects' values alone give to it, in nats. Positive says that the fits help.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> rng = np.random.default_rng(0)
        >>> age = np.linspace(20, 60, 12)
        >>> study = bmr.peb(
        ...     design={"age": age},
        ...     loc=np.outer(age - 40, [0.02, 0.0]) + rng.normal(0, 0.1, (12, 2)),
        ...     covariance=np.stack([0.01 * np.eye(2)] * 12),
        ...     prior=bmr.reduction.Normal(0.0, 1.0),
        ...     names=["gain", "decay"],
        ... )
        >>> found = study.leave_one_out("age")
        >>> round(found.correlation, 1), bool(found.log_score.mean() > 0)
        (0.9, True)
    """

    covariate: str
    subjects: tuple[str, ...]
    actual: Float[np.ndarray, " subjects"]
    mean: Float[np.ndarray, " subjects"]
    sd: Float[np.ndarray, " subjects"]
    prob: Float[np.ndarray, " subjects"] | None
    log_score: Float[np.ndarray, " subjects"]

    @property
    def correlation(self) -> float:
        """Correlation of predicted means and actual values over the subjects; NaN if the means are equal."""
        if np.ptp(self.mean) == 0:
            return float("nan")
        return float(np.corrcoef(self.mean, self.actual)[0, 1])

    @property
    def accuracy(self) -> float:
        """Share of the subjects whose value is the more probable one; NaN unless there are two values."""
        if self.prob is None:
            return float("nan")
        return float(np.mean((self.prob > 0.5) == (self.actual == self.actual.max())))

    def table(self) -> "DataFrame":
        """Return one row per subject: ``"actual"``, ``"mean"``, ``"sd"``, ``"prob"`` and ``"log_score"``."""
        import pandas as pd

        columns = {
            "subject": self.subjects,
            "actual": self.actual,
            "mean": self.mean,
            "sd": self.sd,
        }
        if self.prob is not None:
            columns["prob"] = self.prob
        return pd.DataFrame({**columns, "log_score": self.log_score})

    def __repr__(self) -> str:
        """Return how well the covariate is predicted, and the predictions."""
        if self.prob is None:
            how = f"correlation with the actual values {self.correlation:.2f}"
        else:
            how = f"{self.accuracy:.0%} of the subjects predicted right"
        head = (
            f"LeaveOneOut: '{self.covariate}' of {len(self.subjects)} subjects; {how}, mean log score "
            f"{self.log_score.mean():+.2f} nats over the other subjects' values alone"
        )
        return f"{head}\n{self.table().to_string(index=False, float_format='{:.3g}'.format)}"


def leave_one_out(
    level: SecondLevel,
    components: VarianceComponents,
    design: Design,
    start: Float[np.ndarray, " c"],
    column: int,
    *,
    seed: int,
) -> LeaveOneOut:
    """Predict a covariate of each subject; see `GroupFit.leave_one_out`.

    Args:
        level: The second level of all subjects.
        components: Standard deviations between subjects.
        design: Their covariates.
        start: Standardised components where the search for a mode starts.
        column: The covariate.
        seed: Of all draws.

    Raises:
        ValueError: If the others do not determine the effect of a covariate.
    """
    actual = design.columns[:, column]
    two = len(np.unique(actual)) == 2
    found = []
    for i in range(len(actual)):
        rest = design.without(i)
        integral = integrate_level(
            level.without(i, rest.standardised),
            components,
            start=start,
            least_nodes=_NODES,
            seed=seed,
        )
        values, log_prior = _prior(rest.columns[:, column], actual[i], two=two)
        rows = np.tile(design.columns[i], (len(values), 1))
        rows[:, column] = values
        standardised = (rows - rest.centre) / rest.scale
        log_likelihood = _log_likelihood(level, i, standardised, integral)
        # The last value is the actual one, which the grid of a continuous covariate does not count.
        grid = slice(None) if two else slice(None, -1)
        log_weight = (log_prior + log_likelihood)[grid]
        log_total = float(np.asarray(logsumexp(log_weight)))
        weight = np.exp(log_weight - log_total)
        mean = float(weight @ values[grid])
        sd = float(np.sqrt(max(weight @ (values[grid] - mean) ** 2, 0.0)))
        own = int(np.argmax(values == actual[i])) if two else -1
        found.append((mean, sd, weight[-1], log_likelihood[own] - log_total))
    mean, sd, prob, score = (np.array(part) for part in zip(*found, strict=True))
    return LeaveOneOut(
        design.names[column], design.subjects, actual, mean, sd, prob if two else None, score
    )


def _prior(
    others: Float[np.ndarray, " others"], actual: float, *, two: bool
) -> tuple[Float[np.ndarray, " values"], Float[np.ndarray, " values"]]:
    """Return values of the covariate and ln of their prior probability, which adds up to one."""
    if two:
        values = np.unique(others)
        return values, np.log([np.mean(others == value) for value in values])
    grid = np.linspace(-_REACH, _REACH, _POINTS)
    log_prior = -0.5 * grid**2
    log_prior -= np.asarray(logsumexp(log_prior))
    values = others.mean() + others.std(ddof=1) * grid
    return np.append(values, actual), np.append(log_prior, -np.inf)


def _log_likelihood(
    level: SecondLevel,
    subject: int,
    rows: Float[np.ndarray, "values covariates"],
    integral: IntegratedLevel,
) -> Float[np.ndarray, " values"]:
    """Return ln of the evidence of one subject for each row of the design, averaged over the nodes."""
    precision, score, n = level.precision[subject], level.score[subject], level.size
    kept = integral.weight > 1e-6 * integral.weight.max()
    weight = integral.weight[kept] / integral.weight[kept].sum()
    tau = np.exp(integral.log_scale[kept])
    width = rows.shape[1]
    loc = integral.nodes.loc[kept].reshape(-1, width, n)
    covariance = integral.nodes.covariance[kept].reshape(-1, width, n, width, n)
    # With P = R Rᵀ, the evidence under N(μ, S) needs I + Rᵀ S R only.
    values, vectors = np.linalg.eigh(precision)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found = np.empty((len(rows), len(tau)))
    for v, row in enumerate(rows):
        mean = np.einsum("k,bkn->bn", row, loc)
        spread = np.einsum("k,l,bknlm->bnm", row, row, covariance)
        spread[:, np.arange(n), np.arange(n)] += tau**2
        inner = np.eye(n) + root.T @ spread @ root
        residual = score - mean @ precision
        moved = np.einsum("bnm,bm->bn", spread, residual)
        across = moved @ root
        solved = np.linalg.solve(inner, across[..., None])[..., 0]
        log_det = np.linalg.slogdet(inner)[1]
        quadratic = (residual * moved).sum(1) - (across * solved).sum(1)
        linear = (mean * (score - 0.5 * mean @ precision)).sum(1)
        found[v] = linear + 0.5 * (quadratic - log_det)
    return np.asarray(logsumexp(found, axis=1, b=weight))
