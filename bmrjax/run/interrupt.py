"""Signals that end a fit while it runs: the epoch is finished and saved first, so that nothing is lost."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from bmrjax.errors import InterruptedFit

# Ask a process to end; not all systems have both.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interruption:
    """Whether the user, or the system, has asked for the end.

    Attributes:
        number: Of the signal, set by the first; a second one ends at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.number is not None


class EndedBySignal(BaseException):
    """A signal that ends the process came; raised by the command line's own handler, to clean up first.

    Attributes:
        number: Of the signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def end_by_exception(number: int, frame: FrameType | None) -> None:
    """Raise `EndedBySignal`, or KeyboardInterrupt; folders that are being filled are removed then.

    Another signal ends the process at once. As an exception in the midst of that, it would give tracebacks.
    """
    del frame
    _replace(_end_at_once)
    raise KeyboardInterrupt if number == signal.SIGINT else EndedBySignal(number)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    del frame
    end_silently()
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    with contextlib.suppress(OSError):
        os.write(2, f"bmrjax: stopped{by}.\n".encode())
    signal.raise_signal(number)


def end_silently() -> None:
    """Let another signal end the process without a line, as one has been written. Handlers of others stay."""
    _replace(signal.SIG_DFL)


def _replace(handler: Any) -> None:
    for number in (signal.SIGINT, *_ENDING):
        if signal.getsignal(number) in (end_by_exception, _end_at_once):
            signal.signal(number, handler)


def _own(handler: Any, number: int) -> bool:
    """Say whether nobody but Python and the command line has a say in a signal."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return handler is default or handler is end_by_exception


@contextlib.contextmanager
def finishing_on_interrupt(*, saved: bool = False) -> Iterator[Interruption]:
    """Note signals instead of ending at once, so that a loop can end where it is whole.

    Only in the main thread, and only where nobody else handles or ignores them. All is put back at the end.

    Args:
        saved: Whether there are checkpoints. Without them, nothing is gained by outliving SIGTERM and SIGHUP.
    """
    interruption = Interruption()
    numbers = [signal.SIGINT, *(_ENDING if saved else ())]
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: h for n in numbers if _own(h := signal.getsignal(n), n)}

    def note(number: int, frame: FrameType | None) -> None:
        if interruption.requested:
            put_back()
            if before[number] is signal.default_int_handler:
                raise KeyboardInterrupt
            signal.raise_signal(number)
            return
        interruption.number = number
        how = "press Ctrl-C again" if number == signal.SIGINT else "send it again"
        name = "" if number == signal.SIGINT else f"{signal.Signals(number).name}: "
        # In one piece: another signal may come at any moment.
        sys.stderr.write(f"\nbmrjax: {name}stopping after this epoch; {how} to stop at once.\n")

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield interruption
    finally:
        put_back()


@contextlib.contextmanager
def ended_by_its_signal() -> Iterator[None]:
    """End the process by the signal that a fit was stopped by, once all of it is saved and closed.

    Ctrl-C stays an exception, `InterruptedFit`.
    """
    try:
        yield
    except InterruptedFit as error:
        if error.signal not in _ENDING:
            raise
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        signal.raise_signal(error.signal)
        raise
