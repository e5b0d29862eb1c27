"""Sparse linear models with the interface of scikit-learn."""

from bmrjax.estimators.classifier import SparseClassifier as SparseClassifier
from bmrjax.estimators.regressor import SparseRegressor as SparseRegressor
