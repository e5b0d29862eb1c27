"""Compiled programs that outlive a process."""

import os
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from bmrjax.backend.compile_cache import delete_damaged, delete_unused

PROGRAM = """
import jax
from bmrjax.backend.compile_cache import keep_compiled
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("cache_hits")))
print(keep_compiled())
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(float(jax.jit(lambda x: jax.numpy.sin(x @ x.T).sum())(jax.numpy.eye(3))), sum(hits))
"""


def run_in(home, program, **settings):
    """Return the folder, the value and the number of hits that a process prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env |= {"XDG_CACHE_HOME": str(home / "cache"), "HOME": str(home), **settings}
    command = [sys.executable, "-W", "error", "-c", program]
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert not found.stderr
    folder, line = found.stdout.strip().splitlines()
    value, hits = line.split()
    return folder, float(value), int(hits)


@pytest.fixture
def in_a_process(tmp_path):
    return lambda program=PROGRAM, **settings: run_in(tmp_path, program, **settings)


@pytest.fixture(scope="module")
def first_process(tmp_path_factory):
    """Return the home of a process that kept what it compiled, a copy of it, and what it printed."""
    home = tmp_path_factory.mktemp("first")
    folder, value, hits = run_in(home, PROGRAM)
    assert hits == 0
    assert folder.startswith(str(home))
    copy = tmp_path_factory.mktemp("copy") / "home"
    shutil.copytree(home, copy)
    return home, copy, value


@pytest.fixture
def kept(first_process):
    """Return the home of the first process as it left it (programs are known by it too), and its value."""
    home, copy, value = first_process
    shutil.rmtree(home)
    shutil.copytree(copy, home)
    return home, value


def test_the_second_process_compiles_nothing(kept):
    home, value = kept
    folder, again, hits = run_in(home, PROGRAM)
    assert folder.startswith(str(home))
    assert again == value
    assert hits > 0


def test_a_folder_of_the_users_own_stays(in_a_process, tmp_path):
    assert in_a_process(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))[0] == "None"
    assert list((tmp_path / "own").iterdir())


def test_without_a_folder_that_can_be_written_it_runs_all_the_same(in_a_process, tmp_path):
    (tmp_path / "cache").write_text("a file in its place")
    assert in_a_process()[0] == "None"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_on_a_full_disk_or_with_files_cut_short_there_it_runs_all_the_same(in_a_process, tmp_path):
    full = PROGRAM.replace(
        "print(float",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\nprint(float",
    )
    first = in_a_process(full)
    assert first[2] == 0
    for path in (tmp_path / "cache").rglob("*-cache"):
        path.write_bytes(path.read_bytes()[:50])
    assert in_a_process()[:2] == first[:2]


def test_what_is_not_whole_is_deleted_once_nobody_writes_it(tmp_path, monkeypatch):
    packed = zlib.compress(bytes(range(256)) * 40)
    flipped = bytearray(packed)
    flipped[len(flipped) // 2] ^= 1
    programs = {
        "whole": packed,
        "cut": packed[:-3],
        "empty": b"",
        "zeros": bytes(len(packed)),
        "flipped": bytes(flipped),
        "being-written": packed[:20],
        "zstandard": b"\x28\xb5\x2f\xfd and more",
    }

    def write(name, age=600):
        file = tmp_path / f"{name}-cache"
        file.write_bytes(programs[name])
        os.utime(file, (time.time() - age,) * 2)

    for name in programs:
        write(name, 0 if name == "being-written" else 600)
    (tmp_path / "another file").write_bytes(b"")
    delete_damaged(tmp_path)
    left = {path.name.removesuffix("-cache") for path in tmp_path.iterdir()}
    assert left == {"whole", "zstandard", "being-written", "another file", ".checked"}
    # Each is read once; what is cut short later is found all the same.
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or packed[:9])
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    delete_damaged(tmp_path)
    assert read == ["being-written-cache"]
    assert not (tmp_path / "being-written-cache").exists()
    delete_damaged(tmp_path)
    assert len(read) == 1


def test_a_program_that_was_cut_short_is_kept_again(kept):
    home, value = kept
    damaged = list((home / "cache").rglob("*-cache"))
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:50])
        os.utime(path, (time.time() - 600,) * 2)
        (path.parent / ".checked").unlink(missing_ok=True)  # as at the first start after this time
    assert run_in(home, PROGRAM)[1:] == (value, 0)
    assert all(len(path.read_bytes()) > 50 for path in damaged)
    assert run_in(home, PROGRAM)[2] > 0


LATE = """
import jax
import bmrjax as bmr
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("cache_hits")))
jax.jit(lambda x: x + 1)(1.0)
folder = bmr.keep_compiled()
assert bmr.keep_compiled() == folder
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(folder)
print(float(jax.jit(lambda x: jax.numpy.cos(x @ x.T).sum())(jax.numpy.eye(3))), sum(hits))
"""


def test_it_may_come_after_the_first_compilation(in_a_process, tmp_path):
    folder, value, hits = in_a_process(program=LATE)
    assert hits == 0
    assert folder.startswith(str(tmp_path))
    again = in_a_process(program=LATE)
    assert again[:2] == (folder, value)
    assert again[2] > 0


def test_jax_s_own_switch_turns_it_off(kept):
    home, value = kept
    assert run_in(home, PROGRAM, JAX_ENABLE_COMPILATION_CACHE="false")[1:] == (value, 0)


def test_a_write_does_not_read_the_other_programs(kept, tmp_path):
    """JAX with a size opens the record of every program at each write; here it is not even there."""
    before = list((kept[0] / "cache").rglob("*-cache"))
    folder = before[0].parent
    assert not list(folder.glob("*-atime"))
    (folder / "unreadable-cache").symlink_to(tmp_path / "nowhere")
    other = PROGRAM.replace("jax.numpy.sin", "jax.numpy.tan")
    assert run_in(kept[0], other)[2] < len(before)
    assert len(list(folder.glob("*-cache"))) > len(before) + 1


def test_beyond_the_size_the_programs_unused_for_longest_are_deleted(tmp_path):
    for age in range(8):
        file = tmp_path / f"{age}-cache"
        file.write_bytes(bytes(100))
        os.utime(file, (1000.0 - age, 10.0))
    delete_unused(tmp_path, 800)
    assert len(list(tmp_path.iterdir())) == 8
    # Written long ago, and used last.
    (tmp_path / "new-cache").write_bytes(bytes(100))
    os.utime(tmp_path / "new-cache", (10.0, 2000.0))
    delete_unused(tmp_path, 800)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["0-cache", "1-cache", "2-cache", "3-cache", "4-cache", "new-cache"]
