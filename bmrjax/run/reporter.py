"""What the callbacks of a run receive, and what happens if one of them raises."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from jaxtyping import Array

from bmrjax.callbacks import (
    Callback,
    EpochEnd,
    PointAdded,
    Record,
    RoundEnd,
    RunEnd,
    RunStart,
)
from bmrjax.errors import CallbackError, InterruptedFit, NonFiniteError
from bmrjax.infer.placement import Placement
from bmrjax.run.point import Point, kept_counts

_EPOCH = (
    "epoch", "vfe", "kept", "rate", "steps", "skipped_steps", "seconds", "compile_seconds",
    "sparsity_per_layer",
)  # fmt: skip
_POINT = ("epoch", "vfe", "kept", "total", "mask_cost", "metrics", "judged")


class Callbacks:
    """Call the callbacks that the members of a call share, and hold what they raise.

    Nothing that a callback does after the start of a run stops it within an epoch: the first exception is
    held until the loop can end. A callback that raised is not called again.

    Args:
        callbacks: Functions of a record.
        placement: Of the run; only its main process calls them.
    """

    def __init__(self, callbacks: Sequence[Callback], placement: Placement):
        self._callbacks, self._placement = list(callbacks), placement
        self._error: Exception | None = None
        self._name = "of the first process"
        self._noted = False

    def __bool__(self) -> bool:
        return bool(self._callbacks) or self._error is not None

    def __call__(self, record: Record) -> None:
        """Call each callback, and hold the first exception."""
        if not self._placement.is_main:
            return
        for callback in list(self._callbacks):
            try:
                callback(record)
            except Exception as error:
                if isinstance(record, RunStart):
                    raise
                self._callbacks.remove(callback)
                if self._error is None:
                    self._error = error
                    self._name = getattr(callback, "__name__", type(callback).__name__)

    def failed(self) -> bool:
        """Return whether a callback has raised, in all processes alike."""
        return bool(self) and self._placement.agreed(mine=self._error is not None)

    def ending(
        self, *, interrupted: int | None, epoch: int, result: Any, saved: bool
    ) -> InterruptedFit | CallbackError:
        """Return what to raise for a fit that ends before its last epoch.

        Args:
            interrupted: The signal that ends it, if one does.
            epoch: Epochs done.
            result: What the fit has reached.
            saved: Whether it has a checkpoint.
        """
        if interrupted is not None:
            return InterruptedFit(epoch, result, saved=saved, signal=interrupted)
        return self._failure(result, saved=saved)

    def check(self, result: Any) -> None:
        """Raise `CallbackError` with the result of a call that is over, if a callback has raised."""
        if self.failed():
            raise self._failure(result, saved=False)

    def _failure(self, result: Any, *, saved: bool) -> CallbackError:
        failure = CallbackError(self._name, self._error, result, saved=saved)
        failure.__cause__ = self._error
        return failure

    def note_in(self, error: BaseException) -> None:
        """Mention what a callback raised in an exception that ends the run for another reason."""
        if self._error is not None and not self._noted and not isinstance(error, CallbackError):
            self._noted = True
            error.add_note(f"The callback {self._name} had raised {self._error!r}.")


class Reporter:
    """Make the records of one run out of numbers that are on the host, and pass them on.

    Args:
        callbacks: Of the run.
        num_epochs: Of the run.
        member: Position in an ensemble; None for a single run.
    """

    def __init__(self, callbacks: Callbacks, *, num_epochs: int, member: int | None):
        self.callbacks = callbacks
        self._common: dict[str, Any] = {"num_epochs": num_epochs, "member": member}
        self._epoch = self._kept = self._total = 0
        self._measured: float | None = None
        self._ended = False

    @contextlib.contextmanager
    def reporting(
        self, keep: Mapping[str, Array], *, epoch: int, resumed: bool, over: bool, num_points: int
    ) -> Iterator[None]:
        """Report that the run starts and, whatever happens in the context, that it ends."""
        self._epoch = epoch
        if self.callbacks:
            self._kept, self._total = kept_counts(keep)
            start = RunStart(
                epoch=epoch,
                total=self._total,
                resumed=resumed,
                over=over,
                num_points=num_points,
                **self._common,
            )
            self.callbacks(start)
        try:
            yield
        except BaseException as error:
            self.end(_reason(error))
            self.callbacks.note_in(error)
            raise

    def epoch(self, row: Mapping[str, Any], total: int, metrics: Mapping[str, float]) -> None:
        """Report an epoch.

        Args:
            row: Its row of the history.
            total: Elements of all reducible sites.
            metrics: Held-out metrics, if they were measured.
        """
        self._epoch, self._kept, self._total = row["epoch"], row["kept"], total
        if self.callbacks:
            numbers = {name: row[name] for name in _EPOCH}
            metrics = {k: v for k, v in metrics.items() if k != "eval_seconds"}
            self.callbacks(EpochEnd(**numbers, total=total, metrics=metrics, **self._common))

    def noting(self, measure: Callable[..., float]) -> Callable[..., float]:
        """Return the function that measures the VFE for a decision, and note what it measures."""
        self._measured = None

        def noted(*limits: float) -> float:
            self._measured = measure(*limits)
            return self._measured

        return noted

    def round(
        self,
        kind: Literal["reduced", "restored", "regrown", "exchanged"],
        keep: Mapping[str, Array],
        *,
        back_to: int | None = None,
    ) -> None:
        """Report a round, if it changed the masks.

        Args:
            kind: What it did.
            keep: The masks after it.
            back_to: Epoch of the state that it restored.
        """
        if not self.callbacks:
            return
        kept, total = kept_counts(keep)
        # A regrowth that is reduced to as many elements has changed the masks all the same.
        if kept == self._kept and back_to in (None, self._epoch):
            return
        record = RoundEnd(
            epoch=self._epoch,
            kind=kind,
            kept_before=self._kept,
            kept=kept,
            total=total,
            vfe_before=self._measured,
            back_to=back_to,
            **self._common,
        )
        self._kept, self._measured = kept, None
        self.callbacks(record)

    def point(self, index: int, point: Point) -> None:
        """Report a point of the path.

        Args:
            index: Its position.
            point: What was put there.
        """
        if self.callbacks:
            numbers = {name: getattr(point, name) for name in _POINT}
            self.callbacks(PointAdded(index=index, **numbers, **self._common))

    def end(
        self,
        reason: Literal["finished", "interrupted", "diverged", "failed"],
        *,
        result: Any = None,
    ) -> None:
        """Report that the run is over, once.

        Args:
            reason: Why.
            result: What the run has led to, if it finished.
        """
        if self._ended or not self.callbacks:
            return
        self._ended = True
        numbers: dict[str, Any] = {"kept": self._kept, "total": self._total}
        if result is not None:
            numbers = {"kept": result.num_kept, "total": result.num_total, "vfe": result.vfe}
            numbers["metrics"] = result.metrics or {}
        self.callbacks(RunEnd(epoch=self._epoch, reason=reason, **numbers, **self._common))


def _reason(error: BaseException) -> Literal["interrupted", "diverged", "failed"]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "diverged" if isinstance(error, NonFiniteError) else "failed"
