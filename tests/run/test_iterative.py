"""Training until the VFE has settled, inside the compiled program; searched rounds and regrowth."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import TraceMeanField_ELBO

import bmrjax as bmr
from bmrjax.infer import AutoMeanField, Engine, Settled
from bmrjax.schedules import Reduce, Regrow, Restore, Stop, Train

ROWS = 100


def data(effects=(2.0, 0.0, 0.0, -1.0)):
    x = jax.random.normal(jax.random.key(0), (ROWS, len(effects)))
    return x, x @ jnp.array(effects) + 0.5 * jax.random.normal(jax.random.key(1), (ROWS,))


def program(x, y=None):
    """A linear regression."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def make(until, loop="auto"):
    engine = Engine(
        program, AutoMeanField(program), optimizer=optax.adabelief(1e-2), num_data=ROWS,
        loss=TraceMeanField_ELBO(), batch_size=50, until=until, loop=loop,
    )  # fmt: skip
    return engine, engine.init(jax.random.key(2), tuple(part[:50] for part in data()))


# --- when a fit has settled ---------------------------------------------------------------


def test_noise_alone_counts_as_settled_and_a_fall_does_not():
    noise = jax.random.normal(jax.random.key(0), (200,))
    fall = jnp.linspace(3.0, 0.0, 200)
    settled = Settled(window=100, tolerance=0.0)
    asked = jnp.int32(200)
    # Without a trend, the second mean is lower by a standard error in one of six series.
    found = [bool(settled(jnp.roll(noise, i), asked)) for i in range(0, 200, 10)]
    assert sum(found) > 10
    assert not settled(noise + fall, asked)


def test_it_is_asked_once_a_window_and_skipped_steps_do_not_count():
    flat = jnp.where(jnp.arange(40) % 7 == 0, jnp.nan, 1.0)
    settled = Settled(window=10)
    asked = [step for step in range(41) if settled(flat, jnp.int32(step))]
    assert asked == [20, 30, 40]
    assert not settled(jnp.full(40, jnp.nan), jnp.int32(40))
    assert not settled(jnp.ones(19), jnp.int32(19))  # too short to tell


@pytest.mark.parametrize("settings", [{"window": 1}, {"tolerance": -1.0}])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="Settled: (window|tolerance) must be at least"):
        Settled(**settings)


@pytest.mark.parametrize("loop", ["fused", "dispatch"])
def test_an_epoch_ends_when_the_fit_has_settled(loop):
    engine, state = make(Settled(window=100), loop)
    state, info = engine.epoch(state, {}, data(), jax.random.key(3), num_steps=5000)
    taken = int(info.num_steps)
    assert taken % 100 == 0
    assert 300 <= taken <= 3000
    assert int(state.num_steps) == taken
    assert np.isfinite(info.losses[:taken]).all()
    assert np.isnan(info.losses[taken:]).all()


@pytest.mark.slow
def test_members_settle_each_in_their_own_time():
    engine, first = make(Settled(window=100))
    second = jax.tree.map(lambda x: x + 3 if x.dtype == jnp.float32 else x, first)
    keys = [jax.random.key(3), jax.random.key(4)]
    many = engine.epoch_of_many(
        [first, second], [{}, {}], data(), keys, num_steps=5000, rates=[1.0, 1.0]
    )
    taken = [int(info.num_steps) for _, info in many]
    assert len(set(taken)) == 2
    # Nobody waits for one that does not take part.
    broken = jax.tree.map(lambda x: x * jnp.nan if x.dtype == jnp.float32 else x, first)
    apart = engine.epoch_of_many(
        [first, broken], [{}, {}], data(), keys, num_steps=5000, rates=[1.0, 0.0]
    )
    assert [int(info.num_steps) for _, info in apart] == [taken[0], 0]
    for start, key, (state, info) in zip((first, second), keys, many, strict=True):
        start = jax.tree.map(jnp.copy, start)
        alone, told = engine.epoch(start, {}, data(), key, num_steps=5000)
        assert int(told.num_steps) == int(info.num_steps)
        np.testing.assert_allclose(told.losses, info.losses, rtol=1e-3)
        np.testing.assert_allclose(
            alone.params["beta_auto_loc"], state.params["beta_auto_loc"], rtol=1e-3
        )


# --- the schedule -------------------------------------------------------------------------

OPTIONS = {
    "batch_size": 50,
    "num_epochs": 30,
    "steps_per_epoch": 3000,
    "criterion": bmr.criteria.Shrinkage(),
    "progress": False,
}


def test_it_finds_the_sparse_model_and_every_step_lowers_the_free_energy():
    schedule = bmr.schedules.Iterative(until=Settled(window=200))
    result = bmr.sparsify(program, data(), key=jax.random.key(0), schedule=schedule, **OPTIONS)
    assert result.keep["beta"].tolist() == [True, False, False, True]
    vfe = [point.vfe for point in result.path]
    assert result.vfe == min(vfe)
    assert vfe[1] < vfe[0]  # right after the reduction
    # Going further is tried, and what it would cost is on the path.
    further = [point for point in result.path if point.taken_back]
    assert further
    assert all(point.kept < 2 and point.vfe > result.vfe for point in further)
    assert result.smallest(vfe_within=10.0).num_kept == 0
    assert all(row["steps"] <= 3000 for row in result.history)
    assert len({row["steps"] for row in result.history}) > 1
    assert len(result.history) < 30


def greedy(found, keep=None, memory=None):
    """Propose everything that is kept."""
    del keep, memory
    posterior = found.posterior
    gone = {name: jnp.zeros(q.loc.shape, bool) for name, q in posterior.items()}
    delta_f = {name: -jnp.square(q.loc / q.scale) for name, q in posterior.items()}
    return bmr.criteria.Decision(gone, delta_f)


@pytest.mark.slow
def test_a_search_goes_only_as_far_as_the_free_energy_falls(monkeypatch):
    monkeypatch.setattr(bmr.criteria.Shrinkage, "__call__", lambda self, *a, **k: greedy(*a, **k))
    options = OPTIONS | {"num_epochs": 6}
    until = Settled(window=200)
    searched = bmr.schedules.Iterative(until=until)
    result = bmr.sparsify(program, data(), key=jax.random.key(0), schedule=searched, **options)
    assert result.keep["beta"].tolist() == [True, False, False, True]
    assert result.path[1].vfe <= result.path[0].vfe
    plain = bmr.schedules.Iterative(until=until, search=False)
    result = bmr.sparsify(program, data(), key=jax.random.key(0), schedule=plain, **options)
    assert result.path[1].kept == 0


class Script(bmr.schedules.Schedule):
    """Reduce, let everything come back, and take that back."""

    measures = True

    def init(self):
        return {"at": 0}

    def __call__(self, report, memory):
        at = memory["at"]
        actions = [Train(), Reduce(), Regrow(), Restore(then=Stop())]
        return actions[at], {"at": at + 1}


@pytest.mark.slow
def test_what_is_gone_comes_back_is_trained_and_may_be_taken_back():
    options = OPTIONS | {"schedule": Script(), "steps_per_epoch": 300, "num_epochs": 5}
    options["guide"] = bmr.infer.AutoMeanField(program)
    result = bmr.sparsify(program, data(), key=jax.random.key(0), **options)
    assert [row["kept"] for row in result.history] == [4, 2, 4]
    assert [row["taken_back"] for row in result.history] == [False, False, True]
    assert result.keep["beta"].tolist() == [True, False, False, True]
    grown = bmr.sparsify(
        program, data(), key=jax.random.key(0), **(options | {"num_epochs": 3})
    ).at(-1)
    assert grown.keep["beta"].all()
    loc = [r.params["beta_auto_loc"] for r in (result, grown)]
    assert np.all(np.abs(loc[0] - loc[1])[1:3] > 0)


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(tmp_path):
    schedule = bmr.schedules.Iterative(until=Settled(window=200), regrowths=1)
    options = OPTIONS | {"schedule": schedule}
    whole = bmr.sparsify(program, data(), key=jax.random.key(0), **options)
    kept = [row["kept"] for row in whole.history]
    grown = next(i for i in range(1, len(kept)) if kept[i] > kept[i - 1])
    for stop in (3, grown + 1):  # between rounds, and while what came back is on trial
        folder = tmp_path / str(stop)
        short = options | {"num_epochs": stop, "checkpoints": bmr.Checkpoints(folder, interval=0.0)}
        bmr.sparsify(program, data(), key=jax.random.key(0), **short)
        longer = options | {"checkpoints": bmr.Checkpoints(folder, interval=0.0, resume=True)}
        result = bmr.sparsify(program, data(), key=jax.random.key(0), **longer)
        assert [row["steps"] for row in result.history] == [row["steps"] for row in whole.history]
        for name in ("vfe", "kept", "taken_back"):
            found, wanted = ([getattr(p, name) for p in r.path] for r in (result, whole))
            assert found == wanted


@pytest.mark.slow
def test_noise_ends_with_nothing():
    x, _ = data()
    noise = 0.5 * jax.random.normal(jax.random.key(9), (ROWS,))
    schedule = bmr.schedules.Iterative(until=Settled(window=200))
    result = bmr.sparsify(program, (x, noise), key=jax.random.key(0), schedule=schedule, **OPTIONS)
    assert result.num_kept == 0


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("criterion", "kept"),
    [
        # The pairs (0, 1) and (2, 3) each hold something that is needed.
        (
            bmr.criteria.Shrinkage(
                groups=bmr.criteria.Groups({"beta": jnp.array([0, 0, 1, 1])}, 2)
            ),
            4,
        ),
        (bmr.criteria.Magnitude(fraction=0.25), 3),
    ],
)
def test_a_search_goes_past_no_target_and_splits_no_group(criterion, kept):
    schedule = bmr.schedules.Iterative(until=Settled(window=200))
    options = OPTIONS | {"criterion": criterion}
    result = bmr.sparsify(program, data(), key=jax.random.key(0), schedule=schedule, **options)
    assert result.num_kept == kept


def test_an_epoch_too_short_to_settle_is_refused_and_the_default_is_not():
    short = OPTIONS | {"steps_per_epoch": 100, "schedule": bmr.schedules.Iterative()}
    with pytest.raises(
        ValueError, match="after 2000 steps at the earliest .* an epoch has 100. Give steps"
    ):
        bmr.sparsify(program, data(), key=jax.random.key(0), **short)
    schedule = bmr.schedules.Iterative(until=Settled(window=100))
    default = OPTIONS | {"steps_per_epoch": None, "schedule": schedule, "num_epochs": 2}
    result = bmr.sparsify(program, data(), key=jax.random.key(0), **default)
    assert all(200 <= row["steps"] <= 2000 for row in result.history)
