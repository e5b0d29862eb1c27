"""Calls of `sparsify` that are interrupted, repeated, or made by several threads."""

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bmrjax as bmr
from bmrjax.backend import shared_programs

X = np.random.default_rng(0).normal(size=(40, 2)).astype("f4")
Y = (X @ np.array([1.0, -1.0])).astype("f4")
offset = jnp.zeros(40)


def program(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b + offset, 1.0), obs=y)


def fit(**settings):
    guide = bmr.infer.AutoMeanField(program)
    fixed = {"guide": guide, "batch_size": None, "steps_per_epoch": 5, "num_epochs": 4}
    settings = {**fixed, "progress": False, "key": jax.random.key(0), **settings}
    return bmr.sparsify(program, (X, Y), **settings)


def fit_of(model, data):
    return bmr.sparsify(
        model,
        data,
        key=jax.random.key(0),
        guide=bmr.infer.AutoMeanField(model),
        batch_size=None,
        steps_per_epoch=50,
        num_epochs=4,
        progress=False,
    )


@dataclass(frozen=True)
class PressingCtrlC(bmr.schedules.Schedule):
    """Sends the signal of Ctrl-C before some epochs, for the first member that gets there."""

    epochs: tuple[int, ...]
    sent: list[int] = field(default_factory=list)

    def __call__(self, report, memory):
        if report.epoch not in self.sent:
            self.sent.append(report.epoch)
            for _ in range(self.epochs.count(report.epoch)):
                signal.raise_signal(signal.SIGINT)
        return bmr.schedules.Train(), memory


@pytest.mark.usefixtures("python_s_own_handler")
class TestInterrupt:
    def test_the_epoch_is_finished_and_the_result_is_in_the_error(self, tmp_path, capsys):
        checkpoints = bmr.Checkpoints(tmp_path, interval=1e6)
        with pytest.raises(bmr.InterruptedFit, match="after epoch 3.*resume=True") as caught:
            fit(schedule=PressingCtrlC((2,)), checkpoints=checkpoints)
        assert "press Ctrl-C again to stop at once" in capsys.readouterr().err
        result = caught.value.result
        assert len(result.history) == 3
        assert result.predict(jax.random.key(1), X).mean.shape == (40,)
        assert isinstance(caught.value, KeyboardInterrupt)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        # The run goes on from there, and ends as one that was never stopped.
        resumed = fit(schedule=PressingCtrlC((2,)), checkpoints=replace(checkpoints, resume=True))
        whole = fit(schedule=PressingCtrlC(()))
        np.testing.assert_array_equal(resumed.params["b_auto_loc"], whole.params["b_auto_loc"])

    def test_a_second_one_stops_at_once(self):
        with pytest.raises(KeyboardInterrupt) as caught:
            fit(schedule=PressingCtrlC((1, 1)))
        assert not isinstance(caught.value, bmr.InterruptedFit)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_members_come_back_too(self):
        keys = jax.random.split(jax.random.key(0), 2)
        with pytest.raises(bmr.InterruptedFit) as caught:
            bmr.ensemble(
                program,
                (X, Y),
                keys=keys,
                guide=bmr.infer.AutoMeanField,
                schedule=PressingCtrlC((1,)),
                batch_size=None,
                steps_per_epoch=5,
                num_epochs=4,
                progress=False,
            )
        assert [len(result.history) for result in caught.value.result] == [2, 2]


def test_a_second_call_compiles_nothing(monkeypatch):
    programs = OrderedDict()
    monkeypatch.setattr(shared_programs, "_programs", programs)
    first = fit()
    made = list(programs)
    second = fit()
    assert made
    assert set(programs) == set(made)
    np.testing.assert_array_equal(first.params["b_auto_loc"], second.params["b_auto_loc"])


@pytest.fixture
def compilations(all_compiled):
    """Collect the programs that are compiled or read from disk."""
    found = []

    def listen(event, _, **about):
        if event.endswith("backend_compile_duration"):
            found.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    "kind", [None, pytest.param(bmr.infer.AutoMeanField, marks=pytest.mark.slow)]
)
def test_xla_has_nothing_to_do_in_a_second_call(kind, compilations):
    def run(x=X, **settings):
        # A guide that has met its program starts otherwise, so each call has its own.
        return bmr.sparsify(
            program,
            (x, Y),
            guide=None if kind is None else kind(program),
            key=jax.random.key(0),
            batch_size=None,
            progress=False,
            num_epochs=12,
            steps_per_epoch=20,
            schedule=bmr.schedules.Every(every=3, wait=3),
            **settings,
        )

    first = run()
    compilations.clear()
    assert run().vfe == first.vfe
    run(X + 1)
    assert compilations == []
    run(optimizer=optax.adam(1e-2))
    assert compilations


def test_what_a_program_closes_over_may_change(monkeypatch):
    before = fit()
    monkeypatch.setitem(globals(), "offset", jnp.full(40, 3.0))
    after = fit()
    assert after.vfe > before.vfe + 100


def of_first(a, b, y=None):
    beta = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(a @ beta, 1.0), obs=y)


def of_second(a, b, y=None):
    beta = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(b @ beta, 1.0), obs=y)


def test_two_programs_that_differ_in_which_argument_they_use_are_two():
    other = np.random.default_rng(1).normal(size=(40, 2)).astype("f4")
    useful = [fit_of(model, (X, other, Y)).vfe for model in (of_first, of_second)]
    assert useful[1] > useful[0] + 10
    # As it is with arguments in the other order.
    assert fit_of(of_first, (other, X, Y)).vfe == useful[1]


def test_calls_from_several_threads_wait_for_each_other():
    found = []
    threads = [threading.Thread(target=lambda: found.append(fit().vfe)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert set(found) == {fit().vfe}


def test_a_fit_of_ones_own_loop_waits_for_calls_from_other_threads():
    found = {}

    def own_loop(i):
        run = bmr.Fit(program, (X, Y), bmr.infer.AutoMeanField(program), batch_size=None)
        state = run.init(jax.random.key(0))
        for _ in range(3):
            state, _ = run.epoch(state, jax.random.key(1), num_steps=4)
        found[i] = np.asarray(run.params(state)["b_auto_loc"])

    def inspected(i):
        found[i] = repr(bmr.inspect(program, (X, Y)))

    threads = [threading.Thread(target=(own_loop, inspected)[i % 2], args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found[0], found[2])
    assert found[1] == found[3]


# A fork of a process that has computed with JAX, by what that process did and how the child goes on.
FORKED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import jax
if sys.argv[1] == "imported before":
    import bmrjax
jax.block_until_ready(jax.numpy.ones(3) + 1)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
signal.alarm(250)  # a hang
import bmrjax as bmr
from bmrjax import codec, export, streaming
calls = {
    "sparsify": lambda: bmr.sparsify(None, (), key=None, num_epochs=1),
    "reduce_fit": lambda: bmr.reduce_fit(None),
    "reduce_network": lambda: bmr.reduce_network(None, None),
    "reduce_folder": lambda: streaming.reduce_folder("", "", None, prior_scale=1.0),
    "decode": lambda: codec.decode(b""),
    "load": lambda: bmr.load(""),
    "compact": lambda: bmr.compact(None),
    "stablehlo": lambda: export.stablehlo(None, None, "f"),
    "onnx": lambda: export.onnx(None, None, "f"),
}
for name, call in calls.items():
    try:
        call()
        print(name, "ran")
    except RuntimeError as error:
        if "was forked from one in which JAX had computed" not in str(error):
            raise
os._exit(0)
"""


@pytest.mark.first_cases(1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("imported", ["before", "after"])
def test_a_fork_after_any_computation_is_refused_by_every_entry_point(imported):
    words = [sys.executable, "-c", FORKED, f"imported {imported}"]
    done = subprocess.run(words, check=False, timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork.. was called", "ignore:.*use of fork")
def test_a_fork_after_a_fit_is_refused_clearly():
    fit()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            fit()
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        assert (
            b"sparsify: this process was forked from one in which JAX had computed" in pipe.read()
        )


def test_calls_of_all_kinds_in_threads_at_once_are_those_made_one_by_one():
    draws = {"b": np.random.default_rng(1).normal([1.0, -1.0], 0.1, (200, 2))}
    network = eqx.nn.MLP(2, 1, width_size=4, depth=1, key=jax.random.key(0))
    fitted = fit()

    def network_masks():
        with warnings.catch_warnings():  # 40 rows are few
            warnings.simplefilter("ignore", bmr.FitWarning)
            reduced = bmr.reduce_network(network, (X, Y[:, None]), keep=0.5)
        return tuple(np.asarray(mask).tobytes() for mask in reduced.masks.values())

    calls = {
        "sparsify": lambda: fit().vfe,
        "reduce_fit": lambda: str(bmr.reduce_fit(draws, model=program, data=(X, Y))),
        "reduce_network": network_masks,
        "predict": lambda: np.asarray(fitted.predict(jax.random.key(1), X).mean).tobytes(),
        "estimator": lambda: bmr.SparseRegressor().fit(X, Y).predict(X).tobytes(),
    }
    alone = {name: call() for name, call in calls.items()}
    found = []
    threads = [
        threading.Thread(target=lambda name=name: found.append((name, calls[name]())))
        for name in [*calls, *calls]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 * len(calls)
    for name, value in found:
        assert value == alone[name], name
