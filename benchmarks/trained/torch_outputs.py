"""The three pretrained networks in PyTorch's own operations: what `pretrained` is compared with.

Layers are called by the names of their tensors, so that nothing of the packages that hold the weights runs.
"""

from typing import Any

import numpy as np

from benchmarks.trained import pretrained


def crepe(tensors: Any, x: np.ndarray) -> np.ndarray:
    """Return the logits of CREPE `tiny` for frames."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    h = torch.tensor(x)[:, None]
    settings = zip(pretrained.CREPE_STRIDES, pretrained.CREPE_PADDING, strict=True)
    for i, (stride, padding) in enumerate(settings, 1):
        weight, bias = tensors[f"conv{i}.weight"][..., 0], tensors[f"conv{i}.bias"]
        h = F.relu(F.conv1d(F.pad(h, padding), weight, bias, stride=stride))
        h = F.max_pool1d(_normed(tensors, f"conv{i}_BN", h), 2)
    h = h.transpose(1, 2).flatten(1)
    return F.linear(h, tensors["classifier.weight"], tensors["classifier.bias"]).numpy()


def speaker(tensors: Any, x: np.ndarray) -> np.ndarray:
    """Return the embeddings of Resemblyzer's encoder for mel spectra."""
    import torch

    lstm = torch.nn.LSTM(pretrained.MELS, pretrained.HIDDEN, 3, batch_first=True)
    lstm.load_state_dict(
        {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("lstm.")}
    )
    with torch.no_grad():
        hidden = lstm(torch.tensor(x))[1][0][-1]
        out = torch.relu(
            torch.nn.functional.linear(hidden, tensors["linear.weight"], tensors["linear.bias"])
        )
        return torch.nn.functional.normalize(out).numpy()


def efficientnet(tensors: Any, x: np.ndarray) -> np.ndarray:
    """Return the logits of EfficientNet-Lite0 for images."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    def conv(h: Any, name: str, stride: int = 1) -> Any:
        weight = tensors[f"{name}.weight"]
        size, side = weight.shape[-1], h.shape[-1]
        # TensorFlow's SAME, which the weights were trained with: what is odd is added at the end.
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        pad = (total // 2, total - total // 2)
        groups = h.shape[1] if weight.shape[1] == 1 else 1
        return F.conv2d(F.pad(h, pad * 2), weight, stride=stride, groups=groups)

    h = F.relu6(_normed(tensors, "_bn0", conv(torch.tensor(x), "_conv_stem", 2)))
    number = 0
    for _, first, _, _, count in pretrained.STAGES:
        for i in range(count):
            stride, before, at = (first if i == 0 else 1), h, f"_blocks.{number}."
            if f"{at}_expand_conv.weight" in tensors:
                h = F.relu6(_normed(tensors, f"{at}_bn0", conv(h, f"{at}_expand_conv")))
            h = conv(h, f"{at}_depthwise_conv", stride)
            h = F.relu6(_normed(tensors, f"{at}_bn1", h))
            h = _normed(tensors, f"{at}_bn2", conv(h, f"{at}_project_conv"))
            h = h + before if h.shape == before.shape else h
            number += 1
    h = F.relu6(_normed(tensors, "_bn1", conv(h, "_conv_head"))).mean((2, 3))
    return F.linear(h, tensors["_fc.weight"], tensors["_fc.bias"]).numpy()


def _normed(tensors: Any, name: str, h: Any) -> Any:
    from torch.nn import functional as F  # noqa: N812

    parts = [tensors[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")]
    return F.batch_norm(h, *parts, eps=1e-3)
