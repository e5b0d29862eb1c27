"""Damaged, mixed-up and contested folders of runs: noticed, and never made worse."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from same_result import assert_same
from test_checkpoint import CRITERION, make_data, program, run

import bmrjax as bmr
from bmrjax import cli
from bmrjax.cli.refit_folders import check_refits
from bmrjax.cli.run_folder import COMMAND_LOCK
from bmrjax.run.checkpoint import Checkpointer, CheckpointWarning
from bmrjax.run.run_files import RunFiles
from bmrjax.run_lock import LOCK, RunLock, is_held

EPOCHS = 8
OPTIONS = {
    "num_epochs": EPOCHS,
    "schedule": bmr.schedules.Verified(wait=1, refit=1, min_fraction=0.02, cooldown=1),
}


@pytest.fixture(scope="module")
def whole():
    return run(**OPTIONS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    run(directory, **OPTIONS)
    return directory


@pytest.fixture
def folder(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def steps(directory):
    return Checkpointer(directory, interval=0).steps()


def flip(path, at=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)


def damage_arrays(step, change=flip):
    for path in (step / "arrays").rglob("*"):
        if path.is_file() and path.stat().st_size:
            change(path)


def emptied(path):
    path.write_bytes(b"")


DAMAGE = {
    "arrays flipped": damage_arrays,
    "arrays emptied": lambda step: damage_arrays(step, emptied),
    "document flipped": lambda step: flip(step / "document" / "metadata"),
    "document emptied": lambda step: emptied(step / "document" / "metadata"),
    "document gone": lambda step: shutil.rmtree(step / "document"),
    "arrays gone": lambda step: shutil.rmtree(step / "arrays"),
    "nothing left": lambda step: [shutil.rmtree(p) for p in step.iterdir() if p.is_dir()],
}


# All kinds of damage are found; with two of them the run goes on here, with all under `make all-checks`.
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            damage,
            id=name,
            marks=[] if name in ("arrays flipped", "document gone") else pytest.mark.slow,
        )
        for name, damage in DAMAGE.items()
    ],
)
def test_the_older_checkpoint_is_used_when_the_newest_is_damaged(folder, whole, damage):
    newest, _ = steps(folder)
    damage(folder / "checkpoints" / str(newest))
    assert len(Checkpointer(folder, interval=0).check()) == 1
    with pytest.warns(CheckpointWarning, match="newest checkpoint is damaged.*goes on from"):
        found = run(folder, resume=True, **OPTIONS)
    assert_same(found, whole)
    # What comes after it is whole again, and the damaged one is gone.
    assert Checkpointer(folder, interval=0).check() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        assert_same(run(folder, resume=True, **OPTIONS), whole)


def test_nothing_is_changed_when_all_are_damaged(folder):
    for step in steps(folder):
        damage_arrays(folder / "checkpoints" / str(step))
    before = contents(folder)
    with pytest.raises(ValueError, match="no checkpoint can be used.*Start the run anew"):
        run(folder, resume=True, **OPTIONS)
    assert contents(folder) == before


@pytest.mark.parametrize("kind", ["flipped", "of another point", "missing"])
def test_points_belong_to_their_checkpoint(folder, kind):
    first, second, *_ = sorted((folder / "points").iterdir())
    if kind == "flipped":
        flip(first, first.stat().st_size - 3)
    elif kind == "missing":
        first.unlink()
    else:
        shutil.copy(second, first)
    before = contents(folder)
    with pytest.raises(ValueError, match=f"no checkpoint can be used.*{first.name}"):
        run(folder, resume=True, **OPTIONS)
    assert contents(folder) == before


# --- another run --------------------------------------------------------------------------


def wider(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("group/scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


wider.__qualname__ = program.__qualname__

OTHERS = {
    "learning rate": ({"optimizer": optax.adabelief(4e-2)}, r"had optimizer.*0\.05.*has.*0\.04"),
    "kl weight": (
        {"options": bmr.FitOptions(kl_warmup=60, kl_weight=0.5)},
        r"had kl_weight 1\.0, this one has 0\.5",
    ),
    "kl warm-up": ({"options": bmr.FitOptions(kl_warmup=61)}, "had kl_warmup 60, this one has 61"),
    "a prior's scale": ({"model": wider}, r"had model\.constants"),
    "schedule's numbers": (
        {"schedule": bmr.schedules.Verified(wait=2, refit=1, min_fraction=0.02, cooldown=1)},
        r"had schedule\.wait 1, this one has 2",
    ),
    "criterion's numbers": (
        {"criterion": bmr.criteria.SpikeAndSlab(beta=2e6)},
        r"had criterion\.beta 1000000\.0, this one has 2000000\.0",
    ),
    "samples": (
        {"held_out": bmr.HeldOut(make_data(), every=3, samples=3, final_samples=4)},
        "had held_out.samples.* 2, this one has 3",
    ),
}


@pytest.mark.parametrize(("options", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_a_run_with_other_settings_is_not_resumed_nor_changed(finished, options, message):
    before = contents(finished)
    with pytest.raises(ValueError, match=message):
        run(finished, resume=True, **{**OPTIONS, **options})
    assert contents(finished) == before


def test_every_row_of_the_data_counts(finished):
    x, y = make_data()
    for other in ((x.at[33, 5].add(1e-3), y), (x, y.at[17].set(0.0))):
        with pytest.raises(ValueError, match="had data .their digest"):
            bmr.sparsify(
                program, other, key=jax.random.key(2), progress=False,
                checkpoints=bmr.Checkpoints(finished, resume=True, interval=0),
                batch_size=16, steps_per_epoch=10, optimizer=optax.adabelief(5e-2),
                criterion=CRITERION, held_out=bmr.HeldOut((x, y), every=3, samples=2, final_samples=4),
                options=bmr.FitOptions(kl_warmup=60), **OPTIONS,
            )  # fmt: skip


# --- one run at a time --------------------------------------------------------------------


def test_two_runs_do_not_share_a_folder(folder):
    before = contents(folder)
    with RunLock(folder):
        with pytest.raises(ValueError, match=f"of process {os.getpid()}, writes to this folder"):
            run(folder, resume=True, **OPTIONS)
        assert set(contents(folder)) - set(before) == {LOCK}
    assert contents(folder) == before


def test_a_run_that_ended_while_another_began_stays(finished, tmp_path, monkeypatch):
    out, hold = tmp_path / "run", Checkpointer.hold

    def late(self):
        shutil.copytree(finished, out)
        hold(self)

    monkeypatch.setattr(Checkpointer, "hold", late)
    with pytest.raises(ValueError, match="holds the checkpoints of an earlier run"):
        run(out, **OPTIONS)
    assert contents(out) == contents(finished)


def test_further_fits_of_a_command_must_be_whole_and_free(folder, tmp_path):
    """Else a run that goes on would take another fit's answer, without a word."""
    check_refits(tmp_path, resume=True)
    refit = Path(shutil.copytree(folder, tmp_path / "colder"))
    with RunLock(refit), pytest.raises(ValueError, match="colder: a run that has not ended"):
        check_refits(tmp_path, resume=False)
    newest, older = steps(refit)
    damage_arrays(refit / "checkpoints" / str(newest))
    check_refits(tmp_path, resume=True)
    damage_arrays(refit / "checkpoints" / str(older))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"fit at temperature 0.25 can be used.*makes that fit"):
        check_refits(tmp_path, resume=True)
    assert contents(tmp_path) == before
    check_refits(tmp_path, resume=False)  # --overwrite deletes it
    (tmp_path / "warmer-1").write_text("")
    with pytest.raises(ValueError, match="warmer-1 is a file in place of a folder"):
        check_refits(tmp_path, resume=False)


HOLD = """
import sys, time
from pathlib import Path
from bmrjax.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(ValueError, match=f"of process {process.pid}, "):
                RunLock(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK).exists()
    with RunLock(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_follows_no_link(tmp_path):
    (tmp_path / "precious").write_text("data")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="is a link, or no regular file"):
        RunLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "data"


# --- what reaches the disk ----------------------------------------------------------------


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    # A loss of power between the two would leave the first checkpoint of a run damaged, and none before it.
    events = []
    sync = os.fsync

    def noting(handle):
        events.append(os.readlink(f"/proc/self/fd/{handle}"))
        return sync(handle)

    replace = os.replace

    def naming(old, new):
        replace(old, new)
        events.append(f"{new} has its name")

    monkeypatch.setattr("bmrjax.files.os.fsync", noting)
    monkeypatch.setattr("bmrjax.files.os.replace", naming)
    run(tmp_path / "runs" / "first", **{**OPTIONS, "num_epochs": 3})
    folder = tmp_path / "runs" / "first"
    root = str(folder / "checkpoints")
    # Folders that were made: the run's, the one that it is in, and those of checkpoints and points.
    assert events[:2] == [str(tmp_path), str(tmp_path / "runs")]
    named = events.index(f"{root}/1 has its name")
    assert events[:named].count(str(folder)) == 2
    assert events.index(str(folder)) < events.index(f"{root}/0 has its name")
    for i in range(3):
        named = events.index(f"{root}/{i} has its name")
        before = [event for event in events[:named] if event.startswith(f"{root}/.{i}.")]
        ends = ("", "/arrays", "/document", "/document/metadata", "/arrays/arrays.safetensors")
        assert {event.partition(f".{i}.")[2][16:] for event in before} == set(ends)
        assert events[named + 1] == root
    # A point is on the disk, and its name is, before the checkpoint that means it.
    assert events.index(str(folder / "points")) < events.index(f"{root}/1 has its name")


def test_what_a_kill_left_is_removed_by_the_next_checkpoint(tmp_path):
    left = ["0.orbax-checkpoint-tmp", ".7.0123456789abcdef"]
    for name in left:
        (tmp_path / "checkpoints" / name / "arrays").mkdir(parents=True)
    checkpointer = Checkpointer(tmp_path, interval=0)
    for i in range(4):
        checkpointer.save({"x": np.full(3, i)}, {"path": []})
        assert checkpointer.check() == []
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["2", "3"]


def test_a_disk_without_room_is_one_line_and_leaves_the_checkpoints_before(
    tmp_path, monkeypatch, capfd
):
    checkpointer = Checkpointer(tmp_path, interval=0)
    for i in range(2):
        checkpointer.save({"x": np.full(3, i)}, {"path": []})
    before = contents(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in (
        "bmrjax.run.checkpoint.save_file",
        "bmrjax.files.Path.mkdir",
        "bmrjax.files.os.fsync",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises(
                OSError, match="the disk is full; what was there before is unchanged"
            ):
                checkpointer.save({"x": np.zeros(3)}, {"path": []})
        assert contents(tmp_path) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("first", [True, False])
def test_what_one_process_cannot_write_is_an_error_in_all(tmp_path, monkeypatch, first):
    answers = []

    def agreed(*, mine):
        answers.append(mine)
        return False

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if first:
        monkeypatch.setattr("bmrjax.run.checkpoint.save_file", full)
    checkpointer = Checkpointer(tmp_path, interval=0, is_main=first)
    fit = SimpleNamespace(placement=SimpleNamespace(agreed=agreed, fetch=lambda tree: tree))
    state = SimpleNamespace(arrays=lambda: {"x": np.zeros(3)}, document=lambda: {"path": []})
    with pytest.raises(OSError, match="disk is full" if first else "the first process could not"):
        RunFiles(checkpointer, fit, {}).save(state)
    assert answers == [not first]


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere"), os.mkfifo])
def test_what_is_no_folder_or_file_is_refused_and_not_waited_for(folder, make):
    newest, _ = steps(folder)
    point = next((folder / "points").iterdir())
    for path in (folder / "checkpoints" / str(newest) / "document/metadata", point):
        path.unlink()
        if make is not Path.touch:
            make(path)
    assert len(Checkpointer(folder, interval=0).check()) == 2
    shutil.rmtree(folder / "checkpoints")
    make(folder / "checkpoints")
    with pytest.raises(ValueError, match="checkpoints is no folder; remove it"):
        run(folder, **OPTIONS)
    if make is not Path.touch:
        make(folder / LOCK)
        assert not is_held(folder)
        with pytest.raises(ValueError, match="is a link, or no regular file"):
            RunLock(folder)


# --- bmrjax check -------------------------------------------------------------------------


def test_check_says_what_is_damaged_and_changes_nothing(folder, tmp_path, capsys):
    before = contents(folder)
    cli.main(["check", str(folder)])
    assert "2 checkpoints" in capsys.readouterr().out
    newest, _ = steps(folder)
    damage_arrays(folder / "checkpoints" / str(newest))
    (folder / "results.json").write_text('{"a": ')
    damaged = contents(folder)
    with pytest.raises(SystemExit, match="1"):
        cli.main(["check", str(folder)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("damaged:")]
    assert len(lines) == 2
    assert "results.json is damaged or cut short" in lines[0]
    assert f"checkpoints/{newest}" in lines[1]
    assert contents(folder) == damaged != before
    for lock in (LOCK, COMMAND_LOCK):
        with RunLock(folder, lock), pytest.raises(SystemExit, match="2"):
            cli.main(["check", str(folder)])
        assert "has not ended" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["check", str(tmp_path / "none")])
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.slow
def test_overwrite_spares_a_running_run(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    words = [
        "sparsify",
        "--data",
        "digits",
        "--out",
        str(out),
        "--num-epochs",
        "2",
        "--no-progress",
    ]
    words += ["--steps-per-epoch", "3", "--hidden", "8"]
    cli.main([*words])
    before = contents(out)
    for lock in (LOCK, COMMAND_LOCK):
        for mode in ("--overwrite", "--resume"):
            with RunLock(out, lock), pytest.raises(SystemExit, match="2"):
                cli.main([*words, mode])
            assert "a run that has not ended" in capsys.readouterr().err
            assert contents(out) == before
    # Another command ended while this one read its data.
    monkeypatch.setattr(sys.modules["bmrjax.cli.check_options"], "check_folder", lambda _: None)
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "holds a run. Give --resume, --overwrite" in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.slow
def test_a_resume_that_the_data_refuse_changes_nothing(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3))
    file, out = tmp_path / "d.npz", tmp_path / "out"
    np.savez(file, x=x, y=x[:, 0])
    words = ["sparsify", "--data", str(file), "--task", "regression", "--out", str(out)]
    words += ["--num-epochs", "2", "--steps-per-epoch", "3", "--hidden", "4", "--no-progress"]
    with pytest.raises(SystemExit, match="3"):  # the network is a constant as yet
        cli.main(words)
    assert "constant: The predictions do not depend on the inputs." in capsys.readouterr().out
    before = contents(out)
    assert "results.json" in before
    np.savez(file, x=x, y=np.where(np.arange(60) == 31, 9.0, x[:, 0]))
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, "--resume", "--num-samples", "7"])
    assert "this one has" in capsys.readouterr().err
    assert contents(out) == before
