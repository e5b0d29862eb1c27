"""What the engine trains on: arrays, or an iterator for data that do not fit."""

import itertools
from collections.abc import Callable, Iterable, Iterator

from bmrjax.infer.arguments import Batch, Data
from bmrjax.infer.check_data import check_data, row_paths


class Batches:
    """An endless source of batches, for data that do not fit in memory.

    Args:
        source: A callable from the epoch's number to an iterable of batches, which makes runs
            repeatable and resumable; or an iterable, which the epochs read on from where the last
            one stopped, and which is started again where it ends. A resumed run reads past the
            batches that were used, so it repeats only what the iterable itself repeats.
            A batch is a tuple or a dict of arrays. Those with rows have as many as most of them; others, such
            as the scales of a prior, reach the program as they are, and are the same in each batch.
        num_data: Number of data in the whole set: it scales the likelihood.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> def shuffled(epoch):
        ...     rng = np.random.default_rng(epoch)
        ...     for _ in range(10):
        ...         yield (rng.normal(size=(8, 2)),)
        >>> batches = bmr.Batches(shuffled, num_data=80)
        >>> batches.example()[0].shape
        (8, 2)
    """

    def __init__(self, source: Callable[[int], Iterable[Data]] | Iterable[Data], *, num_data: int):
        if num_data < 1:
            raise ValueError(f"Batches: num_data must be at least 1, got {num_data}.")
        if not callable(source) and not isinstance(source, Iterable):
            raise TypeError(
                f"Batches: give an iterable or a callable, got {type(source).__name__}."
            )
        if isinstance(source, Iterator):
            raise TypeError(
                "Batches: an iterator can be read only once. Give an iterable that starts again (a "
                "list, a loader), or a callable from the epoch's number to an iterable."
            )
        self.num_data = num_data
        self._source = source
        self._stream: Iterator[Data] | None = None
        self._given = 0
        # Of the arrays with rows, where others have none.
        self._rows: tuple[str, ...] | None = None

    def _endless(self, epoch: int) -> Iterator[Data]:
        while True:
            batch = None
            for batch in self._source(epoch) if callable(self._source) else self._source:
                yield batch
            if batch is None:
                raise ValueError("Batches: the source gave no batch.")

    def example(self) -> Data:
        """Return the first batch, as arrays. Later ones are taken apart as this one."""
        found = check_data(next(self._endless(0)), "batch")
        self._rows = row_paths(found) if isinstance(found, Batch) else None
        return found

    def _apart(self, batch: Data) -> Data:
        """Return a batch with its arrays with rows apart from the others."""
        if self._rows is None:
            return batch
        return check_data(batch, "batch", rows=self._rows, allow_non_finite=True)

    def epoch(self, epoch: int, steps: int) -> Iterator[Data]:
        """Yield the `steps` batches of an epoch, starting the source again where it ends.

        Args:
            epoch: Number of the epoch, from 0.
            steps: Steps of each epoch of the run.
        """
        if callable(self._source):
            yield from map(self._apart, itertools.islice(self._endless(epoch), steps))
            return
        if self._stream is None or self._given != epoch * steps:
            self._given = epoch * steps
            self._stream = itertools.islice(self._endless(0), self._given, None)
        for _ in range(steps):
            try:
                batch = next(self._stream)
            except BaseException:
                self._stream = None  # A generator that raised is spent.
                raise
            self._given += 1
            yield self._apart(batch)
