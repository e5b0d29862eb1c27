"""Checkpoints of a run in progress."""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from safetensors.numpy import load_file, save_file

from bmrjax.infer.saved_leaves import with_structure_of
from bmrjax.run.flat_arrays import flatten_arrays, unflatten_arrays
from bmrjax.run.point import Point


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _describe(tree: Any) -> list[list[Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [[jax.tree_util.keystr(path), list(x.shape), str(x.dtype)] for path, x in leaves]


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
        # Checkpoints are numbered by themselves: a run that a schedule stops writes two an epoch.
        latest = self._manager.latest_step()
        self._next = 0 if latest is None else latest + 1

    def require_empty(self) -> None:
        """Refuse to mix a new run with an old one's checkpoints."""
        if self._manager.latest_step() is not None:
            raise ValueError(
                f"{self._path} holds the checkpoints of an earlier run. Give Checkpoints(directory, "
                "resume=True) to go on with it, or another directory."
            )

    def due(self) -> bool:
        """Say whether enough time has passed since the last checkpoint."""
        return time.monotonic() - self._last >= self._interval

    def save(self, arrays: Any, document: dict[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            arrays: A pytree of arrays and PRNG keys.
            document: JSON values.
        """
        # Orbax writes in the background, while the run goes on to change its records and to reuse its
        # buffers: what is written is a copy of both.
        leaves = jax.tree.leaves(arrays)
        tree = {f"{i:06d}": np.array(_key_data(leaf), copy=True) for i, leaf in enumerate(leaves)}
        document = json.loads(json.dumps(document))
        items = ocp.args.Composite(
            arrays=ocp.args.StandardSave(tree),
            document=ocp.args.JsonSave({**document, "arrays": _describe(arrays)}),
        )
        self._manager.save(self._next, args=items, force=True)
        self._next += 1
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
        saved, expected = self.document()["arrays"], _describe(like)
        if saved != expected:
            pairs = itertools.zip_longest(saved, expected)
            found, wanted = next((a, b) for a, b in pairs if a != b)
            raise ValueError(
                f"{self._path} is of another program, guide, optimiser or criterion: it holds "
                f"{found or 'nothing'} where this run has {wanted or 'nothing'}. Resume with the "
                "arguments that the run started with, or give another directory."
            )
        leaves, structure = jax.tree.flatten(like)
        data = jax.eval_shape(lambda: [_key_data(leaf) for leaf in leaves])
        target = {f"{i:06d}": shape for i, shape in enumerate(data)}
        items = ocp.args.Composite(arrays=ocp.args.StandardRestore(target))
        tree = self._manager.restore(self._manager.latest_step(), args=items)["arrays"]
        restored = [jax.numpy.asarray(tree[f"{i:06d}"]) for i in range(len(leaves))]
        for i, leaf in enumerate(leaves):
            if _is_key(leaf):
                impl = jax.random.key_impl(leaf)
                restored[i] = jax.random.wrap_key_data(restored[i], impl=impl)
        return jax.tree.unflatten(structure, restored)

    def save_point(self, index: int, point: Point) -> None:
        """Write the arrays of a point of the path, once, atomically."""
        folder = self._path.parent / "points"
        folder.mkdir(exist_ok=True)
        arrays: dict[str, np.ndarray] = {}
        flatten_arrays("", {"params": point.params, "keep": point.keep}, arrays)
        staged = folder / f".{index:04d}.tmp"
        save_file(arrays, staged)
        os.replace(staged, folder / f"{index:04d}.safetensors")

    def load_point(self, index: int, document: dict[str, Any], like: Any) -> Point:
        """Read a point back.

        Args:
            index: Its position on the path.
            document: Its numbers.
            like: A pytree ``{"params": ..., "keep": ...}`` of arrays, shaped as the point's.
        """
        path = self._path.parent / "points" / f"{index:04d}.safetensors"
        tree = unflatten_arrays(flatten_arrays("", like, {}), load_file(path), path)
        tree = with_structure_of(like, tree, name=f"{path}: the point")
        return Point(**document, params=tree["params"], keep=tree["keep"])

    def close(self) -> None:
        """Wait for writes under way."""
        self._manager.wait_until_finished()
        self._manager.close()
