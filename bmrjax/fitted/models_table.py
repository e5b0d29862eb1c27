"""The most probable submodels as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.fitted.measured_average import MeasuredAverage
from bmrjax.fitted.verification import Verification

if TYPE_CHECKING:
    from pandas import DataFrame


# Columns of the table beside those of the candidates.
_OWN = ("size", "prob", "delta_f", "measured", "measured_prob")


def candidate_columns(candidates: Sequence[str]) -> list[str]:
    """Return the name of each candidate's column: its own, unless another column has it.

    Args:
        candidates: Names of the units.
    """
    return [f"{name} (candidate)" if name in _OWN else name for name in candidates]


def models_table(
    after: MeasuredAverage,
    verification: Verification | None,
    candidates: Sequence[str],
    *,
    is_measured: bool,
) -> "DataFrame":
    """Return one row per submodel; see `FitReduction.models`.

    Args:
        after: The submodels, and their probabilities by measured evidence.
        verification: Predicted and measured evidence; None where it was not measured.
        candidates: Names of the units.
        is_measured: Whether the measured evidence can be relied on, and is in the probabilities of `after`.
    """
    import pandas as pd

    found = after.found
    columns: dict[str, Any] = dict(zip(candidate_columns(candidates), found.masks.T, strict=True))
    columns |= {"size": found.masks.sum(1), "prob": found.prob, "delta_f": found.delta_f}
    if verification is None:
        return pd.DataFrame(columns)
    measured, prob = np.full((2, len(found.prob)), np.nan)
    count = len(verification.measured)
    measured[:count] = verification.measured
    columns["measured"] = measured
    if is_measured:
        prob[:count] = after.prob[:count]
        columns["measured_prob"] = prob
    order = np.argsort(-after.prob, kind="stable")
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)
