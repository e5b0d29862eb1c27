"""Numbers as a reader takes them in."""

import math
from collections.abc import Sequence

LABELS = {
    "accuracy": "Accuracy, held out",
    "rmse": "RMSE, held out",
    "nll": "NLL per data point, held out, nats",
    "ece": "Calibration error (ECE), held out",
    "coverage": "Held-out values in 90% intervals",
}
# Measures that are fractions, and shown as percentages.
PERCENT = {"accuracy", "coverage"}


def shown_number(value: float | None, name: str = "") -> str:
    """Return a number with the digits that matter; an empty text for one that is not there.

    Args:
        value: The number.
        name: Of the measure.

    Example:
        >>> [shown_number(x) for x in (0.123456, 12345.6, -3.0, float("inf"), None)]
        ['0.1235', '12,346', '-3', 'not finite', '']
        >>> shown_number(0.9526, "accuracy")
        '95.3%'
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return "not finite"
    if name in PERCENT:
        return f"{value:.1%}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def of_rows(share: float, count: int) -> str:
    """Return how many rows a share was measured on, and its standard error, in percentage points.

    Without an error where all rows agree, which does not tell it.

    Example:
        >>> of_rows(23 / 30, 30), of_rows(1.0, 30)
        ('of 30 rows, ± 7.7 points', 'of 30 rows')
    """
    error = share_error(share, count)
    return f"of {count:,} rows" + (f", ± {100 * error:.1f} points" if error else "")


def share_error(share: float, count: int) -> float:
    """Return the standard error of a share of so many rows; zero where all agree, which does not tell it.

    Example:
        >>> round(share_error(0.5, 100), 6)
        0.05
    """
    return math.sqrt(max(share * (1 - share), 0.0) / count) if count else 0.0


def shown_nats(value: float | None) -> str:
    """Return an evidence difference with its sign.

    Example:
        >>> [shown_nats(x) for x in (3.14159, -200.0, 0.0, 4321.0, None)]
        ['+3.14', '-200', '0', '+4,321', '']
    """
    if value is None or math.isnan(value):
        return ""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 1000:
        return f"{value:+,.0f}"
    return f"{value:+.3g}" if abs(value) >= 5e-4 else "0"


def shown_bytes(count: float) -> str:
    """Return a number of bytes in a unit that fits.

    Example:
        >>> [shown_bytes(n) for n in (512, 11_120, 3_400_000)]
        ['512 B', '11.1 kB', '3.4 MB']
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def finite(value: float | None) -> float | None:
    """Return a number that JSON has, or None."""
    return value if value is not None and math.isfinite(value) else None


def short_names(names: Sequence[str], *, most: int = 36) -> list[str]:
    """Return names of which long ones are shortened in the middle; they stay different.

    Args:
        names: The names.
        most: Characters.

    Example:
        >>> short_names(["age", "blood_pressure_first_visit", "blood_pressure_other_visit"], most=15)
        ['age', 'blood_p…t_visit', 'blood_p…r_visit']
    """
    half = (most - 1) // 2
    short = [n if len(n) <= most else f"{n[:half]}…{n[len(n) - half :]}" for n in names]
    return [s if short.count(s) == 1 else n for s, n in zip(short, names, strict=True)]
