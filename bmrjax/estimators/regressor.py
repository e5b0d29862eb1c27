"""Sparse linear regression with the interface of scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bmrjax.estimators.estimator_options import (
    check_estimator_options,
    check_no_text,
    column_names_of,
)
from bmrjax.estimators.standardised import INTERCEPT_SCALE, Standardised, reduce_columns
from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.heredity import HeredityOption

# Times that the noise is estimated and the columns are chosen at most.
_ROUNDS = 8

# Where the noise starts without a row to spare: in standard deviations of the target.
_BETWEEN = 0.3


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
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        columns = Standardised.of(X, column_names_of(self))
        centre, unit = float(y.mean()), float(y.std())
        unit = unit if unit > 1e-12 * max(abs(centre), 1e-300) else 1.0
        target = (np.asarray(y, np.float64) - centre) / unit
        design = np.column_stack([np.ones(len(target)), columns.x])
        prior_scale = np.array([INTERCEPT_SCALE, *[self.prior_scale] * columns.x.shape[1]])
        if columns.names:
            kept, noise = self._choose(columns, design, target, prior_scale)
        else:
            kept, noise = np.ones(1, bool), _noise(design, target, prior_scale)
            self.reduction_ = None
        if self.average and self.reduction_ is not None:
            mean = self.reduction_.mean["z"]
            covariance = np.cov(self.reduction_.draws(4000, seed=self.random_state)["z"].T)
        else:
            mean, covariance = np.zeros(len(kept)), np.zeros((len(kept), len(kept)))
            of_kept = _posterior(design[:, kept], target, prior_scale[kept], noise)
            mean[kept], covariance[np.ix_(kept, kept)] = of_kept
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
        X = validate_data(self, X, dtype=np.float64, reset=False)
        mean = X @ self.coef_ + self.intercept_
        if not return_std:
            return mean
        columns = self._columns
        rows = ((X - columns.loc) / columns.scale)[:, columns.varies]
        rows = np.column_stack([np.ones(len(rows)), rows])
        variance = self._unit**2 * np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        return mean, np.sqrt(variance + self.noise_scale_**2)

    def _choose(
        self, columns: Standardised, design: Any, target: Any, prior_scale: Any
    ) -> tuple[np.ndarray, float]:
        """Return which elements are in the most probable submodel, and the noise that it has."""
        whole = float(np.sqrt(np.mean(target**2)))
        starts = [_noise(design, target, prior_scale)]
        if len(target) < 2 * design.shape[1]:
            # All columns together explain the noise away, so the search begins without any as well.
            starts.append(whole)
        least = _least_noise(design, prior_scale)
        if len(target) <= design.shape[1]:
            starts[0] = _BETWEEN * whole  # nothing is left to estimate it from
        found = [
            self._climb(columns, design, target, prior_scale, max(noise, least)) for noise in starts
        ]
        _, kept, noise, self.reduction_ = max(found, key=lambda one: one[0])
        return kept, noise

    def _climb(
        self, columns: Standardised, design: Any, target: Any, prior_scale: Any, noise: float
    ) -> tuple[float, np.ndarray, float, FitReduction]:
        """Choose columns and estimate the noise in turn, from a first value of the noise.

        Returns:
            ln of the probability of the submodel and the target, up to a constant; the elements that are in;
            their noise; and the reduction.
        """
        seen: set[bytes] = set()
        least = _least_noise(design, prior_scale)
        for _ in range(_ROUNDS):
            loc, covariance = _posterior(design, target, prior_scale, noise)
            reduction = reduce_columns(
                columns,
                loc,
                covariance,
                outputs=1,
                prior_scale=self.prior_scale,
                expected=self.expected,
                groups=self.groups,
                heredity=self.heredity,
                seed=self.random_state,
            )
            kept = reduction.chosen["z"]
            if kept.tobytes() in seen:
                break
            seen.add(kept.tobytes())
            noise = max(_noise(design[:, kept], target, prior_scale[kept]), least)
        log_prob = _log_evidence(design[:, kept], target, prior_scale[kept], noise)
        log_prob += float(reduction._prior.log_prob(reduction._found.masks[0]))
        return log_prob, kept, noise, reduction


def _least_noise(design: Any, prior_scale: Any) -> float:
    """Return the least standard deviation of the noise at which submodels can be told apart.

    Where columns follow from others, the data determine some directions and the prior the rest: the smaller
    the noise, the further are the precisions apart, up to where rounding decides.
    """
    singular = np.linalg.svd(design[:, 1:] * prior_scale[1:], compute_uv=False)
    is_full = len(singular) == design.shape[1] - 1 and singular[-1] > 1e-3 * singular[0]
    return 0.0 if is_full else 1e-3 * float(singular[0])


def _posterior(design: Any, target: Any, prior_scale: Any, noise: float) -> tuple[Any, Any]:
    """Return mean and covariance of the coefficients of a linear model with known noise."""
    scaled = design * prior_scale / noise
    precision = scaled.T @ scaled + np.eye(len(prior_scale))
    values, vectors = np.linalg.eigh(precision)
    half = prior_scale[:, None] * vectors / np.sqrt(values)
    covariance = half @ half.T
    return half @ (half.T @ (design.T @ target)) / noise**2, covariance


def _log_evidence(design: Any, target: Any, prior_scale: Any, noise: float) -> float:
    """Return ln of the evidence of a linear model with known noise, up to a constant."""
    scaled = design * prior_scale
    covariance = scaled @ scaled.T + noise**2 * np.eye(len(target))
    factor = cho_factor(covariance, lower=True)
    log_det = 2 * np.log(np.diag(factor[0])).sum()
    return -0.5 * float(log_det + target @ cho_solve(factor, target))


def _noise(design: Any, target: Any, prior_scale: Any) -> float:
    """Return the standard deviation of the noise that maximises the evidence of a linear model."""
    left, singular, _ = np.linalg.svd(design * prior_scale, full_matrices=False)
    along = (left.T @ target) ** 2
    rest = max(float(target @ target - along.sum()), 0.0)
    spare = len(target) - len(singular)

    def minus_log_evidence(log_noise: float) -> float:
        noise = np.exp(2 * log_noise)
        total = singular**2 + noise
        whole = np.log(total).sum() + (along / total).sum()
        return 0.5 * float(whole + spare * 2 * log_noise + rest / noise)

    found = minimize_scalar(
        minus_log_evidence, bounds=(np.log(1e-4), np.log(3.0)), method="bounded"
    )
    return float(np.exp(found.x))
