"""Reduction of a posterior that need not fit into memory."""

import fnmatch
import itertools
import json
import math
import os
import queue
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from bmrjax.criteria import Shrinkage, SpikeAndSlab
from bmrjax.criteria.base import by_layer
from bmrjax.reduction import Normal
from bmrjax.streaming.folder import Pair, read_folder
from bmrjax.streaming.masks import MaskFile
from bmrjax.streaming.pilot import guess
from bmrjax.streaming.report import Reduced
from bmrjax.streaming.solve import zeta_of
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

CHUNK = 2**20
REPORT = "reduction.json"
# Past this, e^ΔF does not fit single precision beside e^-ζ.
_LARGEST_ZETA = 60.0


def reduce_folder(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    criterion: SpikeAndSlab | Shrinkage,
    *,
    prior_scale: float | Mapping[str, float],
    layers: Mapping[str, str] | None = None,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: bool = False,
) -> Reduced:
    r"""Reduce a posterior in a folder of safetensors shards, piece by piece, in one read.

    The masks are those of `criterion` for a normal posterior and the prior N(0, prior_scale²), everything
    still kept. `criteria.Shrinkage` judges each weight by itself. `criteria.SpikeAndSlab` needs a sum over
    the layer in each iteration: a sample of a fiftieth guesses the iterations, one pass takes the sums at
    those guesses, and Taylor's theorem gives the iterations themselves, with a proven bound
    (`bmrjax.streaming.solve`). Weights that the guess could not decide wait for that in float64. A
    layer is read a second time only where a weight lies within the bound, or too many wait.

    Memory is bounded by a few pieces for each worker and 64 MiB for the undecided weights of each layer
    under way, whatever the size of tensors and shards.

    Args:
        folder: Holds ``*.safetensors``: ``NAME.loc`` and one of ``NAME.scale``, ``NAME.variance``,
            ``NAME.precision``, of the same shape, float64, float32, bfloat16 or float16, in any of the
            files. Computed in float32.
        out: New folder for the masks: a file for each file with a ``NAME.loc``, under the same name,
            with ``NAME.keep`` in its place (True stays); and ``reduction.json``. Appears complete or not
            at all.
        criterion: Without groups; under `SpikeAndSlab`, α_0 and β_0 such that no ζ is beyond 60 nats.
        prior_scale: Standard deviation of the prior, in the unit of the weights; or patterns of names, as
            in ``{"encoder.*": 0.1, "*": 1.0}``, of which the first that fits counts.
        layers: Name of weights to the layer whose inclusion probability they share; by default each
            tensor is a layer of its own.
        chunk: Weights in a piece, at most; a multiple of 32,768.
        workers: Threads; by default one more than the process has cores.
        progress: Whether to show a progress bar.

    Returns:
        What went and stayed, layer by layer.

    Raises:
        ValueError: For a folder or an option that does not fit, or a mean or width that is not finite
            or not positive; names the tensor and its file. `out` is then as it was.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from safetensors.numpy import load_file, save_file
        >>> from bmrjax import criteria
        >>> from bmrjax.streaming import reduce_folder
        >>> made = pathlib.Path(tempfile.mkdtemp())
        >>> posterior = {"w.loc": np.float32([0.01, 3.0]), "w.scale": np.float32([0.1, 0.1])}
        >>> save_file(posterior, made / "model.safetensors")
        >>> found = reduce_folder(made, made / "masks", criteria.SpikeAndSlab(), prior_scale=1.0)
        Traceback (most recent call last):
            ...
        ValueError: ... give a folder that is not within the other.
        >>> out = made.with_name(made.name + "-masks")
        >>> found = reduce_folder(made, out, criteria.SpikeAndSlab(), prior_scale=1.0)
        >>> load_file(out / "model.safetensors")["w.keep"], found.kept
        (array([False,  True]), 1)

    References:
        Marković, Friston and Kiebel (2024), Algorithm 1; Beckers et al. (2024), equations 18 and 19.
    """
    begin = time.perf_counter()
    folder, out = Path(folder), Path(out)
    if chunk < TILE or chunk % TILE:
        raise ValueError(f"chunk must be a multiple of {TILE:,}, got {chunk:,}.")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    _check_out(folder, out)
    pairs, ignored = read_folder(folder)
    scales = _scales_of(pairs, prior_scale)
    _check_criterion(criterion, scales, sum(pair.size for pair in pairs))
    fixed_point = criterion if isinstance(criterion, SpikeAndSlab) else None
    by_name = {pair.name: pair for pair in pairs}
    found = {
        name: StreamedLayer([(by_name[n], scales[n]) for n in members], fixed_point, chunk)
        for name, members in by_layer("reduce_folder", by_name, layers).items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    staging.mkdir()
    try:
        with _Stream(pairs, staging, criterion, chunk, workers) as stream:
            compile_seconds = stream.compile()
            with tqdm(
                total=sum(pair.num_bytes for pair in pairs),
                unit="B",
                unit_scale=True,
                disable=not progress,
            ) as bar:
                stream.reduce(list(found.values()), bar)
        num_bytes = sum(pair.num_bytes for pair in pairs)
        seconds = time.perf_counter() - begin - compile_seconds
        reports = {name: layer.report() for name, layer in found.items()}
        report = Reduced(
            criterion=type(criterion).__name__,
            total=sum(each.total for each in reports.values()),
            kept=sum(each.kept for each in reports.values()),
            delta_f=math.fsum(each.delta_f for each in reports.values()),
            unproven=sum(each.unproven for each in reports.values()),
            bytes=num_bytes,
            bytes_read=stream.bytes_read,
            seconds=seconds,
            compile_seconds=compile_seconds,
            bytes_per_second=num_bytes / seconds,
            ignored=ignored,
            layers=reports,
        )
        (staging / REPORT).write_text(json.dumps(report.document(), indent=1))
        if out.exists():
            out.rmdir()
        os.replace(staging, out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return report


@dataclass(frozen=True)
class _Task:
    """A piece of a tensor to read and judge."""

    layer: StreamedLayer
    pair: Pair
    prior_scale: float
    begin: int
    end: int


class _Stream:
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
            for path, members in by_file.items():
                file = MaskFile(out / path.name, members)
                self._masks.append(file)
                self.files.update(dict.fromkeys((pair.name for pair in members), file))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        for file in self._masks:
            file.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)

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
        window = np.exp(np.clip(layer.window, -_LARGEST_ZETA, _LARGEST_ZETA)) / task.prior_scale
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


def _check_out(folder: Path, out: Path) -> None:
    ours, theirs = folder.resolve(), out.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise ValueError(f"{out} and {folder}: give a folder that is not within the other.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a new folder.")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give a new folder.")


def _scales_of(pairs: list[Pair], prior_scale: float | Mapping[str, float]) -> dict[str, float]:
    """Return the prior scale of each tensor."""
    patterns = dict(prior_scale) if isinstance(prior_scale, Mapping) else {"*": prior_scale}
    for pattern, scale in patterns.items():
        if not 1e-9 <= scale <= 1e9:
            raise ValueError(
                f"prior_scale: the standard deviation for '{pattern}' must be positive and within 1e-9 "
                f"and 1e9, got {scale}."
            )
    found, used = {}, set()
    for pair in pairs:
        fitting = [p for p in patterns if fnmatch.fnmatchcase(pair.name, p)]
        if not fitting:
            raise ValueError(
                f"prior_scale: no pattern of {list(patterns)} fits '{pair.name}'; add one, such as '*'."
            )
        found[pair.name] = float(patterns[fitting[0]])
        used.add(fitting[0])
    if unused := [p for p in patterns if p not in used]:
        raise ValueError(
            f"prior_scale: {unused} fits no tensor that an earlier pattern leaves; tensors are "
            f"{[pair.name for pair in pairs][:5]} …"
        )
    return found


def _check_criterion(
    criterion: SpikeAndSlab | Shrinkage, scales: dict[str, float], total: int
) -> None:
    if not isinstance(criterion, SpikeAndSlab | Shrinkage):
        raise TypeError(
            "reduce_folder takes criteria.SpikeAndSlab or criteria.Shrinkage, got "
            f"{type(criterion).__name__}."
        )
    if criterion.family is not Normal:
        raise TypeError(
            f"reduce_folder reads normal posteriors, and the criterion {criterion.family.__name__} ones."
        )
    if criterion.groups is not None:
        raise ValueError("reduce_folder judges single weights; take a criterion without groups.")
    if isinstance(criterion, Shrinkage):
        smallest = min(scales.values())
        if not criterion.variance <= smallest**2:
            raise ValueError(
                f"Shrinkage(variance={criterion.variance}) is wider than the prior, whose scale is "
                f"{smallest}; give a smaller variance."
            )
        return
    ends = _zeta_range(float(criterion.alpha), float(criterion.beta), total)
    if max(map(abs, ends)) > _LARGEST_ZETA:
        raise ValueError(
            f"SpikeAndSlab(alpha={criterion.alpha}, beta={criterion.beta}): ζ = ψ(α) - ψ(β) may reach "
            f"{max(ends, key=abs):.0f} nats, which single precision does not hold; give counts of 0.05 or "
            "more."
        )


def _zeta_range(alpha: float, beta: float, total: int) -> tuple[float, float]:
    return zeta_of(0.0, total, alpha, beta), zeta_of(float(total), total, alpha, beta)
