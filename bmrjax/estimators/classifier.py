"""Sparse logistic regression with the interface of scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bmrjax.checks import check_unmasked
from bmrjax.estimators.estimator_options import (
    check_estimator_options,
    check_no_text,
    column_names_of,
)
from bmrjax.estimators.logistic import Logistic, class_probabilities
from bmrjax.estimators.standardised import INTERCEPT_SCALE, ColumnsPosterior, Standardised
from bmrjax.fitted.heredity import HeredityOption

# Draws of the coefficients that predictions are averaged over.
_DRAWS = 256

# Points at most at which the posterior is taken to be normal, from each of the first ones.
_ROUNDS = 8

# Submodels of a reduction, the most probable first, that are compared by their own modes.
_COMPARED = 8

# With fewer rows, the mode of the full model is not among the first points.
_ROWS_PER_COEFFICIENT = 5


class SparseClassifier(ClassifierMixin, BaseEstimator):
    r"""Choose the columns of a logistic regression by their evidence.

    Columns are standardised. Coefficients have independent normal priors, and Laplace's approximation of
    their posterior gives the evidence of every submodel (`reduce_fit`). It is taken at the mode of the
    submodel that is most probable by its own such approximation. With more than two classes the
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
        selected_: Columns of the submodel that is most probable by Laplace's approximation at its own mode,
            (columns,).
        reduction_: The `FitReduction`, of the standardised columns. All its submodels, and so
            `inclusion_prob_`, are those of one normal at the mode of `selected_`, under which another
            one may be more probable: `reduction_.chosen` can differ from `selected_`. With `average` the
            coefficients are means under this normal, so that one can be near zero where `selected_` is True,
            and be far from it where `selected_` is False.
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
        for name, array in (("X", X), ("y", y)):
            check_unmasked(array, f"SparseClassifier: {name}")
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
        full = Logistic(design, index, scale, outputs)
        kept: np.ndarray = np.ones(len(scale), bool)
        self.reduction_: Any = None
        inclusion = np.zeros(0)
        if columns.names:
            kept, self.reduction_ = self._choose(columns, full)
            inclusion = self.reduction_.inclusion_prob["z"][outputs : outputs + len(columns.names)]
        rng = np.random.default_rng(self.random_state)
        if self.average and self.reduction_ is not None:
            drawn = self.reduction_.draws(_DRAWS, seed=self.random_state)["z"]
            mean = _with_intercepts(self.reduction_.mean["z"], outputs)
            draws = _with_intercepts(drawn, outputs)
        else:
            of_kept = full.of_columns(kept)
            mode, spread = of_kept.normal_at(of_kept.mode())
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
        check_unmasked(X, "SparseClassifier: X")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        total = np.zeros((len(X), len(self.classes_)))
        for coef, intercept in zip(self._draws, self._draw_intercepts, strict=True):
            total += class_probabilities(X @ coef.T + intercept)
        return total / len(self._draws)

    def _choose(self, columns: Standardised, full: Logistic) -> tuple[np.ndarray, Any]:
        """Return the submodel of most probability by its own Laplace approximation, and the reduction there.

        The normal that approximates the posterior is taken at the mode of a submodel, and where its reduction
        leads to another one, at that one's mode in turn. Far from there the likelihood is not normal: with
        many columns for the rows, the full model separates the classes, and tells nothing of any column.
        """
        width, outputs = full.design.shape[1], full.outputs
        starts = [np.arange(width) == 0]
        if len(full.design) >= _ROWS_PER_COEFFICIENT * outputs * width:
            starts.append(np.ones(width, bool))
        log_probs: dict[bytes, float] = {}
        reductions: dict[bytes, Any] = {}
        for kept in starts:
            for _ in range(_ROUNDS):
                if kept.tobytes() in reductions:
                    break
                reduction = reductions[kept.tobytes()] = self._reduce(columns, full, kept)
                masks = reduction._found.masks[:_COMPARED]
                elements = reduction._nodes.precisions[0].elements(masks)
                found = np.ones((len(masks), width), bool)
                found[:, 1:] = elements[:, outputs : outputs + width - 1]
                for one, prior in zip(found, reduction._prior.log_prob(masks), strict=True):
                    if one.tobytes() not in log_probs:
                        of_one = full.of_columns(one)
                        log_probs[one.tobytes()] = of_one.log_evidence(of_one.mode()) + float(prior)
                kept = max(found, key=lambda one: log_probs[one.tobytes()])
        best = np.frombuffer(max(log_probs, key=lambda one: log_probs[one]), bool)
        reduction = reductions.get(best.tobytes())
        return best, self._reduce(columns, full, best) if reduction is None else reduction

    def _reduce(self, columns: Standardised, full: Logistic, kept: np.ndarray) -> Any:
        """Reduce the posterior as it is about the mode of a submodel."""
        outputs, width = full.outputs, full.design.shape[1]
        at = np.zeros((outputs, width))
        at[:, kept] = full.of_columns(kept).mode().reshape(outputs, -1)
        loc, covariance = full.normal_at(at.ravel())
        # All intercepts first.
        order = np.arange(outputs * width).reshape(outputs, width)
        order = np.concatenate([order[:, 0], order[:, 1:].ravel()])
        posterior = ColumnsPosterior(
            columns, outputs, self.prior_scale, self.expected, self.groups, self.heredity
        )
        return posterior.reduce(
            loc[order], covariance[np.ix_(order, order)], seed=self.random_state
        )


def _by_output(flat: np.ndarray, outputs: int) -> np.ndarray:
    """Return coefficients as (..., outputs, n), each output's with its intercept first."""
    return flat.reshape(*flat.shape[:-1], outputs, -1)


def _with_intercepts(flat: np.ndarray, outputs: int) -> np.ndarray:
    """Return the same of what has all intercepts first."""
    of_columns = flat[..., outputs:].reshape(*flat.shape[:-1], outputs, -1)
    return np.concatenate([flat[..., :outputs, None], of_columns], -1)
