"""Rounds that are judged by something else than the free energy."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def rows(seed, count):
    key, noise = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(key, (count, 6))
    x = x.at[:, 1].set(x[:, 0] + 0.3 * x[:, 1])
    return x, x[:, 0] + x[:, 2] + 0.5 * jax.random.normal(noise, (count,))


TRAIN, TEST = rows(0, 80), rows(1, 60)


def run(judge, **changes):
    options = {
        "guide": bmr.infer.AutoMeanField(program),
        "schedule": bmr.schedules.Verified(judge=judge, wait=4, refit=1, cooldown=2),
        "held_out": bmr.HeldOut(TEST, samples=50),
    }
    return bmr.sparsify(
        program, TRAIN, key=jax.random.key(2), num_epochs=16, steps_per_epoch=150, batch_size=None,
        progress=False, **{**options, **changes},
    )  # fmt: skip


def test_points_say_what_they_were_judged_by():
    result = run("corrected")
    for i, point in enumerate(result.path):
        found = bmr.overcharge(result.at(i), TRAIN, key=jax.random.key(3))
        assert point.judged < point.vfe
        assert point.judged == pytest.approx(point.vfe - found.nats, abs=0.02)
    assert result.vfe == min(result.path, key=lambda p: p.judged).vfe
    assert {0, 2} <= set(jnp.flatnonzero(result.keep["beta"]).tolist())


def test_rows_kept_out_can_decide():
    result = run("held-out")
    for point in result.path:
        assert point.judged == pytest.approx(80 * point.metrics["nll"], rel=0.02)
    assert result.num_kept < 6
    plain = run("vfe")
    assert all(point.judged is None for point in plain.path)


@pytest.mark.slow
def test_a_run_goes_on_with_its_judge(tmp_path):
    whole = run("corrected")

    def stop(record):
        if getattr(record, "epoch", 0) == 8:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, bmr.CallbackError)):
        run("corrected", checkpoints=bmr.Checkpoints(tmp_path, interval=0), callbacks=[stop])
    resumed = run("corrected", checkpoints=bmr.Checkpoints(tmp_path, interval=0, resume=True))
    assert [p.judged for p in resumed.path] == [p.judged for p in whole.path]
    resumed.save(tmp_path / "saved")
    loaded = bmr.load(tmp_path / "saved")
    assert [p.judged for p in loaded.path] == [p.judged for p in whole.path]


def test_a_judge_that_cannot_judge_is_refused():
    with pytest.raises(ValueError, match="judge must be one of 'vfe', 'corrected', 'held-out'"):
        bmr.schedules.Verified(judge="evidence")
    own = type("Own", (bmr.schedules.Every,), {"judge": "evidence"})
    with pytest.raises(ValueError, match="the schedule's judge must be one of"):
        run("vfe", schedule=own())
    with pytest.raises(ValueError, match="give them as held_out="):
        run("held-out", held_out=None)
    with pytest.raises(ValueError, match="AutoMultivariate has correlations"):
        run("corrected", guide=bmr.infer.AutoMultivariate(program))
