"""Reading batches while earlier ones are computed with."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any

from bmrjax.backend.on_device import held_on_host


class _End:
    """The last thing in a queue: how the source ended."""

    def __init__(self, error: BaseException | None):
        self.error = error


def prefetch(source: Iterable[Any], *, ahead: int = 2) -> Generator[Any, None, None]:
    """Yield the batches of `source`, in order, from a thread that reads ahead.

    What the source raises is raised here, after the batches before it. The thread ends with the
    iterator, also where that is closed early. Arrays are copied, since a source may fill the same ones again
    for its next batch.

    Args:
        source: Read in the thread only.
        ahead: Batches that wait at most.
    """
    ready: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    closed = threading.Event()

    def offer(item: Any) -> bool:
        while not closed.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        error = None
        try:
            for batch in source:
                if not offer(held_on_host(batch)):
                    return
        except BaseException as raised:  # noqa: BLE001 - raised again where it is read
            error = raised
        offer(_End(error))

    thread = threading.Thread(target=read, name="bmrjax-prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        closed.set()
        # A source that hangs must not hang the run: the thread dies with the process.
        thread.join(timeout=2.0)
