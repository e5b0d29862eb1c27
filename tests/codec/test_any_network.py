"""Networks of any class that can be imported: saved, and loaded by those who allow their names."""

import dataclasses
import enum
import functools
import sys
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import codec, zoo
from bmrjax.structure import named_arrays

HERE = sys.modules[__name__]
FINE: dict[str, Any] = {"quantiser": codec.Uniform(1e-5), "dense": "float32"}
KEY = jax.random.key(0)


def through(network, allow=(), **options):
    return codec.decode(codec.encode(network, **FINE, **options), allow=allow)


def test_a_default_equinox_perceptron_goes_through():
    network = eqx.nn.MLP(3, 2, 8, 2, key=KEY)
    decoded = through(network)
    assert jax.tree.structure(decoded) == jax.tree.structure(network)
    assert decoded.final_activation is network.final_activation
    x = jnp.arange(3.0)
    np.testing.assert_allclose(decoded(x), network(x), atol=1e-4)
    every = eqx.filter_vmap(network, in_axes=eqx.if_array(0))
    again = through(eqx.nn.Lambda(every))
    np.testing.assert_allclose(again.fn(jnp.ones((4, 3))), every(jnp.ones((4, 3))), atol=1e-4)


class CNN(nnx.Module):
    """As in the tutorial of Flax, at small width."""

    def __init__(self, *, rngs):
        self.conv1 = nnx.Conv(1, 4, kernel_size=(3, 3), rngs=rngs)
        self.batch_norm1 = nnx.BatchNorm(4, rngs=rngs)
        self.dropout1 = nnx.Dropout(rate=0.025)
        self.avg_pool = functools.partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear(64, 10, rngs=rngs)
        self.dropout2 = nnx.Dropout(rate=0.025, rngs=rngs)

    def __call__(self, x, rngs=None):
        x = self.avg_pool(nnx.relu(self.batch_norm1(self.dropout1(self.conv1(x), rngs=rngs))))
        return self.dropout2(self.linear1(x.reshape(x.shape[0], -1)))


def test_the_tutorial_of_flax_goes_through(tmp_path):
    network = CNN(rngs=nnx.Rngs(0))
    x = jax.random.normal(KEY, (2, 8, 8, 1))
    network(x, rngs=nnx.Rngs(1))  # so that the statistics are not those of the start
    report = codec.save_network(network, tmp_path / "cnn.bmr", **FINE)
    assert report.names == (f"{__name__}:CNN",)
    assert "to load, allow: " in str(report)
    assert {row.name for row in report.rows} >= set(named_arrays(network))
    decoded = codec.load_network(tmp_path / "cnn.bmr", allow=(__name__,))
    # The streams of random numbers are where they were, too.
    np.testing.assert_allclose(
        decoded(x, rngs=nnx.Rngs(3)), network(x, rngs=nnx.Rngs(3)), atol=1e-3
    )
    decoded.eval()
    network.eval()
    np.testing.assert_allclose(decoded(x), network(x), atol=1e-3)
    np.testing.assert_allclose(
        decoded.batch_norm1.mean[...], network.batch_norm1.mean[...], rtol=1e-3
    )
    # It is a network of Flax: it can be taken apart, trained, and saved again.
    before = jax.tree.leaves(nnx.state(network))
    after = jax.tree.leaves(nnx.state(decoded))
    assert [a.shape for a in before] == [a.shape for a in after]
    grads = nnx.grad(lambda n: (n(x) ** 2).sum())(decoded)
    assert np.isfinite(grads.linear1.kernel[...]).all()
    assert nnx.state(through(decoded, allow=(CNN,))).keys() == nnx.state(network).keys()


def test_layers_of_flax_are_what_they_were():
    rngs = nnx.Rngs(0)
    networks = [
        nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs),
        nnx.Sequential(nnx.Linear(2, 3, rngs=rngs), nnx.relu, nnx.LayerNorm(3, rngs=rngs)),
        nnx.Linear(2, 2, kernel_init=nnx.initializers.normal(0.1), rngs=rngs),
        nnx.Dict(a=nnx.Linear(1, 1, dtype=jnp.bfloat16, rngs=rngs)),
        nnx.RNN(nnx.GRUCell(2, 3, rngs=rngs)),
        nnx.Conv(2, 2, (3,), precision=jax.lax.Precision.HIGHEST, rngs=rngs),
        zoo.NNXMLP(2, (3,), 1, rngs=nnx.Rngs(0)),
    ]
    for network in networks:
        decoded = through(network)
        assert nnx.graphdef(decoded) == nnx.graphdef(network)
        for a, b in zip(
            jax.tree.leaves(nnx.state(network)), jax.tree.leaves(nnx.state(decoded)), strict=True
        ):
            assert a.dtype == b.dtype


class Wide(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(40)])


def test_a_file_pays_for_objects_of_classes_that_it_names():
    """Such a file is as short as it may be: its levels are many, and take little to write."""
    network = Wide(nnx.Rngs(0))
    found = through(network, allow=[HERE])
    for a, b in zip(found.layers, network.layers, strict=True):
        np.testing.assert_allclose(a.kernel[...], b.kernel[...], atol=1e-4)


class Tied(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(5, 3, rngs=rngs)
        self.head = nnx.Linear(3, 5, rngs=rngs)
        self.head.bias = self.embed.embedding
        self.again = self.embed
        self.loose = nnx.data([nnx.Linear(1, 1, rngs=rngs)])
        self.table = nnx.static((1, 2))


def test_what_a_flax_network_shares_stays_shared():
    decoded = through(Tied(nnx.Rngs(0)), allow=(HERE,))
    assert decoded.again is decoded.embed
    assert decoded.head.bias is decoded.embed.embedding
    assert nnx.graphdef(decoded) == nnx.graphdef(Tied(nnx.Rngs(0)))
    loop = Tied(nnx.Rngs(0))
    loop.itself = nnx.data(loop)
    with pytest.raises(codec.CodecError, match="'itself' is a part of itself"):
        codec.encode(loop)


class Language(eqx.Module):
    shared: eqx.nn.Shared

    def __init__(self, key):
        parts = eqx.nn.Embedding(6, 4, key=key), eqx.nn.Linear(4, 6, key=key)
        self.shared = eqx.nn.Shared(parts, lambda p: p[1].weight, lambda p: p[0].weight)

    def __call__(self, token):
        embedding, linear = self.shared()
        return linear(embedding(token))


def test_tied_weights_of_equinox_stay_tied():
    network = Language(KEY)
    decoded = through(network, allow=(Language,))
    np.testing.assert_allclose(decoded(3), network(3), atol=1e-3)
    assert len(jax.tree.leaves(eqx.filter(decoded, eqx.is_array))) == 2
    np.testing.assert_allclose(through(decoded, allow=(Language,))(3), network(3), atol=1e-3)
    parts = (eqx.nn.Linear(2, 3, key=KEY), eqx.nn.Linear(3, 2, key=KEY))
    turned = eqx.nn.Shared(parts, lambda p: p[1].weight, lambda p: p[0].weight.T)
    with pytest.raises(codec.CodecError, match="'get' is .*at the top of a module"):
        codec.encode(turned)
    both = eqx.nn.Shared(
        {"a": parts[0], "b": eqx.nn.Linear(2, 3, key=KEY)},
        lambda p: (p["b"].weight, p["b"].bias),
        lambda p: (p["a"].weight, p["a"].bias),
    )
    again = through(both)()
    assert (again["a"].weight == again["b"].weight).all()
    assert (again["a"].bias == again["b"].bias).all()


class Size(enum.Enum):
    SMALL = 1


class Ends(NamedTuple):
    first: int
    last: Any


@dataclasses.dataclass(frozen=True)
class Options:
    size: Size
    widths: tuple[int, ...] = (1, 2)


def scaled(x, by=2.0):
    return by * x


renamed = lambda x: 3 * x  # noqa: E731


class Everything(eqx.Module):
    weight: jax.Array
    waves: jax.Array
    options: Options = eqx.field(static=True)
    ends: Ends
    functions: list
    kinds: tuple = eqx.field(static=True)
    table: dict
    constant: np.ndarray
    number: Any
    key: jax.Array


def everything():
    kinds = (jnp.float32, np.float16, jnp.dtype("bfloat16"), float, jax.lax.Precision.HIGH)
    functions = [jnp.mean, jnp.ravel, jax.nn.standardize, scaled, renamed, eqx.nn.Linear]
    functions += [functools.partial(scaled, by=3.0), jax.tree_util.Partial(jnp.clip, max=1.0)]
    return Everything(
        weight=jnp.ones((2, 2)),
        waves=jnp.array([1 + 2j, 0.5]),
        options=Options(Size.SMALL),
        ends=Ends(1, None),
        functions=functions,
        kinds=kinds,
        table={0: "a", 5: 2 - 1j, 2: ("e" * 500, {(1, True): None})},
        constant=np.arange(3),
        number=np.float32(0.1),
        key=jax.random.key(7),
    )


def test_fields_of_every_kind_come_back():
    network = everything()
    decoded = through(network, allow=(HERE,))
    for field in ("options", "kinds", "ends", "table", "number"):
        assert getattr(decoded, field) == getattr(network, field)
        assert type(getattr(decoded, field)) is type(getattr(network, field))
    assert decoded.functions[:6] == network.functions[:6]
    assert decoded.functions[6](2) == 6
    assert decoded.functions[7](jnp.array(2.0)) == 1
    assert isinstance(decoded.functions[7], jax.tree_util.Partial)
    assert isinstance(decoded.constant, np.ndarray)
    np.testing.assert_array_equal(decoded.waves, network.waves)
    assert jax.random.key_data(decoded.key).tolist() == jax.random.key_data(network.key).tolist()
    assert codec.inspect_file(codec.encode(network)).original == 4 * (4 + 2 * 2 + 1)


def test_a_loaded_initialiser_says_that_it_is_none():
    network = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    network.first = nnx.initializers.normal(0.1)
    with pytest.raises(RuntimeError, match="comes from a file"):
        through(network).first(KEY, (2,))


def test_two_classes_of_one_name_are_told_apart():
    modules = []
    for name in ("first_nets", "second_nets"):
        module = types.ModuleType(name)
        sys.modules[name] = module
        code = f"import equinox\nclass Net(equinox.Module):\n  x: float\n  def __call__(s): return '{name}'"
        exec(code, vars(module))
        modules.append(module)
    try:
        nets = [module.Net(1.0) for module in modules]
        decoded = through(eqx.nn.Lambda(nets), allow=("first_nets", modules[1]))
        assert [each() for each in decoded.fn] == ["first_nets", "second_nets"]
        data = codec.encode(eqx.nn.Lambda(nets))
        with pytest.raises(codec.CodecError, match=r"second_nets:Net .*allow=\('second_nets',\)"):
            codec.decode(data, allow=("first_nets", "second"))
        given = codec.decode(data, allow=[module.Net for module in modules])
        assert [type(each) for each in given.fn] == [module.Net for module in modules]
        # A class of a script that has moved to a module since is found if it is given.
        modules[0].Net.__module__ = "__main__"
        sys.modules["__main__"].Net = modules[0].Net
        script = codec.encode(modules[0].Net(2.0))
        assert type(codec.decode(script, allow=(modules[1].Net,))) is modules[1].Net
    finally:
        del sys.modules["first_nets"], sys.modules["second_nets"]
        vars(sys.modules["__main__"]).pop("Net", None)


def test_what_cannot_be_named_is_told_with_what_to_write():
    class Local(eqx.Module):
        pass

    cases = [
        (eqx.nn.Lambda(lambda x: x[0]), r"'fn' is <function.*\(def scaled\(x\): \.\.\.\)"),
        (eqx.nn.Lambda(functools.partial(lambda x: x)), "'fn.func' is <function"),
        (Local(), "Local, which cannot be imported.*top of a module, or register"),
        (eqx.nn.Lambda({1, 2}), "'fn' is {1, 2}, which no file can hold"),
        (eqx.nn.Lambda(jnp.ones(2, "float8_e5m2")), "array of float8_e5m2"),
    ]
    for network, match in cases:
        with pytest.raises(codec.CodecError, match=match):
            codec.encode(network)
    with pytest.raises(TypeError, match="allow takes names of packages"):
        codec.decode(codec.encode(eqx.nn.Identity()), allow=(3,))


def test_a_compacted_network_of_the_users_class_goes_through():
    network = eqx.nn.MLP(6, 2, 5, 1, key=KEY)
    weight = network.layers[0].weight.at[1:3].set(0)
    bias = network.layers[0].bias.at[1:3].set(0)
    network = eqx.tree_at(lambda n: (n.layers[0].weight, n.layers[0].bias), network, (weight, bias))
    small = bmr.compact(network, jnp.ones(6))
    decoded = codec.decode(codec.encode(small, **FINE))
    assert decoded.layers[0].weight.shape == (3, 6)
    np.testing.assert_allclose(decoded(jnp.ones(6)), network(jnp.ones(6)), atol=1e-4)
