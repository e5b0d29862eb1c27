"""Reduction of a posterior that need not fit into memory."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from tqdm.auto import tqdm

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.criteria import Shrinkage, SpikeAndSlab
from bmrjax.criteria.base import by_layer
from bmrjax.streaming.folder import read_folder
from bmrjax.streaming.layer_report import Reduced
from bmrjax.streaming.output import check_output, new_folder
from bmrjax.streaming.stream import Stream
from bmrjax.streaming.stream_options import check_criterion, scales_of
from bmrjax.streaming.streamed_layer import StreamedLayer
from bmrjax.streaming.sums import TILE

CHUNK = 2**20
REPORT = "reduction.json"


@not_after_fork
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
            with ``NAME.keep`` in its place (True stays); and ``reduction.json``. Appears complete, and on the
            disk, or not at all; what a killed reduction to the same name left beside it is removed. An empty
            folder is replaced; a link, a mount point or a folder that holds something is refused.
        criterion: Without groups; under `SpikeAndSlab`, α_0 and β_0 such that no ζ is beyond 60 nats.
        prior_scale: Standard deviation of the prior, in the unit of the weights; or patterns of names, as
            in ``{"encoder.*": 0.1, "*": 1.0}``, of which the first that fits counts.
        layers: Name of weights to the layer whose inclusion probability they share; by default each
            tensor is a layer of its own.
        chunk: Weights in a piece, at most; a multiple of 32,768.
        workers: Threads; by default one more than the process has cores.
        progress: Whether to show a progress bar.

    Returns:
        What was removed and what is kept, layer by layer.

    Raises:
        ValueError: For a folder or an option that does not fit, for a shard that is no regular file or
            changes while it is read, or a mean or width that is not finite or not positive; names the tensor
            and its file. `out` is then as it was.
        OSError: If there is no room for the masks, which is looked at first, or no permission.

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
    check_output(folder, out, 0)
    pairs, ignored = read_folder(folder)
    scales = scales_of(pairs, prior_scale)
    check_criterion(criterion, scales, sum(pair.size for pair in pairs))
    check_output(folder, out, sum(pair.size for pair in pairs))
    fixed_point = criterion if isinstance(criterion, SpikeAndSlab) else None
    by_name = {pair.name: pair for pair in pairs}
    found = {
        name: StreamedLayer([(by_name[n], scales[n]) for n in members], fixed_point, chunk)
        for name, members in by_layer("reduce_folder", by_name, layers).items()
    }
    num_bytes = sum(pair.num_bytes for pair in pairs)
    with new_folder(out) as staging:
        with Stream(pairs, staging, criterion, chunk, workers) as stream:
            compile_seconds = stream.compile()
            # None: on a terminal only.
            shown = {"unit": "B", "unit_scale": True, "disable": None if progress else True}
            with tqdm(total=num_bytes, **shown) as bar:
                stream.reduce(list(found.values()), bar)
            stream.check_unchanged()
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
    return report
