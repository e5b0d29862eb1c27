"""Folders of fits that go on from another fit: they belong to what they began with."""

import json
import shutil
from pathlib import Path

import jax

from bmrjax.files import make_folder, write_atomically
from bmrjax.run.checkpoint_options import Checkpoints
from bmrjax.run.digests import digest
from bmrjax.run.result import Result
from bmrjax.run_lock import is_held

_NAME = "start.json"


def prepared(checkpoints: Checkpoints, start: Result) -> Checkpoints:
    """Return checkpoints of a fit that goes on from a result, once their folder holds none of another one.

    A fit that was made longer has another result than before. What went on from the earlier one is then begun
    anew, where a run is resumed.

    Args:
        checkpoints: Of the fit that begins.
        start: What it goes on from.

    Raises:
        ValueError: If a run is writing to the folder whose checkpoints would have to go.
    """
    folder = Path(checkpoints.directory)
    mine = {"digest": digest(*jax.tree.leaves((start.params, start.keep)))}
    try:
        before = json.loads((folder / _NAME).read_text())
    except (OSError, ValueError):
        before = None
    if checkpoints.resume and before != mine:
        if is_held(folder):
            raise ValueError(f"{folder}: a run that has not ended writes to it; wait for its end.")
        for name in ("checkpoints", "points"):
            shutil.rmtree(folder / name, ignore_errors=True)
    make_folder(folder)
    if before != mine:
        write_atomically(folder / _NAME, json.dumps(mine).encode())
    return checkpoints
