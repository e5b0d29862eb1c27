"""How far a run is, on a terminal or in a notebook: what it does, how long it takes, and a last line."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from tqdm.auto import tqdm

from bmrjax.infer.engine import Engine

# Seconds between two updates of the line.
_INTERVAL = 0.5


def is_watched() -> bool:
    """Return whether somebody may be looking: at a terminal, or at a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    package = sys.modules.get("IPython")
    shell = None if package is None else package.get_ipython()
    return "IPKernelApp" in getattr(shell, "config", {})


class Progress:
    """A line that says what a run does.

    It is written by a thread of its own, so that it moves while the run compiles or computes. Steps within an
    epoch are those that the loop reports; see `Loop.watch`.

    Args:
        num_epochs: Of the run, at most.
        bar: What draws; None where nobody is looking.
    """

    def __init__(self, num_epochs: int, bar: Any = None):
        self._num_epochs, self._bar = num_epochs, bar
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

    def draw(self) -> None:
        """Write the line anew."""
        if self._bar is None:
            return
        self._bar.n = min(self._at(), self._num_epochs)
        self._bar.set_description_str(self._text(), refresh=False)
        rest = [text for text in (self._left(), self._figures) if text]
        self._bar.set_postfix_str(", ".join(rest), refresh=False)
        self._bar.refresh()

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
        elif (passed := time.perf_counter() - self._since) > _INTERVAL and self._done:
            each = passed * self._steps / self._done
        else:
            return ""
        # Schedules may stop before.
        return f"about {duration(left * each)} to epoch {self._num_epochs}"

    def close(self) -> None:
        """Leave the last line."""
        bar = self._bar
        if bar is None:
            return
        stopped = f"stopped after {self._epoch} of {self._num_epochs} epochs"
        if not self._training and self._last_line is None:
            stopped = f"stopped while {self._doing}"
        if self._last_line is not None:
            # Whatever the number of epochs, the run is over.
            bar.total = bar.n = max(self._epoch, 1)
        bar.set_postfix_str("", refresh=False)
        bar.bar_format = "{desc}"
        bar.set_description_str(self._last_line or stopped, refresh=False)
        bar.refresh()
        bar.close()


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Example:
        >>> duration(8.2), duration(95), duration(5400)
        ('8 s', '1 min 35 s', '1 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _last_line(results: Sequence[Any], epoch: int, num_epochs: int) -> str:
    """Return how long a run took and what is left, over all members of an ensemble."""
    timing = results[0].timing
    epochs = f"{epoch} epochs" if epoch == num_epochs else f"{epoch} of {num_epochs} epochs"
    whole, compiling = duration(timing["seconds"]), duration(timing["compile_seconds"])
    parts = [f"{epochs} in {whole}, {compiling} of it compiling steps"]
    if results[0].num_total:
        kept = _range([float(result.num_kept) for result in results], ",.0f")
        parts.append(f"{kept} of {results[0].num_total:,} elements kept")
    if all(result.vfe is not None for result in results):
        vfes = [result.vfe / result.num_data for result in results]
        parts.append(f"VFE {_range(vfes, '.4g')} nats per data point")
    return "; ".join(parts)


def _range(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


@contextlib.contextmanager
def showing(num_epochs: int, *, wanted: bool) -> Iterator[Progress]:
    """Show the progress of a run while the context lasts, from the start.

    Nothing is shown where standard error is neither a terminal nor a notebook's, and by other processes than
    the first.

    Args:
        num_epochs: Of the run, at most.
        wanted: Whether to show anything.
    """
    if not (wanted and isinstance(num_epochs, int) and is_watched() and jax.process_index() == 0):
        yield Progress(0)
        return
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
    bar = tqdm(total=num_epochs, desc="compiling", bar_format=form, dynamic_ncols=True)
    progress, over = Progress(num_epochs, bar), threading.Event()

    def look() -> None:
        while not over.wait(_INTERVAL):
            progress.draw()

    thread = threading.Thread(target=look, name="bmrjax-progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join()
        progress.close()
