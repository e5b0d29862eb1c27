"""Options that are a share, between zero and one."""

from typing import Any

import numpy as np


def checked_share(value: Any, name: str, *, ends: bool = False) -> float:
    """Return a share as a float.

    Args:
        value: What was given.
        name: Of the method and its argument, for the message.
        ends: Whether zero and one are allowed.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is out of range.
    """
    within = "between 0 and 1" if ends else "above 0 and below 1"
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiu":
        raise TypeError(f"{name} is a number {within}, got {value!r}.")
    share = float(array)
    if not (0 <= share <= 1 if ends else 0 < share < 1):
        raise ValueError(f"{name} is {within}, got {value}.")
    return share
