"""Where a run writes its checkpoints, and whether it goes on from there."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a run, from which it can go on after an interruption.

    A run that is resumed gives the result of one that was never stopped, to the last bit on the same machine.
    `sparsify` and `ensemble` take it as ``checkpoints=``, or the folder alone.

    Attributes:
        directory: Where they go. Those of member i of an ensemble go to the folder ``member-i`` in it.
        interval: Seconds between checkpoints at least; 0 writes one every epoch.
        resume: Go on from the last checkpoint in `directory`, if it has one. Without, a folder that holds
            the checkpoints of an earlier run is refused.

    Raises:
        TypeError: For a `directory` that is not a path.
        ValueError: For a negative interval.

    Example:
        >>> import bmrjax as bmr
        >>> bmr.Checkpoints("runs/first", resume=True).interval
        10.0
    """

    directory: str | Path
    interval: float = 10.0
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike):
            raise TypeError(
                f"Checkpoints: directory is a {type(self.directory).__name__}; give the path of a folder, as "
                "in checkpoints=bmr.Checkpoints('runs/first', resume=True)."
            )
        if not self.interval >= 0:
            raise ValueError(f"Checkpoints: interval must not be negative, got {self.interval}.")


def as_checkpoints(given: Any) -> Checkpoints | None:
    """Return checkpoints that were given as such, or as the folder alone."""
    return given if given is None or isinstance(given, Checkpoints) else Checkpoints(given)
