"""The checkpoints of one run: what they hold, and whether a run may go on from them."""

from typing import Any

from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.fit import Fit
from bmrjax.run.point import Point
from bmrjax.run.run_state import RunState


class RunFiles:
    """Write and read the checkpoints of a run.

    Args:
        checkpointer: Of its folder.
        fit: Of its program.
        settings: JSON values that a run and the one that it goes on from must agree in.
    """

    def __init__(self, checkpointer: Checkpointer, fit: Fit, settings: dict[str, Any]):
        self._checkpointer, self._fit, self._settings = checkpointer, fit, settings

    def save(self, state: RunState) -> None:
        """Write a checkpoint."""
        document = {**state.document(), "settings": self._settings}
        self._checkpointer.save(self._fit.placement.fetch(state.arrays()), document)

    def save_if_due(self, state: RunState) -> None:
        """Write a checkpoint if enough time has passed since the last one."""
        # Writing is for all processes together, and clocks differ.
        if self._fit.placement.agreed(mine=self._checkpointer.due()):
            self.save(state)

    def save_point(self, index: int, point: Point) -> None:
        """Write a point of the path."""
        if self._fit.placement.is_main:
            self._checkpointer.save_point(index, point)

    def restore(self, state: RunState, *, num_epochs: int) -> None:
        """Go on from the last checkpoint, if there is one.

        Args:
            state: Of a run that has just started; becomes that of the checkpoint.
            num_epochs: Epochs of the run.

        Raises:
            ValueError: If the checkpoint is of a run with other settings, or with more epochs.
        """
        document = self._checkpointer.document()
        if document is None:
            return
        for name, value in self._settings.items():
            had = document["settings"].get(name)
            if had != value:
                raise ValueError(
                    f"sparsify: the run in the directory had {name} {had}, "
                    f"this one has {value}. Resume with the same arguments, or give another "
                    "directory."
                )
        if document["epoch"] > num_epochs:
            raise ValueError(
                f"sparsify: the run in the directory has done {document['epoch']} epochs, and num_epochs is "
                f"{num_epochs}. Give at least as many, or another directory."
            )
        placement = self._fit.placement
        arrays = placement.parted(self._checkpointer.arrays(state.arrays()))
        state.take_over(arrays, document)
        params, keep = self._fit.params(state.now), dict(state.now.keep)
        like = placement.fetch({"params": params, "keep": keep})
        state.path = [
            self._checkpointer.load_point(i, p, like) for i, p in enumerate(document["path"])
        ]
