"""Killed runs go on and end as if nothing had happened: bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.primitives import mutable
from same_result import assert_same

import bmrjax as bmr
from bmrjax.run.checkpoint import Checkpointer

SIZE = 12
# A prior so much for excluding that some rounds remove too much, and are taken back.
CRITERION = bmr.criteria.SpikeAndSlab(beta=1e6)
SCHEDULE = bmr.schedules.Verified(wait=2, refit=2, min_fraction=0.02, cooldown=3)


def make_data():
    x = jax.random.normal(jax.random.key(0), (64, SIZE))
    weights = jnp.linspace(-1.0, 1.0, SIZE) ** 3
    return x, x @ weights + 0.5 * jax.random.normal(jax.random.key(1), (64,))


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    scale = numpyro.sample("group/scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


def run(directory=None, *, resume=False, interval=0, model=program, **options):
    data = make_data()
    checkpoints = None
    if directory is not None:
        checkpoints = bmr.Checkpoints(directory, interval=interval, resume=resume)
    settings = {
        "key": jax.random.key(2),
        "num_epochs": 30,
        "batch_size": 16,
        "steps_per_epoch": 10,
        "optimizer": optax.adabelief(5e-2),
        "schedule": SCHEDULE,
        "criterion": CRITERION,
        "held_out": bmr.HeldOut(data, every=3, samples=2, final_samples=4),
        "options": bmr.FitOptions(kl_warmup=60),
        "progress": False,
    }
    return bmr.sparsify(model, data, checkpoints=checkpoints, **{**settings, **options})


@pytest.fixture(scope="module")
def reference():
    return run()


class Killed(Exception):
    pass


def killed(monkeypatch, directory, epoch, *, after=False, **options):
    """Run until an exception hits epoch number `epoch`, before or after its training."""
    train = bmr.Fit.epoch

    def dying(self, *args, index, **options):
        last = index + 1 == epoch
        if last and not after:
            raise Killed
        found = train(self, *args, index=index, **options)
        if last:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(bmr.Fit, "epoch", dying)
        with pytest.raises(Killed):
            run(directory, **options)


def saved(directory):
    checkpointer = Checkpointer(Path(directory), interval=0)
    document = checkpointer.document()
    checkpointer.close()
    return document


def test_the_reference_run_is_worth_resuming(reference):
    taken_back = [row["taken_back"] for row in reference.history]
    assert 0 < sum(taken_back) < len(taken_back)  # rounds were rejected, and accepted
    assert len(reference.path) > 3
    assert any("nll" in row for row in reference.history)
    assert reference.num_kept < SIZE
    assert reference.num_compilations == 1


@pytest.mark.parametrize(
    ("epoch", "after"),
    [
        (1, False),
        pytest.param(2, True, marks=pytest.mark.slow),
        pytest.param(5, False, marks=pytest.mark.slow),
        (14, True),
    ],
)
def test_an_interrupted_run_ends_the_same(reference, monkeypatch, tmp_path, epoch, after):
    killed(monkeypatch, tmp_path, epoch, after=after)
    document = saved(tmp_path)
    if epoch == 1:
        assert document is None  # nothing was written yet, and the run begins anew
    else:
        assert document["epoch"] == epoch - 1
    assert_same(run(tmp_path, resume=True), reference)


@pytest.mark.slow
def test_interrupted_in_a_pending_round_and_again_after_a_rejected_one(
    reference, monkeypatch, tmp_path
):
    # An epoch that is taken back later was part of a round that was pending.
    first = next(i for i, row in enumerate(reference.history) if row["taken_back"]) + 1
    killed(monkeypatch, tmp_path, first + 1)
    document = saved(tmp_path)
    assert document["has_snapshot"]
    assert not any(row["taken_back"] for row in document["history"])
    killed(monkeypatch, tmp_path, first + 4, resume=True)
    assert any(row["taken_back"] for row in saved(tmp_path)["history"])
    assert_same(run(tmp_path, resume=True), reference)


# Once, or early, and then late again; at no particular moment of an epoch.
@pytest.mark.parametrize("kills", [(9,), pytest.param((2, 9), marks=pytest.mark.slow)])
def test_a_process_killed_at_any_moment_ends_the_same(reference, tmp_path, kills):
    rng = np.random.default_rng(0)
    command = [sys.executable, __file__, str(tmp_path)]
    env = {**os.environ, "JAX_PLATFORMS": jax.default_backend()}
    # Where this file finds what tests share.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for checkpoints in kills:
        process = subprocess.Popen(command, env=env)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            steps = [int(p.name) for p in tmp_path.glob("checkpoints/*") if p.name.isdigit()]
            if max(steps, default=-1) >= checkpoints:
                break
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert 9 <= saved(tmp_path)["epoch"] < 30
    assert_same(run(tmp_path, resume=True), reference)


def test_a_checkpoint_is_of_the_moment_it_was_taken(tmp_path):
    # The run goes on, and changes its records, while the file is being written.
    checkpointer = Checkpointer(tmp_path, interval=0)
    history = [{"epoch": 1, "taken_back": False}]
    numbers = np.zeros(3, np.float32)
    checkpointer.save([numbers], {"history": history})
    history[0]["taken_back"] = True
    history.append({"epoch": 2})
    numbers += 1
    checkpointer.close()
    again = Checkpointer(tmp_path, interval=0)
    like = [np.zeros(3, np.float32)]
    document, arrays, path = again.restore(lambda: like, lambda found: {}, lambda found: None)
    assert document["history"] == again.document()["history"] == [{"epoch": 1, "taken_back": False}]
    np.testing.assert_array_equal(arrays[0], np.zeros(3))
    assert path == []
    again.close()


def test_a_finished_run_is_only_read(reference, monkeypatch, tmp_path):
    assert_same(run(tmp_path), reference)

    def forbidden(self, *args, **options):
        raise AssertionError("a finished run trained on")

    monkeypatch.setattr(bmr.Fit, "epoch", forbidden)
    assert_same(run(tmp_path, resume=True), reference)


def test_a_run_that_its_schedule_stopped_stays_stopped(tmp_path):
    options = {"schedule": bmr.schedules.Verified(wait=2, refit=2, min_fraction=0.2, cooldown=0)}
    stopped = run(tmp_path, **options)
    assert len(stopped.history) < 30
    assert_same(run(tmp_path, resume=True, **options), stopped)


def test_a_finished_run_can_be_made_longer(monkeypatch, tmp_path):
    options = {"schedule": bmr.schedules.Every(wait=2, every=3)}
    longer = run(num_epochs=9, **options)
    run(tmp_path, num_epochs=5, **options)
    found = run(tmp_path, num_epochs=9, resume=True, **options)
    assert len(found.history) == 9
    assert [row["vfe"] for row in found.history] == [row["vfe"] for row in longer.history]
    np.testing.assert_array_equal(found.keep["beta"], longer.keep["beta"])


def counting(x, y=None):
    """A program with mutable state: a running mean of its targets."""
    holder = mutable("running", {"mean": jnp.zeros(()), "steps": jnp.zeros(())})
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(holder["mean"] + x @ beta, 0.5), obs=y)
    if y is not None:
        holder["mean"] = 0.9 * holder["mean"] + 0.1 * jnp.mean(y)
        holder["steps"] = holder["steps"] + 1.0


@pytest.mark.slow
def test_mutable_state_and_random_optimisers_resume(monkeypatch, tmp_path):
    noisy = optax.chain(optax.add_noise(0.1, 0.5, key=jax.random.key(9)), optax.adam(1e-2))
    options = {"model": counting, "optimizer": noisy, "num_epochs": 8}
    whole = run(**options)
    assert float(whole.params["running"]["steps"]) > 20
    killed(monkeypatch, tmp_path, 6, **options)
    assert_same(run(tmp_path, resume=True, **options), whole)


@pytest.mark.slow
def test_plain_fits_resume(monkeypatch, tmp_path):
    options = {"criterion": None, "num_epochs": 6}
    whole = run(**options)
    killed(monkeypatch, tmp_path, 4, **options)
    assert_same(run(tmp_path, resume=True, **options), whole)


# --- what must not be mixed ---------------------------------------------------------------


def renamed(x, y=None):
    gamma = numpyro.sample("gamma", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    scale = numpyro.sample("group/scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ gamma, scale), obs=y)


def larger(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2, SIZE]).to_event(2))
    numpyro.sample("y", dist.Normal(x @ beta.sum(0), 1.0), obs=y)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    directory = tmp_path_factory.mktemp("short")
    run(directory, num_epochs=3)
    return directory


OTHERS = {
    "site": ({"model": renamed}, "of another program, .*it holds .*beta.* where this run has"),
    "shape": ({"model": larger}, "of another program"),
    "optimiser": ({"optimizer": optax.sgd(1e-2)}, "of another program, guide, optimiser"),
    "key": ({"key": jax.random.key(4)}, "had key .*this one has"),
    "batch": ({"batch_size": 8}, "had batch_size 16, this one has 8"),
    "steps": ({"steps_per_epoch": 11}, "had steps_per_epoch 10, this one has 11"),
    "schedule": ({"schedule": bmr.schedules.Every()}, "had schedule Verified, this one has Every"),
    "estimator": (
        {"options": bmr.FitOptions(estimator="local")},
        "had estimator global, this one has local",
    ),
    "criterion": ({"criterion": None}, "had criterion SpikeAndSlab, this one has None"),
}


@pytest.mark.first_cases(4)
@pytest.mark.parametrize(("options", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_another_run_is_not_resumed(short, options, message):
    before = saved(short)
    with pytest.raises(ValueError, match=message):
        run(short, resume=True, num_epochs=3, **options)
    assert saved(short) == before


def test_an_old_run_is_not_overwritten(short):
    with pytest.raises(ValueError, match="holds the checkpoints of an earlier run.*resume=True"):
        run(short)


def test_checkpoints_need_a_folder_and_an_interval():
    with pytest.raises(TypeError, match="directory is a bool; give the path of a folder"):
        bmr.sparsify(program, make_data(), key=jax.random.key(0), checkpoints=True)
    with pytest.raises(ValueError, match="interval must not be negative, got -1"):
        bmr.Checkpoints("runs", interval=-1)


def test_the_interval_is_kept(tmp_path):
    checkpointer = Checkpointer(tmp_path, interval=1000.0)
    assert not checkpointer.due()
    checkpointer.close()
    run(tmp_path, num_epochs=4, interval=1000.0)
    steps = [p.name for p in tmp_path.glob("checkpoints/*")]
    assert steps == ["0"]  # only the one at the end
    assert saved(tmp_path)["epoch"] == 4


if __name__ == "__main__":
    run(Path(sys.argv[1]), resume=True)
