"""Ensembles: each member gives the same result as running it by itself."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bmrjax as bmr
from bmrjax import programs
from bmrjax.infer.engine import Engine

KEYS = [jax.random.key(seed) for seed in range(3)]
OPTIONS = {
    "batch_size": 64,
    "num_epochs": 12,
    "steps_per_epoch": 50,
    "schedule": bmr.schedules.Verified(wait=6, refit=1),
    "progress": False,
}


def classes(rows=256):
    x = jax.random.normal(jax.random.key(5), (rows, 4))
    return x, (x[:, 0] + 0.3 * x[:, 1] > 0).astype(int)


def networks(hidden=()):
    """Return three programs that start at different networks."""
    return [
        programs.classifier(bmr.zoo.MLP(4, hidden, 2, key=key), bmr.priors.Flat()) for key in KEYS
    ]


def _centred(loc):
    """Return a logistic regression whose prior has its location in an array of its own."""

    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(loc, 1.0).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return program


def assert_alike(found, expected):
    assert len(found.history) == len(expected.history)
    for name in ("kept", "taken_back", "rate"):
        values = [[row[name] for row in r.history] for r in (found, expected)]
        assert values[0] == values[1]
    vfe = [[row["vfe"] for row in r.history] for r in (found, expected)]
    np.testing.assert_allclose(*vfe, rtol=1e-3)
    for name, mask in expected.keep.items():
        np.testing.assert_array_equal(found.keep[name], mask)
    assert found.vfe == pytest.approx(expected.vfe, rel=1e-3)
    assert found.metrics.keys() == expected.metrics.keys()


@pytest.fixture(scope="module")
def members():
    data = classes()
    return bmr.ensemble(networks(), data, keys=KEYS, held_out=data, **OPTIONS)


def test_a_member_is_the_run_with_its_key(members):
    data = classes()
    alone = bmr.sparsify(networks()[2], data, key=KEYS[2], held_out=data, **OPTIONS)
    assert_alike(members[2], alone)


def test_members_differ_and_compile_once(members):
    assert len({result.vfe for result in members}) == 3
    assert members[0].num_compilations == 1
    assert all(result.num_kept < result.num_total for result in members)
    starts = [result.params["net.layers.0.weight_auto_loc"] for result in members]
    assert not np.allclose(starts[0], starts[1])


@pytest.mark.slow
def test_a_member_that_stops_early_stays_where_it_stopped():
    data = classes()
    schedule = bmr.schedules.Verified(wait=6, refit=1, min_fraction=0.2, cooldown=0)
    options = OPTIONS | {"num_epochs": 40, "schedule": schedule}
    found = bmr.ensemble(networks((8,)), data, keys=KEYS, **options)
    first, *_, last = sorted(range(len(found)), key=lambda i: len(found[i].history))
    assert len(found[first].history) < len(found[last].history)
    for i in (first, last):
        assert_alike(found[i], bmr.sparsify(networks((8,))[i], data, key=KEYS[i], **options))


@pytest.mark.slow
def test_a_killed_ensemble_goes_on(members, monkeypatch, tmp_path):
    data = classes()
    options = OPTIONS | {"held_out": data, "checkpoints": bmr.Checkpoints(tmp_path, interval=0)}
    train, calls = Engine.epoch_of_many, []

    def dying(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return train(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "epoch_of_many", dying)
        with pytest.raises(KeyboardInterrupt):
            bmr.ensemble(networks(), data, keys=KEYS, **options)
    with pytest.raises(ValueError, match="earlier run"):
        bmr.ensemble(networks(), data, keys=KEYS, **options)
    options["checkpoints"] = bmr.Checkpoints(tmp_path, interval=0, resume=True)
    again = bmr.ensemble(networks(), data, keys=KEYS, **options)
    for found, expected in zip(again, members, strict=True):
        assert_alike(found, expected)


@pytest.mark.slow
def test_one_that_diverges_does_not_take_the_others_along(monkeypatch):
    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x * beta, 0.1), obs=y)

    x = jnp.linspace(-1, 1, 20)
    run = partial(
        bmr.ensemble,
        program,
        (x, 0.5 * x),
        keys=KEYS[:2],
        sites=["beta"],
        batch_size=None,
        num_epochs=4,
        steps_per_epoch=30,
        progress=False,
    )
    good = run()
    init, second = Engine.init, jax.random.key_data(jax.random.split(KEYS[1], 4)[0])

    def poisoned(self, key, batch, **kwargs):
        state = init(self, key, batch, **kwargs)
        if not jnp.array_equal(jax.random.key_data(key), second):
            return state
        return replace(state, params=jax.tree.map(lambda v: v + jnp.nan, state.params))

    monkeypatch.setattr(Engine, "init", poisoned)
    with pytest.raises(bmr.EnsembleError, match="1 of 2 members diverged") as caught:
        run()
    assert list(caught.value.failures) == [1]
    assert_alike(caught.value.results[0], good[0])
    assert len(caught.value.results[1].history) == 1


def test_what_cannot_be_run_is_refused():
    data = classes()
    with pytest.raises(ValueError, match="3 programs for 2 keys"):
        bmr.ensemble(networks(), data, keys=KEYS[:2], **OPTIONS)
    with pytest.raises(ValueError, match="0 keys"):
        bmr.ensemble(networks()[0], data, keys=[], **OPTIONS)
    with pytest.raises(ValueError, match="several keys"):
        bmr.ensemble(networks()[0], data, keys=KEYS[0], **OPTIONS)
    guide = bmr.infer.AutoMeanField(networks()[0])
    with pytest.raises(TypeError, match="give AutoMeanField itself"):
        bmr.ensemble(networks()[0], data, keys=KEYS, guide=guide, **OPTIONS)
    wide = programs.classifier(bmr.zoo.MLP(4, (9,), 2, key=KEYS[0]), bmr.priors.Flat())
    with pytest.raises(ValueError, match="the programs differ in the parameter 'net.layers.0"):
        bmr.ensemble([networks()[0], wide], data, keys=KEYS[:2], **OPTIONS)
    tight = programs.classifier(bmr.zoo.MLP(4, (8,), 2, key=KEYS[1]), bmr.priors.Flat(0.5))
    with pytest.raises(ValueError, match="differ in more than the networks.*trained together"):
        bmr.ensemble([networks((8,))[0], tight], data, keys=KEYS[:2], **OPTIONS)
    centred = [_centred(jnp.full(4, loc)) for loc in (0.0, 1.0)]
    with pytest.raises(ValueError, match="differ in more than the networks.*location of a prior"):
        bmr.ensemble(centred, data, keys=KEYS[:2], **OPTIONS)
    with pytest.raises(TypeError, match="num_epoch"):
        bmr.ensemble(networks()[0], data, keys=KEYS, num_epoch=3)
    batches = bmr.Batches(lambda epoch: iter([data]), num_data=256)
    with pytest.raises(TypeError, match="share arrays"):
        bmr.ensemble(networks()[0], batches, keys=KEYS)


# --- grids --------------------------------------------------------------------------------


def scaled(x, y=None):
    """A classifier whose prior's scale is a hyper-parameter."""
    scale = bmr.hyperparameter("scale", 0.1)
    network = bmr.zoo.MLP(4, (8,), 2, key=KEYS[0])
    return programs.classifier(network, bmr.priors.Flat(scale))(x, y)


@pytest.mark.slow
def test_a_member_of_a_grid_is_the_run_with_its_settings(tmp_path):
    data = classes()
    criteria = [bmr.criteria.SpikeAndSlab(), bmr.criteria.SpikeAndSlab(alpha=3.0)]
    grid = {"scale": [0.1, 1.0], "kl_weight": [0.7], "rate": [2.0], "criterion": criteria}
    options = OPTIONS | {"num_epochs": 9, "held_out": data}
    found = bmr.ensemble(scaled, data, keys=KEYS[:2], grid=grid, **options)
    assert [result.hyperparameters["scale"] for result in found] == [0.1] * 4 + [1.0] * 4
    assert "alpha=3.0" in found[7].hyperparameters["criterion"]
    assert found[0].num_compilations == 1
    assert found[5].num_kept != found[7].num_kept  # the criteria differ
    alone = bmr.sparsify(
        numpyro.handlers.substitute(scaled, data={"scale": 1.0}),
        data,
        key=KEYS[1],
        options=bmr.FitOptions(kl_weight=0.7),
        optimizer=optax.adabelief(2e-2),
        criterion=criteria[1],
        **options,
    )
    assert_alike(found[7], alone)
    found[7].save(tmp_path / "model")
    loaded = bmr.load(tmp_path / "model", model=scaled)
    assert loaded.hyperparameters == found[7].hyperparameters
    assert loaded.params["scale"].shape == ()
    key = jax.random.key(3)
    assert loaded.evaluate(key, data) == pytest.approx(found[7].evaluate(key, data))


@pytest.mark.slow
def test_without_a_grid_a_hyperparameter_is_its_default():
    options = OPTIONS | {"num_epochs": 2, "steps_per_epoch": 20, "criterion": None}
    found = bmr.sparsify(scaled, classes(), key=KEYS[0], **options)
    assert found.params["scale"] == pytest.approx(0.1)
    assert found.hyperparameters == {}
    # What an earlier run learned is taken over, and what it was given is not.
    options |= {"num_epochs": 1, "steps_per_epoch": 1}
    options["options"] = bmr.FitOptions(start=found)
    (again,) = bmr.ensemble(scaled, classes(), keys=KEYS[:1], grid={"scale": [0.3]}, **options)
    assert again.params["scale"] == pytest.approx(0.3)
    learned = [r.params["net.layers.0.weight_auto_loc"] for r in (found, again)]
    np.testing.assert_allclose(*learned, atol=0.02)


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ({"scales": [1.0]}, ValueError, r"no bmr.hyperparameter of that name"),
        ({"scale": []}, ValueError, r"grid\['scale'\] is \[\]; give a list"),
        ({"scale": [1.0, [1.0, 2.0]]}, ValueError, r"of shapes \(\) and \(2,\)"),
        ({"scale": [[1.0, 2.0]]}, ValueError, r"shape \(2,\), and its default has shape \(\)"),
        ({"scale": [float("nan")]}, ValueError, "finite"),
        ({"kl_weight": [0.0]}, ValueError, "must be positive"),
        ({"rate": [-1.0]}, ValueError, "must be positive"),
        ({"criterion": [None]}, TypeError, "has a NoneType; give criteria"),
    ],
)
def test_bad_grids_are_told(grid, error, message):
    with pytest.raises(error, match=message):
        bmr.ensemble(scaled, classes(), keys=KEYS[:1], grid=grid, **OPTIONS)


def test_a_setting_is_no_hyperparameter():
    with pytest.raises(ValueError, match="'rate' is a setting"):
        bmr.hyperparameter("rate", 1.0)
