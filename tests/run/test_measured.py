"""Free energies that are measured on a part of the batches decide as those on all of them."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.run import measured
from bmrjax.run.fit_state import FitState
from bmrjax.run.measured import Measured, Measurer, next_look, settled, shortage, standard_error
from bmrjax.run.point import Point, best
from bmrjax.schedules import Verified

BATCHES = 400


class Table:
    """A fit whose states are rows of a table with the VFE of each batch."""

    def __init__(self, values):
        self.values, self.asked = values, 0
        self.engine = SimpleNamespace(free_energy=self)
        self.arrays = (np.zeros(1),)
        self.placement = SimpleNamespace(parted=lambda tree: tree)

    def num_batches(self, rows):
        return self.values.shape[1]

    def params(self, state):
        return state.svi

    def by_batch(self, params, keep, data, key, numbers):
        self.asked += len(numbers)
        return self.values[params["row"], numbers]


def state(row):
    return FitState({"row": row}, {})


def point(fit, row, *, error):
    vfe = float(fit.values[row].mean()) + error
    return Point(row, vfe, 1, 1, {}, {"row": row}, {}, vfe_error=abs(error))


def pairs(trials, seed=0):
    """Return two states each, from far apart to all but equal, with sorted rows and heavy tails."""
    rng = np.random.default_rng(seed)
    for trial in range(trials):
        level = 1e4 + 3e3 * np.sort(rng.normal(size=BATCHES))
        difference = 100 * rng.standard_t(4, BATCHES) + 1000 * rng.normal() * 10.0 ** -(trial % 5)
        yield np.stack([level, level + difference])


@pytest.mark.parametrize("at", [0.0, 25.0])
def test_a_part_of_the_batches_decides_as_all_of_them(at):
    for values in pairs(500):
        fit = Table(values)
        measure = Measurer(fit, jax.random.key(1))
        before = measure.against(state(0), ())
        fit.asked = 0
        limit = before.vfe + at
        found = measure.against(state(1), (limit,), (state(0), before))
        exact = values[1].mean() - values[0].mean()
        assert (found.vfe <= limit) == (exact <= at)
        # The differences of batches spread by 141, so that 64 of them say 18.
        if abs(exact - at) > 300:
            assert fit.asked <= 2 * 64


def test_what_is_nearer_than_noise_is_measured_on_all_batches():
    rng = np.random.default_rng(0)
    level, noise = rng.normal(size=(2, BATCHES))
    noise -= noise.mean()
    fit = Table(np.stack([1e4 + level, 1e4 + level + noise + 1e-6]))
    measure = Measurer(fit, jax.random.key(0))
    before = measure.against(state(0), ())
    found = measure.against(state(1), (before.vfe,), (state(0), before))
    assert np.isfinite(found.values).all()
    assert found.vfe - before.vfe == pytest.approx(1e-6, rel=1e-3)
    assert found.vfe > before.vfe


def test_its_error_is_that_of_a_sample_without_replacement():
    rng = np.random.default_rng(1)
    values = rng.gamma(2.0, size=50)
    means = [values[rng.permutation(50)[:20]].mean() for _ in range(20_000)]
    errors = [standard_error(values[rng.permutation(50)[:20]], 50) for _ in range(2_000)]
    assert np.mean(np.square(errors)) == pytest.approx(np.var(means), rel=0.04)
    assert standard_error(values, 50) == 0.0


def test_a_look_is_as_large_as_the_last_one_says():
    assert next_look(16, 400, 1.01) == 32
    assert next_look(16, 400, 3.0) == 400  # 256 would cost nearly as much
    assert next_look(16, 1000, 3.0) == 256
    assert next_look(32, 100, 1.01) == 100
    assert shortage(10.0, 1.0, (math.inf,), 16) == 0.0
    assert shortage(10.0, 0.0, (10.5,), 16) == 0.0
    assert shortage(10.0, 1.0, (10.5, 1000.0), 16) > 10
    assert shortage(10.0, 1.0, (10.0,), 16) == shortage(math.nan, 1.0, (1.0,), 16) == math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_never_below_a_limit(bad):
    values = np.tile(np.linspace(0.0, 1.0, BATCHES), (2, 1))
    values[1, 200] = bad
    measure = Measurer(Table(values), jax.random.key(0))
    before = measure.exactly(state(0))
    found = measure.against(state(1), (before.vfe,), (state(0), before))
    # One that is clearly lower on the batches that were looked at would be found out at the end of the run.
    if not np.isfinite(found.vfe):
        assert not found.vfe <= before.vfe
    assert not measure.exactly(state(1)).vfe <= before.vfe


def test_the_best_point_of_a_path_is_that_of_exact_values():
    rng = np.random.default_rng(2)
    for _ in range(100):
        level = rng.normal(size=BATCHES)
        heights = rng.normal(size=(6, 1)) * 10.0 ** rng.integers(-2, 2)
        values = 100 + level + heights + 0.3 * rng.normal(size=(6, BATCHES))
        fit = Table(values)
        measure = Measurer(fit, jax.random.key(3))
        path = [point(fit, row, error=0.5 * rng.normal()) for row in range(5)]
        path.append(point(fit, 5, error=0.0))
        found = settled(path, (state(5), measure.exactly(state(5))), measure)
        exact = values.mean(1)
        assert best(found) == exact.argmin()
        assert found[best(found)].vfe == pytest.approx(exact.min(), abs=1e-12)
        assert found[best(found)].vfe_error == 0
        for row in range(6):
            assert abs(found[row].vfe - exact[row]) <= 6 * found[row].vfe_error + 1e-9


def test_where_the_last_point_is_not_finite_the_others_are_measured_exactly():
    values = 100 + np.random.default_rng(5).normal(size=(3, BATCHES))
    values[2, 7] = np.nan
    fit = Table(values)
    measure = Measurer(fit, jax.random.key(3))
    path = [point(fit, row, error=0.5) for row in range(2)]
    path.append(point(fit, 2, error=0.0))
    found = settled(path, (state(2), measure.exactly(state(2))), measure)
    assert best(found) == values[:2].mean(1).argmin()
    assert found[best(found)].vfe == pytest.approx(values[:2].mean(1).min(), abs=1e-12)


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([30]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


X = jax.random.normal(jax.random.key(0), (600, 30))
Y = X[:, 0] - X[:, 1] + 0.5 * jax.random.normal(jax.random.key(1), (600,))


def run(schedule, **options):
    settings = {"num_epochs": 40, "steps_per_epoch": 20, "batch_size": 20, "progress": False}
    key = jax.random.key(4)
    return bmr.sparsify(program, (X, Y), key=key, schedule=schedule, **{**settings, **options})


@pytest.fixture
def parts(monkeypatch):
    """Measure also so small a table in parts."""
    monkeypatch.setattr(measured, "_FEW", 32)


@pytest.mark.slow
def test_a_small_table_is_measured_whole():
    assert all(point.vfe_error == 0 for point in run(Verified(), num_epochs=15).path)


@pytest.mark.first_cases(1)
@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"tolerance": 2.0}, marks=pytest.mark.slow), {"mask_prior": True}]
)
def test_a_run_decides_as_one_that_measures_all_batches(options):
    sampled, exact = run(Verified(**options)), run(Verified(exact=True, **options))
    names = ("epoch", "kept", "taken_back")
    rows, others = ([[row[n] for n in names] for row in r.history] for r in (sampled, exact))
    assert rows == others
    assert any(row[2] for row in rows) or options
    assert sampled.vfe == exact.vfe
    assert jax.tree.all(jax.tree.map(jnp.array_equal, sampled.params, exact.params))
    assert all(point.vfe_error == 0 for point in exact.path)
    assert any(point.vfe_error > 0 for point in sampled.path)
    for ours, theirs in zip(sampled.path, exact.path, strict=True):
        assert abs(ours.vfe - theirs.vfe) <= 6 * ours.vfe_error + 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("parts")
def test_a_resumed_run_measures_the_same(tmp_path):
    whole = run(Verified(), checkpoints=bmr.Checkpoints(tmp_path / "whole", interval=0))

    class Enough(Exception):
        pass

    def leave(record):
        if type(record).__name__ == "EpochEnd" and record.epoch == 23:
            raise Enough

    left = tmp_path / "left"
    with pytest.raises(bmr.CallbackError):
        run(Verified(), checkpoints=bmr.Checkpoints(left, interval=0), callbacks=[leave])
    resumed = run(Verified(), checkpoints=bmr.Checkpoints(left, interval=0, resume=True))
    assert [p.vfe for p in resumed.path] == [p.vfe for p in whole.path]
    assert [p.vfe_error for p in resumed.path] == [p.vfe_error for p in whole.path]
    assert Measured(1.0) == Measured(1.0, 0.0, np.zeros(3))
