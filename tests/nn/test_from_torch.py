"""Weights of PyTorch's layers in Equinox and Flax, against its formulas in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bmrjax import nn, zoo

RNG = np.random.default_rng(0)


def draw(**shapes):
    """Return tensors by name; names have underscores for dots there."""
    return {
        name.replace("__", "."): (0.5 + RNG.random(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


class Tensor:
    """What a tensor of PyTorch offers for its way to NumPy."""

    def __init__(self, array, dtype="torch.float32"):
        self.array, self.dtype = array, dtype

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.array)

    def numpy(self):
        assert self.dtype != "torch.bfloat16"
        return self.array


def convolution(x, w, b):
    """A valid convolution of (channels, rows, columns), as PyTorch writes it: correlation."""
    size = w.shape[2]
    rows, columns = (n - size + 1 for n in x.shape[1:])
    out = np.zeros((len(w), rows, columns), np.float32)
    for i in range(rows):
        for j in range(columns):
            out[:, i, j] = np.tensordot(w, x[:, i : i + size, j : j + size], 3) + b
    return out


def normalised(x, t, at):
    mean, var = t[f"{at}.running_mean"], t[f"{at}.running_var"]
    shape = (-1, 1, 1)
    scale = t[f"{at}.weight"] / np.sqrt(var + 1e-5)
    return (x - mean.reshape(shape)) * scale.reshape(shape) + t[f"{at}.bias"].reshape(shape)


def image_tensors():
    tensors = draw(
        conv__weight=(3, 2, 3, 3),
        conv__bias=(3,),
        bn__weight=(3,),
        bn__bias=(3,),
        bn__running_mean=(3,),
        bn__running_var=(3,),
        fc__weight=(4, 3),
        fc__bias=(4,),
    )
    return tensors | {"bn.num_batches_tracked": np.array(7)}


def image_outputs(t, x):
    y = normalised(convolution(x, t["conv.weight"], t["conv.bias"]), t, "bn").mean((1, 2))
    return t["fc.weight"] @ y + t["fc.bias"]


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv2d
    bn: eqx.nn.BatchNorm
    fc: eqx.nn.Linear

    def __init__(self, mode):
        keys = jax.random.split(jax.random.key(0))
        self.conv = eqx.nn.Conv2d(2, 3, 3, key=keys[0])
        self.bn = eqx.nn.BatchNorm(3, "batch", mode=mode)
        self.fc = eqx.nn.Linear(3, 4, key=keys[1])

    def __call__(self, x, state):
        y, state = self.bn(self.conv(x), state)
        return self.fc(y.mean((1, 2))), state


class FlaxNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 3, (3, 3), padding="VALID", rngs=rngs)
        self.bn = nnx.BatchNorm(3, use_running_average=True, rngs=rngs)
        self.fc = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        return self.fc(self.bn(self.conv(x)).mean((1, 2)))


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_layers_of_images_in_equinox(mode):
    network = eqx.nn.make_with_state(EquinoxNet)(mode)
    tensors = image_tensors()
    module, state = nn.load_weights(network, tensors, translate=nn.from_torch(network))
    x = RNG.random((2, 6, 6)).astype(np.float32)
    run = jax.vmap(eqx.nn.inference_mode(module), axis_name="batch", in_axes=(0, None))
    np.testing.assert_allclose(run(x[None], state)[0][0], image_outputs(tensors, x), rtol=1e-4)


def test_layers_of_images_in_flax():
    network = FlaxNet(nnx.Rngs(0))
    tensors = image_tensors()
    held = {name: Tensor(t) for name, t in tensors.items()}
    loaded = nn.load_weights(network, held, translate=nn.from_torch(network))
    x = RNG.random((2, 6, 6)).astype(np.float32)
    found = loaded(x.transpose(1, 2, 0)[None])[0]
    np.testing.assert_allclose(found, image_outputs(tensors, x), rtol=1e-4)


def transposed_convolution(x, w, b, groups):
    """The transpose of a convolution of stride 2, as PyTorch writes it: each input adds its kernel."""
    each, size = w.shape[1], w.shape[2]
    rows, columns = (2 * (n - 1) + size for n in x.shape[1:])
    out = np.zeros((groups, each, rows, columns), np.float32)
    kernels = w.reshape(groups, -1, *w.shape[1:])
    inputs = x.reshape(groups, -1, *x.shape[1:])
    for i, j in np.ndindex(x.shape[1:]):
        added = np.einsum("giokl,gi->gokl", kernels, inputs[:, :, i, j])
        out[:, :, 2 * i : 2 * i + size, 2 * j : 2 * j + size] += added
    return out.reshape(-1, rows, columns) + b[:, None, None]


@pytest.mark.parametrize(("ins", "outs", "groups"), [(4, 4, 1), (4, 2, 1), (4, 4, 2), (4, 6, 2)])
def test_transposed_convolutions(ins, outs, groups):
    t = draw(layers__0__weight=(ins, outs // groups, 3, 3), layers__0__bias=(outs,))
    x = RNG.random((ins, 3, 4)).astype(np.float32)
    expected = transposed_convolution(x, *t.values(), groups)
    up = eqx.nn.ConvTranspose2d(ins, outs, 3, 2, groups=groups, key=jax.random.key(0))
    network = eqx.nn.Sequential([up])
    loaded = nn.load_weights(network, t, translate=nn.from_torch(network))
    np.testing.assert_allclose(loaded(x), expected, rtol=1e-5)
    for turned in (False, True) if groups == 1 else ():
        options = {"strides": 2, "padding": "VALID", "transpose_kernel": turned}
        network = nnx.Sequential(nnx.ConvTranspose(ins, outs, (3, 3), **options, rngs=nnx.Rngs(0)))
        loaded = nn.load_weights(network, t, translate=nn.from_torch(network))
        found = loaded(x.transpose(1, 2, 0)[None])[0].transpose(2, 0, 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def attention(t, x, heads):
    """Self-attention as torch.nn.MultiheadAttention writes it."""
    q, k, v = np.split(x @ t["in_proj_weight"].T + t["in_proj_bias"], 3, axis=1)
    q, k, v = (a.reshape(len(x), heads, -1).transpose(1, 0, 2) for a in (q, k, v))
    weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]), axis=-1)
    joined = np.asarray(weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
    return joined @ t["out_proj.weight"].T + t["out_proj.bias"]


def test_attention_and_embeddings():
    t = draw(
        in_proj_weight=(24, 8), in_proj_bias=(24,), out_proj__weight=(8, 8), out_proj__bias=(8,)
    )
    t = {name: tensor - 1 for name, tensor in t.items()}
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    biases = dict.fromkeys(
        ("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True
    )
    equinox = eqx.nn.MultiheadAttention(2, 8, **biases, key=jax.random.key(0))
    loaded = nn.load_weights(equinox, t, translate=nn.from_torch(equinox))
    np.testing.assert_allclose(loaded(x, x, x), attention(t, x, 2), atol=1e-4)
    flax = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    loaded = nn.load_weights(flax, t, translate=nn.from_torch(flax))
    np.testing.assert_allclose(loaded(x[None])[0], attention(t, x, 2), atol=1e-4)
    parts = nnx.Dict(
        table=nnx.Embed(4, 3, rngs=nnx.Rngs(0)), norm=nnx.LayerNorm(3, rngs=nnx.Rngs(0))
    )
    t = draw(table__weight=(4, 3), norm__weight=(3,), norm__bias=(3,))
    loaded = nn.load_weights(parts, t, translate=nn.from_torch(parts))
    np.testing.assert_array_equal(loaded["table"].embedding[...], t["table.weight"])
    np.testing.assert_array_equal(loaded["norm"].scale[...], t["norm.weight"])


def test_state_dicts_are_read_like_files(tmp_path):
    network = zoo.MLP(4, (3,), 2, key=jax.random.key(0))
    t = draw(fc1__weight=(3, 4), fc1__bias=(3,), fc2__weight=(2, 3), fc2__bias=(2,))
    names = {
        f"fc{i + 1}.{part}": f"layers.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")
    }
    half = {name: Tensor(tensor, "torch.bfloat16") for name, tensor in t.items()}
    for tensors in (t, half):
        loaded = nn.load_weights(network, tensors, rename=names)
        np.testing.assert_array_equal(loaded.layers[1].weight, t["fc2.weight"])
    with pytest.raises(ValueError, match=r"'layers\.0\.weight' .* is missing"):
        nn.load_weights(network, t)
    with pytest.raises(
        TypeError, match=r"'epoch' is a dict, expected a tensor.*checkpoint\['model'\]"
    ):
        nn.load_weights(network, {"epoch": {"a": 1}})
    with pytest.raises(TypeError, match="names of tensors are texts"):
        nn.load_weights(network, {3: jnp.ones(2)})
    (tmp_path / "model.pth").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"torch\.load\('model\.pth', weights_only=True\)"):
        nn.load_weights(network, tmp_path / "model.pth")
