"""Weight files: they fit or are refused whole, and those of other libraries give the same outputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from safetensors.numpy import load_file, save_file

from bmrjax import nn, structure, zoo
from bmrjax.structure.network_arrays import is_numeric, parts_of

TINY = {"blocks": (1, 1), "width": 4}
NETWORKS = {
    "MLP": lambda key: zoo.MLP(4, (3,), 2, key=key),
    "with state": lambda key: eqx.nn.make_with_state(zoo.ResNet)(**TINY, key=key),
    "NNX": lambda key: zoo.NNXMLP(4, (3,), 2, rngs=nnx.Rngs(int(jax.random.bits(key)))),
}


def arrays_of(network):
    parts = parts_of(network, is_numeric)
    return dict(zip(parts.names, parts.arrays, strict=True))


def assert_same(first, second):
    a, b = arrays_of(first), arrays_of(second)
    assert list(a) == list(b)
    for name, array in a.items():
        assert array.dtype == b[name].dtype
        np.testing.assert_array_equal(array, b[name], err_msg=name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.safetensors"


@pytest.fixture
def saved(path):
    nn.save_weights(NETWORKS["MLP"](jax.random.key(0)), path)
    return path


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_round_trip_is_exact(kind, path):
    first, second = (NETWORKS[kind](jax.random.key(i)) for i in (1, 2))
    if kind == "with state":
        first = jax.tree.map(lambda a: a + 1 if eqx.is_array(a) else a, first)
    before = {name: np.array(a) for name, a in arrays_of(second).items()}
    nn.save_weights(first, path)
    assert_same(nn.load_weights(second, path), first)
    # The network itself is as it was.
    for name, array in arrays_of(second).items():
        np.testing.assert_array_equal(array, before[name])
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_running_statistics_are_named_by_their_layer(path):
    network = NETWORKS["with state"](jax.random.key(0))
    nn.save_weights(network, path)
    names = load_file(path).keys()
    assert "stages.1.0.shortcut_norm.batch_state_index.1" in names
    assert "stem_norm.batch_counter" in names
    floats = structure.named_arrays(network)
    assert "stem_norm.batch_state_index.0" in floats
    assert "stem_norm.batch_counter" not in floats


# --- files that do not fit ----------------------------------------------------------------


def change(path, **arrays):
    found = {**load_file(path), **arrays}
    save_file({name: a for name, a in found.items() if a is not None}, path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"layers.0.bias": np.zeros(4, np.float32)}, r"'layers.0.bias' has shape \(4,\), expected \(3,\)"),
        ({"layers.1.bias": np.zeros(2, np.float16)}, "'layers.1.bias' is float16, expected float32. Give"),
        ({"layers.1.bias": np.zeros(2, np.int32)}, r"'layers.1.bias' is int32, expected float32\.$"),
        ({"layers.0.weight": None}, r"'layers.0.weight' \(float32\(3, 4\)\) is missing. Names that differ"),
        ({"more": np.zeros(2)}, "'more' is not in the network; its arrays start with .*'layers.0.weight'"),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_named(saved, arrays, message):
    change(saved, **arrays)
    network = NETWORKS["MLP"](jax.random.key(1))
    with pytest.raises(ValueError, match=message):
        nn.load_weights(network, saved)


def test_the_first_of_several_wrong_tensors_is_named(saved):
    change(saved, **{"layers.0.bias": None, "b": np.zeros(3), "layers.1.weight": np.zeros((2, 5))})
    message = "'layers.0.bias' .* is missing. The file has 'b', which the network lacks.* 2 more"
    with pytest.raises(ValueError, match=message):
        nn.load_weights(NETWORKS["MLP"](jax.random.key(1)), saved)


def test_precision_is_converted_on_demand(saved):
    change(saved, **{"layers.1.bias": np.array([1, 2], np.float16)})
    loaded = nn.load_weights(NETWORKS["MLP"](jax.random.key(1)), saved, cast=True)
    assert loaded.layers[1].bias.dtype == jnp.float32
    np.testing.assert_array_equal(loaded.layers[1].bias, [1, 2])


def test_tensors_may_change_afterwards(saved):
    """Those of PyTorch are where its own training changes them."""
    tensors = {}
    for name, array in load_file(saved).items():
        memory = np.zeros(array.nbytes + 64, np.uint8)
        begin = -memory.ctypes.data % 64
        tensors[name] = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    loaded = nn.load_weights(NETWORKS["MLP"](jax.random.key(1)), tensors)
    for array in tensors.values():
        array += 1
    assert not any(np.any(x) for x in jax.tree.leaves(eqx.filter(loaded, eqx.is_array)))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_is_cut_short(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="is not a safetensors file, or is damaged or cut short"):
        nn.load_weights(NETWORKS["MLP"](jax.random.key(1)), saved)


def test_what_is_no_file_and_no_network(path, saved):
    with pytest.raises(FileNotFoundError, match=r"other.safetensors is not there"):
        nn.load_weights(NETWORKS["MLP"](jax.random.key(1)), path.with_name("other.safetensors"))
    with pytest.raises(TypeError, match="expected an Equinox"):
        nn.load_weights(lambda x: x, saved)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    def fail(*args):
        del args
        raise OSError("no space left")

    old = saved.read_bytes()
    monkeypatch.setattr(nn.weights, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        nn.save_weights(NETWORKS["MLP"](jax.random.key(1)), saved)
    assert saved.read_bytes() == old
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


# --- other names --------------------------------------------------------------------------


def test_names_from_a_table_and_parts_that_are_kept(saved):
    change(
        saved,
        **{"layers.0.bias": None, "first": np.arange(3, dtype=np.float32), "more": np.ones(1)},
    )
    own = NETWORKS["MLP"](jax.random.key(1))
    table = {"first": "layers.0.bias", "more": None}
    loaded = nn.load_weights(own, saved, rename=table, keep=("layers.1.*",))
    np.testing.assert_array_equal(loaded.layers[0].bias, np.arange(3))
    np.testing.assert_array_equal(loaded.layers[1].weight, own.layers[1].weight)
    with pytest.raises(ValueError, match="both become 'layers.1.bias'"):
        nn.load_weights(own, saved, rename={"first": "layers.1.bias", "more": None})
    change(saved, first=np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=r"'layers.0.bias' \(from 'first'\) has shape"):
        nn.load_weights(own, saved, rename=table)


def draw(shapes, seed=0):
    """Return tensors of these shapes, those of variances positive."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
        found[name] = (np.abs(values) + 0.5 if name.endswith("running_var") else values).astype(
            np.float32
        )
    return found


def norm_shapes(name, size):
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{part}": (size,) for part in parts}


def conv(x, weight, stride=1, bias=None):
    pad = weight.shape[-1] // 2
    y = lax.conv_general_dilated(x[None], weight, (stride, stride), [(pad, pad)] * 2)[0]
    return y if bias is None else y + bias[:, None, None]


def norm(x, w, name):
    weight, bias, mean, var = (
        w[f"{name}.{p}"].reshape(-1, *[1] * (x.ndim - 1))
        for p in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


def max_pool(x, size, stride, pad):
    pads = ((0, 0), (pad, pad), (pad, pad))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size), (1, stride, stride), pads)


def torchvision_resnet_shapes(stages, *, bottleneck, width, out_size):
    shapes = {"conv1.weight": (width, 3, 7, 7), **norm_shapes("bn1", width)}
    channels = width
    for i, blocks in enumerate(stages):
        planes, out = width * 2**i, width * 2**i * (4 if bottleneck else 1)
        for j in range(blocks):
            name, sizes = f"layer{i + 1}.{j}", (1, 3, 1) if bottleneck else (3, 3)
            widths = (channels, planes, planes, out) if bottleneck else (channels, planes, planes)
            for k, size in enumerate(sizes):
                shapes[f"{name}.conv{k + 1}.weight"] = (widths[k + 1], widths[k], size, size)
                shapes |= norm_shapes(f"{name}.bn{k + 1}", widths[k + 1])
            if channels != out or (i and not j):
                shapes[f"{name}.downsample.0.weight"] = (out, channels, 1, 1)
                shapes |= norm_shapes(f"{name}.downsample.1", out)
            channels = out
    return {**shapes, "fc.weight": (out_size, channels), "fc.bias": (out_size,)}


def torchvision_resnet(w, x, stages):
    """Run a residual network as torchvision writes it, from its tensors."""
    x = max_pool(jax.nn.relu(norm(conv(x, w["conv1.weight"], 2), w, "bn1")), 3, 2, 1)
    for i, blocks in enumerate(stages):
        for j in range(blocks):
            name, skip, stride = f"layer{i + 1}.{j}", x, 2 if i and not j else 1
            last = 3 if f"{name}.conv3.weight" in w else 2
            for k in range(1, last + 1):
                here = stride if k == last - 1 else 1
                x = norm(conv(x, w[f"{name}.conv{k}.weight"], here), w, f"{name}.bn{k}")
                x = jax.nn.relu(x) if k < last else x
            if f"{name}.downsample.0.weight" in w:
                skip = norm(
                    conv(skip, w[f"{name}.downsample.0.weight"], stride), w, f"{name}.downsample.1"
                )
            x = jax.nn.relu(x + skip)
    return w["fc.weight"] @ x.mean((1, 2)) + w["fc.bias"]


@pytest.mark.parametrize(
    ("stages", "bottleneck"), [((2, 2, 2, 2), False), ((2, 1), True)], ids=["18", "bottleneck"]
)
def test_a_residual_network_with_names_of_torchvision(stages, bottleneck, path):
    w = draw(torchvision_resnet_shapes(stages, bottleneck=bottleneck, width=4, out_size=5))
    counters = {
        n.replace("running_var", "num_batches_tracked"): np.int64(7) for n in w if "_var" in n
    }
    save_file({**w, **{n: np.asarray(v) for n, v in counters.items()}}, path)
    build = eqx.nn.make_with_state(zoo.ResNet)
    network = build(3, 5, blocks=stages, bottleneck=bottleneck, width=4, key=jax.random.key(0))
    loaded, state = nn.load_weights(network, path, rename=zoo.torchvision_resnet)
    x = jax.random.normal(jax.random.key(1), (3, 32, 32))
    found = eqx.filter_jit(eqx.nn.inference_mode(loaded))(x, state)[0]
    expected = jax.jit(lambda x: torchvision_resnet(w, x, stages))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    save_file({n: a for n, a in w.items() if n != "layer2.0.bn1.running_mean"}, path)
    with pytest.raises(ValueError, match=r"'stages.1.0.norms.0.batch_state_index.0' .* is missing"):
        nn.load_weights(network, path, rename=zoo.torchvision_resnet)


def test_the_convolutions_of_torchvisions_vgg(path):
    features, shapes, channels, position = (4,) * 5, {}, 3, 0
    for width, depth in zip(features, (2, 2, 3, 3, 3), strict=True):
        for _ in range(depth):
            shapes[f"features.{position}.weight"] = (width, channels, 3, 3)
            shapes[f"features.{position}.bias"] = (width,)
            shapes |= norm_shapes(f"features.{position + 1}", width)
            channels, position = width, position + 3
        position += 1
    w = draw({**shapes, "classifier.0.weight": (8, 4)})
    save_file({**w, "features.1.num_batches_tracked": np.asarray(3)}, path)
    network = eqx.nn.make_with_state(zoo.VGG)(features=features, hidden=3, key=jax.random.key(0))
    keep = ("hidden*", "head.*")
    loaded, state = nn.load_weights(network, path, rename=zoo.torchvision_vgg, keep=keep)
    x = y = jax.random.normal(jax.random.key(1), (3, 32, 32))
    pooled = {f"features.{i}.weight" for i in (3, 10, 20, 30, 40)}
    for name in [n for n in w if w[n].ndim == 4]:
        here = int(name.split(".")[1])
        y = conv(y, w[name], bias=w[f"features.{here}.bias"])
        y = jax.nn.relu(norm(y, w, f"features.{here + 1}"))
        y = max_pool(y, 2, 2, 0) if name in pooled else y
    network = eqx.nn.inference_mode(loaded)
    y = jax.nn.relu(network.hidden_norm(network.hidden(y.ravel()), state)[0])
    np.testing.assert_allclose(
        eqx.filter_jit(network)(x, state)[0], network.head(y), rtol=1e-4, atol=1e-5
    )


def layer_norm(x, w, name):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def dense(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def timm_vit(w, x, depth, heads):
    """Run a vision transformer as timm writes it, from its tensors."""
    kernel = w["patch_embed.proj.weight"]
    x = lax.conv_general_dilated(x[None], kernel, kernel.shape[-2:], "VALID")[0]
    x = x.reshape(len(x), -1).T + w["patch_embed.proj.bias"]
    x = jnp.concatenate([w["cls_token"][0], x]) + w["pos_embed"][0]
    for i in range(depth):
        block = f"blocks.{i}"
        qkv = dense(layer_norm(x, w, f"{block}.norm1"), w, f"{block}.attn.qkv")
        query, key, value = qkv.reshape(len(x), 3, heads, -1).transpose(1, 2, 0, 3)
        weights = jax.nn.softmax(query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1]))
        mixed = (weights @ value).transpose(1, 0, 2).reshape(x.shape)
        x = x + dense(mixed, w, f"{block}.attn.proj")
        hidden = dense(layer_norm(x, w, f"{block}.norm2"), w, f"{block}.mlp.fc1")
        x = x + dense(jax.nn.gelu(hidden, approximate=False), w, f"{block}.mlp.fc2")
    return dense(layer_norm(x, w, "norm")[0], w, "head")


def test_a_vision_transformer_with_tensors_of_timm(path):
    size = 8
    shapes = {
        "cls_token": (1, 1, size),
        "pos_embed": (1, 5, size),
        "patch_embed.proj.weight": (size, 3, 4, 4),
        "patch_embed.proj.bias": (size,),
    }
    for i in range(2):
        rows = {
            "attn.qkv": (24, size),
            "attn.proj": (size, size),
            "mlp.fc1": (12, size),
            "mlp.fc2": (size, 12),
        }
        for name, shape in rows.items():
            shapes |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.{part}": (size,) for part in ("weight", "bias")}
    shapes |= {
        "norm.weight": (size,),
        "norm.bias": (size,),
        "head.weight": (3, size),
        "head.bias": (3,),
    }
    w = draw(shapes)
    save_file(w, path)
    network = zoo.ViT(
        3, 3, image_size=8, depth=2, width=size, heads=2, hidden=12, exact_gelu=True, norm_eps=1e-6,
        key=jax.random.key(0),
    )  # fmt: skip
    loaded = nn.load_weights(network, path, translate=zoo.timm_vit)
    x = jax.random.normal(jax.random.key(1), (3, 8, 8))
    np.testing.assert_allclose(
        eqx.filter_jit(loaded)(x), timm_vit(w, x, 2, 2), rtol=1e-4, atol=1e-5
    )
