"""The numbers of a record, by flat names."""

from collections.abc import Mapping
from typing import Any

from bmrjax.callbacks.records import EpochEnd, PointAdded, Record, RoundEnd, RunEnd

_PREFIX = {EpochEnd: "", RoundEnd: "round/", PointAdded: "path/", RunEnd: "result/"}
# What places a record, and what does not change.
_WITHOUT = ("epoch", "num_epochs", "member", "total", "index")


def flat_fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record, with ``"name/entry"`` for each entry of a mapping.

    Example:
        >>> from bmrjax.callbacks import PointAdded
        >>> point = PointAdded(
        ...     epoch=1, num_epochs=2, index=0, vfe=3.0, kept=4, total=5, metrics={"nll": 0.5}
        ... )
        >>> flat_fields(point)["metrics/nll"]
        0.5
    """
    flat: dict[str, Any] = {}
    for name, value in record.to_dict().items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{entry}": number for entry, number in value.items()}
        else:
            flat[name] = value
    return flat


def scalars_of(record: Record) -> dict[str, float]:
    """Return what to plot of a record over epochs: its numbers, with the removed fraction, by tag.

    Tags of rounds begin with ``round/``, those of points of the path with ``path/``, and those of the
    result with ``result/``. A `RunStart` has none.

    Example:
        >>> from bmrjax.callbacks import RoundEnd
        >>> scalars_of(
        ...     RoundEnd(epoch=1, num_epochs=2, kind="reduced", kept_before=4, kept=3, total=4)
        ... )
        {'round/kept_before': 4, 'round/kept': 3, 'round/removed': 1, 'round/sparsity': 0.25}
    """
    if type(record) not in _PREFIX:
        return {}
    flat = flat_fields(record)
    numbers = {
        name: value
        for name, value in flat.items()
        if name not in _WITHOUT and isinstance(value, int | float)
    }
    if flat["total"]:
        numbers["sparsity"] = 1 - flat["kept"] / flat["total"]
    return {f"{_PREFIX[type(record)]}{name}": value for name, value in numbers.items()}
