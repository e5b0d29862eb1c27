import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.infer import SVI, Predictive, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal

from bmrjax import handlers, init_to_network, priors, random_module, sparsify, zoo
from bmrjax.structure.network_arrays import parts_of

KEY = jax.random.key(0)


class Nested(eqx.Module):
    """Layers in dicts, tuples and modules, and an array of its own."""

    blocks: dict
    pair: tuple
    token: jax.Array

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.blocks = {"in": eqx.nn.Linear(4, 6, key=keys[0])}
        self.pair = (eqx.nn.LayerNorm(6), eqx.nn.Linear(6, 2, key=keys[1]))
        self.token = jax.random.normal(keys[2], (6,))

    def __call__(self, x):
        return self.pair[1](self.pair[0](self.blocks["in"](x) + self.token))


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell

    def __call__(self, x):
        return jax.lax.scan(lambda h, i: (self.cell(i, h), None), jnp.zeros(3), x)[0]


class NormedEqx(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.linear = eqx.nn.Linear(4, 3, key=key)
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")

    def __call__(self, x, state):
        return self.norm(self.linear(x), state)


class NormedNNX(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.linear(x)))


def eqx_networks():
    x = jax.random.normal(KEY, (5, 4))
    images = jax.random.normal(KEY, (2, 1, 28, 28))
    yield "mlp", zoo.MLP(4, [5, 6], 3, key=KEY), x
    yield "lenet5", zoo.LeNet5(conv_features=(2, 3, 4), hidden=5, key=KEY), images
    yield "nested", Nested(KEY), x
    yield "gru", Recurrent(eqx.nn.GRUCell(2, 3, key=KEY)), jax.random.normal(KEY, (5, 6, 2))
    yield "embedding", eqx.nn.Embedding(7, 3, key=KEY), jnp.arange(5)
    yield "conv1d", eqx.nn.Conv1d(2, 3, 2, key=KEY), jax.random.normal(KEY, (5, 2, 8))
    yield "transpose", eqx.nn.ConvTranspose1d(2, 3, 2, key=KEY), jax.random.normal(KEY, (5, 2, 8))


def nnx_networks():
    x = jax.random.normal(KEY, (5, 4))
    yield "mlp", zoo.NNXMLP(4, [5, 6], 3, rngs=nnx.Rngs(0)), x
    yield "conv", nnx.Conv(2, 3, (3,), rngs=nnx.Rngs(0)), jax.random.normal(KEY, (5, 8, 2))
    yield "norm", nnx.LayerNorm(4, rngs=nnx.Rngs(0)), x
    yield "embed", nnx.Embed(7, 3, rngs=nnx.Rngs(0)), jnp.arange(5)
    yield "batch-norm", NormedNNX(nnx.Rngs(0)), x


def program_of(network, prior=None):
    def program(x, y=None):
        out = random_module("net", network, prior or priors.NormalPrior(1.0))(x)
        numpyro.sample("y", dist.Normal(out, 1.0).to_event(out.ndim - 1), obs=y)

    return program


def own_weights(program, x):
    """Run the program in inference mode with every site at the network's own value."""

    def own(site):
        return site["infer"].get("init") if site["type"] == "sample" else None

    seeded = numpyro.handlers.seed(handlers.inference(program), KEY)
    substituted = numpyro.handlers.substitute(seeded, substitute_fn=own)
    return numpyro.handlers.trace(substituted).get_trace(x)


def made(networks, name):
    return next(each[1:] for each in networks if each[0] == name)


EQUINOX = ("mlp", "lenet5", "nested", "gru", "embedding", "conv1d", "transpose")
NNX = ("mlp", "conv", "norm", "embed", "batch-norm")


@pytest.mark.parametrize("name", EQUINOX)
def test_equinox_outputs_are_the_networks_own(name):
    network, x = made(eqx_networks(), name)
    trace = own_weights(program_of(network), x)
    np.testing.assert_allclose(trace["y"]["fn"].mean, jax.vmap(network)(x), atol=1e-5)


@pytest.mark.parametrize("name", NNX)
def test_nnx_outputs_are_the_networks_own(name):
    network, x = made(nnx_networks(), name)
    trace = own_weights(program_of(network), x)
    network.eval()
    np.testing.assert_allclose(trace["y"]["fn"].mean, network(x), atol=1e-5)
    network.train()


def test_sites_have_readable_names():
    _, network, x = next(iter(n for n in eqx_networks() if n[0] == "nested"))
    sites = [n for n, s in own_weights(program_of(network, priors.Flat()), x).items() if n != "y"]
    assert sites == [
        "net.blocks.in.precision",
        "net.blocks.in.weight",
        "net.blocks.in.bias",
        "net.pair.0.precision",
        "net.pair.0.weight",
        "net.pair.0.bias",
        "net.pair.1.precision",
        "net.pair.1.weight",
        "net.pair.1.bias",
        "net.precision",
        "net.token",
    ]
    _, network, x = next(iter(nnx_networks()))
    trace = own_weights(program_of(network), x)
    assert {"net.layers.0.kernel", "net.layers.2.bias"} <= set(trace)


def test_both_libraries_give_the_same_loss():
    mine, theirs = zoo.MLP(4, [5], 3, key=KEY), zoo.NNXMLP(4, [5], 3, rngs=nnx.Rngs(0))
    for layer, other in zip(mine.layers, theirs.layers, strict=True):
        other.kernel[...], other.bias[...] = layer.weight.T, layer.bias
    x, y = jax.random.normal(KEY, (5, 4)), jnp.ones((5, 3))
    losses = []
    for network in (mine, theirs):
        program = program_of(network, priors.Flat())
        guide = AutoNormal(program, init_loc_fn=init_to_network, init_scale=1e-6)
        svi = SVI(program, guide, optax.adabelief(1e-3), TraceMeanField_ELBO())
        losses.append(jax.jit(lambda svi=svi: svi.evaluate(svi.init(KEY, x, y), x, y))())
    np.testing.assert_allclose(*losses, rtol=1e-4)  # noise of width 1e-6 differs by layout


@pytest.mark.slow
def test_predictive_and_svi_work_without_the_engine():
    network = zoo.MLP(4, [5], 3, dropout=0.3, key=KEY)
    program, x = program_of(network, priors.Flat()), jax.random.normal(KEY, (6, 4))
    draws = jax.jit(Predictive(program, num_samples=3))(jax.random.key(1), x)
    assert draws["y"].shape == (3, 6, 3)
    assert draws["net.layers.0.weight"].shape == (3, 5, 4)
    guide = AutoNormal(program, init_loc_fn=init_to_network)
    svi = SVI(program, guide, optax.adam(1e-2), TraceMeanField_ELBO())
    result = svi.run(jax.random.key(0), 20, x, jnp.zeros((6, 3)), progress_bar=False)
    assert result.losses[-1] < result.losses[0]


# Flax's statistics are kept in tests/infer/test_estimate.py.
LAYERS = {
    "equinox.Linear": (lambda: eqx.nn.Linear(3, 5, key=KEY), (3,)),
    "equinox.Conv": (lambda: eqx.nn.Conv1d(4, 6, 3, groups=2, key=KEY), (4, 9)),
    "equinox.ConvTranspose": (lambda: eqx.nn.ConvTranspose1d(3, 5, 2, key=KEY), (3, 9)),
    "nnx.Linear": (lambda: nnx.Linear(3, 5, rngs=nnx.Rngs(0)), (1, 3)),
    "nnx.LinearGeneral": (lambda: nnx.LinearGeneral(3, (2, 5), rngs=nnx.Rngs(0)), (1, 3)),
    "nnx.LinearGeneral, two inputs": (
        lambda: nnx.LinearGeneral((2, 3), 5, axis=(-2, -1), rngs=nnx.Rngs(0)), (1, 2, 3)
    ),
    "nnx.Conv": (
        lambda: nnx.Conv(4, 6, (3,), feature_group_count=2, rngs=nnx.Rngs(0)), (1, 9, 4)
    ),
    "nnx.ConvTranspose": (lambda: nnx.ConvTranspose(3, 5, (2,), rngs=nnx.Rngs(0)), (1, 9, 3)),
    "nnx.ConvTranspose, turned": (
        lambda: nnx.ConvTranspose(3, 5, (2,), transpose_kernel=True, rngs=nnx.Rngs(0)), (1, 9, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_the_fan_in_is_how_many_weights_meet_in_an_output(name):
    make, shape = LAYERS[name]
    network, seen = make(), {}

    class Spy(priors.NormalPrior):
        def layer(self, layer):
            seen.update(layer.tensors)
            return super().layer(layer)

    numpyro.handlers.seed(lambda: random_module("net", network, Spy()), KEY)()
    parts = parts_of(network)

    def middle(arrays):
        out = parts.call(arrays, [jax.random.normal(KEY, shape)])
        return out[tuple(n // 2 for n in out.shape)]

    for path, gradient in zip(parts.names, jax.grad(middle)(parts.arrays), strict=True):
        assert seen[path].fan_in == int(jnp.sum(gradient != 0)), path
        # An output is of one row.
        by_row = jnp.moveaxis(gradient, seen[path].row_axis, 0).reshape(seen[path].num_rows, -1)
        assert int(jnp.sum((by_row != 0).any(1))) == 1, path


@pytest.mark.parametrize("library", ["equinox", pytest.param("nnx", marks=pytest.mark.slow)])
def test_batch_norm_state_is_kept(library):
    if library == "equinox":
        network = eqx.nn.make_with_state(NormedEqx)(KEY)
    else:
        network = NormedNNX(nnx.Rngs(0))
    x = 3 + 2 * jax.random.normal(KEY, (40, 4))
    result = sparsify(
        program_of(network),
        (x, jnp.zeros((40, 3))),
        key=KEY,
        num_epochs=2,
        batch_size=20,
        criterion=None,
        held_out=(x, jnp.zeros((40, 3))),
        progress=False,
    )
    start = own_weights(program_of(network), x)["net.buffers"]["value"]
    moved = [not np.allclose(start[n], result.params["net.buffers"][n]) for n in start]
    assert any(moved)
    first = result.predict(jax.random.key(1), x, num_samples=2).mean
    again = result.predict(jax.random.key(1), x[:7], num_samples=2).mean
    # Running statistics, not those of the batch: a row's prediction ignores its neighbours.
    np.testing.assert_allclose(first[:7], again, atol=1e-5)


@pytest.mark.parametrize(
    "network", [zoo.MLP(4, [30], 2, dropout=0.5, key=KEY), NormedNNX(nnx.Rngs(0))]
)
def test_dropout_follows_the_key_and_stops_at_inference(network):
    x = jax.random.normal(KEY, (5, 4))

    def forward(program, key):
        def own(site):
            return site["infer"].get("init") if site["type"] == "sample" else None

        substituted = numpyro.handlers.substitute(program, substitute_fn=own)
        trace = numpyro.handlers.trace(numpyro.handlers.seed(substituted, key)).get_trace(x)
        return trace["y"]["fn"].mean

    program = program_of(network)
    a, b = (forward(program, jax.random.key(i)) for i in (1, 2))
    assert not np.allclose(a, b)
    quiet = handlers.inference(program)
    np.testing.assert_array_equal(*(forward(quiet, jax.random.key(i)) for i in (1, 2)))


def test_layers_can_stay_deterministic():
    network = zoo.MLP(4, [5], 3, key=KEY)

    def program(x):
        return random_module(
            "net", network, priors.NormalPrior(), random=lambda path: path == "layers.1"
        )(x)

    seeded = numpyro.handlers.seed(program, KEY)
    trace = numpyro.handlers.trace(seeded).get_trace(jnp.ones((2, 4)))
    assert trace["net.layers.0.weight"]["type"] == "param"
    assert trace["net.layers.1.weight"]["type"] == "sample"


class Complex(eqx.Module):
    phase: jax.Array

    def __call__(self, x):
        return x


class Tied(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __call__(self, x):
        return self.b(self.a(x))


def tied():
    a = eqx.nn.Linear(3, 3, key=KEY)
    b = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(3, 3, key=jax.random.key(1)), a.weight)
    return Tied(a, b)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Complex(jnp.ones(2, jnp.complex64)), "layer 'phase' holds a complex array"),
        (tied(), "layers 'a.weight' and 'b.weight' hold the same array"),
        (eqx.nn.Identity(), "Identity has no floating-point arrays"),
        (jnp.tanh, "expected an Equinox module"),
    ],
)
def test_what_cannot_be_lifted_is_named(network, message):
    with pytest.raises(TypeError, match=message):
        numpyro.handlers.seed(program_of(network), KEY)(jnp.ones((2, 3)))


def test_a_prior_must_be_a_prior():
    with pytest.raises(TypeError, match="the prior is a Normal; give a bmrjax prior"):
        random_module("net", zoo.MLP(2, [2], 1, key=KEY), dist.Normal())


def test_a_prior_must_return_every_tensor():
    class Forgetful(priors.Prior):
        def layer(self, layer):
            return {"weight": jnp.zeros(layer.tensors["weight"].shape)}

    with pytest.raises(
        ValueError, match="returned nothing for tensor 'bias' of layer 'net.layers.0'"
    ):
        random_module("net", zoo.MLP(2, [2], 1, key=KEY), Forgetful())
