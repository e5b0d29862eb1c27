"""What the options of an estimator may be."""

from typing import Any


def check_estimator_options(estimator: Any) -> None:
    """Raise ValueError unless the options of an estimator are in range."""
    scale = estimator.prior_scale
    if not 0 < scale < float("inf"):
        raise ValueError(f"prior_scale must be a positive, finite standard deviation, got {scale}.")


def column_names_of(estimator: Any) -> list[str]:
    """Return the names of the columns that an estimator was given, or ``"x0"`` and so on."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return [f"x{i}" for i in range(estimator.n_features_in_)]
    return [str(name) for name in names]
