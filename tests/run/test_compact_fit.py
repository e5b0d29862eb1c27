"""`compact_fit`: a fit that goes on with smaller networks."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.infer.util import log_density

import bmrjax as bmr
from bmrjax.infer import Engine


def data(shape, rows=48, classes=3):
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (rows, *shape))
    return x, jax.random.randint(keys[1], (rows,), 0, classes)


def started(network, prior, rows, *, gone, steps=20, groups=None, **options):
    """Return a fit, and its state after some steps, without the first `gone` units of each kind."""
    shape = rows[0].shape[1:]
    example = jnp.ones(shape) if isinstance(network, tuple | eqx.Module) else rows[0][:2]
    units = bmr.structure.unit_groups(network, example)
    options.setdefault("criterion", bmr.criteria.Shrinkage(groups=units))
    fit = bmr.Fit(bmr.programs.classifier(network, prior), rows, batch_size=16, **options)
    state = fit.init(jax.random.key(1))
    state, _ = fit.epoch(state, jax.random.key(2), num_steps=steps)
    numbers = [n for kind in units.kinds for n in kind.groups[:gone]]
    keep = {
        name: mask & ~jnp.isin(units.ids[name], jnp.array(numbers))
        for name, mask in state.keep.items()
    }
    state, _ = fit.epoch(
        bmr.FitState(state.svi, keep, state.memory), jax.random.key(3), num_steps=3
    )
    return fit, state


class ByInputs(bmr.priors.Prior):
    """Normals whose variance is one over the number of inputs."""

    def layer(self, layer):
        values = {}
        for part, tensor in layer.tensors.items():
            each = dist.Normal(0.0, tensor.fan_in**-0.5).expand(tensor.shape)
            infer = {"layer": layer.name, "init": tensor.init}
            each = each.to_event(len(tensor.shape))
            values[part] = numpyro.sample(layer.site(part), each, infer=infer)
        return values


class LeNet5(eqx.Module):
    """Two convolutions and three dense layers, small enough for a test."""

    convolutions: list
    dense: list

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.convolutions = [
            eqx.nn.Conv2d(1, 6, 5, padding=2, key=keys[0]),
            eqx.nn.Conv2d(6, 8, 5, key=keys[1]),
        ]
        sizes = (8 * 2 * 2, 20, 12, 3)
        self.dense = [
            eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes, sizes[1:], keys[2:], strict=False)
        ]

    def __call__(self, x):
        pool = eqx.nn.MaxPool2d(2, 2)
        for layer in self.convolutions:
            x = pool(jax.nn.relu(layer(x)))
        x = x.ravel()
        for layer in self.dense[:-1]:
            x = jax.nn.relu(layer(x))
        return self.dense[-1](x)


@pytest.fixture(scope="module")
def mlp():
    network = bmr.zoo.MLP(6, (10, 8), 3, key=jax.random.key(4))
    fit, state = started(network, ByInputs(), data((6,)), gone=5)
    return fit, state, bmr.compact_fit(fit, state)


def assert_same_draws(fit, state, small, rows):
    """Compare log likelihoods and log densities of the weights that are left, draw by draw."""
    result, after = fit.result(state), small.fit.result(small.state)
    draws = result.sample(jax.random.key(5), 4, *rows)
    for i in range(4):
        draw = {name: value[i] for name, value in draws.items()}
        less = small.cut(draw)
        _, trace = log_density(fit.model, rows, {}, draw)
        _, other = log_density(small.fit.model, rows, {}, less)
        one, two = (t["y"]["fn"].log_prob(rows[1]) for t in (trace, other))
        assert float(jnp.std(one)) > 1e-3  # the network does something
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
        for name, value in less.items():
            assert other[name]["fn"].shape() == value.shape
    inputs = rows[0]
    before = result.network(inputs[:2])["net"]
    np.testing.assert_allclose(
        jax.vmap(before)(inputs), jax.vmap(after.network(inputs[:2])["net"])(inputs), atol=1e-5
    )


def test_a_perceptron_predicts_the_same_draw_by_draw(mlp):
    fit, state, small = mlp
    assert small.state.keep["net.layers.0.weight"].shape == (5, 6)
    assert small.state.keep["net.layers.1.weight"].shape == (3, 5)
    assert small.state.keep["net.layers.2.weight"].shape == (3, 3)
    assert_same_draws(fit, state, small, data((6,)))


def test_a_network_of_convolutions_predicts_the_same_draw_by_draw():
    rows = data((1, 16, 16))
    prior = bmr.priors.Flat()
    network = LeNet5(jax.random.key(4))
    network = jax.tree.map(lambda a: 2 * a if eqx.is_array(a) else a, network)
    fit, state = started(network, prior, rows, gone=4)
    small = bmr.compact_fit(fit, state)
    shapes = {
        name: mask.shape for name, mask in small.state.keep.items() if name.endswith("weight")
    }
    assert shapes == {
        "net.convolutions.0.weight": (2, 1, 5, 5),
        "net.convolutions.1.weight": (4, 2, 5, 5),
        "net.dense.0.weight": (16, 16),
        "net.dense.1.weight": (8, 16),
        "net.dense.2.weight": (3, 8),
    }
    assert_same_draws(fit, state, small, rows)


@pytest.mark.parametrize(
    "optimizer", [optax.adabelief(1e-2), optax.adam(1e-2), bmr.infer.NaturalGradient()]
)
def test_the_next_update_of_each_kept_weight_is_the_one_it_would_have_had(optimizer):
    network = bmr.zoo.MLP(6, (2, 8), 3, key=jax.random.key(4))
    fit, state = started(
        network, bmr.priors.NormalPrior(1.0), data((6,)), gone=1, optimizer=optimizer
    )
    small = bmr.compact_fit(fit, state)
    names, keys = list(state.svi.params), jax.random.split(jax.random.key(6), 100)
    gradient = {
        name: jax.random.normal(key, state.svi.params[name].shape)
        for name, key in zip(names, keys, strict=False)
    }
    less = small._cut.tree(gradient, small.state.svi.params, "the gradient")
    moved, after = (
        f.engine.step.optimizer.update(g, s.svi.opt_state, s.svi.params)
        for f, s, g in ((fit, state, gradient), (small.fit, small.state, less))
    )
    cut = small._cut.tree(moved[0], after[0], "the update")
    # Natural gradients have a trust region, of means over a site: there only the memory is that of before.
    natural = isinstance(optimizer, bmr.infer.NaturalGradient)
    for name in names:
        assert after[0][name].shape == small.state.svi.params[name].shape
        if not natural:
            np.testing.assert_array_equal(cut[name], after[0][name])
    if natural:
        site = small.state.svi.opt_state.sites["net.layers.0.bias_auto_loc"]
        own = state.svi.opt_state.sites["net.layers.0.bias_auto_loc"]
        assert site.momentum.shape == (1,)
        assert site.mean_square.tolist() == own.mean_square.tolist()
    assert int(small.state.svi.num_steps) == int(state.svi.num_steps) == 23


def test_it_trains_on_reduces_and_shrinks_again(mlp):
    fit, state, small = mlp
    before = jax.tree.map(jnp.copy, small.state)
    state, info = small.fit.epoch(before, jax.random.key(7), num_steps=30)
    assert jnp.isfinite(info.losses).all()
    assert int(state.svi.num_steps) == 53
    keep = {**state.keep}
    keep["net.layers.0.weight"] = keep["net.layers.0.weight"].at[0].set(False)
    keep["net.layers.0.bias"] = keep["net.layers.0.bias"].at[0].set(False)
    again = bmr.compact_fit(small.fit, bmr.FitState(state.svi, keep, state.memory))
    assert again.state.keep["net.layers.1.weight"].shape == (3, 4)
    state, round_ = again.fit.reduce(again.state)
    assert round_.decision.keep["net.layers.0.weight"].shape == (4, 6)
    result = again.fit.result(state)
    assert result.predict(jax.random.key(8), data((6,))[0], num_samples=5).mean.shape == (48, 3)


def test_the_old_state_stays_intact(mlp):
    fit, state, small = mlp
    small.fit.epoch(bmr.compact_fit(fit, state).state, jax.random.key(9), num_steps=2)
    fit.measure(state, jax.random.key(0))  # none of its buffers is gone


def test_the_free_energy_is_that_of_the_same_posterior(mlp):
    """The divergence of kept weights that only removed units read goes; all else is the same."""
    fit, state, small = mlp
    rows = data((6,))
    both = fit.site_posteriors(state), small.fit.site_posteriors(small.state)
    less = small.cut({n: q.loc for n, q in both[0].posterior.items()})
    for name, loc in less.items():
        np.testing.assert_array_equal(loc, both[1].posterior[name].loc)
        # Priors go by the inputs that units had.
        np.testing.assert_allclose(
            both[1].prior[name].scale.ravel()[0], both[0].prior[name].scale.ravel()[0]
        )
    result = small.fit.result(small.state)
    found = [
        r.evaluate(jax.random.key(3), rows, num_samples=2000)["nll"]
        for r in (fit.result(state), result)
    ]
    assert found[0] == pytest.approx(found[1], abs=0.01)  # other draws of the same posterior


def test_a_unit_with_nothing_but_a_bias_is_random_and_stays(mlp):
    fit, state, _ = mlp
    keep = {name: jnp.ones_like(mask) for name, mask in state.keep.items()}
    keep["net.layers.0.weight"] = keep["net.layers.0.weight"].at[:4].set(False)
    keep["net.layers.0.bias"] = keep["net.layers.0.bias"].at[:2].set(False)
    small = bmr.compact_fit(fit, bmr.FitState(state.svi, keep, state.memory))
    assert small.state.keep["net.layers.0.weight"].shape == (8, 6)
    assert_same_draws(fit, bmr.FitState(state.svi, keep, state.memory), small, data((6,)))


def test_running_statistics_are_cut():
    class Normalised(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        last: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key)
            self.first = eqx.nn.Linear(6, 10, key=keys[0])
            self.norm = eqx.nn.BatchNorm(10, "batch", mode="batch")
            self.last = eqx.nn.Linear(10, 3, key=keys[1])

        def __call__(self, x, state):
            x, state = self.norm(self.first(x), state)
            return self.last(jax.nn.relu(x)), state

    network = eqx.nn.make_with_state(Normalised)(jax.random.key(4))
    rows = data((6,))
    fit, state = started(network, bmr.priors.NormalPrior(1.0), rows, gone=4)
    small = bmr.compact_fit(fit, state)
    assert small.state.keep["net.norm.weight"].shape == (6,)
    sizes = {a.shape for a in jax.tree.leaves(small.state.svi.mutable) if a.ndim}
    assert sizes == {(6,)}

    def outputs(fit, state):
        network, buffers = fit.result(state).network(rows[0][:2])["net"]
        inferring = eqx.nn.inference_mode(network)
        return jax.vmap(lambda x: inferring(x, buffers)[0])(rows[0])

    np.testing.assert_allclose(outputs(fit, state), outputs(small.fit, small.state), atol=1e-5)
    after, info = small.fit.epoch(small.state, jax.random.key(5), num_steps=3)
    assert jnp.isfinite(info.losses).all()


def test_a_network_of_flax():
    network = bmr.zoo.NNXMLP(6, (10,), 3, rngs=nnx.Rngs(0))
    rows = data((6,))
    fit, state = started(network, bmr.priors.NormalPrior(1.0), rows, gone=4)
    small = bmr.compact_fit(fit, state)
    one, two = (
        f.result(s).network(rows[0][:2])["net"](rows[0])
        for f, s in ((fit, state), (small.fit, small.state))
    )
    assert {m.shape for m in small.state.keep.values()} == {(6, 6), (6,), (6, 3), (3,)}
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_other_sites_and_arguments_by_name_are_carried_over():
    network = bmr.zoo.MLP(6, (10,), 3, key=jax.random.key(4))

    def program(x, groups, y=None):
        offset = numpyro.sample("offset", dist.Normal(0, 1).expand([4, 3]).to_event(2))
        logits = (
            bmr.random_module("net", network, bmr.priors.Flat(collapsed=True))(x) + offset[groups]
        )
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    x, y = data((6,))
    rows = {"x": x, "groups": jnp.arange(48) % 4, "y": y}
    guide = bmr.infer.AutoMeanField(program)
    fit = bmr.Fit(program, rows, guide, batch_size=None, criterion=bmr.criteria.SpikeAndSlab())
    state, _ = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=20)
    gone = jnp.arange(10) < 4
    keep = {**state.keep}
    keep["net.layers.1.weight"] = keep["net.layers.1.weight"] & ~gone
    small = bmr.compact_fit(fit, bmr.FitState(state.svi, keep, state.memory))
    assert small.state.keep["net.layers.0.weight"].shape == (6, 6)
    for name in ("offset_auto_loc", "net.layers.0.weight_precision_auto_loc"):
        if name in state.svi.params:
            np.testing.assert_array_equal(small.state.svi.params[name], state.svi.params[name])
    assert "offset_auto_loc" in state.svi.params
    _, info = small.fit.epoch(small.state, jax.random.key(5), num_steps=3)
    assert jnp.isfinite(info.losses).all()


def test_rows_of_a_horseshoe_are_cut_where_it_is_clear_which():
    rows = data((6,))
    network = bmr.zoo.MLP(6, (10,), 3, key=jax.random.key(4))
    fit, state = started(network, bmr.priors.RegularizedHorseshoePrior(0.1), rows, gone=4)
    small = bmr.compact_fit(fit, state)
    old, new = state.svi.params, small.state.svi.params
    name = "net.layers.0.row.log_a_auto_loc"
    np.testing.assert_array_equal(new[name], old[name][4:])
    network = bmr.zoo.MLP(6, (10, 10), 3, key=jax.random.key(4))
    fit, state = started(network, bmr.priors.RegularizedHorseshoePrior(0.1), rows, gone=4)
    keep = {**state.keep}
    # The second layer loses as many units as the first, but others.
    for part in ("weight", "bias"):
        mask = keep[f"net.layers.1.{part}"]
        keep[f"net.layers.1.{part}"] = jnp.roll(jnp.ones_like(mask).at[:4].set(False), 2, 0)
    with pytest.raises(ValueError, match="which of its elements to remove does not follow"):
        bmr.compact_fit(fit, bmr.FitState(state.svi, keep, state.memory))


def test_the_memory_of_the_criterion_is_cut():
    network = bmr.zoo.MLP(6, (10,), 3, key=jax.random.key(4))
    criterion = bmr.criteria.RegularizedHorseshoe()
    fit, state = started(
        network, bmr.priors.NormalPrior(1.0), data((6,)), gone=4, criterion=criterion
    )
    state, _ = fit.reduce(state, 0.0)  # nothing is removed, and all is remembered
    small = bmr.compact_fit(fit, state)
    name = "net.layers.0.weight"
    assert float(jnp.std(state.memory[name].loc[4:])) > 0
    np.testing.assert_array_equal(small.state.memory[name].loc, state.memory[name].loc[4:])
    state, round_ = small.fit.reduce(small.state, 0.5)
    assert round_.decision.keep[name].shape == (6, 6)


def test_what_cannot_be_cut_is_said(mlp):
    fit, state, small = mlp
    with pytest.raises(TypeError, match="fit is a Result; give a bmr.Fit"):
        bmr.compact_fit(fit.result(state), state)
    with pytest.raises(TypeError, match="state is a dict"):
        bmr.compact_fit(fit, {})
    whole = {name: jnp.ones_like(mask) for name, mask in state.keep.items()}
    with pytest.raises(ValueError, match="there is nothing to remove: no neuron, channel or head"):
        bmr.compact_fit(fit, bmr.FitState(state.svi, whole, state.memory))

    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([6]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    x, y = data((6,))
    joint = bmr.Fit(program, (x, y * 1.0), batch_size=None)
    with pytest.raises(TypeError, match="the guide is a AutoMultivariate"):
        bmr.compact_fit(joint, joint.init(jax.random.key(0)))
    plain = bmr.Fit(program, (x, y * 1.0), bmr.infer.AutoMeanField(program), batch_size=None)
    with pytest.raises(ValueError, match="calls no random module"):
        bmr.compact_fit(plain, plain.init(jax.random.key(0)))


def test_another_kind_of_network_is_refused():
    network = bmr.zoo.MLP(6, (10,), 3, key=jax.random.key(4))
    deeper = bmr.zoo.MLP(6, (10, 5), 3, key=jax.random.key(4))
    program = bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0))
    other = bmr.infer.with_networks(program, {"net": deeper})
    with pytest.raises(ValueError, match=r"has other layers than the program's: 'layers.2'"):
        numpyro.handlers.seed(other, 0)(jnp.ones((2, 6)))


def test_units_that_their_noise_removes_go_with_weights_that_are_points():
    rows = data((6,))
    noisy = bmr.nn.with_noise(bmr.zoo.MLP(6, (10,), 3, key=jax.random.key(4)))
    program = bmr.programs.classifier(noisy, None)
    criterion = bmr.criteria.BMRSUniform(8)
    fit = bmr.Fit(program, rows, batch_size=16, criterion=criterion)
    state, _ = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=20)
    ((site, mask),) = state.keep.items()
    keep = {site: mask.at[:4].set(False)}
    state = bmr.FitState(state.svi, keep, state.memory)
    small = bmr.compact_fit(fit, state)
    assert small.state.keep[site].shape == (6,)
    own = [name for name in state.svi.params if name.endswith("weight")]
    assert sorted(small.state.svi.params[name].shape for name in own) == [(3, 6), (6, 6)]
    before, after = (
        f.result(s).network(rows[0][:2])["net"] for f, s in ((fit, state), (small.fit, small.state))
    )
    np.testing.assert_allclose(
        *(jax.vmap(eqx.nn.inference_mode(n))(rows[0]) for n in (before, after)), atol=1e-5
    )
    _, info = small.fit.epoch(small.state, jax.random.key(5), num_steps=3)
    assert jnp.isfinite(info.losses).all()


def test_a_result_of_a_smaller_fit_is_saved_and_read(mlp, tmp_path):
    _, _, small = mlp
    result = small.fit.result(small.state)
    result.save(tmp_path / "run")
    loaded = bmr.load(tmp_path / "run", model=small.fit.model)
    x = data((6,))[0]
    one, two = (r.predict(jax.random.key(0), x, num_samples=3).mean for r in (result, loaded))
    np.testing.assert_array_equal(one, two)


def test_runs_of_sparsify_go_on_with_a_smaller_network():
    """A result starts a fit, which is compacted, and its result starts the next run."""
    x, y = data((6,))
    network = bmr.zoo.MLP(6, (10,), 3, key=jax.random.key(4))
    program = bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0))
    units = bmr.structure.unit_groups(network, x[0])
    settings = {"batch_size": 16, "num_epochs": 4, "progress": False}
    result = bmr.sparsify(
        program,
        (x, y),
        key=jax.random.key(1),
        criterion=bmr.criteria.Shrinkage(groups=units),
        schedule=bmr.schedules.Every(wait=1, fraction=0.3),
        **settings,
    )
    fit = bmr.Fit(
        program,
        (x, y),
        batch_size=16,
        criterion=bmr.criteria.Shrinkage(groups=units),
        options=bmr.FitOptions(start=result),
    )
    small = bmr.compact_fit(fit, fit.init(jax.random.key(2)))
    start = small.fit.result(small.state)
    again = bmr.sparsify(
        small.fit.model,
        (x, y),
        key=jax.random.key(3),
        criterion=small.fit.criterion,
        schedule=bmr.schedules.Every(wait=10),
        options=bmr.FitOptions(start=start),
        **settings,
    )
    assert again.keep["net.layers.0.weight"].shape == start.keep["net.layers.0.weight"].shape
    assert again.keep["net.layers.0.weight"].shape[0] < 10
    small_network = start.network(x[:2])["net"]
    whole = result.network(x[:2])["net"]
    np.testing.assert_allclose(jax.vmap(small_network)(x), jax.vmap(whole)(x), atol=1e-5)


def test_the_smaller_engine_has_every_option_of_the_old_one(mlp, monkeypatch):
    given = {}

    class Noted(Engine):
        def __init__(self, *args, **options):
            given.update(options)
            super().__init__(*args, **options)

    monkeypatch.setattr("bmrjax.run.compact_fit.Engine", Noted)
    fit, state, _ = mlp
    bmr.compact_fit(fit, state)
    assert {*given} == {*inspect.signature(Engine).parameters} - {"model", "guide"}
