"""Checkpoints of a run in progress."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bmrjax.errors import warn
from bmrjax.files import (
    make_folder,
    naming_full_disk,
    replacing_folder,
    staged_name,
    write_atomically,
)
from bmrjax.infer.saved_leaves import with_structure_of
from bmrjax.run.checkpoint_seal import (
    SEAL,
    DamagedCheckpoint,
    check_document,
    point_digest,
    read_point,
    seal,
)
from bmrjax.run.flat_arrays import flatten_arrays, unflatten_arrays
from bmrjax.run.point import Point
from bmrjax.run.stored_file import read_bytes, require_file
from bmrjax.run_lock import RunLock

# Paths in the folder of a checkpoint.
ARRAYS = "arrays/arrays.safetensors"
DOCUMENT = "document/metadata"
# So many are kept.
_KEPT = 2


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _describe(tree: Any) -> list[list[Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [[jax.tree_util.keystr(path), list(x.shape), str(x.dtype)] for path, x in leaves]


class CheckpointWarning(UserWarning):
    """The newest checkpoint of a run is damaged, and the one before it is used.

    Example:
        Stop instead of losing the epochs since the checkpoint before:

        >>> import warnings
        >>> import bmrjax as bmr
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", bmr.CheckpointWarning)
        ...     warnings.warn("the checkpoint of epoch 40 is damaged", bmr.CheckpointWarning)
        Traceback (most recent call last):
            ...
        bmrjax.run.checkpoint.CheckpointWarning: the checkpoint of epoch 40 is damaged
    """


class Checkpointer:
    """Write what a run needs to go on, and read it back; the last that is complete and undamaged counts.

    Two checkpoints are kept. Each has digests of all that it consists of, the points of the path too. One has
    its name when all of it is on the disk, so that neither a kill nor a loss of power leaves a part of one.

    Args:
        directory: Folder of the run; checkpoints go to ``directory/checkpoints``, and points of the path to
            ``directory/points``. Nothing is written before `hold` or `save`.
        interval: Seconds between checkpoints at least.
        is_main: Whether this process is the one, of several, that writes points and holds the lock.
    """

    def __init__(self, directory: Path, *, interval: float, is_main: bool = True):
        self._path = directory.absolute() / "checkpoints"
        self._interval, self._is_main = interval, is_main
        self._last = time.monotonic()
        self._lock: RunLock | None = None
        self._is_tidy = False
        # Digests of the points of the path, and the checkpoints that are not to be used.
        self._points: dict[int, str] = {}
        self._damaged: list[int] = []

    def hold(self) -> None:
        """Keep other runs out of the folder until `close`.

        Raises:
            ValueError: If one writes to it.
        """
        if self._is_main:
            make_folder(self._path.parent)
            self._lock = RunLock(self._path.parent)

    def steps(self) -> list[int]:
        """Return the numbers of the checkpoints, the newest first."""
        if not self._path.is_dir():
            if os.path.lexists(self._path):
                raise ValueError(
                    f"{self._path} is no folder; remove it, or give another directory."
                )
            return []
        # Those under way have other names.
        names = [each.name for each in self._path.iterdir() if each.is_dir()]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def require_empty(self) -> None:
        """Refuse to mix a new run with an old one's checkpoints."""
        if self.steps():
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
            document: JSON values; those under ``"path"`` are the points that were saved.
        """
        if self._is_main:
            with naming_full_disk(self._path):
                self._save(arrays, document)
        self._last = time.monotonic()

    def _save(self, arrays: Any, document: dict[str, Any]) -> None:
        self._tidy()
        leaves = jax.tree.leaves(arrays)
        tree = {f"{i:06d}": np.asarray(_key_data(leaf), order="C") for i, leaf in enumerate(leaves)}
        document = json.loads(json.dumps({**document, "arrays": _describe(arrays)}))
        points = [self._points[i] for i in range(len(document.get("path", [])))]
        document[SEAL] = seal(document, tree, points)
        # Checkpoints are numbered by themselves: a run that a schedule stops writes two an epoch.
        step = max(self.steps(), default=-1) + 1
        with replacing_folder(self._path / str(step)) as staging:
            for name in (ARRAYS, DOCUMENT):
                (staging / name).parent.mkdir()
            save_file(tree, staging / ARRAYS)
            (staging / DOCUMENT).write_text(json.dumps(document))
        for old in self.steps()[_KEPT:]:
            self._remove(self._path / str(old))

    def _tidy(self) -> None:
        """Remove what a killed process left, and damaged checkpoints, which would be kept for good ones."""
        if self._is_tidy:
            return
        make_folder(self._path)
        for each in self._path.iterdir():
            if each.name.startswith(".") or ".orbax-checkpoint-tmp" in each.name:
                shutil.rmtree(each, ignore_errors=True)
        for step in self._damaged:
            self._remove(self._path / str(step))
        self._damaged, self._is_tidy = [], True

    def _remove(self, folder: Path) -> None:
        """Remove a checkpoint; a kill meanwhile leaves nothing that looks like one."""
        going = staged_name(folder)
        os.replace(folder, going)
        shutil.rmtree(going, ignore_errors=True)

    def document(self) -> Any:
        """Return the JSON values of the newest checkpoint with an undamaged document, or None."""
        for step in self.steps():
            try:
                return self._document(step)
            except DamagedCheckpoint:
                continue
        return None

    def restore(
        self,
        like: Callable[[], Any],
        like_point: Callable[[Any], Any],
        check: Callable[[Any], None],
    ) -> tuple[Any, Any, list[Point]] | None:
        """Return the newest checkpoint that is undamaged, or None if the folder has none.

        Args:
            like: Returns a pytree of arrays or shapes of the structure that was saved.
            like_point: Maps the restored pytree to ``{"params": ..., "keep": ...}``, shaped as a point of
                the path.
            check: Raises if a document is of another run.

        Returns:
            Its JSON values, its pytree, and the path.

        Raises:
            ValueError: If it is of another program, or if all are damaged. Nothing on the disk is changed.

        Warns:
            CheckpointWarning: If a newer one is damaged.
        """
        reasons: list[str] = []
        for step in self.steps():
            try:
                document = self._document(step)
                check(document)
                arrays = self._arrays(step, document, like())
                digests = document[SEAL]["points"]
                folder = self._path.parent / "points"
                files = [
                    (path := folder / f"{i:04d}.safetensors", read_point(path, expected))
                    for i, expected in enumerate(digests)
                ]
            except DamagedCheckpoint as error:
                reasons.append(str(error))
                self._damaged.append(step)
                continue
            shape = like_point(arrays)
            names = flatten_arrays("", shape, {})
            points = []
            for numbers, (path, held) in zip(document.get("path", []), files, strict=True):
                tree = unflatten_arrays(names, held, path)
                tree = with_structure_of(shape, tree, name=f"{path}: the point")
                points.append(Point(**numbers, params=tree["params"], keep=tree["keep"]))
            self._points = dict(enumerate(digests))
            if reasons:
                warn(
                    f"the newest checkpoint is damaged: {' '.join(reasons)} The run goes on from the one "
                    f"before it, epoch {document.get('epoch')}.",
                    CheckpointWarning,
                )
            return document, arrays, points
        if reasons:
            raise ValueError(
                f"{self._path}: no checkpoint can be used. {' '.join(reasons)} Start the run anew, in "
                "another directory."
            )
        return None

    def check(self) -> list[str]:
        """Return what is damaged in the folder's checkpoints, one sentence each; nothing is changed."""
        found = []
        for step in self.steps():
            try:
                document = self._document(step)
                self._saved(step, document)
                for i, expected in enumerate(document[SEAL]["points"]):
                    read_point(self._path.parent / "points" / f"{i:04d}.safetensors", expected)
            except DamagedCheckpoint as error:
                found.append(str(error))
        return found

    def _document(self, step: int) -> Any:
        path = self._path / str(step) / DOCUMENT
        try:
            found = json.loads(read_bytes(path))
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path} cannot be read ({error!s:.200}).") from None
        check_document(found, self._path / str(step))
        return found

    def _saved(self, step: int, document: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint, if they are what was written."""
        path = self._path / str(step) / ARRAYS
        try:
            require_file(path)
            tree = load_file(path)
        except (OSError, ValueError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{path} cannot be read ({error!s:.200}).") from None
        expected = document[SEAL]
        if seal({}, tree, [])["arrays"] != expected["arrays"]:
            raise DamagedCheckpoint(
                f"{self._path / str(step)}: its arrays are not what was written."
            )
        return tree

    def _arrays(self, step: int, document: Any, like: Any) -> Any:
        saved, expected = document["arrays"], _describe(like)
        if saved != expected:
            pairs = itertools.zip_longest(saved, expected)
            found, wanted = next((a, b) for a, b in pairs if a != b)
            raise ValueError(
                f"{self._path} is of another program, guide, optimiser or criterion: it holds "
                f"{found or 'nothing'} where this run has {wanted or 'nothing'}. Resume with the "
                "arguments that the run started with, or give another directory."
            )
        leaves, structure = jax.tree.flatten(like)
        tree = self._saved(step, document)
        restored = [jax.numpy.asarray(tree[f"{i:06d}"]) for i in range(len(leaves))]
        for i, leaf in enumerate(leaves):
            if _is_key(leaf):
                impl = jax.random.key_impl(leaf)
                restored[i] = jax.random.wrap_key_data(restored[i], impl=impl)
        return jax.tree.unflatten(structure, restored)

    def save_point(self, index: int, point: Point) -> None:
        """Write the arrays of a point of the path, once, atomically; of several processes, one writes.

        Args:
            index: Its position on the path.
            point: The point.
        """
        arrays: dict[str, np.ndarray] = {}
        flatten_arrays("", {"params": point.params, "keep": point.keep}, arrays)
        self._points[index] = point_digest(arrays)
        if self._is_main:
            folder = self._path.parent / "points"
            make_folder(folder)
            path = folder / f"{index:04d}.safetensors"
            write_atomically(path, lambda staged: save_file(arrays, staged))

    def close(self) -> None:
        """Let other runs have the folder."""
        if self._lock is not None:
            self._lock.release()
