"""Numbers that are written for people: ``$1,234.50``, ``12.5 %``, ``1 234 EUR``."""

import re
from collections.abc import Iterable, Sequence

# A sign, a currency, the sign where it comes second, digits in groups of three or in one, a fraction, and a
# percent sign or a currency.
_CURRENCY = r"[$€£¥₹]|USD|EUR|GBP|JPY|CHF|INR"
_NUMBER = re.compile(
    rf"(?P<sign>[-+−]?)\s*(?P<before>{_CURRENCY})?\s*(?P<second>[-+−]?)"
    r"(?P<digits>\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ \u00a0\u202f]\d{3})+|\d+)(?P<fraction>\.\d*)?"
    rf"\s*(?P<after>%|{_CURRENCY})?"
)


def formatted_numbers(cells: Iterable[str | None], *, sure: bool = True) -> list[float] | None:
    """Return the numbers that cells of text stand for, NaN where a cell is missing; None if they are text.

    A comma or a space separates thousands, and a point the fraction. A percentage is the number before the
    sign, not a hundredth of it.

    Args:
        cells: The cells of a column.
        sure: Return None unless a cell shows that these are numbers, and how they are written: a currency, a
            percent sign, two groups of thousands, or a group and a fraction. ``1,234`` alone may be meant
            with a decimal comma, and ``010`` may be a code.

    Example:
        >>> from bmrjax.data.formatted_numbers import formatted_numbers
        >>> formatted_numbers(["$1,250.50", "-$3", None])
        [1250.5, -3.0, nan]
        >>> formatted_numbers(["12.5 %", "7 %"])
        [12.5, 7.0]
        >>> formatted_numbers(["1,250", "2,500"]) is None
        True
    """
    matches = [
        None if cell is None or not cell.strip() else _NUMBER.fullmatch(cell.strip()) or cell
        for cell in cells
    ]
    if any(isinstance(match, str) for match in matches):
        return None
    found = [match for match in matches if isinstance(match, re.Match)]
    units = {match["after"] for match in found}, {match["before"] for match in found}
    if not found or any(match["sign"] and match["second"] for match in found):
        return None
    if any(len(unit) > 1 for unit in units) or (sure and not _shows_it(found)):
        return None
    return [float("nan") if match is None else _value(match) for match in matches]  # type: ignore[arg-type]


def _shows_it(found: Sequence[re.Match[str]]) -> bool:
    if any(match["before"] or match["after"] for match in found):
        return True
    groups = [len(re.findall(r"[, \u00a0\u202f]", match["digits"])) for match in found]
    return any(
        count > 1 or (count and match["fraction"])
        for match, count in zip(found, groups, strict=True)
    )


def _value(match: re.Match[str]) -> float:
    digits = re.sub(r"\D", "", match["digits"])
    value = float(digits + (match["fraction"] or ""))
    return -value if {match["sign"], match["second"]} & {"-", "−"} else value
