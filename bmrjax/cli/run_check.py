"""`bmrjax check`: whether the files of a run are whole."""

from pathlib import Path

from bmrjax.cli.run_documents import OPTIONS, RESULTS, read_options, read_results
from bmrjax.cli.run_folder import COMMAND_LOCK, OURS, REFITS
from bmrjax.cli.saved_options import CheckOptions
from bmrjax.errors import one_line
from bmrjax.run.checkpoint import Checkpointer
from bmrjax.run.load_result import load
from bmrjax.run_lock import is_held


def run_check(options: CheckOptions) -> None:
    """Read all that a run wrote, compare it with its digests, and change nothing.

    Raises:
        SystemExit: With status 1, after a line for each, if something is damaged.
    """
    directory = options.directory
    # An ensemble has a folder for each member; a command may have fitted again.
    refits = (directory / refit.folder for refit in REFITS)
    within = (*sorted(directory.glob("member-*")), *refits)
    folders = [
        each for each in (directory, *within) if any((each / name).exists() for name in OURS)
    ]
    if not folders:
        raise FileNotFoundError(f"{directory} holds no run.")
    damage = []
    for folder in folders:
        if is_held(folder) or is_held(folder, COMMAND_LOCK):
            raise ValueError(
                f"{folder}: a run that has not ended writes to it; check it afterwards."
            )
        found, summary = _checked(folder)
        damage += found
        print(f"{folder}: {summary}")
    for each in damage:
        print(f"damaged: {one_line(each)}")
    if damage:
        raise SystemExit(1)


def _checked(folder: Path) -> tuple[list[str], str]:
    """Return what is damaged in a folder, and what there is."""
    damage: list[str] = []
    there: list[str] = []
    for name, read in ((OPTIONS, read_options), (RESULTS, read_results)):
        if (folder / name).exists():
            there.append(name)
            try:
                read(folder)
            except (ValueError, OSError) as error:
                damage.append(str(error))
    for name in ("model", "last_good"):
        if (folder / name).exists():
            there.append(name)
            try:
                load(folder / name)
            except (ValueError, OSError) as error:
                damage.append(str(error))
    checkpoints = Checkpointer(folder, interval=0.0)
    if steps := checkpoints.steps():
        there.append(f"{len(steps)} checkpoint{'s' * (len(steps) > 1)}")
        damage += checkpoints.check()
    return damage, ", ".join(there) or "nothing complete yet"
