"""Ctrl-C while a fit runs: the epoch is finished first, so that nothing is lost."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


class Interruption:
    """Whether the user has asked for the end.

    Attributes:
        requested: Set by the first Ctrl-C; a second one raises `KeyboardInterrupt` at once.
    """

    def __init__(self) -> None:
        self.requested = False


@contextlib.contextmanager
def finishing_on_interrupt() -> Iterator[Interruption]:
    """Note Ctrl-C instead of raising `KeyboardInterrupt`, so that a loop can end where it is whole.

    Only Python's own handler in the main thread is replaced, and it is put back at the end.
    """
    interruption = Interruption()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interruption
        return

    def note(signum: int, frame: FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True
        print(
            "\nbmrjax: stopping after this epoch; press Ctrl-C again to stop at once.",
            file=sys.stderr,
        )

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
