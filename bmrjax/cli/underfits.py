"""What a run says where a point estimate predicts its validation rows better than the fit that was taken."""

from collections.abc import Mapping
from typing import Any

from bmrjax.cli.run_report import shown


def underfit_findings(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a finding if a fit has learned less than a point estimate of the same network, else none.

    Args:
        document: Of results.json.

    Example:
        >>> fits = {"fits": [{"nll": 1.4}], "taken": 0, "point_estimate_nll": -0.2, "underfits": True}
        >>> (finding,) = underfit_findings({"temperatures": fits, "inputs_kept": []})
        >>> finding["message"].endswith("although this fit reads no input.")
        True
    """
    compared = document.get("temperatures") or {}
    if not compared.get("underfits"):
        return []
    nll = compared["fits"][compared["taken"]]["nll"]
    message = (
        "A point estimate of the same network predicts the validation rows better: NLL "
        f"{shown(compared['point_estimate_nll'], '.3g')} for {shown(nll, '.3g')}."
    )
    if document.get("inputs_kept") == []:
        message += " So the target is not pure noise, although this fit reads no input."
    advice = (
        "There is more to be learned from the columns than the fit has. More rows help, and so may a lower "
        "--temperature, such as 0.02; where only predictions matter, compare with another model, such as a "
        "ridge regression."
    )
    return [{"code": "underfits", "message": message, "advice": advice}]
