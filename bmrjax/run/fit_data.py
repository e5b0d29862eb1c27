"""The data of a fit: where batches come from, and what is known of them before it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bmrjax.infer.arguments import Data, first_rows, length
from bmrjax.infer.check_data import column_names, row_paths
from bmrjax.infer.program_data import program_data
from bmrjax.run.batches import Batches


@dataclass(frozen=True)
class FitData:
    """The data of a fit.

    Attributes:
        source: All rows, or an iterator of batches.
        num_data: Number of rows.
        batch_size: Rows per step.
        example: One batch.
        looked_at: What a program is checked on before the fit: all rows, or one batch of an iterator.
        columns: Names of the columns of the widest table among the arguments; None if no argument has any.
        row_paths: Paths to the arguments with the axis of rows.
        least_steps: Steps of an epoch: one pass over the data, and on arrays at least 100.
    """

    source: Data | Batches
    num_data: int
    batch_size: int
    example: Data
    looked_at: Data
    columns: tuple[str, ...] | None
    row_paths: tuple[str, ...]
    least_steps: int


def fit_data(
    model: Callable,
    data: Data | Batches,
    *,
    batch_size: int | None,
    static: Sequence[str | int],
) -> FitData:
    """Check the data of a program, and split off a batch as an example.

    Args:
        model: NumPyro program.
        data: Its arguments.
        batch_size: Rows per step; None for all.
        static: See `FitOptions`.

    Raises:
        ValueError: For data that do not fit the program, or a batch size below 1.
        TypeError: For static arguments with `Batches`.
    """
    if isinstance(data, Batches):
        if static:
            raise TypeError(
                f"sparsify: FitOptions(static={list(static)}) is for arrays in memory; with Batches it has "
                "no effect. Give the program these arguments before, as by functools.partial(program, "
                "num_groups=9), and leave them out of the batches."
            )
        example = data.example()
        size, num_data = length(example), data.num_data
        steps = max(num_data // size, 1)
        return FitData(data, num_data, size, example, example, None, row_paths(example), steps)
    arrays = program_data(model, data, batch_size=batch_size, static=static)
    columns = max(column_names(data).values(), key=len, default=None)
    num_data = length(arrays)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"sparsify: batch_size must be at least 1 or None, got {batch_size}.")
    size = num_data if batch_size is None else min(batch_size, num_data)
    example = first_rows(arrays, size)
    # On small data, one pass is far too little for an epoch.
    steps = max(num_data // size, 100)
    return FitData(arrays, num_data, size, example, arrays, columns, row_paths(example), steps)
