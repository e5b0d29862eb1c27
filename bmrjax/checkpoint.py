"""Checkpoints of a run in progress."""

import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from safetensors.numpy import load_file, save_file

from bmrjax.result import Point
from bmrjax.storage import flatten_arrays


class Checkpointer:
    """Write what a run needs to go on, and read it back; the last complete one counts.

    Args:
        directory: Folder of the run; checkpoints go to ``directory/checkpoints``.
        interval: Seconds between checkpoints at least.
    """

    def __init__(self, directory: Path, *, interval: float):
        self._path = directory.absolute() / "checkpoints"
        self._interval = interval
        self._last = time.monotonic()
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
        self._manager = ocp.CheckpointManager(self._path, options=options)

    def require_empty(self) -> None:
        """Refuse to mix a new run with an old one's checkpoints."""
        if self._manager.latest_step() is not None:
            raise ValueError(
                f"{self._path} holds the checkpoints of an earlier run. Give resume=True to go on with "
                "it, or another directory."
            )

    def due(self) -> bool:
        """Say whether enough time has passed since the last checkpoint."""
        return time.monotonic() - self._last >= self._interval

    def save(self, step: int, arrays: Any, document: Any) -> None:
        """Write a checkpoint.

        Args:
            step: Number of epochs done.
            arrays: A pytree of arrays.
            document: JSON values.
        """
        leaves = jax.tree.leaves(arrays)
        tree = {f"{i:06d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        items = ocp.args.Composite(
            arrays=ocp.args.StandardSave(tree), document=ocp.args.JsonSave(document)
        )
        self._manager.save(step, args=items, force=True)
        self._last = time.monotonic()

    def document(self) -> Any:
        """Return the JSON values of the last complete checkpoint, or None if there is none."""
        step = self._manager.latest_step()
        if step is None:
            return None
        items = ocp.args.Composite(document=ocp.args.JsonRestore())
        return self._manager.restore(step, args=items)["document"]

    def arrays(self, like: Any) -> Any:
        """Return the arrays of the last complete checkpoint.

        Args:
            like: A pytree of arrays or shapes of the same structure.

        Raises:
            ValueError: If the checkpoint is of another program.
        """
        step = self._manager.latest_step()
        leaves, structure = jax.tree.flatten(like)
        target = {
            f"{i:06d}": jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)
        }
        items = ocp.args.Composite(arrays=ocp.args.StandardRestore(target))
        try:
            tree = self._manager.restore(step, args=items)["arrays"]
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{self._path} is of another program, guide, optimiser or criterion: {error}"
            ) from None
        found = [tree[name] for name in sorted(tree)]
        wrong = [
            i for i, (a, b) in enumerate(zip(found, leaves, strict=True)) if a.shape != b.shape
        ]
        if wrong:
            raise ValueError(
                f"{self._path} is of another program: array {wrong[0]} has shape "
                f"{found[wrong[0]].shape}, expected {leaves[wrong[0]].shape}."
            )
        return jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in found])

    def save_point(self, index: int, point: Point) -> None:
        """Write the arrays of a point of the path, once, atomically."""
        folder = self._path.parent / "points"
        folder.mkdir(exist_ok=True)
        arrays: dict[str, np.ndarray] = {}
        flatten_arrays("", {"params": point.params, "keep": point.keep}, arrays)
        staged = folder / f".{index:04d}.tmp"
        save_file(arrays, staged)
        os.replace(staged, folder / f"{index:04d}.safetensors")

    def load_point(self, index: int, document: dict[str, Any]) -> Point:
        """Read a point back; `document` holds its numbers."""
        arrays = load_file(self._path.parent / "points" / f"{index:04d}.safetensors")
        tree: dict[str, Any] = {}
        for name, array in arrays.items():
            *parents, leaf = name.split("/")[1:]
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = array
        return Point(**document, params=tree["params"], keep=tree["keep"])

    def close(self) -> None:
        """Wait for writes under way."""
        self._manager.wait_until_finished()
        self._manager.close()
