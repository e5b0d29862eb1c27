"""One run, or one reduction, at a time in a folder."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from bmrjax.errors import warn
from bmrjax.files import naming_full_disk

# Beside what a run writes; removed when it ends.
LOCK = ".bmrjax-lock"
# What file systems say that have no locks, such as Lustre without its option ``flock``.
_NO_LOCKS = {getattr(errno, name, None) for name in ("ENOSYS", "ENOLCK", "EOPNOTSUPP", "ENOTSUP")}


class RunLock:
    """Hold a folder for one run, in this process or another.

    The lock is the operating system's (``flock``), which ends with the process that holds it: what a killed
    process leaves behind is a file, not a lock, and is taken over. On file systems that lock nothing (NFS
    without its lock daemon, Lustre without its option ``flock``) nothing keeps
    others out, and a warning says so.

    Args:
        directory: Folder of the run; it must exist.
        name: Of the file; locks of different names are different locks.

    Attributes:
        locked: Whether it keeps others out.

    Raises:
        ValueError: If another run holds the folder, and the message names its process, or if the lock's file
            is a link or no regular file.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with RunLock(folder):
        ...     RunLock(folder)
        Traceback (most recent call last):
        ValueError: .../.bmrjax-lock: a run that has not ended, of process ..., writes to this folder...
        >>> list(folder.iterdir())
        []
    """

    def __init__(self, directory: Path, name: str = LOCK):
        self._path = directory / name
        self._handle: int | None = None
        self.locked = True
        while self._handle is None:
            self._handle = self._taken()

    def _taken(self) -> int | None:
        """Return a handle of the locked file, or None if it was removed while it was being locked."""
        # No link is followed, and what is there is not emptied before it is ours.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        flags |= getattr(os, "O_NONBLOCK", 0)  # a FIFO would be waited for
        try:
            handle = os.open(self._path, flags, 0o666)
        except OSError as error:
            if (
                not os.path.lexists(self._path)
                or self._path.is_file()
                and not self._path.is_symlink()
            ):
                raise
            raise _no_lock(self._path) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise _no_lock(self._path)
        try:
            refused = _lock(handle)
        except OSError:
            process = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise ValueError(
                f"{self._path}: a run that has not ended, of process {process}, writes to this folder. Wait "
                "for it, stop it, or give another directory."
            ) from None
        try:
            same = os.path.samestat(os.fstat(handle), os.stat(self._path))
        except FileNotFoundError:
            same = False
        if not same:
            os.close(handle)
            return None
        try:
            with naming_full_disk(self._path):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
            self.locked = not refused
            if refused:
                warn(
                    f"{self._path.parent}: files cannot be locked here ({refused}), so nothing keeps a "
                    "second run out of this folder. Start one at a time.",
                )
        except BaseException:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(handle)
            raise
        return handle

    def release(self) -> None:
        """Let other runs have the folder."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        # What is left where nothing can be written any more is a file without a lock.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(handle)

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _no_lock(path: Path) -> ValueError:
    return ValueError(
        f"{path} is a link, or no regular file; remove it, or give another directory."
    )


def is_held(directory: Path, name: str = LOCK) -> bool:
    """Say whether a run holds a folder; nothing is written.

    Args:
        directory: Folder of the run.
        name: Of the lock's file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(directory / name, flags)
    except OSError:
        return False
    try:
        _lock(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _lock(handle: int) -> str:
    """Lock a file; return why its file system locks none, or nothing."""
    try:
        import fcntl
    except ImportError:
        return "this Python has no fcntl"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return os.strerror(error.errno or 0)
    return ""
