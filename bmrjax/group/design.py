"""The design of a group study: a constant and covariates by name, one row per subject."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from bmrjax.fitted.layout import shortened

MEAN = "mean"

# A combination of standardised covariates that varies by less than this is taken for a constant.
_LEAST_SINGULAR_VALUE = 1e-6


@dataclass(frozen=True)
class Design:
    """Covariates of each subject, the constant first.

    Attributes:
        names: Name of each column; the first is the constant.
        columns: Their values as given, with text as zeros and ones; the first column is one.
        subjects: Name of each subject.
    """

    names: tuple[str, ...]
    columns: Float[np.ndarray, "subjects covariates"]
    subjects: tuple[str, ...]

    @property
    def centre(self) -> Float[np.ndarray, " covariates"]:
        """Mean of each covariate over the subjects; zero for the constant."""
        return np.append(0.0, self.columns[:, 1:].mean(0))

    @property
    def scale(self) -> Float[np.ndarray, " covariates"]:
        """Standard deviation of each covariate over the subjects; one for the constant."""
        return np.append(1.0, self.columns[:, 1:].std(0))

    @property
    def standardised(self) -> Float[np.ndarray, "subjects covariates"]:
        """Columns less their mean, per standard deviation, which the priors of effects refer to."""
        return (self.columns - self.centre) / self.scale

    def without(self, subject: int) -> "Design":
        """Return the design of the other subjects.

        Raises:
            ValueError: If a covariate no longer varies, or two of them determine each other.
        """
        names = tuple(np.delete(np.array(self.subjects, object), subject))
        rest = replace(self, columns=np.delete(self.columns, subject, 0), subjects=names)
        check_design(rest, f" without the subject '{self.subjects[subject]}'")
        return rest


def design_of(design: Any, count: int) -> Design:
    """Read a design, check it, and add the constant if it has none.

    Args:
        design: None for the constant alone; a DataFrame or a dict of columns; or an array, (subjects,) or
            (subjects, covariates). Columns of text, categories and booleans become zeros and ones, one
            column less than there are levels: ``"group[patient]"`` is one for patients, and the first level
            in alphabetical order, or in the order of a categorical column, is the reference.
        count: Number of subjects.

    Raises:
        ValueError: For another number of rows, missing values, covariates that do not vary or determine each
            other, names that occur twice, or no more subjects than columns.
    """
    columns, subjects = _columns(design, count)
    names, values = [MEAN], [np.ones(count)]
    constant = None
    for name, column in columns.items():
        for own_name, numbers in _numbers(name, np.asarray(column), count, column):
            if np.all(numbers == 1.0) and constant is None:
                constant = own_name
                continue
            names.append(own_name)
            values.append(numbers)
    names[0] = constant if constant is not None else MEAN
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"peb: the design has more than one column {repeated}; '{names[0]}' is the constant. Rename one."
        )
    found = Design(tuple(names), np.stack(values, 1), subjects)
    check_design(found)
    return found


def check_design(design: Design, context: str = "") -> None:
    """Raise ValueError unless the effects of all columns can be estimated separately.

    Args:
        design: The design.
        context: What it is the design of, for messages.
    """
    count, width = design.columns.shape
    spread = np.ptp(design.columns, axis=0)
    still = [
        n
        for n, s, c in zip(design.names[1:], spread[1:], design.centre[1:], strict=True)
        if s <= 1e-12 * abs(c)
    ]
    if still:
        raise ValueError(
            f"peb: {shortened(still)} {'have' if still[1:] else 'has'} the same value for all "
            f"subjects{context}, so the effect is not separable from the mean. Leave it out of the design."
        )
    if count <= width:
        raise ValueError(
            f"peb: {count} subjects{context} are too few for {width} columns ({shortened(design.names)}) and "
            f"the variance between subjects; at least {width + 1} are needed. Use fewer covariates."
        )
    _, values, vectors = np.linalg.svd(design.standardised)
    if values[-1] < _LEAST_SINGULAR_VALUE * values[0]:
        involved = [n for n, v in zip(design.names, vectors[-1], strict=True) if abs(v) > 0.05]
        raise ValueError(
            f"peb: the columns {shortened(involved)} of the design{context} determine each other, so their "
            "effects cannot be estimated separately. Leave one of them out. (The constant "
            f"'{design.names[0]}' is always there: of the indicators of all groups, leave out that of the "
            "reference.)"
        )


def _columns(design: Any, count: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    numbered = tuple(str(i) for i in range(count))
    if design is None:
        return {}, numbered
    if isinstance(design, Mapping):
        return {str(name): column for name, column in design.items()}, numbered
    if hasattr(design, "columns") and hasattr(design, "index"):
        if len(design) != count:
            raise ValueError(_rows(len(design), count))
        names = [str(name) for name in design.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"peb: the design has more than one column {repeated}. Rename one.")
        frame = design.set_axis(names, axis=1)
        return {n: frame[n] for n in names}, tuple(str(i) for i in design.index)
    values = np.asarray(design)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(
            f"peb: the design has shape {np.shape(design)}; (subjects, covariates) is expected."
        )
    if len(values) != count:
        raise ValueError(_rows(len(values), count))
    return {f"x{i}": values[:, i] for i in range(values.shape[1])}, numbered


def _rows(found: int, count: int) -> str:
    return (
        f"peb: the design has {found} rows, and there are {count} subjects; one row each is needed."
    )


def _numbers(
    name: str, column: np.ndarray, count: int, given: Any
) -> Sequence[tuple[str, np.ndarray]]:
    if column.shape != (count,):
        raise ValueError(
            f"peb: the column '{name}' of the design has shape {column.shape}, and there are {count} "
            "subjects."
        )
    categories = _categories(given)
    if categories is None and column.dtype.kind in "iuf":
        numbers = column.astype(np.float64)
        if not np.isfinite(numbers).all():
            where = [int(i) for i in np.flatnonzero(~np.isfinite(numbers))]
            raise ValueError(
                f"peb: '{name}' is missing or infinite for the subjects in rows {where}. Leave these "
                "subjects out, or fill in their values."
            )
        return [(name, numbers)]
    if categories is None and column.dtype.kind == "b":
        return [(name, column.astype(np.float64))]
    missing = [i for i, value in enumerate(column) if value is None or value != value]
    if missing:
        raise ValueError(
            f"peb: '{name}' is missing for the subjects in rows {missing}. Leave these subjects out, or fill "
            "in their values."
        )
    numeric = [isinstance(value, int | float | np.number) for value in column]
    if categories is None and any(numeric) and not isinstance(column[0], bool):
        if all(numeric):
            return _numbers(name, column.astype(np.float64), count, None)
        raise ValueError(f"peb: '{name}' mixes numbers and text; make it one or the other.")
    text = np.array([str(value) for value in column])
    ordered = sorted(set(text)) if categories is None else [str(c) for c in categories]
    levels = [level for level in ordered if level in set(text)]
    if len(levels) < 2:
        return [(name, np.full(count, 0.0))]
    return [(f"{name}[{level}]", (text == level).astype(np.float64)) for level in levels[1:]]


def _categories(column: Any) -> Any:
    """Return the levels of a categorical column, which may be numbers; None for any other."""
    return getattr(getattr(column, "dtype", None), "categories", None)
