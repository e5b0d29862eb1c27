"""The checkpoints of one run: what they hold, and whether a run may go on from them."""

from collections.abc import Callable
from typing import Any

from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.fit import Fit
from bmrjax.run.fit_state import FitState
from bmrjax.run.point import Point
from bmrjax.run.run_state import RunState
from bmrjax.run.same_run import check_same, check_same_objects


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
        arrays = self._fit.placement.fetch(state.arrays())
        self._in_all_processes(lambda: self._checkpointer.save(arrays, document))

    def save_if_due(self, state: RunState) -> None:
        """Write a checkpoint if enough time has passed since the last one."""
        # Writing is for all processes together, and clocks differ.
        if self._fit.placement.agreed(mine=self._checkpointer.due()):
            self.save(state)

    def save_point(self, index: int, point: Point) -> None:
        """Write a point of the path."""
        self._in_all_processes(lambda: self._checkpointer.save_point(index, point))

    def _in_all_processes(self, write: Callable[[], None]) -> None:
        """Write in the first process, and raise in all if it fails there: the others would wait for it."""
        placement = self._fit.placement
        try:
            write()
        except Exception:
            placement.agreed(mine=False)
            raise
        if not placement.agreed(mine=True):
            raise OSError(
                "sparsify: the first process could not write a checkpoint; its error says why."
            )

    def restore(self, state: RunState, *, num_epochs: int) -> None:
        """Go on from the last checkpoint, if there is one.

        Args:
            state: Of a run that has just started; becomes that of the checkpoint.
            num_epochs: Epochs of the run.

        Raises:
            ValueError: If the checkpoint is of a run with other settings, another program or other data, or
                with more epochs.
        """
        placement = self._fit.placement

        def check(document: dict[str, Any]) -> None:
            check_same(document["settings"], self._settings)
            if document["epoch"] > num_epochs:
                raise ValueError(
                    f"sparsify: the run in the directory has done {document['epoch']} epochs, and num_epochs "
                    f"is {num_epochs}. Give at least as many, or another directory."
                )

        def like_point(arrays: Any) -> Any:
            # Points are shaped as this one: parameters and masks of the restored state.
            now = FitState(*placement.parted(arrays)[0])
            return placement.fetch({"params": self._fit.params(now), "keep": dict(now.keep)})

        found = self._checkpointer.restore(state.arrays, like_point, check)
        if found is not None:
            document, arrays, path = found
            check_same_objects(document["settings"], self._settings)
            state.take_over(placement.parted(arrays), document)
            state.path = path
            self._fit.engine.step.kl_growth = state.kl_growth
