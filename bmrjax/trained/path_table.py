"""The path of a reduction as a table, and in words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bmrjax.run.diagnose import Finding
from bmrjax.trained.choice import PathPoint

if TYPE_CHECKING:
    from pandas import DataFrame


def highest_evidence(path: Sequence[PathPoint]) -> int:
    """Return the number of the point whose evidence is highest."""
    return int(np.argmax([point.delta_f for point in path]))


def path_table(path: Sequence[PathPoint], chosen: int, shares: Sequence[str]) -> "DataFrame":
    """Return a path, one row per point.

    Args:
        path: From dense to sparse.
        chosen: Number of the chosen point.
        shares: Which shares the table has, such as ``["kept"]``.
    """
    import pandas as pd

    columns = [*shares, "predicted", "measured", "standard_error", "delta_f", "as_good"]
    rows = [
        {**{name: getattr(point, name) for name in columns}, "chosen": i == chosen} | point.metrics
        for i, point in enumerate(path)
    ]
    return pd.DataFrame(rows)


def path_lines(
    path: Sequence[PathPoint],
    chosen: int,
    temperature: float,
    findings: Sequence[Finding],
    table: "DataFrame",
    *,
    of: str = "",
) -> list[str]:
    """Return what a reduction prints of its path: the chosen point, the findings and the table.

    Args:
        path: From dense to sparse.
        chosen: Number of the chosen point.
        temperature: Of the predictions.
        findings: What is wrong with the reduction, or may be.
        table: As `path_table` returns it.
        of: What shares are of, as ``" of the parameters"``.
    """
    point, best = path[chosen], path[highest_evidence(path)]
    metrics = "".join(
        f"; {name} {value:.4f} (dense {path[0].metrics[name]:.4f})"
        for name, value in point.metrics.items()
    )
    rows = table.drop(columns="chosen").round(4).to_string(index=False).splitlines()
    marks = ["  ", *("> " if i == chosen else "  " for i in range(len(path)))]
    return [
        f"  held-out loss {point.measured:+.4f} ± {point.standard_error:.4f} nats per row from the dense "
        f"network{metrics}",
        f"  temperature {temperature:.2f}; evidence is highest at {best.kept:.1%}{of}",
        *(f"  {finding}" for finding in findings),
        *(mark + row for mark, row in zip(marks, rows, strict=True)),
    ]
