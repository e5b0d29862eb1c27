"""What the options of an estimator may be."""

from typing import Any


def check_estimator_options(estimator: Any) -> None:
    """Raise ValueError unless the options of an estimator are in range."""
    scale = estimator.prior_scale
    if not 0 < scale < float("inf"):
        raise ValueError(f"prior_scale must be a positive, finite standard deviation, got {scale}.")


def check_no_text(estimator: Any, table: Any) -> None:
    """Raise ValueError if columns of a table hold text, dates or durations."""
    if not hasattr(table, "items") or not hasattr(table, "columns"):
        return
    others = {n: c for n, c in table.items() if getattr(c.dtype, "kind", "O") not in "biufc"}
    times = [
        str(name) for name, column in others.items() if getattr(column.dtype, "kind", "O") in "mM"
    ]
    if times:
        raise ValueError(
            f"{type(estimator).__name__}: the columns {times} hold dates or durations. Make them numbers "
            "first, such as years, or days since the first."
        )
    text = [str(name) for name, column in others.items() if any(isinstance(v, str) for v in column)]
    if text:
        raise ValueError(
            f"{type(estimator).__name__}: the columns {text} hold text. Make them numbers first, as "
            "pandas.get_dummies(x, drop_first=True, dtype=float) does, and name the dummies of each in "
            "groups=."
        )


def column_names_of(estimator: Any) -> list[str]:
    """Return the names of the columns that an estimator was given, or ``"x0"`` and so on."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return [f"x{i}" for i in range(estimator.n_features_in_)]
    return [str(name) for name in names]
