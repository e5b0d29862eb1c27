"""What a callback is."""

from typing import Protocol

from bmrjax.callbacks.records import Record


class Callback(Protocol):
    """Any function of one record.

    The order of the calls is: `RunStart`; then for each epoch the `RoundEnd` and `PointAdded` records of what
    happened before it, and its `EpochEnd`; the `PointAdded` of the last state; and `RunEnd`, however the
    run ends: also on Ctrl-C, divergence and any other exception. Only a killed process gives no `RunEnd`.

    *Errors.* An exception at `RunStart` is raised as it is, before the first epoch. A callback that raises
    later is not called again, while the others are. The epoch in progress is finished, a run with
    `checkpoints` writes one, and `CallbackError` is raised, whose `result` holds what the run has
    reached. If the run was over by then, this is its final result. So a callback can end a run by
    raising an exception.

    *Resuming.* A run that is resumed starts with a `RunStart` whose `epoch` is that of the checkpoint, and
    goes on with the next epoch; earlier ones are not reported again. What a killed run reported after its
    last checkpoint is reported a second time; `RunStart.supersedes` tells which records these are.

    *Ensembles.* All members call the same callbacks; `Record.member` is the member's position.

    *Several processes.* On a mesh over several processes, only the first one calls callbacks. Give all
    processes the same list.

    Example:
        >>> import bmrjax as bmr
        >>> def print_rounds(record):
        ...     if isinstance(record, bmr.callbacks.RoundEnd):
        ...         print(f"epoch {record.epoch}: {record.kept_before} to {record.kept} elements")
        >>> print_rounds(
        ...     bmr.callbacks.RoundEnd(
        ...         epoch=5, num_epochs=10, kind="reduced", kept_before=8, kept=3, total=8
        ...     )
        ... )
        epoch 5: 8 to 3 elements
    """

    def __call__(self, record: Record) -> None:
        """Look at a record.

        Args:
            record: A `RunStart`, `EpochEnd`, `RoundEnd`, `PointAdded` or `RunEnd`.
        """
        ...
