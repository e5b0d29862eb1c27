"""Sparse logistic regression with the interface of scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bmrjax.estimators.estimator_options import (
    check_estimator_options,
    check_no_text,
    column_names_of,
)
from bmrjax.estimators.logistic import class_probabilities, laplace_approximation
from bmrjax.estimators.standardised import INTERCEPT_SCALE, Standardised, reduce_columns
from bmrjax.fitted.heredity import HeredityOption

# Draws of the coefficients that predictions are averaged over.
_DRAWS = 256


class SparseClassifier(ClassifierMixin, BaseEstimator):
    r"""Choose the columns of a logistic regression by their evidence.

    Columns are standardised. Coefficients have independent normal priors, and Laplace's approximation of
    their posterior gives the evidence of every submodel (`reduce_fit`). With more than two classes the
    model is a softmax with a coefficient per class, and a column is in it for all classes or for none.

    Args:
        prior_scale: Standard deviation of the prior of a coefficient: log odds per standard deviation of a
            column.
        expected: Expected number of columns (or groups) with an effect; by default they share a
            probability that is uniform between 0 and ½.
        groups: Name of a group to the names of the columns that are in or out together.
        heredity: Whether interactions such as ``"age:bmi"`` are in only with ``"age"`` and ``"bmi"``;
            "weak" if one of them is enough; or a dict from each name to those without which it is not in.
        average: Whether `coef_` and predictions are averaged over all submodels. By default they are those
            of the most probable submodel, and `coef_` has zeros.
        random_state: Seed of the draws that predictions are averaged over.

    Attributes:
        classes_: The classes.
        coef_: Coefficients per unit of each column, (1, columns) for two classes and (classes, columns) for
            more; at the mode of the submodel, or means over submodels with `average`.
        intercept_: Intercepts, (1,) or (classes,).
        inclusion_prob_: Posterior probability that a column has an effect, (columns,).
        selected_: Columns of the most probable submodel, (columns,).
        reduction_: The `FitReduction`, of the standardised columns.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if they have any.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 4))
        >>> y = np.where(x[:, 2] + 0.3 * rng.normal(size=200) > 0, "ill", "well")
        >>> fit = bmr.SparseClassifier().fit(x, y)
        >>> fit.selected_, fit.predict([[0, 0, 2, 0]])
        (array([False, False,  True, False]), array(['ill'], dtype='<U4'))

    References:
        MacKay (1992), Neural Computation 4, The evidence framework applied to classification networks.
    """

    def __init__(
        self,
        *,
        prior_scale: float = 1.5,
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

    def fit(self, X: Any, y: Any) -> "SparseClassifier":
        """Fit the model.

        Args:
            X: Columns, (rows, columns).
            y: Classes, (rows,).
        """
        check_estimator_options(self)
        check_no_text(self, X)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "SparseClassifier needs samples of at least 2 classes in the data, but the data has only one "
                f"class: {self.classes_[0]!r}."
            )
        columns = Standardised.of(X, column_names_of(self))
        outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        design = np.column_stack([np.ones(len(index)), columns.x])
        scale = np.array([INTERCEPT_SCALE, *[self.prior_scale] * columns.x.shape[1]])
        loc, covariance = laplace_approximation(design, index, scale, outputs)
        kept, self.reduction_ = np.ones(len(scale), bool), None
        inclusion = np.zeros(0)
        if columns.names:
            self.reduction_: Any = self._reduce(columns, loc, covariance, outputs)
            of_columns = slice(outputs, outputs + len(columns.names))
            inclusion = self.reduction_.inclusion_prob["z"][of_columns]
            kept[1:] = self.reduction_.chosen["z"][of_columns]
        rng = np.random.default_rng(self.random_state)
        if self.average and self.reduction_ is not None:
            drawn = self.reduction_.draws(_DRAWS, seed=self.random_state)["z"]
            mean = _with_intercepts(self.reduction_.mean["z"], outputs)
            draws = _with_intercepts(drawn, outputs)
        else:
            mode, spread = laplace_approximation(design[:, kept], index, scale[kept], outputs)
            drawn = rng.multivariate_normal(mode, spread, _DRAWS, method="cholesky")
            mean = np.zeros((outputs, len(scale)))
            draws = np.zeros((_DRAWS, outputs, len(scale)))
            mean[:, kept], draws[..., kept] = _by_output(mode, outputs), _by_output(drawn, outputs)
        self.coef_ = columns.spread(mean[:, 1:]) / columns.scale
        self.intercept_ = mean[:, 0] - self.coef_ @ columns.loc
        self._draws = columns.spread(draws[..., 1:]) / columns.scale
        self._draw_intercepts = draws[..., 0] - self._draws @ columns.loc
        self.selected_ = columns.spread(kept[1:]).astype(bool)
        self.inclusion_prob_ = columns.spread(inclusion)
        return self

    def decision_function(self, X: Any) -> Any:
        """Return ln of the odds of the second class, (rows,), or of each probability, (rows, classes).

        They are those of `predict_proba`: averaged over the posterior, and so less extreme than the scores
        at `coef_`.

        Args:
            X: Columns, (rows, columns).
        """
        prob = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            log_prob = np.log(prob)
        return log_prob[:, 1] - log_prob[:, 0] if prob.shape[1] == 2 else log_prob

    def predict(self, X: Any) -> Any:
        """Return the most probable class, (rows,).

        Args:
            X: Columns, (rows, columns).
        """
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[index]

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, averaged over the posterior, (rows, classes).

        Args:
            X: Columns, (rows, columns).
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        total = np.zeros((len(X), len(self.classes_)))
        for coef, intercept in zip(self._draws, self._draw_intercepts, strict=True):
            total += class_probabilities(X @ coef.T + intercept)
        return total / len(self._draws)

    def _reduce(self, columns: Standardised, loc: Any, covariance: Any, outputs: int) -> Any:
        """Reduce the posterior, whose elements are laid out with all intercepts first."""
        width = len(columns.names) + 1
        order = np.arange(outputs * width).reshape(outputs, width)
        order = np.concatenate([order[:, 0], order[:, 1:].ravel()])
        return reduce_columns(
            columns,
            loc[order],
            covariance[np.ix_(order, order)],
            outputs=outputs,
            prior_scale=self.prior_scale,
            expected=self.expected,
            groups=self.groups,
            heredity=self.heredity,
            seed=self.random_state,
        )


def _by_output(flat: np.ndarray, outputs: int) -> np.ndarray:
    """Return coefficients as (..., outputs, n), each output's with its intercept first."""
    return flat.reshape(*flat.shape[:-1], outputs, -1)


def _with_intercepts(flat: np.ndarray, outputs: int) -> np.ndarray:
    """Return the same of what has all intercepts first."""
    of_columns = flat[..., outputs:].reshape(*flat.shape[:-1], outputs, -1)
    return np.concatenate([flat[..., :outputs, None], of_columns], -1)
