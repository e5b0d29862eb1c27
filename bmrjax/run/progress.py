"""How far a run is, on a terminal or in a notebook: what it does, how long it takes, and a last line."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from bmrjax.infer.engine import Engine
from bmrjax.run.progress_line import INTERVAL, ProgressLine, drawn, duration


class Progress(ProgressLine):
    """A line that says what a run does.

    Steps within an epoch are those that the loop reports; see `Loop.watch`.

    Args:
        num_epochs: Of the run, at most.
        bar: What draws; None where nobody is looking.
    """

    def __init__(self, num_epochs: int, bar: Any = None):
        super().__init__(bar)
        self._num_epochs = num_epochs
        self._doing, self._figures = "compiling", ""
        self._epoch = self._done = 0
        self._steps = 1
        # When training was first seen to go on, and the current epoch began; and how long earlier ones took.
        self._training = self._deciding = False
        self._since = 0.0
        self._took: list[float] = []
        self._last_line: str | None = None

    # --- what the run says ------------------------------------------------------------------

    def begin(self, engine: Engine, *, epoch: int, steps: int) -> None:
        """Note where the training begins.

        Args:
            engine: Reports its steps, if it is the only process.
            epoch: Epochs done already.
            steps: Per epoch.
        """
        if self._bar is None:
            return
        self._epoch, self._steps = epoch, steps
        if jax.process_count() == 1:
            for loop in engine.loops():
                loop.watch = self.steps

    def deciding(self) -> None:
        """Note that the VFE is being measured and elements removed, before the next epoch."""
        self._deciding = True

    def steps(self, done: int) -> None:
        """Note how many steps of the current epoch are done."""
        self._done, self._deciding = min(done, self._steps), False
        if not self._training:
            self._training, self._since = True, time.perf_counter()

    def epoch(self, epoch: int, figures: Mapping[str, str]) -> None:
        """Note that an epoch is over.

        Args:
            epoch: Epochs done.
            figures: What to show of it.
        """
        if self._bar is None:
            return
        now = time.perf_counter()
        # The first one compiled, and its first steps are not seen.
        if self._training and self._figures:
            self._took.append(now - self._since)
        self._training, self._deciding, self._since = True, False, now
        self._epoch, self._done = epoch, 0
        self._figures = ", ".join(f"{name} {value}" for name, value in figures.items())
        self.draw()

    def doing(self, what: str) -> None:
        """Note what is done once the training is over."""
        self._doing, self._training, self._figures = what, False, ""
        self.draw()

    def finish(self, results: Sequence[Any]) -> None:
        """Note what the run has led to, for the last line."""
        self._last_line = _last_line(results, self._epoch, self._num_epochs)

    # --- what is shown ----------------------------------------------------------------------

    def _at(self) -> float:
        return self._epoch + self._done / self._steps

    def _now(self) -> tuple[float, str, list[str]]:
        return min(self._at(), self._num_epochs), self._text(), [self._left(), self._figures]

    def _text(self) -> str:
        if not self._training:
            return self._doing
        number = min(self._epoch + 1, self._num_epochs)
        within = f" ({self._done / self._steps:.0%})" if 0 < self._done < self._steps else ""
        return f"epoch {number}/{self._num_epochs}{' (reducing)' if self._deciding else within}"

    def _left(self) -> str:
        """Return an estimate of the time to the last epoch, from the time that earlier ones took."""
        left = self._num_epochs - self._at()
        if not self._training or left <= 0:
            return ""
        if self._took:
            # Without the longest: the first reduction compiles.
            took = sorted(self._took)[:-1] if len(self._took) > 2 else self._took
            each = sum(took) / len(took)
        elif (passed := time.perf_counter() - self._since) > INTERVAL and self._done:
            each = passed * self._steps / self._done
        else:
            return ""
        # Schedules may stop before.
        return f"about {duration(left * each)} to epoch {self._num_epochs}"

    def close(self) -> None:
        """Leave the last line."""
        if self._bar is not None and self._last_line is not None:
            # Whatever the number of epochs, the run is over.
            self._bar.total = self._bar.n = max(self._epoch, 1)
        super().close()

    def _end(self) -> str:
        if self._last_line is not None:
            return self._last_line
        if not self._training:
            return f"stopped while {self._doing}"
        return f"stopped after {self._epoch} of {self._num_epochs} epochs"


def _last_line(results: Sequence[Any], epoch: int, num_epochs: int) -> str:
    """Return how long a run took and what is left, over all members of an ensemble."""
    timing = results[0].timing
    epochs = f"{epoch} epochs" if epoch == num_epochs else f"{epoch} of {num_epochs} epochs"
    whole, compiling = duration(timing["seconds"]), duration(timing["compile_seconds"])
    parts = [f"{epochs} in {whole} ({compiling} compiling)"]
    if results[0].num_total:
        kept = _range([float(result.num_kept) for result in results], ",.0f")
        parts.append(f"{kept} of {results[0].num_total:,} elements kept")
    if all(result.vfe is not None for result in results):
        vfes = [result.vfe / result.num_data for result in results]
        parts.append(f"VFE/row {_range(vfes, '.4g')} nats")
    return "; ".join(parts)


def _range(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def showing(num_epochs: int, *, wanted: bool) -> AbstractContextManager[Progress]:
    """Show the progress of a run while the context lasts, from the start; see `drawn`.

    Args:
        num_epochs: Of the run, at most.
        wanted: Whether to show anything.
    """
    known = num_epochs if isinstance(num_epochs, int) else 0
    return drawn(
        lambda bar: Progress(known, bar),
        known,
        text="compiling",
        wanted=wanted and isinstance(num_epochs, int),
    )
