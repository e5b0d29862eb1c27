"""Noise layers: what they multiply, how they are drawn, and what a run makes of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from flax import nnx
from numpyro.infer import SVI, TraceMeanField_ELBO
from starting import started

import bmrjax as bmr
from bmrjax import criteria, handlers, nn, reduction, schedules, zoo
from bmrjax.distributions import PerDatum, TruncatedLogNormal, TruncatedLogUniform
from bmrjax.infer import AutoMeanField
from bmrjax.infer.engine import Engine

KEY = jax.random.key(0)


class Noisy(nnx.Module):
    """A perceptron of Flax NNX with noise on its hidden units."""

    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.noise = nn.NNXMultiplicativeNoise((6,))
        self.second = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(self.noise(nnx.relu(self.first(x))))


def equinox_network():
    return nn.with_noise(zoo.MLP(4, (6,), 3, activation=jax.nn.relu, key=KEY))


NETWORKS = {
    "Equinox": (equinox_network, "net.layers.0.after.value"),
    "NNX": (lambda: Noisy(nnx.Rngs(0)), "net.noise.value"),
}


def data(rows=240):
    x = jax.random.normal(jax.random.key(1), (rows, 4))
    return x, jnp.argmax(x[:, :3], -1)


def latents(program, *args):
    """Return the values of the latent sites."""

    @jax.jit
    def values(args):
        seeded = numpyro.handlers.seed(program, KEY)
        sites = numpyro.handlers.trace(seeded).get_trace(*args).items()
        sampled = {n: s for n, s in sites if s["type"] == "sample" and not s["is_observed"]}
        return {n: s["value"] for n, s in sampled.items()}

    return values(args)


class TestLayer:
    @pytest.mark.parametrize("shape", [(5,), (4, 1), (3, 1, 5), ()])
    def test_multiplies_the_group(self, shape):
        x = jax.random.normal(KEY, (3, 4, 5))
        value = 1.0 + jnp.arange(float(np.prod(shape))).reshape(shape)
        layer = eqx.tree_at(lambda n: n.value, nn.MultiplicativeNoise(shape), value)
        np.testing.assert_array_equal(layer(x), x * value)
        np.testing.assert_array_equal(nn.MultiplicativeNoise(shape)(x), x)
        nnx_layer = nn.NNXMultiplicativeNoise(shape)
        each = jnp.stack([value, 2 * value])
        nnx_layer.value = nnx.Param(each)  # as a random module holds one draw per data point
        np.testing.assert_array_equal(
            nnx_layer(jnp.stack([x, x])), jnp.stack([x * value, 2 * x * value])
        )

    def test_refuses_what_it_does_not_fit(self):
        with pytest.raises(ValueError, match=r"shape \(5,\) does not broadcast .* \(4,\)"):
            nn.MultiplicativeNoise((5,))(jnp.ones(4))
        with pytest.raises(ValueError, match=r"shape \(3, 1\) does not broadcast .* \(3,\)"):
            nn.MultiplicativeNoise((3, 1))(jnp.ones(3))
        with pytest.raises(ValueError, match="positive integers"):
            nn.MultiplicativeNoise((0,))
        with pytest.raises(ValueError, match="low < high"):
            nn.NNXMultiplicativeNoise((3,), low=0.0, high=-1.0)
        with pytest.raises(ValueError, match="kl_weight"):
            nn.MultiplicativeNoise((3,), kl_weight=-1.0)


@pytest.mark.parametrize("library", NETWORKS)
class TestRandomModule:
    def test_is_drawn_for_every_datum_where_the_engine_asks(self, library):
        make, site = NETWORKS[library]
        program = bmr.programs.classifier(make(), None)
        x, y = data(10)
        assert latents(program, x, y)[site].shape == (6,)
        drawn = latents(handlers.draws(program, 10), x, y)
        assert set(drawn) == {site}  # the weights are point estimates
        assert drawn[site].shape == (10, 6)
        assert len(np.unique(drawn[site])) == 60

    def test_every_datum_sees_its_own_draw(self, library):
        make, site = NETWORKS[library]
        x = jnp.tile(jnp.arange(1.0, 5.0), (3, 1))
        noise = jnp.stack([jnp.ones(6), jnp.zeros(6), jnp.arange(6.0)])

        def program(x):
            return bmr.random_module("net", make(), None)(x)

        def outputs(value, rows):
            asked = handlers.draws(program, None if value.ndim == 1 else len(value))
            fitted = numpyro.handlers.substitute(asked, data={site: value})
            return numpyro.handlers.seed(fitted, KEY)(rows)

        together = outputs(noise, x)
        alone = [outputs(value, x[:1])[0] for value in noise]
        np.testing.assert_allclose(together, jnp.stack(alone), rtol=1e-5)
        assert np.abs(together[0] - together[2]).max() > 0.1

    def test_a_part_of_the_batch_is_refused(self, library):
        make, _ = NETWORKS[library]

        def program(x):
            return bmr.random_module("net", make(), None)(x[:2])

        with pytest.raises(ValueError, match="drawn for each of 10 data, and it is called on 2"):
            latents(handlers.draws(program, 10), data(10)[0])

    @pytest.mark.first_cases(1)
    def test_a_run_removes_unused_units_and_compact_takes_them_away(self, library):
        make, site = NETWORKS[library]
        train = data()
        result = bmr.sparsify(
            bmr.programs.classifier(make(), None),
            train,
            key=KEY,
            num_epochs=8,
            steps_per_epoch=60,
            batch_size=60,
            criterion=criteria.BMRSUniform(4),
            schedule=schedules.Every(wait=5),
            optimizer=optax.adam(3e-2),
            held_out=bmr.HeldOut(data(60), final_samples=2),
            progress=False,
        )
        posterior = result.posterior()[site]
        assert isinstance(posterior, reduction.LogNormal)
        assert 0 < result.num_kept < 6
        assert result.metrics["accuracy"] > 0.85
        network = result.network(train[0][:2])["net"]
        noise = network.noise.value[...] if library == "NNX" else network.layers[0].after.value
        np.testing.assert_array_equal(noise == 0, ~result.keep[site])
        kept = result.keep[site]
        np.testing.assert_allclose(noise[kept], posterior.mean[kept], rtol=1e-5)
        small = result.compact(train[0][:2], drop_inputs=False)["net"]
        assert small.after.parameters < small.before.parameters
        # Predictions take the noise at its mean, so two samples of the posterior are one network.
        probs = result.predict(KEY, *train, num_samples=2).mean
        rows = train[0]
        logits = small.network(rows) if library == "NNX" else jax.vmap(small.network)(rows)
        np.testing.assert_allclose(probs, jax.nn.softmax(logits), atol=1e-5)


def test_the_divergence_counts_once_and_by_its_weight():
    def divergence(rows, weight):
        network = nn.with_noise(zoo.MLP(4, (6,), 3, key=KEY), kl_weight=weight)
        program = bmr.programs.classifier(network, None)
        asked = handlers.draws(handlers.hide_data(program), rows)
        guide = AutoMeanField(program)
        x, y = data(rows)
        svi = SVI(asked, handlers.draws(guide, rows), optax.sgd(0.0), TraceMeanField_ELBO())
        return jax.jit(lambda: svi.evaluate(svi.init(KEY, x, y), x, y))()

    q = TruncatedLogNormal(jnp.zeros(6), jnp.exp(-5.0))
    wanted = jnp.sum(numpyro.distributions.kl_divergence(q, TruncatedLogUniform()))
    np.testing.assert_allclose(divergence(10, 1.0), wanted, rtol=1e-5)
    np.testing.assert_allclose(divergence(20, 1.0), wanted, rtol=1e-5)
    each_layer = divergence(10, lambda path, layer: 0.5 if path == "layers.0" else 7.0)
    np.testing.assert_allclose(each_layer, 0.5 * wanted, rtol=1e-5)


def test_gradients_of_a_draw_a_datum_are_right_and_vary_less():
    network = equinox_network()
    program = bmr.programs.classifier(network, None)
    x, y = data(64)
    guide = AutoMeanField(program)
    site = "net.layers.0.after.value"
    params = started(program, guide, x, y)
    params = {**params, f"{site}_auto_scale": jnp.full(6, 0.5)}

    def gradient(key, rows):
        def loss(loc):
            model, asked = handlers.draws(program, rows), handlers.draws(guide, rows)
            values = {**params, f"{site}_auto_loc": loc}
            return TraceMeanField_ELBO().loss(key, values, model, asked, x, y)

        return jax.grad(loss)(jnp.full(6, -0.5))

    keys = jax.random.split(jax.random.key(3), 400)
    once, each = (jax.jit(jax.vmap(lambda k, r=rows: gradient(k, r)))(keys) for rows in (None, 64))
    error = jnp.sqrt((jnp.var(once, 0) + jnp.var(each, 0)) / len(keys))
    assert (np.abs(jnp.mean(once, 0) - jnp.mean(each, 0)) < 4 * error).all()
    assert (jnp.var(each, 0) < 0.2 * jnp.var(once, 0)).all()


def test_removed_noise_is_zero_without_divergence_and_without_gradient():
    keep = jnp.array([True, False, True])

    def divergence(loc):
        q = PerDatum(TruncatedLogNormal(loc, 0.5), num_data=4).without(keep)
        p = PerDatum(TruncatedLogUniform(jnp.full(3, -20.0), 0.0), num_data=4).without(keep)
        return numpyro.distributions.kl_divergence(q, p)

    @jax.jit
    def alone(loc):
        return numpyro.distributions.kl_divergence(
            TruncatedLogNormal(loc, 0.5), TruncatedLogUniform()
        )

    @jax.jit
    def sample(loc):
        return PerDatum(TruncatedLogNormal(loc, 0.5), num_data=4).without(keep).sample(KEY)

    loc = jnp.array([-1.0, -2.0, -3.0])
    value, gradient = jax.jit(jax.value_and_grad(divergence))(loc)
    np.testing.assert_allclose(value, jnp.sum(alone(loc)[keep]), rtol=1e-5)
    assert gradient[1] == 0
    assert (gradient[keep] != 0).all()
    draws = sample(loc)
    assert (draws[:, 1] == 0).all()
    assert (draws[:, keep] > 0).all()


def test_noise_of_a_batch_is_drawn_once():
    network = nn.with_noise(zoo.MLP(4, (6,), 3, key=KEY), per_datum=False)
    program = bmr.programs.classifier(network, None)
    site = "net.layers.0.after.value"
    assert latents(handlers.draws(program, 10), *data(10))[site].shape == (6,)
    guide = AutoMeanField(program)
    assert latents(handlers.draws(guide, 10), *data(10))[site].shape == (6,)


@pytest.mark.slow
def test_bayesian_weights_and_noise_fit_together():
    network = equinox_network()
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    site = "net.layers.0.after.value"
    found = latents(handlers.draws(program, 10), *data(10))
    assert {site, "net.layers.0.layer.weight", "net.layers.0.layer.precision"} < set(found)
    result = bmr.sparsify(
        program,
        data(),
        key=KEY,
        num_epochs=2,
        steps_per_epoch=20,
        criterion=criteria.SignalToNoise(threshold=1.0, family=reduction.LogNormal),
        schedule=schedules.Every(),
        options=bmr.FitOptions(estimator="local"),
        progress=False,
    )
    assert set(result.keep) == {site}
    assert np.isfinite(result.vfe)


def test_the_guide_answers_for_its_noise():
    program = bmr.programs.classifier(equinox_network(), None)
    guide = AutoMeanField(program)
    x, y = data(10)
    site = "net.layers.0.after.value"
    params = started(program, guide, x, y)
    np.testing.assert_allclose(params[f"{site}_auto_scale"], np.exp(-5.0), rtol=1e-5)
    params[f"{site}_auto_scale"] = jnp.full(6, 0.5)
    posterior = TruncatedLogNormal(jnp.zeros(6), 0.5)
    draw = jax.jit(lambda p: guide.sample_posterior(KEY, p, sample_shape=(4000,)))
    draws = draw(params)[site]
    np.testing.assert_allclose(jnp.mean(draws, 0), posterior.mean, rtol=0.02)
    np.testing.assert_allclose(jax.jit(guide.median)(params)[site], posterior.icdf(0.5), rtol=1e-5)


SMALL = {"image_size": 8, "depth": 1, "width": 8}
IMAGE = (1, 8, 8)


def everywhere(path, layer):
    return "outputs" if isinstance(layer, eqx.nn.BatchNorm) else "both"


def small_resnet():
    build = eqx.nn.make_with_state(zoo.ResNet)
    return build(1, 3, blocks=(1, 1), width=4, small_images=True, key=KEY)


class Normalised(eqx.Module):
    """A convolution with batch normalisation in any number of dimensions."""

    conv: eqx.nn.Conv
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, num_dims):
        self.conv = eqx.nn.Conv(num_dims, 1, 4, 3, padding=1, key=KEY)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.last = eqx.nn.Linear(4, 2, key=KEY)

    def __call__(self, x, state):
        x, state = self.norm(self.conv(x), state)
        return self.last(jnp.tanh(x).reshape(4, -1).mean(1)), state


def normalised(num_dims):
    return eqx.nn.make_with_state(Normalised)(num_dims)


# Make a network; where its noise goes; the shape of a data point; how many layers get noise.
ZOO = {
    "ViT": (lambda: zoo.ViT(**SMALL, heads=2, hidden=6, key=KEY), None, IMAGE, 7),
    "ViT, both": (lambda: zoo.ViT(**SMALL, heads=2, hidden=6, key=KEY), everywhere, IMAGE, 8),
    "Mixer": (
        lambda: zoo.MLPMixer(**SMALL, token_hidden=6, channel_hidden=5, key=KEY), None, IMAGE, 5,
    ),
    "GRU": (lambda: zoo.GRU(2, 4, 1, key=KEY), lambda path, layer: "inputs", (8, 2), 1),
    "ResNet": (small_resnet, None, IMAGE, 6),
    "sequence": (lambda: normalised(1), None, (1, 4), 1),
    "volume": (lambda: normalised(3), None, (1, 4, 5, 6), 1),
    "MultiheadAttention": (lambda: Attends(KEY), everywhere, (3, 8), 4),
}  # fmt: skip


class Attends(eqx.Module):
    """The attention of Equinox, as a network of one input."""

    attention: eqx.nn.MultiheadAttention

    def __init__(self, key):
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=key)

    def __call__(self, x):
        return self.attention(x, x, x)


def is_noise(node):
    return isinstance(node, nn.MultiplicativeNoise)


def with_random_noise(network):
    def draw(node):
        if not is_noise(node):
            return node
        return eqx.tree_at(lambda n: n.value, node, jax.random.uniform(KEY, node.value.shape))

    return jax.tree.map(draw, network, is_leaf=is_noise)


@eqx.filter_jit
def run(network, x):
    if not isinstance(network, tuple):
        return jax.vmap(network)(x)
    module, state = eqx.nn.inference_mode(network[0]), network[1]
    return jax.vmap(lambda x: module(x, state)[0], axis_name="batch")(x)


class TestWithNoise:
    @pytest.mark.parametrize("name", ZOO)
    def test_of_the_zoo_is_the_same_network_and_folds_into_it(self, name):
        make, where, shape, count = ZOO[name]
        network = make()
        noisy = nn.with_noise(network, where)
        layers = jax.tree.leaves(noisy, is_leaf=lambda n: isinstance(n, nn.Noisy))
        assert sum(isinstance(n, nn.Noisy) for n in layers) == count
        x = jax.random.normal(KEY, (3, *shape))
        wanted = run(network, x)
        np.testing.assert_allclose(run(noisy, x), wanted, rtol=1e-5, atol=1e-6)
        drawn = with_random_noise(noisy)
        folded = nn.without_noise(drawn)
        assert jax.tree.structure(folded) == jax.tree.structure(network)
        np.testing.assert_allclose(run(folded, x), run(drawn, x), rtol=1e-4, atol=1e-5)
        assert np.abs(run(drawn, x) - wanted).max() > 1e-2

    @pytest.mark.slow
    def test_a_vision_transformer_has_gradients_of_its_noise(self):
        network = nn.with_noise(zoo.ViT(**SMALL, heads=2, hidden=6, out_size=3, key=KEY))
        program = bmr.programs.classifier(network, None)
        x = jax.random.normal(KEY, (6, *IMAGE))
        y = jnp.argmax(x[:, 0, 0, :3], -1)
        asked, guide = handlers.draws(program, 6), AutoMeanField(program)
        params = started(program, guide, x, y)

        @jax.jit
        def gradient(params):
            loss = TraceMeanField_ELBO().loss
            asked_guide = handlers.draws(guide, 6)
            return jax.grad(lambda p: loss(KEY, p, asked, asked_guide, x, y))(params)

        locs = {k: v for k, v in gradient(params).items() if k.endswith("after.value_auto_loc")}
        assert len(locs) == 7
        assert all(np.isfinite(v).all() and np.abs(v).max() > 0 for v in locs.values())

    def test_a_vision_transformer_becomes_smaller(self):
        network = with_random_noise(nn.with_noise(zoo.ViT(**SMALL, heads=2, hidden=6, key=KEY)))

        def values(n):
            return [n.blocks[0].mlp.hidden.after.value, n.blocks[0].attention.value.after.value]

        units, heads = values(network)
        zeros = [units.at[:2].set(0.0), heads.at[:4].set(0.0)]
        network = eqx.tree_at(values, network, zeros)
        x = jax.random.normal(KEY, (3, *IMAGE))
        small = bmr.compact(network, x[0]).network
        assert small.blocks[0].attention.heads == 1
        assert small.blocks[0].mlp.hidden.layer.weight.shape == (4, 8)
        folded = run(nn.without_noise(small), x)
        np.testing.assert_allclose(folded, run(network, x), rtol=1e-4, atol=1e-5)

    def test_a_perceptron_of_equinox_becomes_smaller(self):
        network = nn.with_noise(eqx.nn.MLP(4, 3, 8, 2, key=KEY))

        def values(n):
            return [n.layers[i].after.value for i in (0, 1)]

        network = eqx.tree_at(values, network, [v.at[:2].set(0.0) for v in values(network)])
        assert bmr.compact(network, jnp.ones(4)).network.width_size == 6

    def test_a_network_that_reads_past_the_noise_is_told(self):
        class Reads(eqx.Module):
            first: eqx.nn.Linear
            last: eqx.nn.Linear

            def __call__(self, x):
                return self.last(self.first.weight @ x)

        layers = (eqx.nn.Linear(4, 4, key=KEY), eqx.nn.Linear(4, 2, key=KEY))
        noisy = nn.with_noise(Reads(*layers))
        with pytest.raises(
            AttributeError, match="reads 'weight' of a Linear .* return None for it"
        ):
            noisy(jnp.ones(4))
        with pytest.raises(AttributeError, match="'Noisy' object has no attribute 'absent'"):
            noisy.first.absent  # noqa: B018
        with pytest.raises(ValueError, match=r"none of the layers \['last'\] gets noise"):
            nn.with_noise(zoo.GRU(2, 4, 1, key=KEY))

    def test_is_the_same_network_and_folds_into_it(self):
        network = zoo.MLP(4, (6, 5), 3, key=KEY)
        noisy = nn.with_noise(network, lambda path, layer: "both")
        x = data(7)[0]
        np.testing.assert_array_equal(jax.vmap(noisy)(x), jax.vmap(network)(x))
        drawn = with_random_noise(noisy)
        folded = nn.without_noise(drawn)
        assert jax.tree.structure(folded) == jax.tree.structure(network)
        np.testing.assert_allclose(jax.vmap(folded)(x), jax.vmap(drawn)(x), rtol=1e-4, atol=1e-6)

    def test_convolutions_with_groups_and_batch_normalisation(self):
        class Net(eqx.Module):
            conv: eqx.nn.Conv2d
            norm: eqx.nn.BatchNorm
            grouped: eqx.nn.Conv2d

            def __init__(self, key):
                self.conv = eqx.nn.Conv2d(2, 4, 3, key=key)
                self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
                self.grouped = eqx.nn.Conv2d(4, 6, 3, groups=2, key=key)

            def __call__(self, x, state):
                x, state = self.norm(self.conv(x), state)
                return self.grouped(jax.nn.relu(x)), state

        pair = eqx.nn.make_with_state(Net)(KEY)
        by_default, _ = nn.with_noise(pair)
        assert isinstance(by_default.conv, eqx.nn.Conv2d)  # the normalisation would undo it
        assert isinstance(by_default.norm, nn.Noisy)
        places = {"conv": "inputs", "norm": "outputs", "grouped": "both"}
        noisy, state = nn.with_noise(pair, lambda path, layer: places[path])
        values = [
            jax.random.uniform(jax.random.key(i), v.shape)
            for i, v in enumerate(self._values(noisy))
        ]
        noisy = eqx.tree_at(self._values, noisy, values)
        x = jax.random.normal(KEY, (3, 2, 8, 8))

        def outputs(net):
            net = eqx.nn.inference_mode(net)
            return jax.vmap(lambda x: net(x, state)[0], axis_name="batch")(x)

        folded = nn.without_noise((noisy, state))[0]
        np.testing.assert_allclose(outputs(folded), outputs(noisy), rtol=1e-4, atol=1e-5)

    @staticmethod
    def _values(net):
        return [net.conv.before.value, net.norm.after.value] + [
            net.grouped.before.value,
            net.grouped.after.value,
        ]

    def test_tells_what_it_cannot_do(self):
        with pytest.raises(ValueError, match="none of the layers"):
            nn.with_noise(zoo.MLP(4, (6,), 3, key=KEY), lambda path, layer: None)
        with pytest.raises(ValueError, match="'left'; give 'inputs'"):
            nn.with_noise(zoo.MLP(4, (6,), 3, key=KEY), lambda path, layer: "left")
        with pytest.raises(TypeError, match="NNXMultiplicativeNoise"):
            nn.with_noise(zoo.NNXMLP(4, (6,), 3, rngs=nnx.Rngs(0)))


def test_a_criterion_of_noise_needs_noise():
    program = bmr.programs.classifier(zoo.MLP(4, (6,), 3, key=KEY), bmr.priors.Flat())
    with pytest.raises(ValueError, match="multiplicative noise, and the program has none"):
        bmr.sparsify(program, data(), key=KEY, criterion=criteria.BMRSNormal(), num_epochs=1)


def test_a_mask_reaches_every_draw():
    program = bmr.programs.classifier(equinox_network(), None)
    site = "net.layers.0.after.value"
    keep = {site: jnp.array([True, False] * 3)}
    value = latents(handlers.draws(handlers.prune(program, keep), 5), *data(5))[site]
    assert (value[:, 1::2] == 0).all()
    assert (value[:, ::2] > 0).all()
    with pytest.raises(ValueError, match=r"has shape \(5,\), the site has \(6,\)"):
        latents(handlers.prune(program, {site: jnp.ones(5, bool)}), *data(5))


def test_a_step_compiles_once_while_masks_change():
    program = bmr.programs.classifier(equinox_network(), None)
    engine = Engine(
        program,
        AutoMeanField(program),
        optimizer=optax.adam(1e-2),
        loss=TraceMeanField_ELBO(),
        num_data=240,
        batch_size=60,
    )
    train = data()
    state = engine.init(KEY, jax.tree.map(lambda a: a[:60], train))
    site = "net.layers.0.after.value"
    for kept in (6, 3):
        keep = {site: jnp.arange(6) < kept}
        state, info = engine.epoch(state, keep, train, KEY, num_steps=4)
        assert np.isfinite(info.losses).all()
    assert engine.num_compilations == 1
