"""`Fit`: start, epochs, measuring and reducing in the hands of the caller."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, TraceMeanField_ELBO

import bmrjax as bmr


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)


@pytest.fixture(scope="module")
def data():
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (60, 5))
    return x, x[:, 0] - x[:, 3] + 0.3 * jax.random.normal(keys[1], (60,))


@pytest.fixture(scope="module")
def fit(data):
    guide = bmr.infer.AutoMeanField(program)
    return bmr.Fit(program, data, guide, batch_size=None, criterion=bmr.criteria.Shrinkage())


def run(fit, state, epochs):
    losses = []
    for key in jax.random.split(jax.random.key(1), epochs):
        state, info = fit.epoch(state, key)
        losses.append(float(jnp.mean(info.losses)))
    return state, losses


def test_a_fit_ends_where_numpyros_own_svi_does(fit, data):
    state, _ = run(fit, fit.init(jax.random.key(0)), 8)
    svi = SVI(program, fit.guide, fit.engine.optimizer, TraceMeanField_ELBO())
    theirs = svi.run(jax.random.key(2), 800, *data, progress_bar=False).params
    ours = fit.params(state)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=0.04)  # both go on jumping about


def test_the_loop_of_sparsify_written_out_gives_the_same_numbers(fit, data):
    """`sparsify` reduces before an epoch once its schedule says so; here the caller does."""
    init_key, run_key, vfe_key, _ = jax.random.split(jax.random.key(7), 4)
    state = fit.init(init_key)
    for epoch in range(6):
        if epoch >= 3:
            state, _ = fit.reduce(state, 0.5)
        state, _ = fit.epoch(state, jax.random.fold_in(run_key, epoch))
    result = bmr.sparsify(
        program,
        data,
        key=jax.random.key(7),
        guide=fit.guide,
        batch_size=None,
        criterion=bmr.criteria.Shrinkage(),
        schedule=bmr.schedules.Every(wait=3, fraction=0.5),
        num_epochs=6,
        progress=False,
    )
    for name, value in fit.params(state).items():
        np.testing.assert_array_equal(value, result.params[name])
    np.testing.assert_array_equal(state.keep["beta"], result.keep["beta"])
    assert fit.measure(state, vfe_key) == result.path[-1].vfe


def test_a_caller_can_take_a_round_back(fit):
    """A state is a pytree: a copy is what a later epoch cannot touch."""
    state, _ = run(fit, fit.init(jax.random.key(0)), 4)
    before = jax.tree.map(jnp.copy, state)
    key = jax.random.key(3)
    vfe = fit.measure(state, key)
    state, round_ = fit.reduce(state)
    assert int(round_.removed) == int(round_.proposed) == 3
    state, _ = run(fit, state, 2)
    assert fit.measure(before, key) == vfe
    assert fit.measure(state, key) < vfe


def test_a_fit_goes_on_where_jax_compiles_nothing(fit):
    """As under `jax.disable_jit`, which some set to look at the values in a program."""
    state, _ = fit.epoch(fit.init(jax.random.key(0)), jax.random.key(1), num_steps=5)
    network = bmr.zoo.MLP(2, (3,), 1, key=jax.random.key(0))
    expected = fit.params(state), network.layers[0].weight
    with jax.disable_jit():
        state, _ = fit.epoch(fit.init(jax.random.key(0)), jax.random.key(1), num_steps=5)
        network = bmr.zoo.MLP(2, (3,), 1, key=jax.random.key(0))
        found = fit.params(state), network.layers[0].weight
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_new_masks_compile_nothing(data):
    guide = bmr.infer.AutoMeanField(program)
    fit = bmr.Fit(program, data, guide, batch_size=20, criterion=bmr.criteria.Shrinkage())
    state = fit.init(jax.random.key(0))
    for key in jax.random.split(jax.random.key(1), 4):
        state, info = fit.epoch(state, key)
        state, _ = fit.reduce(state, 0.3)
    assert info.losses.shape == (100,)
    assert fit.engine.num_compilations == 1
    assert int(jnp.sum(state.keep["beta"])) == 2


def test_a_result_of_a_fit_predicts_and_is_saved(fit, data, tmp_path):
    state, _ = run(fit, fit.init(jax.random.key(0)), 4)
    state, _ = fit.reduce(state)
    result = fit.result(state)
    assert result.num_kept == 2
    assert result.inspection.judged == ["beta"]
    mean = result.predict(jax.random.key(0), data[0]).mean
    assert float(jnp.mean(jnp.square(mean - data[1]))) < 0.15
    result.save(tmp_path / "result")
    again = bmr.load(tmp_path / "result", model=program, guide=fit.guide)
    np.testing.assert_array_equal(again.keep["beta"], state.keep["beta"])


def test_a_fit_goes_on_from_a_result(fit, data):
    state, _ = run(fit, fit.init(jax.random.key(0)), 4)
    state, _ = fit.reduce(state)
    second = bmr.Fit(
        program, data, batch_size=None, options=bmr.FitOptions(start=fit.result(state))
    )
    begun = second.init(jax.random.key(5))
    np.testing.assert_array_equal(begun.keep["beta"], state.keep["beta"])
    np.testing.assert_array_equal(
        second.params(begun)["beta_auto_loc"], fit.params(state)["beta_auto_loc"]
    )


def test_batches_are_read_from_the_epoch_that_is_asked_for(data):
    seen = []

    def source(epoch):
        seen.append(epoch)
        for i in range(6):
            yield tuple(np.asarray(a)[10 * i : 10 * i + 10] for a in data)

    batches = bmr.Batches(source, num_data=60)
    fit = bmr.Fit(program, batches, bmr.infer.AutoMeanField(program))
    state = fit.init(jax.random.key(0))
    seen.clear()
    state, info = fit.epoch(state, jax.random.key(1), num_steps=6, index=2)
    assert seen == [2]
    assert np.isfinite(info.losses).all()
    with pytest.raises(ValueError, match="measured on arrays"):
        fit.measure(state, jax.random.key(2))


def test_batches_with_an_array_without_rows_are_scaled_by_their_rows(data):
    def scaled(a_scale, x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, a_scale).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)

    x, y = map(np.asarray, data)
    ones = np.ones(5, np.float32)
    without = [{"x": x[i : i + 10], "y": y[i : i + 10]} for i in range(0, 60, 10)]
    losses = []
    for model, source in (
        (lambda x, y=None: scaled(ones, x, y), without),
        (scaled, [{"a_scale": ones, **batch} for batch in without]),
    ):
        guide = bmr.infer.AutoMeanField(model)
        fit = bmr.Fit(model, bmr.Batches(source, num_data=60), guide, criterion=None)
        _, info = fit.epoch(fit.init(jax.random.key(0)), jax.random.key(1), num_steps=3)
        losses.append(np.asarray(info.losses))
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_what_cannot_be_done_is_said(data):
    fit = bmr.Fit(program, data, batch_size=None, criterion=None)
    state = fit.init(jax.random.key(0))
    with pytest.raises(ValueError, match="nothing to reduce with"):
        fit.reduce(state)
    with pytest.raises(ValueError, match="num_steps"):
        fit.epoch(state, jax.random.key(0), num_steps=0)
    with pytest.raises(TypeError, match="PRNG key"):
        fit.epoch(state, 3)
    fit.epoch(state, jax.random.key(0), num_steps=2)
    for use in (fit.reduce, lambda s: fit.epoch(s, jax.random.key(0))):
        with pytest.raises(ValueError, match="has consumed this state"):
            use(state)
    key = jax.random.key(0)
    uses = {
        "epoch": lambda state: fit.epoch(state, key),
        "measure": lambda state: fit.measure(state, key),
        "reduce": fit.reduce,
        "params": fit.params,
        "site_posteriors": fit.site_posteriors,
        "result": fit.result,
    }
    for name, use in uses.items():
        with pytest.raises(TypeError, match=f"Fit.{name}: state is a NoneType; give the state"):
            use(None)
        with pytest.raises(TypeError, match=f"Fit.{name}: state is a tuple; give the state"):
            use((fit.init(key), None))
    state = fit.init(jax.random.key(0))
    with pytest.raises(ValueError, match="from 0 to 1"):
        fit.reduce(state, 50)
    with pytest.raises(TypeError, match="an object like"):
        bmr.Fit(program, data, criterion=bmr.criteria.Shrinkage)
    with pytest.raises(TypeError, match="first argument is a"):
        bmr.Fit(3, data)
    with pytest.raises(TypeError, match="PRNG key"):
        fit.init(0)
    fixed = numpyro.handlers.condition(numpyro.handlers.seed(program, 0), {"beta": jnp.zeros(5)})
    with pytest.raises(TypeError, match=r"the program is within numpyro\.handlers\.seed"):
        bmr.Fit(fixed, data)
    with pytest.raises(TypeError, match=r"the guide is within numpyro\.handlers\.seed"):
        bmr.Fit(program, data, numpyro.handlers.seed(bmr.infer.AutoMeanField(program), 0))
