"""Compiled programs, kept on disk between runs."""

import contextlib
import hashlib
import os
import platform
import time
import warnings
import zlib
from pathlib import Path

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

# Beyond this, the programs that were not used for longest are deleted; a run on a table keeps about 1 MB.
_MOST_BYTES = 2**29
# What compiles faster is not worth a file.
_LEAST_SECONDS = 0.03
# Written by `delete_damaged`: programs that are older were whole.
_MARKER = ".checked"
_WRITING_SECONDS = 60.0
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


def keep_compiled() -> Path | None:
    """Keep compiled programs in the user's cache folder, and take those of earlier processes from there.

    The command line does so by itself; a script or a notebook calls this once, at best first. A second run on
    data of the same shapes then starts without compiling. Programs of other versions and processors are kept
    apart. If they take more than 512 MB at the start, those that were not used for longest are deleted,
    and so is what a full disk or a loss of power cut short: JAX would compile it again each time.

    JAX's own settings win: a folder that it was given before (``JAX_COMPILATION_CACHE_DIR``) stays, and
    ``JAX_ENABLE_COMPILATION_CACHE=false`` switches the cache off.

    Returns:
        The folder, or None if it cannot be written, or another one is in use.

    Example:
        >>> import bmrjax as bmr
        >>> folder = bmr.keep_compiled()  # doctest: +SKIP
        >>> bmr.sparsify(program, data, key=key)  # doctest: +SKIP
    """
    # JAX keeps programs of other versions and options apart, but not those for another processor.
    folder = Path(platformdirs.user_cache_dir("bmrjax", appauthor=False)) / "compiled" / processor()
    used = getattr(jax.config, "jax_compilation_cache_dir", None)
    if used is not None:
        return folder if used == str(folder) else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lockfile").touch()
        delete_damaged(folder)
        delete_unused(folder, _MOST_BYTES)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # With a size, JAX opens every file of the folder before it writes one: beside 2,200 programs (64 MB), a
    # write took 98 ms of a core, and half of a report was 155 of them; without, it takes .06 ms.
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    # On a full disk, or of a file that was cut short there: then a program is compiled again, and no more.
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache entry")
    compilation_cache.reset_cache()  # JAX decides at its first compilation whether there is a cache
    return folder


def delete_unused(folder: Path, most_bytes: int) -> None:
    """Where files take more than `most_bytes`, delete those unused for longest, down to three quarters.

    Args:
        folder: With files alone. One that another process deletes meanwhile is no error.
        most_bytes: How much may be there.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                stat = entry.stat()
                # Where the file system does not note when a file is read, it is when it was written.
                found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, entry.path))
    left = sum(size for _, size, _ in found)
    if left <= most_bytes:
        return
    for _, size, path in sorted(found):
        if left <= 3 * most_bytes // 4:
            return
        Path(path).unlink(missing_ok=True)
        left -= size


def delete_damaged(folder: Path) -> None:
    """Delete compiled programs that are not whole; each is looked at once, and again if it changes.

    JAX compiles such a program again in every process, and does not replace its file.

    Args:
        folder: Of the cache. What was written in the last minute may be incomplete, and waits for the next
            call.
    """
    marker, begin = folder / _MARKER, time.time()
    since = marker.stat().st_mtime if marker.exists() else 0.0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                written = entry.stat().st_mtime
                new = since <= written or written > begin  # by a clock that was put back
                old = begin - written > _WRITING_SECONDS
                if entry.name.endswith("-cache") and new and old:
                    packed = Path(entry.path).read_bytes()
                    if not _is_whole(packed):
                        os.unlink(entry.path)
    marker.touch()
    os.utime(marker, (begin, begin - _WRITING_SECONDS))


def _is_whole(packed: bytes) -> bool:
    """Say whether a file of the cache is complete; JAX compresses by zlib, or by Zstandard where it is."""
    if packed.startswith(_ZSTANDARD):
        return True  # there JAX has the word
    try:
        zlib.decompress(packed)
    except zlib.error:
        return False
    return True


def processor() -> str:
    """Return a name that differs where the instructions differ: a home may be shared by machines."""
    parts = [platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted(
            {line for line in lines if line.startswith(("flags", "Features", "model name"))}
        )
    except OSError:
        pass  # elsewhere the processor's name has to do
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
