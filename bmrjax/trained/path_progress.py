"""How far the reduction of a trained network is, on a terminal or in a notebook."""

import time
from contextlib import AbstractContextManager
from typing import Any

from bmrjax.run.progress_line import ProgressLine, drawn, duration
from bmrjax.trained.choice import PathPoint

_FIRST = "looking for layers"


class PathProgress(ProgressLine):
    """A line that says what a reduction does: its rounds, the share that is kept, and what is left.

    Args:
        bar: What draws; None where nobody is looking.
    """

    def __init__(self, bar: Any = None):
        super().__init__(bar)
        self._doing, self._last_line = _FIRST, ""
        # Rounds of the present pass: what they are called, done, at most, and the share at which they end.
        self._name, self._done, self._most, self._until = "", 0, 0, 0.0
        self._kept = 1.0
        self._began = self._since = time.perf_counter()
        self._took: list[float] = []

    def doing(self, what: str) -> None:
        """Note what is done outside of rounds."""
        self._doing, self._name = what, ""
        self.draw()

    def begin(self, name: str, most: int, until: float) -> None:
        """Note that rounds begin.

        Args:
            name: What they are called, such as "round".
            most: How many there are, if none ends the path before.
            until: Share that is kept after the last of them.
        """
        self._name, self._done, self._most, self._until = name, 0, most, until
        self._kept, self._since, self._took = 1.0, time.perf_counter(), []
        self.draw()

    def round(self, kept: float) -> None:
        """Note that a round is over.

        Args:
            kept: Share that is kept after it.
        """
        now = time.perf_counter()
        self._took.append(now - self._since)
        self._done, self._kept, self._since = self._done + 1, kept, now
        self.draw()

    def finish(self, what: str) -> None:
        """Note what the reduction has led to, for the last line."""
        rounds = f"{self._done} round{'' if self._done == 1 else 's'}"
        self._last_line = f"{rounds} in {duration(time.perf_counter() - self._began)}; {what}"

    def _now(self) -> tuple[float, str, list[str]]:
        if not self._name:
            return float(self._done > 0), self._doing, []
        kept = f"{self._kept:.1%} kept" if self._done else ""
        return self._done / max(self._most, 1), self._round(), [self._left(), kept]

    def _round(self) -> str:
        return f"{self._name} {min(self._done + 1, self._most)}/{self._most}"

    def _left(self) -> str:
        """Return an estimate of the time to the last round, from the time that earlier ones took."""
        if not self._took:
            return ""
        # Without the longest: the first round compiles.
        took = sorted(self._took)[:-1] if len(self._took) > 1 else self._took
        seconds = (self._most - self._done) * sum(took) / len(took)
        # The path may end before.
        return f"about {duration(seconds)} to {self._until:.0%}"

    def _end(self) -> str:
        stopped = f"at {self._round()}" if self._name else f"while {self._doing}"
        return self._last_line or f"stopped {stopped}"


def loss_text(point: PathPoint) -> str:
    """Return how far the loss of a point is from the dense network's, on rows that are kept out."""
    return f"loss {point.measured:+.3g} ± {point.standard_error:.2g} nats per row"


def reducing(*, wanted: bool) -> AbstractContextManager[PathProgress]:
    """Show the progress of a reduction while the context lasts; see `bmrjax.run.progress_line.drawn`.

    Args:
        wanted: Whether to show anything.
    """
    return drawn(PathProgress, 1.0, text=_FIRST, wanted=wanted)
