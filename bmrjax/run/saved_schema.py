"""What `result.json` may hold; see `bmrjax.run.save_result`."""

import functools
from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, JsonValue, TypeAdapter, with_config

# Pydantic reads the types of Python's own module only from 3.12 on.
from typing_extensions import TypedDict

from bmrjax.run.document import Count, Name, Number, WholeNumber

_CLOSED, _OPEN = ConfigDict(extra="forbid"), ConfigDict(extra="allow")


@with_config(_OPEN)
class Row(TypedDict):
    """An epoch of the history."""

    vfe: Number
    steps: NotRequired[Count]
    kept: NotRequired[Count]
    rate: NotRequired[float]
    seconds: NotRequired[float]
    reduce_seconds: NotRequired[float]
    skipped_steps: NotRequired[Count]
    taken_back: NotRequired[bool]
    sparsity_per_layer: NotRequired[dict[Name, Number]]


@with_config(_CLOSED)
class SavedPoint(TypedDict):
    """A point of the path."""

    epoch: Count
    vfe: float
    kept: Count
    total: Count
    metrics: dict[Name, float]
    params: dict[Name, JsonValue]
    keep: dict[Name, JsonValue]
    mask_cost: NotRequired[float]
    taken_back: NotRequired[bool]
    judged: NotRequired[float | None]
    vfe_error: NotRequired[float]


@with_config(_CLOSED)
class SavedSite(TypedDict):
    """A site, as `Inspection` reports it."""

    name: Name
    shape: list[Count]
    prior: str
    posterior: str
    judged: bool
    why: str
    advice: str
    observed: bool
    auxiliary: bool


@with_config(_CLOSED)
class Scale(TypedDict):
    """Columns that are far from unit scale."""

    argument: Name
    role: Literal["input", "target"]
    columns: list[WholeNumber]
    num_columns: Count
    least: float
    most: float


@with_config(_OPEN)
class Facts(TypedDict, total=False):
    """What `diagnose` reads."""

    rows: Count
    guide: Name
    joint: bool
    criterion: Name | None
    dependence: float
    nll: float
    trivial_nll: float
    accuracy: float
    trivial_accuracy: float
    rmse: float
    trivial_rmse: float
    held_out: bool
    inputs: list[Name]
    targets: list[Name]
    scales: list[Scale]
    correlation: float
    correlated: list[WholeNumber]
    correlated_in: Name
    num_columns: Count


@with_config(_OPEN)
class SavedResult(TypedDict):
    """All of the document; what other versions add is not read."""

    format: Literal[1]
    layers: dict[Name, Name]
    num_data: Count
    history: list[Row]
    metrics: dict[Name, float]
    timing: dict[Name, float]
    num_skipped: Count
    loop_mode: Name
    num_compilations: Count
    vfe: float | None
    params: dict[Name, JsonValue]
    keep: dict[Name, JsonValue]
    path: list[SavedPoint]
    hyperparameters: NotRequired[dict[Name, JsonValue]]
    by_rows: NotRequired[bool]
    temperature: NotRequired[Number]
    columns: NotRequired[list[Name] | None]
    class_names: NotRequired[list[Name] | None]
    row_arguments: NotRequired[list[Name] | None]
    latent_sites: NotRequired[list[Name] | None]
    inspection: NotRequired[list[SavedSite]]
    facts: NotRequired[Facts]
    arrays_digest: NotRequired[str]


# A fact in the first column is read together with those in the second.
_TOGETHER = {
    "dependence": ("rows",),
    "trivial_accuracy": ("accuracy", "rows"),
    "trivial_rmse": ("rmse",),
    "trivial_nll": ("nll",),
    "correlation": ("correlated", "correlated_in", "num_columns", "guide"),
}


@functools.cache
def saved_schema() -> TypeAdapter[Any]:
    """Return the schema, which takes a moment to build."""
    return TypeAdapter(SavedResult)


def lacking(document: Any) -> str | None:
    """Return what a document lacks that its schema does not say, in words, or None.

    Args:
        document: Which the schema admits.
    """
    if document["num_data"] < 1:
        return "'num_data' is 0"
    if not document.get("temperature", 1.0) > 0:
        return "'temperature' is not positive"
    facts = document.get("facts", {})
    for name, others in _TOGETHER.items():
        absent = [other for other in others if name in facts and other not in facts]
        if absent:
            return f"'facts' has '{name}' without '{absent[0]}'"
    if "correlation" in facts and len(facts["correlated"]) != 2:
        return "'facts.correlated' is no pair"
    if not 0 <= facts.get("trivial_accuracy", 0.0) <= 1:
        return "'facts.trivial_accuracy' is no fraction"
    if facts.get("rows", 1) < 1:
        return "'facts.rows' is 0"
    return None
