"""Names and layouts of weight files that other libraries write."""

import re
from collections.abc import Mapping

import numpy as np

# Where Equinox keeps the running statistics of a batch normalisation.
_STATISTICS = {
    "running_mean": "batch_state_index.0",
    "running_var": "batch_state_index.1",
    # Layers of the zoo use the statistics as they are, whatever their number of batches.
    "num_batches_tracked": None,
}
_RESNET = (
    (r"conv1", "stem"),
    (r"bn1", "stem_norm"),
    (r"fc", "head"),
    (r"layer(\d+)\.(\d+)\.conv(\d+)", "stages.{0}.{n}.convs.{2}"),
    (r"layer(\d+)\.(\d+)\.bn(\d+)", "stages.{0}.{n}.norms.{2}"),
    (r"layer(\d+)\.(\d+)\.downsample\.0", "stages.{0}.{n}.shortcut"),
    (r"layer(\d+)\.(\d+)\.downsample\.1", "stages.{0}.{n}.shortcut_norm"),
)
_VIT = {
    "attn.proj": "attention.output",
    "norm1": "attention_norm",
    "norm2": "mlp_norm",
    "mlp.fc1": "mlp.hidden",
    "mlp.fc2": "mlp.output",
}


def torchvision_resnet(name: str) -> str | None:
    """Return the name in `ResNet` of a tensor of torchvision's or timm's, for `load_weights(rename=...)`.

    Args:
        name: As in ``layer1.0.conv1.weight`` or ``bn1.running_mean``.

    Example:
        >>> torchvision_resnet("layer2.0.downsample.1.running_var")
        'stages.1.0.shortcut_norm.batch_state_index.1'
    """
    layer, _, part = name.rpartition(".")
    if part in _STATISTICS:
        part = _STATISTICS[part]
    for pattern, new in _RESNET:
        match = re.fullmatch(pattern, layer)
        if match and part:
            # They count stages and convolutions from one, blocks from zero.
            numbers = [int(n) - 1 for n in match.groups()]
            block = numbers[1] + 1 if len(numbers) > 1 else 0
            return f"{new.format(*numbers, n=block)}.{part}"
    return name if part else None


def torchvision_vgg(name: str) -> str | None:
    """Return the name in `VGG` of a tensor of torchvision's ``vgg16_bn``, for `load_weights(rename=...)`.

    Its convolutions are those of `VGG`, its linear layers are not and are left out, so give
    ``keep=("hidden*", "head.*")`` as well.

    Args:
        name: As in ``features.0.weight``.

    Example:
        >>> torchvision_vgg("features.7.weight"), torchvision_vgg("features.8.running_mean")
        ('convs.2.weight', 'norms.2.batch_state_index.0')
    """
    if name.startswith("classifier."):
        return None
    match = re.fullmatch(r"features\.(\d+)\.(\w+)", name)
    if match is None:
        return name
    # In a row: convolution, normalisation and ReLU of each layer, and a pooling at the end of a stage.
    position, layer, start = int(match[1]), 0, 0
    for depth in (2, 2, 3, 3, 3):
        for _ in range(depth):
            if position == start:
                return f"convs.{layer}.{match[2]}"
            if position == start + 1:
                part = _STATISTICS.get(match[2], match[2])
                return f"norms.{layer}.{part}" if part else None
            layer, start = layer + 1, start + 3
        start += 1
    return name


def timm_vit(name: str, tensor: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the arrays of `ViT` in a tensor of timm's, for `load_weights(translate=...)`.

    The network that fits has ``exact_gelu=True, norm_eps=1e-6``.

    Args:
        name: As in ``blocks.0.attn.qkv.weight``, which has query, key and value in it.
        tensor: The tensor.

    Example:
        >>> import numpy as np
        >>> list(timm_vit("blocks.0.attn.qkv.bias", np.zeros(6)))
        ['blocks.0.attention.query.bias', 'blocks.0.attention.key.bias', 'blocks.0.attention.value.bias']
    """
    if name == "cls_token":
        return {"class_token.weight": tensor}
    if name == "pos_embed":
        return {"positions.weight": tensor}
    if name == "patch_embed.proj.weight" and tensor.ndim == 4:
        # A convolution over (channel, y, x); here a linear layer over (y, x, channel).
        return {"patches.weight": tensor.transpose(0, 2, 3, 1).reshape(len(tensor), -1)}
    if name == "patch_embed.proj.bias":
        return {"patches.bias": tensor}
    match = re.fullmatch(r"(blocks\.\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return {name: tensor}
    block, layer, part = match.groups()
    if layer == "attn.qkv":
        thirds = np.split(tensor, 3)
        names = [f"{block}.attention.{n}.{part}" for n in ("query", "key", "value")]
        return dict(zip(names, thirds, strict=True))
    return {f"{block}.{_VIT.get(layer, layer)}.{part}": tensor}
