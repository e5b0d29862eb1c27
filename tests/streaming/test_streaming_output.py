"""What a reduction writes: looked at before the work, and complete, on the disk, or not there."""

import errno
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from test_streaming import CRITERIA, GOOD, masks_of, run, write

from bmrjax.streaming import output, stream

SHRINKAGE = CRITERIA["shrinkage"]


def no_work(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("the work has begun")

    monkeypatch.setattr(stream.Stream, "compile", fail)


def link_to_an_empty_folder(out):
    (out.parent / "empty").mkdir()
    out.symlink_to(out.parent / "empty")


def link_to_nowhere(out):
    out.symlink_to(out.parent / "nowhere")


def link_in_a_circle(out):
    out.symlink_to(out)


def in_a_link_in_a_circle(out):
    out.parent.rmdir()
    out.parent.symlink_to(out.parent)


def in_a_file(out):
    out.parent.rmdir()
    out.parent.write_text("")


def fifo(out):
    os.mkfifo(out)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (link_to_an_empty_folder, "is a link; give the folder itself, .*empty"),
        (link_to_nowhere, "is a link; give the folder itself, .*nowhere"),
        (link_in_a_circle, "is a link; give the folder itself"),
        (in_a_link_in_a_circle, "is a file, or a link to no folder; .* cannot be in it"),
        (in_a_file, "is a file, or a link to no folder; .* cannot be in it"),
        (fifo, "is a file; give a new folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch, make, message):
    no_work(monkeypatch)
    folder = write(tmp_path / "in", {"m": GOOD})
    out = tmp_path / "there" / "out"
    out.parent.mkdir()
    make(out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        run(folder, out, SHRINKAGE, prior_scale=1.0)
    assert sorted(tmp_path.rglob("*")) == before


def test_too_little_room_is_refused_first(tmp_path, monkeypatch):
    no_work(monkeypatch)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1))
    with pytest.raises(OSError, match="the masks take .* bytes, and 1 are free"):
        run(write(tmp_path / "in", {"m": GOOD}), tmp_path / "out", SHRINKAGE, prior_scale=1.0)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_opened(tmp_path, make):
    folder = write(tmp_path / "in", {"m": GOOD})
    make(folder / "n.safetensors")
    with pytest.raises(ValueError, match="n.safetensors is no regular file"):
        run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)


def test_a_shard_that_is_written_to_meanwhile_is_refused(tmp_path, monkeypatch):
    folder = write(tmp_path / "in", {"m": GOOD})
    reduce = stream.Stream.reduce

    def then_written(self, *given):
        reduce(self, *given)
        os.utime(folder / "m.safetensors", ns=(1, 1))

    monkeypatch.setattr(stream.Stream, "reduce", then_written)
    with pytest.raises(ValueError, match="m.safetensors was written to while it was read"):
        run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_an_empty_folder_gives_way_and_one_that_fills_up_costs_nothing(tmp_path, monkeypatch):
    folder = write(tmp_path / "in", {"m": GOOD})
    (tmp_path / "out").mkdir()
    run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)
    masks = masks_of(tmp_path / "out")

    reduce = stream.Stream.reduce

    def then_filled(self, *given):
        reduce(self, *given)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "note").write_text("")

    monkeypatch.setattr(stream.Stream, "reduce", then_filled)
    with pytest.raises(OSError, match=r"the masks are complete in .*\.complete"):
        run(folder, tmp_path / "other", SHRINKAGE, prior_scale=1.0)
    (kept,) = tmp_path.glob(".other.*.complete")
    for name, mask in masks_of(kept).items():
        np.testing.assert_array_equal(mask, masks[name])
    assert (tmp_path / "other" / "note").exists()


KILLED = """
import sys, time
from pathlib import Path
from bmrjax.streaming.output import new_folder
with new_folder(Path(sys.argv[1])) as staging:
    (staging / "m.safetensors").write_text("half")
    print("ready", flush=True)
    time.sleep(100)
"""


def test_what_a_killed_reduction_left_is_removed_and_what_goes_on_is_not(tmp_path):
    folder = write(tmp_path / "in", {"m": GOOD})
    words = [sys.executable, "-c", KILLED, str(tmp_path / "out")]
    # Names that only look alike.
    (tmp_path / ".out.0123456789abcdef").mkdir()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)
        assert len(list(tmp_path.glob(".out.*"))) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(0.1)
    for each in (tmp_path / "out").iterdir():
        each.unlink()
    run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)
    assert [p.name for p in tmp_path.glob(".out.*")] == [".out.0123456789abcdef"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "m.safetensors",
        "reduction.json",
    ]


@pytest.mark.filterwarnings("ignore:.*cannot be locked here")
def test_where_nothing_can_be_locked_a_reduction_that_may_go_on_is_not_touched(
    tmp_path, monkeypatch
):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with output.new_folder(tmp_path / "out") as staging:
        (staging / "m").write_text("half")
        output._remove_abandoned(tmp_path / "out")
        assert (staging / "m").read_text() == "half"


# Ends itself as its folder is made, before it has a lock; before the folder has its name; and right after.
KILLED_AT = """
import os, signal, sys
from pathlib import Path
from bmrjax.streaming import output

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def replace_and_die(*names):
    replace(*names)
    die()

replace = os.replace
for name, when in (("made", die), ("complete", die), ("named", replace_and_die)):
    out = Path(sys.argv[1], name)
    child = os.fork()
    if not child:
        if name == "made":
            output.RunLock = when
        output.os.replace = when
        with output.new_folder(out) as staging:
            (staging / "m.safetensors").write_text("masks")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


def test_nothing_stays_beside_the_output_wherever_a_reduction_was_killed(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED_AT, str(tmp_path)], check=True)
    (named,) = tmp_path.glob("named*")
    assert (named / "m.safetensors").read_text() == "masks"
    for name in ("made", "complete"):
        (left,) = tmp_path.glob(f".{name}.*.unfinished")
        with output.new_folder(tmp_path / name) as staging:
            (staging / "m.safetensors").write_text("again")
        assert not left.exists()
        assert [each.name for each in (tmp_path / name).iterdir()] == ["m.safetensors"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["complete", "made", "named"]


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(tmp_path, monkeypatch):
    """The limit on the size of files stands for the disk's, at the first byte and in the middle of masks."""
    resource = pytest.importorskip("resource")
    folder = write(tmp_path / "in", {"m": GOOD})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    run(folder, tmp_path / "whole", SHRINKAGE, prior_scale=1.0)
    size = (tmp_path / "whole" / "m.safetensors").stat().st_size
    for most in (1, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            with pytest.raises(OSError, match="larger than the system allows"):
                run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "whole"]


def test_names_that_others_may_have_planted_are_not_followed(tmp_path):
    """Links under the names of folders that are being filled, and of their locks."""
    folder = write(tmp_path / "in", {"m": GOOD})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "precious").write_text("theirs")
    (tmp_path / ".out.0123456789abcdef.unfinished").symlink_to(tmp_path / "theirs")
    other = tmp_path / ".out.fedcba9876543210.unfinished"
    other.mkdir()
    (other / ".bmrjax-lock").symlink_to(tmp_path / "theirs" / "precious")
    run(folder, tmp_path / "out", SHRINKAGE, prior_scale=1.0)
    assert (tmp_path / "theirs" / "precious").read_text() == "theirs"
    assert other.exists()
