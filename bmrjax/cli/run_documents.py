"""What `run.json` and `results.json` may hold, and reading them."""

import functools
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from pydantic import ConfigDict, JsonValue, TypeAdapter, with_config

# Pydantic reads the types of Python's own module only from 3.12 on.
from typing_extensions import TypedDict

from bmrjax.errors import DamagedFileError
from bmrjax.run.document import Count, Name, Number, read_document

_OPEN = ConfigDict(extra="allow")
RESULTS, OPTIONS = "results.json", "run.json"


@with_config(_OPEN)
class Config(TypedDict):
    """The options of a run, of which `SparsifyOptions` knows more."""

    data: str
    net: Name
    method: Name
    num_epochs: Count
    validation: NotRequired[float | None]
    within: NotRequired[float | None]


@with_config(_OPEN)
class FindingDocument(TypedDict):
    """One of `Result.diagnose`."""

    code: str
    message: str
    advice: str


@with_config(_OPEN)
class PointDocument(TypedDict):
    """A point of the path."""

    vfe_per_datum: Number
    epoch: Count
    kept: Count
    total: Count
    metrics: dict[Name, Number]
    taken_back: NotRequired[bool]


@with_config(_OPEN)
class Column(TypedDict):
    """How a column of a table becomes inputs."""

    name: Name
    levels: list[Name] | None
    fill: Number


@with_config(_OPEN)
class HistoryRow(TypedDict):
    """An epoch."""

    vfe: Number
    steps: Count
    taken_back: NotRequired[bool]
    reduce_seconds: NotRequired[float]


@with_config(_OPEN)
class FitDocument(TypedDict):
    """A fit that was compared: its temperature, that of the fit from which it went on, and its warm-up."""

    temperature: float
    start: NotRequired[float]
    slow_warm_up: NotRequired[bool]
    nll: Number
    kept: Count
    seconds: NotRequired[float]


@with_config(_OPEN)
class Temperatures(TypedDict):
    """Fits that were compared on the validation rows, in nats per row."""

    point_estimate_nll: Number
    fits: list[FitDocument]
    taken: Count
    underfits: NotRequired[bool]


@with_config(_OPEN)
class LinearFigures(TypedDict):
    """What a linear model reaches on the test rows."""

    name: Name
    nll: Number
    accuracy: NotRequired[Number]
    rmse: NotRequired[Number]


@with_config(_OPEN)
class Results(TypedDict):
    """What a finished run reached; what other versions add is kept."""

    accuracy: Number
    nll: Number
    ece: Number
    rmse: Number
    vfe_per_datum: Number
    sparsity: float
    sparsity_per_layer: dict[Name, float]
    kept: Count
    total: Count
    target_mean: JsonValue
    target_scale: JsonValue
    input_mean: JsonValue
    input_scale: JsonValue
    outputs: Count
    columns: NotRequired[list[Name] | None]
    inputs_kept: NotRequired[list[Name] | None]
    target_names: NotRequired[list[Name] | None]
    class_names: NotRequired[list[Name] | None]
    table: NotRequired[list[Column] | None]
    notes: NotRequired[list[str]]
    trivial: NotRequired[dict[Name, Number] | None]
    linear: NotRequired[LinearFigures]
    rmse_by_target: NotRequired[list[Number] | None]
    trivial_rmse_by_target: NotRequired[list[Number] | None]
    nll_in_target_units: NotRequired[Number]
    temperature: NotRequired[float]
    temperatures: NotRequired[Temperatures]
    test_rows: NotRequired[Count]
    validation_rows: NotRequired[Count]
    fit_kept: NotRequired[Count | None]
    findings: NotRequired[list[FindingDocument]]
    compile_seconds: Number
    seconds: Number
    step_ms: Number
    skipped_steps: Count
    config: Config
    input_shape: list[Count]
    num_classes: Count | None
    history: list[HistoryRow]
    path: list[PointDocument]


@functools.cache
def _results_schema() -> TypeAdapter[Any]:
    return TypeAdapter(Results)


@functools.cache
def _options_schema() -> TypeAdapter[Any]:
    return TypeAdapter(dict[str, JsonValue])


def read_results(directory: Path) -> dict[str, Any]:
    """Return what a finished run reached.

    Raises:
        FileNotFoundError: If the folder holds no finished run.
        DamagedFileError: If the document is damaged.
    """
    path = directory / RESULTS
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no finished run: there is no {RESULTS}.")
    document = read_document(path, _results_schema())
    if wrong := _wrong(document):
        raise DamagedFileError(f"{path} is damaged: {wrong}.")
    return document


def read_options(directory: Path) -> dict[str, Any]:
    """Return the options that a run was started with.

    Raises:
        FileNotFoundError: If the folder has no record of them.
        DamagedFileError: If it is damaged.
    """
    path = directory / OPTIONS
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no run: there is no {OPTIONS}.")
    return read_document(path, _options_schema())


def _wrong(document: dict[str, Any]) -> str | None:
    """Return what does not fit together in a document that its schema admits, in words, or None."""
    shape, classes, outputs = (document[k] for k in ("input_shape", "num_classes", "outputs"))
    if not 1 <= len(shape) <= 8 or not all(shape):
        return f"'input_shape' is {shape[:9]}"
    if not outputs or classes == 0 or (classes is not None and classes != outputs):
        return f"'outputs' is {outputs}, and 'num_classes' {classes}"
    # Statistics of one data point, whatever their axes before it.
    for name in ("input_mean", "input_scale"):
        if not fits(document[name], (1, *shape), positive=name == "input_scale"):
            return f"'{name}' does not fit inputs of shape {tuple(shape)}"
    if classes is None:
        for name in ("target_mean", "target_scale"):
            if not fits(document[name], (1, outputs), positive=name == "target_scale"):
                return f"'{name}' does not fit {outputs} targets"
    for name, count in (("class_names", classes), ("target_names", None if classes else outputs)):
        names = document.get(name)
        if names is not None and count is not None and len(names) != count:
            return f"'{name}' has {len(names)} names for {count}"
    if document.get("table") is not None:
        columns, targets = document["table"], document.get("target_names")
        if not targets or (classes is not None and not document.get("class_names")):
            return "a table's targets or classes have no names"
        if not all(each["levels"] is None or len(each["levels"]) > 1 for each in columns):
            return "'table' has a category of fewer than two values"
        if not columns:
            return "'table' has no columns"
    if document.get("inputs_kept") is not None and document.get("columns") is None:
        return "'inputs_kept' has names, and 'columns' has none"
    compared = document.get("temperatures")
    if compared is not None and not compared["taken"] < len(compared["fits"]):
        return "'temperatures' takes a fit that is not there"
    return None


def fits(value: Any, shape: tuple[int, ...], *, positive: bool) -> bool:
    """Say whether a tree of finite numbers is of one data point, or broadcasts to that.

    Args:
        value: Numbers, or lists of numbers, from a JSON document.
        shape: Of a batch of one data point.
        positive: Whether all numbers must be above zero.
    """
    try:
        array = np.asarray(value)
        # Neither texts nor truth values, which NumPy would read as numbers, nor integers beyond int64.
        if array.dtype.kind not in "iuf" or array.ndim > len(shape):
            return False
        broadcast = np.broadcast_shapes(array.shape, shape)
    except (ValueError, TypeError, OverflowError):
        return False
    return bool(
        broadcast == shape and np.isfinite(array).all() and (not positive or (array > 0).all())
    )
