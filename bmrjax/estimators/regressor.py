"""Sparse linear regression with the interface of scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bmrjax.checks import check_unmasked
from bmrjax.estimators.estimator_options import (
    check_estimator_options,
    check_no_text,
    column_names_of,
)
from bmrjax.estimators.linear_posterior import LEAST_NOISE, LinearPosterior
from bmrjax.estimators.standardised import INTERCEPT_SCALE, ColumnsPosterior, Standardised
from bmrjax.fitted.heredity import HeredityOption

# Times that the noise is estimated and the columns are chosen at most.
_ROUNDS = 8

# Where the noise starts without a row to spare: in standard deviations of the target.
_BETWEEN = 0.3

# Least ratio of two standard deviations of the posterior, per prior, at which a reduction keeps some digits.
# Where columns follow from others the prior decides: evidence is wrong by rounding over the square of this.
_LEAST_RATIO = 3e-6


class SparseRegressor(RegressorMixin, BaseEstimator):
    r"""Choose the columns of a linear regression by their evidence.

    Columns and target are standardised. Coefficients have independent normal priors, and the posterior of
    every submodel follows from that of the full model (`reduce_fit`). The standard deviation of the noise
    maximises the evidence of the chosen submodel.

    Args:
        prior_scale: Standard deviation of the prior of a coefficient: standard deviations of the target per
            standard deviation of a column.
        expected: Expected number of columns (or groups) with an effect; by default they share a
            probability that is uniform between 0 and ½.
        groups: Name of a group to the names of the columns that are in or out together, such as the dummies
            of a factor.
        heredity: Whether interactions such as ``"age:bmi"`` are in only with ``"age"`` and ``"bmi"``;
            "weak" if one of them is enough; or a dict from each name to those without which it is not in.
        average: Whether `coef_` and predictions are averaged over all submodels. By default they are those
            of the most probable submodel, and `coef_` has zeros.
        random_state: Seed of the sampler that is used with more than twelve columns.

    Attributes:
        coef_: Posterior means of the coefficients, (columns,), per unit of each column.
        intercept_: The intercept.
        inclusion_prob_: Posterior probability that a column has an effect, (columns,).
        selected_: Columns of the most probable submodel, (columns,).
        noise_scale_: Standard deviation of the noise.
        reduction_: The `FitReduction`, of the standardised columns.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if they have any.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(80, 5))
        >>> y = 3 + 2 * x[:, 1] - x[:, 4] + rng.normal(size=80)
        >>> fit = bmr.SparseRegressor().fit(x, y)
        >>> fit.selected_
        array([False,  True, False, False,  True])
        >>> f"{fit.score(x, y):.1f}"
        '0.8'

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092; MacKay (1992), Neural Computation 4, for the
            noise.
    """

    def __init__(
        self,
        *,
        prior_scale: float = 0.5,
        expected: float | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        heredity: HeredityOption = False,
        average: bool = False,
        random_state: int = 0,
    ):
        self.prior_scale = prior_scale
        self.expected = expected
        self.groups = groups
        self.heredity: HeredityOption = heredity
        self.average = average
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "SparseRegressor":
        """Fit the model.

        Args:
            X: Columns, (rows, columns).
            y: Target, (rows,).
        """
        check_estimator_options(self)
        check_no_text(self, X)
        for name, array in (("X", X), ("y", y)):
            check_unmasked(array, f"SparseRegressor: {name}")
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        columns = Standardised.of(X, column_names_of(self))
        centre, unit = float(y.mean()), float(y.std())
        unit = unit if unit > 1e-12 * max(abs(centre), 1e-300) else 1.0
        target = (np.asarray(y, np.float64) - centre) / unit
        design = np.column_stack([np.ones(len(target)), columns.x])
        prior_scale = np.array([INTERCEPT_SCALE, *[self.prior_scale] * columns.x.shape[1]])
        full = LinearPosterior(design, target, prior_scale)
        if columns.names:
            kept, noise = self._choose(columns, full)
        else:
            kept, noise, self.reduction_ = np.ones(1, bool), full.noise(), None
        if self.average and self.reduction_ is not None:
            mean = self.reduction_.mean["z"]
            covariance = np.cov(self.reduction_.draws(4000, seed=self.random_state)["z"].T)
        else:
            mean, covariance = np.zeros(len(kept)), np.zeros((len(kept), len(kept)))
            mean[kept], covariance[np.ix_(kept, kept)], _ = full.of_columns(kept).posterior(noise)
        self._to_units = unit * columns.spread(np.eye(len(columns.names))) / columns.scale
        self.coef_ = self._to_units.T @ mean[1:]
        self.intercept_: float = centre + unit * float(mean[0]) - float(columns.loc @ self.coef_)
        self.noise_scale_: float = unit * noise
        self.selected_ = columns.spread(kept[1:]).astype(bool)
        inclusion = (
            np.zeros(0) if self.reduction_ is None else self.reduction_.inclusion_prob["z"][1:]
        )
        self.inclusion_prob_ = columns.spread(inclusion)
        self._columns, self._covariance, self._unit = columns, covariance, unit
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Predict the target.

        Args:
            X: Columns, (rows, columns).
            return_std: Whether to return the standard deviations of the predictions, too.

        Returns:
            Predictions, (rows,); with `return_std` a pair.
        """
        check_is_fitted(self)
        check_unmasked(X, "SparseRegressor: X")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        mean = X @ self.coef_ + self.intercept_
        if not return_std:
            return mean
        columns = self._columns
        rows = ((X - columns.loc) / columns.scale)[:, columns.varies]
        rows = np.column_stack([np.ones(len(rows)), rows])
        variance = self._unit**2 * np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        return mean, np.sqrt(variance + self.noise_scale_**2)

    def _choose(self, columns: Standardised, full: LinearPosterior) -> tuple[np.ndarray, float]:
        """Return which elements are in the most probable submodel, and the noise that it has."""
        rows, width = full.design.shape
        whole = float(np.sqrt(np.mean(full.target**2)))
        # Without rows to spare, nothing is left to estimate it from.
        starts = [full.noise() if rows > width else _BETWEEN * whole]
        if rows < 2 * width:
            # All columns together explain the noise away, so the search begins without any as well.
            starts.append(whole)
        least = max(full.least_noise(_LEAST_RATIO), LEAST_NOISE)
        of_columns = ColumnsPosterior(
            columns, 1, self.prior_scale, self.expected, self.groups, self.heredity
        )
        found = [_climb(of_columns, full, noise, least) for noise in starts]
        _, kept, noise, reduced_at = max(found, key=lambda one: one[0])
        seen = {kept.tobytes()}
        for _ in range(_ROUNDS):
            # The sampler may meet a better submodel than the greedy search.
            reduction = of_columns.reduce(*full.posterior(reduced_at), seed=self.random_state)
            kept = reduction.chosen["z"]
            noise = full.of_columns(kept).noise()
            if kept.tobytes() in seen:
                break
            seen.add(kept.tobytes())
            reduced_at = max(noise, least)
        self.reduction_ = reduction
        return kept, noise


def _climb(
    of_columns: ColumnsPosterior, full: LinearPosterior, noise: float, least: float
) -> tuple[float, np.ndarray, float, float]:
    """Choose columns and estimate the noise in turn, from a first value of the noise.

    Args:
        of_columns: Which submodels there are.
        full: The regression on all columns.
        noise: The first value.
        least: Noise below which the columns are not chosen; they are at this one instead.

    Returns:
        ln of the probability of the submodel and the target, up to a constant; the elements that are in;
        their noise; and the noise at which they were chosen.
    """
    seen: set[bytes] = set()
    for _ in range(_ROUNDS):
        chosen_at = max(noise, least)
        kept, log_prior = of_columns.choose(*full.posterior(chosen_at))
        of_kept = full.of_columns(kept)
        noise = of_kept.noise()
        if kept.tobytes() in seen:
            break
        seen.add(kept.tobytes())
    return of_kept.log_evidence(noise) + log_prior, kept, noise, chosen_at
