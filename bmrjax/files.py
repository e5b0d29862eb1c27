"""Files and folders that are written whole or not at all, and that outlast a loss of power."""

import contextlib
import ctypes
import errno
import itertools
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# What systems and libraries say, and what it comes to.
_NO_ROOM = (
    ("No space left on device", errno.ENOSPC, "the disk is full"),
    ("Disk quota exceeded", errno.ENOSPC, "the disk is full"),
    ("File too large", errno.EFBIG, "the file is larger than the system allows (ulimit -f)"),
)


def sync_file(path: Path) -> None:
    """Wait until what a file, or a folder's list of names, holds is on the disk.

    Args:
        path: Of either.
    """
    if os.name != "posix" and path.is_dir():
        return  # other systems cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until a folder with all that is in it is on the disk.

    Args:
        folder: One that nothing else writes to.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            sync_file(Path(parent, name))
        sync_file(Path(parent))


def make_folder(folder: Path) -> None:
    """Make a folder, with those that it is in, and wait until their names are on the disk.

    Args:
        folder: If it is there, nothing is done.

    Raises:
        FileExistsError: If it is a file.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "runs" / "first"
        >>> make_folder(folder)
        >>> folder.is_dir()
        True
    """
    places = itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents))
    made = list(places)
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(made):
        with contextlib.suppress(PermissionError):  # where one may write, but not read
            sync_file(each.absolute().parent)


@contextlib.contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Raise one kind of error, with the path, when the disk is full, whatever a library makes of it.

    Args:
        path: What is being written.

    Raises:
        OSError: If the disk is full, or the file larger than the system or `ulimit -f` allows.
    """
    try:
        yield
    except Exception as error:
        for words, number, what in _NO_ROOM:
            if words in str(error):
                text = f"{what}; what was there before is unchanged"
                raise OSError(number, text, str(path)) from error
        raise


def staged_name(path: Path, *, suffix: str = "") -> Path:
    """Return an unpredictable name beside a path, for what takes its place when it is complete.

    Args:
        path: What will be replaced.
        suffix: End of the name, for writers that look at it.

    Example:
        >>> staged_name(Path("runs/model.npy"), suffix=".npy").name.startswith(".model.npy.")
        True
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{suffix}")


def write_atomically(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file so that its name holds the old content or the new one, never a part.

    The content is written under an unpredictable name that did not exist, so that no link is followed,
    reaches the disk, and is then renamed.

    Args:
        path: Of the file; one that is there is replaced.
        content: Bytes, text for UTF-8, or a function that writes the file at the path that it is given, which
            has the same suffix.

    Raises:
        OSError: If there is no room or no permission; the old file is still there, and nothing else.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "a.txt", "one")
        >>> write_atomically(folder / "a.txt", lambda staged: staged.write_text("two"))
        >>> [(each.name, each.read_text()) for each in folder.iterdir()]
        [('a.txt', 'two')]
    """
    with naming_full_disk(path):
        _write(path, content)


def _write(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    staged = staged_name(path, suffix=path.suffix)
    try:
        # Fails if the name exists, as a link too.
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            if not callable(content):
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
        if callable(content):
            content(staged)
            sync_file(staged)
        os.replace(staged, path)
    finally:
        with contextlib.suppress(OSError):
            staged.unlink()
    sync_file(path.absolute().parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return False where the system cannot."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Fill a new folder, which takes the place of another when it is complete.

    On Linux there is no moment without either. Elsewhere, a process that is killed between two renames leaves
    the old folder beside its place, with ``.old`` at the end of its name.

    Args:
        folder: The one to replace, or that is not there yet.

    Yields:
        An empty folder beside it. If an exception leaves the context, it is removed and the old one stays.
    """
    staging, old = staged_name(folder), staged_name(folder, suffix=".old")
    staging.mkdir()
    try:
        with naming_full_disk(folder):
            yield staging
            sync_tree(staging)
        if not (folder.exists() and _exchanged(staging, folder)):
            if folder.exists():
                os.replace(folder, old)
            try:
                os.replace(staging, folder)
            except BaseException:
                if old.exists():
                    os.replace(old, folder)
                raise
        sync_file(folder.absolute().parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
