"""The folder that a reduction writes: checked before the work, and complete or not there."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bmrjax.files import naming_full_disk, staged_name, sync_file, sync_tree
from bmrjax.run_lock import RunLock

# In the folder that is being filled: who fills it. What a killed process leaves is not locked.
_LOCK = ".bmrjax-lock"
# Of its name, longer than the one of masks that are kept beside an output.
_SUFFIX = ".unfinished"


def check_output(folder: Path, out: Path, num_bytes: int) -> None:
    """Refuse an output that could not be written, before any work.

    Args:
        folder: What is read.
        out: The new folder.
        num_bytes: Of the masks.

    Raises:
        ValueError: If `out` is a file, a link, within `folder` or around it, or holds something.
        OSError: If there is no room or no permission.
    """
    # `Path.resolve` raises where links go round in a circle.
    ours, theirs = (Path(os.path.realpath(each)) for each in (folder, out))
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise ValueError(f"{out} and {folder}: give a folder that is not within the other.")
    if out.is_symlink():
        raise ValueError(f"{out} is a link; give the folder itself, {theirs}, or a new one.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a new folder.")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give a new folder.")
    if out.is_mount():
        raise ValueError(f"{out} is where a file system is mounted; give a new folder in it.")
    above = next(each for each in out.absolute().parents if os.path.lexists(each))
    if not above.is_dir():
        raise ValueError(f"{above} is a file, or a link to no folder; {out} cannot be in it.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no permission to write", str(above))
    free = shutil.disk_usage(above).free
    if free < num_bytes:
        raise OSError(
            errno.ENOSPC, f"the masks take {num_bytes:,} bytes, and {free:,} are free", str(above)
        )


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Fill a folder that takes its name when it is complete and on the disk.

    What reductions to the same name left behind, because they were killed, is removed first.

    Args:
        out: Its name, checked by `check_output`.

    Yields:
        An empty folder beside it; removed if an exception leaves the context.
    """
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    staging, lock = _staging(out)
    try:
        # Held until the folder has its name: without the lock, what a killed process leaves behind would look
        # like the work of a process that is still running.
        with lock:
            with naming_full_disk(out):
                yield staging
                sync_tree(staging)
            try:
                # An empty folder gives way in one step, so that there is no moment without either.
                os.replace(staging, out)
            except OSError as error:  # somebody wrote to it meanwhile
                kept = staged_name(out, suffix=".complete")
                os.replace(staging, kept)
                (kept / _LOCK).unlink(missing_ok=True)
                raise OSError(
                    error.errno, f"{error.strerror}; the masks are complete in {kept}", str(out)
                ) from error
            (out / _LOCK).unlink(missing_ok=True)  # another may have, where none is locked
        sync_file(out)
        sync_file(out.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _staging(out: Path) -> tuple[Path, RunLock]:
    """Make a new folder beside a path, with a lock in it."""
    while True:
        staging = staged_name(out, suffix=_SUFFIX)
        staging.mkdir()
        with contextlib.suppress(FileNotFoundError, ValueError):  # empty, it looked abandoned
            return staging, RunLock(staging, _LOCK)


def _remove_abandoned(out: Path) -> None:
    """Remove folders that were being filled for this name, and whose process is gone."""
    head = f".{out.name}."
    for each in out.parent.iterdir():
        middle = each.name.removeprefix(head).removesuffix(_SUFFIX)
        if each.name != head + middle + _SUFFIX or each.is_symlink() or not each.is_dir():
            continue
        if len(middle) != 16 or not set(middle) <= set("0123456789abcdef"):
            continue
        # Held by a reduction that goes on, or not ours to remove, it stays.
        with contextlib.suppress(ValueError, OSError), RunLock(each, _LOCK) as lock:
            if not lock.locked:  # nothing tells a reduction that goes on
                continue
            for inner in each.iterdir():
                if inner.name != _LOCK:
                    inner.unlink()
            # The lock goes last, so that the rest is found again if this process is killed here.
            (each / _LOCK).unlink()
            each.rmdir()
