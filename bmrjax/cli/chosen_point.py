"""Why a run ended at its point of the path, in words."""

from collections.abc import Mapping
from typing import Any


def chosen_as(document: Mapping[str, Any]) -> str:
    """Return what the validation rows took the point for; empty where there are none, or nothing was reduced.

    Args:
        document: Of results.json.

    Example:
        >>> config = {"validation": 0.15, "within": 1.0}
        >>> chosen_as({"config": config, "validation_rows": 20, "total": 9, "path": [{}]})
        'the sparsest within 1 standard error of the best NLL of 20 validation rows'
    """
    config = document["config"]
    if not config.get("validation") or not document["total"] or not document["path"]:
        return ""
    count = document.get("validation_rows")
    rows = f"{count:,} validation rows" if count else "the validation rows"
    within = config.get("within") or 0.0
    if not within:
        return f"that of the best NLL of {rows}"
    if document.get("inputs_kept") == []:
        return f"one that reads no input, as {rows} do not show that another point is better"
    errors = "1 standard error" if within == 1 else f"{within:g} standard errors"
    return f"the sparsest within {errors} of the best NLL of {rows}"


def kept_by_the_fit(document: Mapping[str, Any]) -> int | None:
    """Return how many elements the fit ended with, if the point that was chosen keeps another number.

    Args:
        document: Of results.json.
    """
    found = document.get("fit_kept")
    return None if found == document["kept"] else found
