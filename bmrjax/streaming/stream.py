"""Pieces of a posterior on their way through threads: read, judged, and written as masks."""

import itertools
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from bmrjax.criteria import Shrinkage, SpikeAndSlab
from bmrjax.streaming.folder import Pair
from bmrjax.streaming.masks import MaskFile
from bmrjax.streaming.pilot import guess
from bmrjax.streaming.stream_options import LARGEST_ZETA
from bmrjax.streaming.streamed_layer import Piece, StreamedLayer
from bmrjax.streaming.sums import (
    BAD,
    PADDING,
    TILE,
    Sums,
    delta_f_double,
    shrinkage_sums,
    spike_slab_sums,
)


@dataclass(frozen=True)
class _Task:
    """A piece of a tensor to read and judge."""

    layer: StreamedLayer
    pair: Pair
    prior_scale: float
    begin: int
    end: int


class Stream:
    """The open files, the threads and their buffers.

    Args:
        pairs: What is read.
        out: Folder that the masks are written to.
        criterion: The criterion.
        chunk: Weights in a piece, at most.
        workers: Threads.
    """

    def __init__(
        self,
        pairs: list[Pair],
        out: Path,
        criterion: SpikeAndSlab | Shrinkage,
        chunk: int,
        workers: int | None,
    ):
        self._pairs, self._criterion, self._chunk = pairs, criterion, chunk
        self._workers = _cores() + 1 if workers is None else workers
        self._pool = ThreadPoolExecutor(self._workers)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.files: dict[str, MaskFile] = {}
        self._masks: list[MaskFile] = []
        self._descriptors: dict[Path, int] = {}
        self._versions: dict[Path, tuple[int, int]] = {}
        self._buffers: queue.SimpleQueue = queue.SimpleQueue()
        width = max(each.dtype.itemsize for pair in pairs for each in (pair.loc, pair.width))
        for _ in range(self._workers):
            self._buffers.put([_aligned(chunk * width) for _ in range(2)])
        try:
            by_file: dict[Path, list[Pair]] = {}
            for pair in pairs:
                by_file.setdefault(pair.loc.path, []).append(pair)
                for path in (pair.loc.path, pair.width.path):
                    if path not in self._descriptors:
                        self._descriptors[path] = os.open(path, os.O_RDONLY)
                        self._versions[path] = _version(self._descriptors[path])
            for path, members in by_file.items():
                file = MaskFile(out / path.name, members)
                self._masks.append(file)
                self.files.update(dict.fromkeys((pair.name for pair in members), file))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        for file in self._masks:
            file.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def check_unchanged(self) -> None:
        """Raise ValueError if a file was written to since it was opened: masks would be of a mixture."""
        for path, descriptor in self._descriptors.items():
            if _version(descriptor) != self._versions[path]:
                raise ValueError(f"{path} was written to while it was read; reduce it again.")

    def compile(self) -> float:
        """Compile what the dtypes need. Returns the seconds that it took."""
        begin = time.perf_counter()
        needed = {(p.loc.dtype, p.width.dtype, p.kind): p for p in self._pairs}
        buffers = self._buffers.get()
        for pair in needed.values():
            layer = StreamedLayer([(pair, 1.0)], None, self._chunk)
            if isinstance(self._criterion, SpikeAndSlab):
                layer.judge(np.zeros(self._criterion.num_steps), (0.0, 0.0))
            self._sums(_Task(layer, pair, 1.0, 0, 0), *self._views(pair, buffers))
        self._buffers.put(buffers)
        return time.perf_counter() - begin

    def reduce(self, layers: list[StreamedLayer], bar: tqdm) -> None:
        """Guess, read and solve layer after layer, and at once read again what that did not settle.

        A piece waits for its layer's guess, which went to the threads before it.
        """
        done: queue.SimpleQueue = queue.SimpleQueue()
        left = dict.fromkeys(layers, 0)
        guessed = {layer: threading.Event() for layer in layers}

        def submit(layer: StreamedLayer, work: Callable[..., None], *args: Any) -> None:
            def run() -> None:
                try:
                    if not self._stop.is_set():
                        work(*args)
                    done.put((layer, None))
                except BaseException as error:
                    self._stop.set()
                    done.put((layer, error))

            left[layer] += 1
            self._pool.submit(run)

        def guess_one(layer: StreamedLayer) -> None:
            try:
                self._guess(layer)
            finally:
                guessed[layer].set()

        def judge_one(task: _Task, following: _Task | None) -> None:
            guessed[task.layer].wait()
            if self._stop.is_set():
                return
            if following is not None:
                self._announce(following.pair, following.begin, following.end)
            buffers = self._buffers.get()
            try:
                self._judge(task, buffers)
            finally:
                self._buffers.put(buffers)
            bar.update((task.end - task.begin) * _bytes_each(task.pair))

        pieces = [self._pieces(layer) for layer in layers]
        ahead = itertools.islice(itertools.chain(*pieces), self._workers, None)
        for layer in layers[:1]:
            submit(layer, guess_one, layer)
        for layer, following, tasks in itertools.zip_longest(layers, layers[1:], pieces):
            if following is not None:
                submit(following, guess_one, following)
            for task in tasks:
                submit(layer, judge_one, task, next(ahead, None))
        while left:
            layer, error = done.get()
            if error is not None:
                raise error
            left[layer] -= 1
            if left[layer]:
                continue
            if layer.solved():
                layer.settle(self.files)
                del left[layer]
                continue
            bar.total += sum(pair.num_bytes for pair, _ in layer.members)
            bar.refresh()
            for task in self._pieces(layer):
                submit(layer, judge_one, task, None)

    def _pieces(self, layer: StreamedLayer) -> list[_Task]:
        return [
            _Task(layer, pair, scale, i, min(i + self._chunk, pair.size))
            for pair, scale in layer.members
            for i in range(0, pair.size, self._chunk)
        ]

    def _guess(self, layer: StreamedLayer) -> None:
        """Guess the fixed point of a layer from a sample."""
        criterion = self._criterion
        if isinstance(criterion, SpikeAndSlab) and layer.total:
            found = guess(
                layer.members,
                self._sample,
                self._announce,
                alpha=float(criterion.alpha),
                beta=float(criterion.beta),
                num_steps=criterion.num_steps,
            )
            layer.start(found)

    def _announce(self, pair: Pair, begin: int, end: int) -> None:
        """Have the system fetch weights that are read soon, if it takes such hints."""
        if not hasattr(os, "posix_fadvise"):
            return
        for each in (pair.loc, pair.width):
            each_bytes = each.dtype.itemsize
            os.posix_fadvise(
                self._descriptors[each.path],
                each.offset + begin * each_bytes,
                (end - begin) * each_bytes,
                os.POSIX_FADV_WILLNEED,
            )

    def _sample(self, pair: Pair, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        loc, width = (np.empty(end - begin, t.dtype) for t in (pair.loc, pair.width))
        self._fill(pair, begin, loc, width)
        return loc, width

    def _fill(self, pair: Pair, begin: int, loc: np.ndarray, width: np.ndarray) -> None:
        for each, into in ((pair.loc, loc), (pair.width, width)):
            each.read(self._descriptors[each.path], begin, into)
        with self._lock:
            self.bytes_read += loc.nbytes + width.nbytes

    def _views(self, pair: Pair, buffers: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the buffers as arrays of a pair's dtypes, of the size of a piece."""
        loc, width = (
            buffer[: self._chunk * each.dtype.itemsize].view(each.dtype)
            for buffer, each in zip(buffers, (pair.loc, pair.width), strict=True)
        )
        return loc, width

    def _sums(self, task: _Task, loc: np.ndarray, width: np.ndarray) -> Sums:
        tiles = np.int32(-(-(task.end - task.begin) // TILE))
        kind, layer = task.pair.kind, task.layer
        # JAX would convert doubles too, in memory that may be gone when the program runs.
        with np.errstate(all="ignore"):
            loc, width = (a.astype(np.float32) if a.itemsize > 4 else a for a in (loc, width))
        if isinstance(self._criterion, Shrinkage):
            of = np.float32(self._criterion.variance), np.float32(task.prior_scale)
            return shrinkage_sums(loc, width, tiles, *of, kind=kind)
        odds = (task.prior_scale * np.exp(-layer.centers)).astype(np.float32)
        window = np.exp(np.clip(layer.window, -LARGEST_ZETA, LARGEST_ZETA)) / task.prior_scale
        return spike_slab_sums(loc, width, tiles, odds, window.astype(np.float32), kind=kind)

    def _judge(self, task: _Task, buffers: list[np.ndarray]) -> None:
        """Read a piece, write its provisional mask, and tell its layer the sums."""
        begin = time.perf_counter()
        count, layer, name = task.end - task.begin, task.layer, task.pair.name
        loc, width = self._views(task.pair, buffers)
        self._fill(task.pair, task.begin, loc[:count], width[:count])
        padded = -(-count // TILE) * TILE
        loc[count:padded], width[count:padded] = PADDING
        sums = self._sums(task, loc, width)
        codes = np.asarray(sums.codes)[:count].view(np.uint8)
        index = np.flatnonzero(codes > 1)
        if np.any(codes[index] == BAD):
            self._refuse(task, loc[:count], width[:count], int(index[codes[index] == BAD][0]))
        variance = (
            float(self._criterion.variance) if isinstance(self._criterion, Shrinkage) else 0.0
        )

        def evidence_of(where: np.ndarray) -> np.ndarray:
            return delta_f_double(
                loc[where], width[where], task.pair.kind, task.prior_scale, variance
            )

        evidence = evidence_of(index)
        kept = int(np.count_nonzero(codes == 1))
        delta_f = float(np.asarray(sums.delta_f).sum(dtype=np.float64))
        if sums.moments:
            delta_f += (count - kept - len(index)) * math.log(task.prior_scale)
        if not math.isfinite(delta_f):
            # A product of four was too large or small for single precision.
            delta_f = float(evidence_of(np.flatnonzero(codes == 0)).sum())
        moments = [
            np.array([np.asarray(m).sum(dtype=np.float64) for m in each]) - (padded - count)
            for each in sums.moments
        ]
        piece = Piece(
            kept, moments, delta_f, index + task.begin, evidence, time.perf_counter() - begin
        )
        if not layer.add(name, piece):
            codes = codes.copy()
            codes[index] = layer.judge_at_once(evidence)
        self.files[name].write(name, task.begin, codes)

    def _refuse(self, task: _Task, loc: np.ndarray, width: np.ndarray, at: int) -> None:
        pair, where = task.pair, task.begin + at
        place = tuple(int(i) for i in np.unravel_index(where, pair.loc.shape))
        if not np.isfinite(loc[at]):
            raise ValueError(
                f"'{pair.loc.name}' in {pair.loc.path} is {loc[at]} at {place}: means must be finite."
            )
        if 0 < width[at] < np.inf:
            raise ValueError(
                f"'{pair.loc.name}' in {pair.loc.path} is {loc[at]} at {place}, with a {pair.kind} of "
                f"{width[at]}: their ratio is too large for single precision; write larger widths."
            )
        raise ValueError(
            f"'{pair.width.name}' in {pair.width.path} is {width[at]} at {place}: a {pair.kind} must be "
            f"positive and finite. If it is too small or large for {width.dtype}, write a wider dtype."
        )


def _version(descriptor: int) -> tuple[int, int]:
    """Return what changes when a file is written to."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _bytes_each(pair: Pair) -> int:
    return pair.loc.dtype.itemsize + pair.width.dtype.itemsize


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _aligned(size: int) -> np.ndarray:
    """Return bytes that XLA takes without a copy."""
    raw = np.empty(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size]
