"""Files that are written whole or not at all."""

import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from bmrjax import files
from bmrjax.cli import run_report
from bmrjax.files import replacing_folder, write_atomically
from bmrjax.run_lock import RunLock, is_held


def full(path):
    path.write_bytes(b"half")
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


def test_a_full_disk_is_one_error_and_leaves_what_was_there(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.safetensors"
    write_atomically(path, lambda staged: save_file({"x": np.ones(3)}, staged))
    before = path.read_bytes()
    with pytest.raises(OSError, match=r"the disk is full.*a\.safetensors") as caught:
        write_atomically(path, full)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="the disk is full"), replacing_folder(folder) as staging:
        full(staging / "b")
    assert path.read_bytes() == before
    assert [each.name for each in folder.iterdir()] == ["a.safetensors"]
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_file_larger_than_a_limit_is_one_error(tmp_path):
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from bmrjax.files import write_atomically
from bmrjax.run_lock import RunLock

folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for write in (
    lambda: write_atomically(folder / "a.txt", "four"),
    lambda: write_atomically(folder / "b.safetensors", lambda p: save_file({"x": np.ones(9)}, p)),
    lambda: RunLock(folder),
):
    try:
        write()
    except OSError as error:
        print(error)
"""
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, check=True, timeout=120, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("a.txt", "b.safetensors", ".bmrjax-lock"), strict=True):
        assert "the file is larger than the system allows (ulimit -f)" in line
        assert name in line
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_synced_after_its_content(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace

    def syncing(handle):
        events.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def replacing(source, target):
        events.append("renamed")
        replace(source, target)

    monkeypatch.setattr("bmrjax.files.os.fsync", syncing)
    monkeypatch.setattr("bmrjax.files.os.replace", replacing)
    write_atomically(tmp_path / "a.txt", "text")
    assert events[0].startswith(str(tmp_path / ".a.txt."))
    assert events[1:] == ["renamed", str(tmp_path)]
    with replacing_folder(tmp_path / "folder") as staging:
        (staging / "inside").write_text("text")
    inside, folder, renamed, parent = events[3:]
    assert inside.endswith("/inside")
    assert folder == os.path.dirname(inside)
    assert (renamed, parent) == ("renamed", str(tmp_path))


def test_links_are_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("data")
    (tmp_path / "a.txt").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "a.txt", b"text")
    assert (tmp_path / "precious").read_text() == "data"
    assert not (tmp_path / "a.txt").is_symlink()


def test_a_lock_is_let_go_where_nothing_can_be_written(tmp_path, monkeypatch):
    lock = RunLock(tmp_path)

    def fail(*_, **__):
        raise OSError(errno.EIO, "broken disk")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", fail)
        lock.release()
    assert not is_held(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("bmrjax.run_lock.os.truncate", fail)
        with pytest.raises(OSError, match="broken disk"):
            RunLock(tmp_path)
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "held"), [(errno.ENOSYS, False), (errno.ENOLCK, False), (errno.EWOULDBLOCK, True)]
)
def test_a_file_system_without_locks_is_no_run_in_the_folder(tmp_path, monkeypatch, number, held):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    if held:
        with pytest.raises(ValueError, match="a run that has not ended"):
            RunLock(tmp_path)
    else:
        with pytest.warns(UserWarning, match="cannot be locked here .* one at a time"):
            lock = RunLock(tmp_path)
        with lock:
            assert not is_held(tmp_path)
            assert not lock.locked
        assert list(tmp_path.iterdir()) == []


def test_saving_over_a_folder_leaves_no_moment_without_one(tmp_path, monkeypatch):
    """Where the system can exchange two names, no rename is needed that could be the last."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("")
    if not files._exchanged(folder, folder):
        pytest.skip("no exchange of names here")
    monkeypatch.setattr(files.os, "replace", None)
    with replacing_folder(folder) as staging:
        (staging / "new").write_text("")
    assert [each.name for each in folder.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_plots_on_a_full_disk_and_at_a_link(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("data")
    (tmp_path / "learning_curves.png").symlink_to(tmp_path / "precious")
    run = types.SimpleNamespace(keep={})

    def full(path, **_):
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pytest.importorskip("matplotlib")
    drawn = types.SimpleNamespace(savefig=full)
    monkeypatch.setattr("bmrjax.plot.learning_curves", lambda _: drawn)
    with pytest.raises(OSError, match=r"the disk is full.*learning_curves\.png"):
        run_report.write_plots(run, tmp_path, None)
    assert len(list(tmp_path.iterdir())) == 2
    drawn.savefig = lambda path, **_: path.write_text("a plot")
    run_report.write_plots(run, tmp_path, None)
    assert (tmp_path / "learning_curves.png").read_text() == "a plot"
    assert (tmp_path / "precious").read_text() == "data"
