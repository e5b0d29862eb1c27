"""The loop over fits and reductions: paths, rounds taken back, bad steps, batches, errors."""

from dataclasses import replace

import grain
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pyarrow
import pyarrow.parquet
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoMultivariateNormal,
    AutoNormal,
)

import bmrjax as bmr
from bmrjax.criteria import Criterion, Decision
from bmrjax.infer.predictive_scores import PredictiveScores

SIZE, ROWS = 6, 48
WEIGHTS = jnp.array([1.5, -2.0, 0.0, 0.0, 0.0, 0.0])


def make_data(seed=0):
    x = jax.random.normal(jax.random.key(seed), (ROWS, SIZE))
    return x, x @ WEIGHTS + 0.3 * jax.random.normal(jax.random.key(seed + 50), (ROWS,))


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)


def run(model=program, data=None, **options):
    settings = {
        "key": jax.random.key(1),
        "num_epochs": 12,
        "batch_size": 16,
        "steps_per_epoch": 30,
        "optimizer": optax.adabelief(3e-2),
        "schedule": bmr.schedules.Verified(wait=3, refit=2, cooldown=2),
        "progress": False,
    }
    return bmr.sparsify(model, make_data() if data is None else data, **{**settings, **options})


def numbers(result):
    return [(row["vfe"], row["kept"], row["skipped_steps"]) for row in result.history]


@pytest.fixture(scope="module")
def result():
    return run(held_out=bmr.HeldOut(make_data(1), every=2, final_samples=20))


# --- what comes back ----------------------------------------------------------------------


def test_the_result_holds_the_run(result):
    assert result.keep["beta"].tolist() == [True, True] + [False] * 4
    assert (result.num_kept, result.num_total) == (2, 6)
    assert result.sparsity == pytest.approx(2 / 3)
    assert result.sparsity_per_layer == {"beta": pytest.approx(2 / 3)}
    assert [row["epoch"] for row in result.history] == list(range(1, 13))
    assert all(row["seconds"] > 0 for row in result.history)
    assert result.history[0]["compile_seconds"] > 0
    assert all(row["compile_seconds"] == 0 for row in result.history[1:])
    assert result.history[-1]["vfe"] < result.history[0]["vfe"]
    # Every second epoch, counted from the last point of the path, but not at the very end.
    points = {point.epoch for point in result.path}
    due, last = [], 0
    for epoch in range(1, 12):
        if epoch - last >= 2:
            due.append(epoch)
            last = epoch
        last = epoch if epoch in points else last
    assert [row["epoch"] for row in result.history if "rmse" in row] == due
    assert set(result.timing) == {"init_seconds", "compile_seconds", "seconds"}
    assert result.vfe_per_datum == pytest.approx(result.vfe / ROWS)


def test_held_out_metrics_are_those_of_the_result(result):
    assert set(result.metrics) == {"rmse", "nll"}
    # The noise is 0.3; three standard errors of a root mean square over 48 data.
    assert result.metrics["rmse"] == pytest.approx(0.3, abs=3 * 0.3 / np.sqrt(2 * ROWS))
    again = result.evaluate(jax.random.key(8), make_data(1), num_samples=200)
    assert again["nll"] == pytest.approx(result.metrics["nll"], abs=0.05)


def test_the_posterior_is_the_conjugate_one_of_what_is_left():
    # Whole batches and a long cooldown: little of the optimiser's noise is left.
    schedule = bmr.schedules.Verified(wait=3, refit=2, cooldown=60)
    result = run(batch_size=None, num_epochs=80, schedule=schedule)
    x, y = make_data()
    left = x[:, :2]
    precision = jnp.eye(2) + left.T @ left / 0.09
    exact = jnp.linalg.solve(precision, left.T @ y) / 0.09
    posterior = result.posterior()["beta"]
    scale = 1 / jnp.sqrt(jnp.diag(precision))  # of the best factorised posterior
    assert float(jnp.max(jnp.abs(posterior.loc[:2] - exact) / scale)) < 0.5
    np.testing.assert_allclose(posterior.scale[:2], scale, rtol=0.15)
    assert not np.any(posterior.loc[2:])
    assert not np.any(posterior.scale[2:])


def test_predictions_with_and_without_targets(result):
    x, y = make_data(2)
    key = jax.random.key(4)
    blind = result.predict(key, x, num_samples=50)
    seen = result.predict(key, x, y, num_samples=50)
    np.testing.assert_allclose(blind.mean, seen.mean, rtol=1e-6)
    np.testing.assert_allclose(seen.mean, x @ WEIGHTS, atol=0.5)
    assert seen.log_prob.shape == (ROWS,)
    np.testing.assert_array_equal(seen.value, y)
    draws = result.sample(key, 7)["beta"]
    assert draws.shape == (7, SIZE)
    assert not np.any(draws[:, 2:])
    assert np.all(draws[:, :2].std(0) > 0)


def test_the_path_can_be_restored(result):
    vfes = [point.vfe for point in result.path]
    assert len(vfes) >= 2
    assert result.vfe == min(vfes)
    for index, point in enumerate(result.path):
        restored = result.at(index)
        assert (restored.vfe, restored.num_kept) == (point.vfe, point.kept)
        np.testing.assert_array_equal(restored.keep["beta"], point.keep["beta"])
        np.testing.assert_array_equal(restored.params["auto_loc"], point.params["auto_loc"])
        assert restored.metrics == point.metrics
        assert set(point.metrics) == {"rmse", "nll"}
    assert result.at(0).num_kept == 6
    assert result.at(-1).vfe == vfes[-1]
    with pytest.raises(IndexError):
        result.at(len(vfes))


def test_the_smallest_point_within_a_tolerance(result):
    def point(vfe, kept):
        return bmr.Point(1, vfe, kept, 6, {}, {}, {})

    path = [point(-100.0, 6), point(-110.0, 4), point(-108.0, 2), point(-50.0, 1)]
    made_up = bmr.Result({}, {}, {}, ROWS, path=path)
    assert made_up.smallest(vfe_within=0.0).vfe == -110.0
    assert made_up.smallest(vfe_within=0.02).vfe == -108.0
    assert made_up.smallest(vfe_within=1.0).vfe == -50.0
    lost = bmr.Result({}, {}, {}, ROWS, path=[point(float("nan"), 1), *path])
    assert lost.smallest(vfe_within=0.0).vfe == -110.0
    with pytest.raises(ValueError, match="no path to choose from"):
        bmr.Result({}, {}, {}, ROWS).smallest(vfe_within=0.1)


def test_with_a_mask_prior_the_point_is_chosen_by_the_whole_free_energy():
    schedule = bmr.schedules.Verified(wait=3, refit=2, cooldown=2, mask_prior=True)
    chosen = run(schedule=schedule)
    criterion = bmr.criteria.SpikeAndSlab()
    for i, point in enumerate(chosen.path):
        expected = criterion.mask_cost(chosen.at(i).keep)
        assert point.mask_cost == pytest.approx(expected)
        assert point.objective == pytest.approx(point.vfe + expected)
    assert len({point.mask_cost for point in chosen.path}) > 1
    assert chosen.vfe == min(chosen.path, key=lambda p: p.vfe + p.mask_cost).vfe
    made_up = [bmr.Point(1, vfe, 1, 6, {}, {}, {}, cost) for vfe, cost in ((5.0, 9.0), (6.0, 7.0))]
    found = bmr.Result({}, {}, {}, ROWS, path=made_up)
    assert found.smallest(vfe_within=0.0).vfe == 6.0


def test_a_mask_prior_needs_a_criterion_that_has_one():
    schedule = bmr.schedules.Verified(mask_prior=True)
    with pytest.raises(ValueError, match="RegularizedHorseshoe has none"):
        run(schedule=schedule, criterion=bmr.criteria.RegularizedHorseshoe())


def test_the_most_predictive_point(result):
    data, key = make_data(1), jax.random.key(5)
    chosen = result.most_predictive(key, data, num_samples=20)
    scores = [
        result.at(i).evaluate(key, data, num_samples=20)["nll"] for i in range(len(result.path))
    ]
    assert len(set(scores)) > 1
    assert chosen.metrics["nll"] == min(scores)
    assert chosen.vfe == result.path[int(np.argmin(scores))].vfe
    with pytest.raises(ValueError, match="no path to choose from"):
        bmr.Result({}, {}, {}, ROWS).most_predictive(key, data)
    with pytest.raises(ValueError, match="No point of the path has a finite"):
        result.most_predictive(key, (data[0] * 1e30, data[1]), num_samples=2)
    with pytest.raises(TypeError, match="most_predictive: data: expected a tuple"):
        result.most_predictive(key, data[0])
    with pytest.raises(ValueError, match="within counts standard errors and must not be negative"):
        result.most_predictive(key, data, within=-1.0)


def test_the_sparsest_point_that_predicts_about_as_well(result, monkeypatch):
    noise = np.random.default_rng(0).normal(size=ROWS)

    def scores(self, params, keep, data, key, *, num_samples):
        kept = sum(int(mask.sum()) for mask in keep.values())
        log_prob = 0.1 * kept + 0.01 * kept * noise
        return PredictiveScores({"nll": -float(log_prob.mean())}, log_prob)

    monkeypatch.setattr(bmr.infer.evaluate.Evaluator, "scores", scores)
    kept = [point.kept for point in result.path]
    for within, expected in ((0.0, max(kept)), (1.0, max(kept)), (1e6, min(kept))):
        chosen = result.most_predictive(jax.random.key(0), make_data(1), within=within)
        assert chosen.num_kept == expected
        assert chosen.metrics["nll"] == pytest.approx(-0.1 * expected, rel=0.05)


def test_the_sparsest_point_that_is_as_good_as_another_result(result, monkeypatch):
    most = max(point.kept for point in result.path)
    rows, errors = np.arange(ROWS), {"reference": 0.1, "path": 0.0}

    def scores(self, params, keep, data, key, *, num_samples):
        kept = sum(int(mask.sum()) for mask in keep.values())
        reference = params.get("reference") is not None
        log_prob = np.full(ROWS, -1.0 if reference else -2.0 + kept / most)
        wrong = errors["reference" if reference else "path"] * ROWS
        probs = np.stack([rows >= wrong, rows < wrong], 1)
        return PredictiveScores({}, log_prob, probs, np.zeros(ROWS, int))

    monkeypatch.setattr(bmr.infer.evaluate.Evaluator, "scores", scores)
    data, key = make_data(1), jax.random.key(0)
    other = replace(result, params={**result.params, "reference": 1.0}, path=[])

    def kept(within):
        return result.most_predictive(key, data, within=within, as_good_as=other).num_kept

    # Only the densest point has a log density of -1.
    assert kept(0.0) == most
    assert kept(1e6) == min(point.kept for point in result.path)
    # Of classes, the errors count too; where no point is as good, the densest predicts best.
    errors["path"] = 0.2
    assert kept(1e4) == min(point.kept for point in result.path)
    with pytest.warns(
        UserWarning,
        match="reaches 1 nats per data point and an accuracy of 0.8958 .*no point of the path",
    ):
        assert kept(1.0) == most
    errors["reference"] = 0.2
    assert kept(200.0) == min(
        point.kept for point in result.path if 1 - point.kept / most <= 200 * 0.005
    )
    with pytest.raises(TypeError, match="as_good_as takes a result.*got dict"):
        result.most_predictive(key, data, as_good_as={})
    with pytest.raises(ValueError, match="must not be negative"):
        result.most_predictive(key, data, as_good_as=other, within=-1.0)


def test_the_key_decides_everything(result):
    again, other = run(), run(key=jax.random.key(2))
    assert numbers(again) == numbers(result)  # metrics are used for reporting only
    np.testing.assert_array_equal(again.params["auto_loc"], result.params["auto_loc"])
    assert numbers(other) != numbers(again)


def test_one_compilation_however_long_the_run():
    traces = []
    for num_epochs in (10, 30):
        calls = []

        def counted(x, y=None, calls=calls):
            calls.append(1)
            program(x, y)

        schedule = bmr.schedules.Verified(wait=2, refit=1, cooldown=1)
        found = run(counted, num_epochs=num_epochs, held_out=make_data(1), schedule=schedule)
        assert found.num_compilations == 1
        assert len({row["kept"] for row in found.history}) > 1
        traces.append(len(calls))
    assert traces[0] == traces[1]


def test_every_epoch_has_noise_and_batches_of_its_own():
    still = run(optimizer=optax.sgd(0.0), criterion=None, num_epochs=4)
    assert len({row["vfe"] for row in still.history}) == 4
    point = {"guide": AutoDelta(program), "steps_per_epoch": 2}  # no noise, but other batches
    still = run(optimizer=optax.sgd(0.0), criterion=None, num_epochs=4, **point)
    assert len({row["vfe"] for row in still.history}) == 4


def test_loops_agree():
    fused, dispatched = (
        run(options=bmr.FitOptions(loop="fused")),
        run(options=bmr.FitOptions(loop="dispatch")),
    )
    assert (fused.loop_mode, dispatched.loop_mode) == ("fused", "dispatch")
    np.testing.assert_allclose(numbers(fused), numbers(dispatched), rtol=1e-4)  # 360 steps
    np.testing.assert_array_equal(fused.keep["beta"], dispatched.keep["beta"])


# --- fits without a criterion -------------------------------------------------------------


def test_map():
    found = run(guide=AutoDelta(program), criterion=None, held_out=make_data(1), num_epochs=20)
    x, y = make_data()
    exact = jnp.linalg.solve(jnp.eye(SIZE) + x.T @ x / 0.09, x.T @ y) / 0.09
    np.testing.assert_allclose(found.params["beta_auto_loc"], exact, atol=0.05)
    assert found.keep == {}
    assert (found.sparsity, found.num_total) == (0.0, 0)
    # All posterior samples are one, so the likelihood is that of the point.
    log_prob = dist.Normal(make_data(1)[0] @ found.params["beta_auto_loc"], 0.3).log_prob
    assert found.metrics["nll"] == pytest.approx(-float(log_prob(make_data(1)[1]).mean()), rel=1e-4)
    assert [point.kept for point in found.path] == [0]


def test_mean_field():
    found = run(criterion=None, sites=["beta"])
    assert found.keep["beta"].tolist() == [True] * SIZE
    assert found.sparsity == 0.0
    assert {row["kept"] for row in found.history} == {SIZE}


def list_of_guides():
    guides = AutoGuideList(program)
    guides.append(AutoNormal(program))
    return guides


@pytest.mark.parametrize("make", [lambda: AutoMultivariateNormal(program), list_of_guides])
def test_any_guide_works_afterwards(make):
    guide = make()
    found = run(
        guide=guide, criterion=None, options=bmr.FitOptions(loss=Trace_ELBO()), num_epochs=15
    )
    draws = guide.sample_posterior(jax.random.key(0), found.params, sample_shape=(100,))["beta"]
    np.testing.assert_allclose(draws.mean(0), WEIGHTS, atol=0.3)
    np.testing.assert_allclose(guide.median(found.params)["beta"], WEIGHTS, atol=0.3)


def test_a_hand_written_guide_is_pruned():
    def guide(x, y=None):
        loc = numpyro.param("loc", jnp.zeros(SIZE))
        scale = numpyro.param("scale", jnp.full(SIZE, 0.1), constraint=dist.constraints.positive)
        numpyro.sample("beta", dist.Normal(loc, scale).to_event(1))

    found = run(guide=guide)
    assert found.keep["beta"].tolist() == [True, True] + [False] * 4
    with pytest.raises(ValueError, match="posterior: the program or its guide needs arguments"):
        found.posterior()
    posterior = found.posterior(np.zeros((2, SIZE)))["beta"]
    kept = np.asarray(found.keep["beta"])
    np.testing.assert_allclose(posterior.loc[kept], found.params["loc"][kept])
    assert (posterior.loc[~kept] == 0).all()


def test_latents_a_datum_with_all_data_in_every_step():
    def local(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            offset = numpyro.sample("offset", dist.Normal(0.0, 0.1))
            numpyro.sample("y", dist.Normal(x @ beta + offset, 0.3), obs=y)

    found = run(local, batch_size=None, sites=["beta"])
    assert found.keep["beta"].tolist() == [True, True] + [False] * 4
    assert found.sample(jax.random.key(0), 3)["offset"].shape == (3, ROWS)
    with pytest.raises(ValueError, match=r"\['offset'\] have one element per data point"):
        run(local, sites=["beta"])


def test_the_kl_term_can_be_weighted_and_warmed_up():
    options = {"criterion": None, "num_epochs": 1, "steps_per_epoch": 1}
    full, none, warm, half = (
        run(**options, options=bmr.FitOptions(**more)).history[0]["vfe"]
        for more in ({}, {"kl_weight": 0.0}, {"kl_warmup": 4}, {"kl_weight": 0.5})
    )
    assert full - none > 1.0
    assert warm - none == pytest.approx((full - none) / 4, rel=1e-4)
    assert half - none == pytest.approx((full - none) / 2, rel=1e-4)


# --- rounds that are taken back -----------------------------------------------------------


class Greedy(Criterion):
    """Remove everything: no round that removes a true coefficient can stand."""

    def __call__(self, found, keep=None, memory=None):
        stays = {name: jnp.zeros(q.loc.shape, bool) for name, q in found.posterior.items()}
        return Decision(stays, {n: jnp.ones_like(q.loc) for n, q in found.posterior.items()})


def test_a_rejected_round_is_undone_exactly():
    def dense(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x[:, :2] @ beta, 0.3), obs=y)

    # Both coefficients are true: every round must be taken back, until the cap is spent.
    cap = {"fraction": 0.5, "min_fraction": 0.2}
    schedule = bmr.schedules.Verified(wait=8, refit=2, cooldown=0, passes=("criterion",), **cap)
    found = run(dense, criterion=Greedy(), schedule=schedule, num_epochs=40)
    assert [row["taken_back"] for row in found.history] == [False] * 8 + [True] * 4
    assert [row["kept"] for row in found.history] == [2] * 8 + [1] * 4
    before, after = found.path
    assert (before.epoch, after.epoch) == (8, 12)
    assert (before.kept, before.vfe) == (after.kept, after.vfe)
    for name, value in before.params.items():
        np.testing.assert_array_equal(value, after.params[name])
    np.testing.assert_array_equal(before.keep["beta"], after.keep["beta"])


def test_a_run_stops_early_once_nothing_more_can_go():
    schedule = bmr.schedules.Verified(wait=8, refit=2, cooldown=3, stop_early=True)
    found = run(schedule=schedule, num_epochs=200)
    assert 0 < found.num_kept
    assert 11 <= len(found.history) < 100
    late = bmr.schedules.Verified(wait=8, refit=2, cooldown=3)
    assert len(run(schedule=late, num_epochs=100).history) == 100


def test_an_unverified_schedule_ends_where_it_ends():
    found = run(schedule=bmr.schedules.Every(wait=3), criterion=Greedy())
    assert found.num_kept == 0
    assert found.vfe == found.path[-1].vfe
    assert not any(row["taken_back"] for row in found.history)


# --- batches ------------------------------------------------------------------------------


def test_batches_are_as_good_as_arrays():
    data = make_data()
    options = {"schedule": bmr.schedules.Every(wait=4, every=2), "batch_size": None}
    whole = run(data=data, **options)
    given = run(data=bmr.Batches([data], num_data=ROWS), **options)
    # The order of the rows in a sum differs, and so does the rounding of 360 steps.
    np.testing.assert_allclose(numbers(whole), numbers(given), rtol=1e-3)
    np.testing.assert_array_equal(whole.keep["beta"], given.keep["beta"])
    assert given.num_compilations == 1
    assert given.path == []


@pytest.mark.slow
def test_grain_batches_from_a_parquet_file(tmp_path):
    x, y = map(np.asarray, make_data())
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": x.tolist(), "y": y.tolist()}), path)
    rows = grain.experimental.ParquetIterDataset(str(path))
    arrays = rows.map(lambda row: {k: np.asarray(v, np.float32) for k, v in row.items()})
    shuffled = grain.experimental.WindowShuffleIterDataset(arrays, window_size=64, seed=0)
    loader = shuffled.batch(16)
    batches = bmr.Batches(loader, num_data=ROWS)
    held_out = dict(zip("xy", make_data(1), strict=True))
    schedule = bmr.schedules.WhenConverged(window=2, tolerance=0.05)
    found = run(data=batches, schedule=schedule, held_out=held_out, num_epochs=25)
    assert found.keep["beta"].tolist() == [True, True] + [False] * 4
    assert found.metrics["rmse"] < 0.6


def test_an_error_of_the_source_comes_through():
    def source(epoch):
        if epoch == 2:
            raise OSError("the disk is gone")
        yield make_data()

    with pytest.raises(OSError, match="the disk is gone"):
        run(data=bmr.Batches(source, num_data=ROWS), schedule=bmr.schedules.Every())


# --- steps that are not finite ------------------------------------------------------------


def fragile(x, y, good):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    ratio = jnp.min(good) / jnp.min(good)  # 0/0 where a row is flagged
    numpyro.sample("y", dist.Normal(ratio * (x @ beta), 0.3), obs=y)


def flagged(bad_steps, steps=4):
    """A source whose batches number `bad_steps` give a loss of NaN."""

    def source(epoch):
        for i in range(steps):
            bad = epoch * steps + i in bad_steps
            yield (*make_data(), np.full(ROWS, 0.0 if bad else 1.0, np.float32))

    return bmr.Batches(source, num_data=ROWS)


FRAGILE = {"schedule": bmr.schedules.Every(wait=1), "steps_per_epoch": 4}


def test_bad_steps_are_skipped_and_counted(capsys, monkeypatch):
    monkeypatch.setattr("bmrjax.run.progress_line.is_watched", lambda: True)
    found = run(
        fragile,
        flagged({1, 5, 6, 11}),
        num_epochs=4,
        options=bmr.FitOptions(max_bad_steps=2),
        progress=True,
        **FRAGILE,
    )
    assert [row["skipped_steps"] for row in found.history] == [1, 2, 1, 0]
    assert found.num_skipped == 4
    assert np.isfinite([row["vfe"] for row in found.history]).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))
    assert "skipped" in capsys.readouterr().err


def test_too_many_in_a_row_stop_the_run_with_the_last_good_state(tmp_path):
    options = {"num_epochs": 9, "guide": AutoDelta(fragile), "criterion": None, **FRAGILE}
    options["options"] = bmr.FitOptions(loss=Trace_ELBO(), max_bad_steps=5)
    checkpoints = bmr.Checkpoints(tmp_path, interval=0)
    with pytest.raises(bmr.NonFiniteError, match="8 steps in a row, up to epoch 4") as caught:
        run(fragile, flagged(range(8, 100)), checkpoints=checkpoints, **options)
    kept = caught.value.result
    assert [row["skipped_steps"] for row in kept.history] == [0, 0, 4, 4]
    assert kept.num_skipped == 8
    good = run(fragile, flagged(()), **{**options, "num_epochs": 2})
    np.testing.assert_array_equal(kept.params["beta_auto_loc"], good.params["beta_auto_loc"])
    assert np.isnan(kept.history[-1]["vfe"])

    # The checkpoint is there, and a source that was mended goes on from it.
    options["guide"] = AutoDelta(fragile)
    checkpoints = replace(checkpoints, resume=True)
    mended = run(fragile, flagged(()), checkpoints=checkpoints, **options)
    assert [row["skipped_steps"] for row in mended.history] == [0, 0, 4, 4, 0, 0, 0, 0, 0]
    assert mended.history[-1]["vfe"] < good.history[-1]["vfe"]


def test_a_diverging_fit_ends_with_finite_parameters():
    with pytest.raises(bmr.NonFiniteError, match="Lower the learning rate") as caught:
        run(optimizer=optax.sgd(1e12), options=bmr.FitOptions(max_bad_steps=5))
    params = jax.tree.leaves(caught.value.result.params)
    assert all(np.isfinite(value).all() for value in params)


# --- the bar and the errors ---------------------------------------------------------------


def test_the_bar_shows_vfe_and_sparsity(capsys, monkeypatch):
    monkeypatch.setattr("bmrjax.run.progress_line.is_watched", lambda: True)
    run(num_epochs=4, progress=True, schedule=bmr.schedules.Every())
    shown = capsys.readouterr().err
    assert "VFE/row" in shown
    assert "elements kept" in shown
    run(num_epochs=2)
    assert capsys.readouterr().err == ""


def uniform(x, y=None):
    beta = numpyro.sample("beta", dist.Uniform(-1.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)


x_, y_ = np.ones((5, SIZE), np.float32), np.ones(5, np.float32)
WRONG = {
    "epochs": ({"num_epochs": 0}, "num_epochs must be at least 1, got 0"),
    "steps": ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, got 0"),
    "batch": ({"batch_size": 0}, "batch_size must be at least 1 or None, got 0"),
    "sites": (
        {"sites": ["gamma"]},
        r"the sites \['gamma'\] cannot be reduced.*Those that can: \['beta'\]",
    ),
    "no sites": ({"sites": []}, "sites is empty"),
    "no normal sites": ({"model": uniform}, "SpikeAndSlab needs a latent site with a normal prior"),
    "a point guide": ({"guide": AutoDelta(program)}, "needs a latent site with a normal prior"),
    "batches": (
        {"data": bmr.Batches([(x_, y_)], num_data=5)},
        "measures the VFE needs arrays, and the data are Batches",
    ),
    "held-out columns": ({"held_out": (x_[:, :3], y_)}, r"held_out must look like the data.*3.*6"),
    "held-out parts": ({"held_out": (x_,)}, "held_out must look like the data"),
    "held-out names": ({"held_out": {"x": x_, "y": y_}}, "held_out must look like the data"),
    "held-out NaN": ({"held_out": (x_ * np.nan, y_)}, r"held_out\[0\] has NaN"),
    "NaN": ({"data": (x_, y_ * np.nan)}, r"data\[1\] has NaN or infinite values in 5 of 5 rows"),
    "loop": (
        {"options": bmr.FitOptions(loop="quick")},
        "loop must be 'auto', 'fused' or 'dispatch'",
    ),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG.keys())
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": jnp.ones((5, 2))}, "expected a tuple of arrays"),
        ({"optimizer": numpyro.optim.Adam(1e-2)}, "give an optax optimiser"),
    ],
)
def test_types_are_checked(options, message):
    with pytest.raises(TypeError, match=message):
        run(**options)
