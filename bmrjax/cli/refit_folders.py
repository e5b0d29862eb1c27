"""The folders of a command's further fits, which a run that goes on must find whole."""

from pathlib import Path

from bmrjax.cli.run_folder import REFITS
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run_lock import is_held


def check_refits(out: Path, *, resume: bool) -> None:
    """Refuse to go on with, or to delete, further fits that are in use or damaged; nothing is changed.

    Args:
        out: Folder of the run.
        resume: Whether their checkpoints will be read.

    Raises:
        ValueError: If one of them is a file, if a run writes to it, or if none of its checkpoints can be
            used.
    """
    for refit in REFITS:
        folder = out / refit.folder
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file in place of a folder of the run; remove it.")
        if is_held(folder):
            raise ValueError(
                f"{folder}: a run that has not ended writes to it. Wait for it, stop it, or give another "
                "--out."
            )
        checkpoints = Checkpointer(folder, interval=0.0)
        steps = checkpoints.steps() if resume else []
        damage = checkpoints.check() if steps else []
        if steps and len(damage) == len(steps):
            raise ValueError(
                f"{folder}: no checkpoint of the fit at temperature {refit.temperature:g} can be used. "
                f"{' '.join(damage)} Remove this folder, and --resume makes that fit again."
            )
