"""Signals: one line, a checkpoint of the epoch that was under way, and the status of the signal."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bmrjax import cli
from bmrjax.run import interrupt
from bmrjax.run.checkpoint import Checkpointer

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "xy.npz"
    np.savez(path, x=rng.normal(size=(60, 3)), y=rng.normal(size=60))
    return path


def start(data, out):
    words = ["sparsify", "--data", data, "--out", out, "--hidden", "3", "--num-epochs", "100000"]
    words += ["--steps-per-epoch", "1", "--no-progress", "--method", "map", "--log", f"{out}.jsonl"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "bmrjax", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    end = time.monotonic() + 120
    log = out.with_name(f"{out.name}.jsonl")
    while time.monotonic() < end and process.poll() is None:
        if log.exists() and log.read_text().count("\n") > 3:
            return process
        time.sleep(0.1)
    raise AssertionError(process.communicate()[1])


def lines(process):
    return [line for line in process.communicate(timeout=120)[1].splitlines() if line.strip()]


LOADING = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "tyro":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["bmrjax", "--version"]
runpy.run_module("bmrjax", run_name="__main__")
"""


@pytest.mark.usefixtures("python_s_own_handler")
def test_ctrl_c_while_libraries_are_loaded_is_no_traceback():
    words = [sys.executable, "-c", LOADING]
    done = subprocess.run(words, check=False, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_command_saves_says_a_line_and_ends_as_the_signal_would(data, tmp_path):
    process = start(data, tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    said = lines(process)
    assert len(said) == 2
    assert "stopping after this epoch" in said[0]
    assert said[1] == "bmrjax: stopped by SIGTERM; --resume goes on from the last checkpoint."
    # Killed by the signal, which a shell shows as 128 and its number.
    assert process.returncode == -signal.SIGTERM
    checkpoints = Checkpointer(tmp_path / "run", interval=0)
    assert checkpoints.steps()
    assert checkpoints.check() == []
    assert not list((tmp_path / "run").glob(".bmrjax*"))


@pytest.mark.slow
def test_one_signal_after_another_is_no_traceback(data, tmp_path):
    process = start(data, tmp_path / "run")
    for number in [signal.SIGINT] * 3 + [signal.SIGTERM, signal.SIGHUP] * 3:
        if process.poll() is None:
            process.send_signal(number)
            time.sleep(0.002)
    said = lines(process)
    assert len(said) <= 3, said
    assert all(line.startswith("bmrjax: stop") for line in said), said
    assert process.returncode in {130, *(-number for number in ENDING)}


SIGNALS = """
import signal, sys
from bmrjax.run import interrupt

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, interrupt.end_by_exception)
try:
    signal.raise_signal(signal.Signals[sys.argv[1]])
except BaseException:
    if sys.argv[3:]:
        interrupt.end_silently()
    signal.raise_signal(signal.Signals[sys.argv[2]])  # while all is cleaned up
print("went on")
"""


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("first", ENDING)
@pytest.mark.parametrize(("second", "line"), [("SIGINT", ""), ("SIGTERM", " by SIGTERM")])
def test_a_second_signal_ends_at_once(first, second, line, said):
    words = [sys.executable, "-c", SIGNALS, first.name, second, *(["said"] if said else [])]
    done = subprocess.run(words, check=False, timeout=120, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.stderr == ("" if said else f"bmrjax: stopped{line}.\n")
    assert done.returncode == -signal.Signals[second]


@pytest.mark.usefixtures("python_s_own_handler")
def test_only_a_whole_checkpoint_goes_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "checkpoints" / ".0.0123456789abcdef").mkdir(parents=True)
    monkeypatch.setattr(cli, "check_options", lambda _: signal.raise_signal(2))
    for line in ("stopped", "stopped; --resume goes on from the last checkpoint"):
        with pytest.raises(SystemExit, match="130"):
            cli.main(["sparsify", "--data", "digits", "--out", str(tmp_path)])
        assert capsys.readouterr().err == f"bmrjax: {line}.\n"
        (tmp_path / "checkpoints" / "0").mkdir(exist_ok=True)


@pytest.fixture
def default_handlers():
    before = {number: signal.getsignal(number) for number in ENDING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDING[1:]:
        signal.signal(number, interrupt.end_by_exception)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_handlers")
class TestHandlers:
    def test_without_checkpoints_only_ctrl_c_is_waited_for(self):
        with interrupt.finishing_on_interrupt() as found:
            signal.raise_signal(signal.SIGINT)
            assert found.number == signal.SIGINT
        with pytest.raises(interrupt.EndedBySignal, match="SIGTERM"):  # noqa: SIM117
            with interrupt.finishing_on_interrupt():
                signal.raise_signal(signal.SIGTERM)

    @pytest.mark.parametrize("number", ENDING)
    def test_the_first_is_noted_and_the_second_ends(self, number, capsys):
        error = KeyboardInterrupt if number == signal.SIGINT else interrupt.EndedBySignal
        with interrupt.finishing_on_interrupt(saved=True) as found:
            signal.raise_signal(number)
            assert found.number == number
            with pytest.raises(error):
                signal.raise_signal(number)
        assert capsys.readouterr().err.count("stopping after this epoch") == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_what_others_handle_is_theirs(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with interrupt.finishing_on_interrupt(saved=True) as found:
            signal.raise_signal(signal.SIGHUP)
            assert not found.requested

    def test_a_command_that_is_stopped_before_its_fit_says_so(self, monkeypatch, capsys):
        monkeypatch.setattr(cli, "check_options", lambda _: signal.raise_signal(2))
        with pytest.raises(SystemExit, match="130"):
            cli.main(["sparsify", "--data", "digits", "--out", "nowhere"])
        assert capsys.readouterr().err == "bmrjax: stopped.\n"
