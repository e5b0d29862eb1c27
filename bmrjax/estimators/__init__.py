"""Sparse linear models with the interface of scikit-learn."""

try:
    import sklearn as sklearn
except ImportError as error:
    raise ImportError(
        "bmrjax.SparseRegressor and SparseClassifier need scikit-learn. Install it by "
        "pip install 'bmrjax[sklearn]'."
    ) from error

from bmrjax.estimators.classifier import SparseClassifier as SparseClassifier  # noqa: E402
from bmrjax.estimators.regressor import SparseRegressor as SparseRegressor  # noqa: E402
