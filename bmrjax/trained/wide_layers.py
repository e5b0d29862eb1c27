"""Layers that sum over many inputs, as several layers that each sum over some of these."""

from dataclasses import replace

import numpy as np

from bmrjax.trained.layers import InputPart, TracedLayer

# In every round the covariance of the kept inputs is inverted for each row of weights, at a cost that grows
# with the cube of their number. A layer is taken in parts if it sums over more inputs than this, or takes
# more operations.
WIDEST, MOST_OPERATIONS = 1024, 2e11
# Parts are as wide as so many operations allow, some seconds of a core.
OPERATIONS = 1e11
NARROWEST_PART, WIDEST_PART = 256, 2048


def in_parts(layers: list[TracedLayer], block: int = 1) -> list[TracedLayer]:
    """Return layers with those that are wide taken apart.

    Parts have the name and the uses of their layer, and each has its share of the bias. Inputs of different
    parts are taken as uncorrelated in the curvature; that they are not shows in the outputs, which later
    rounds correct for, and what `joint_fit` takes into account when all removals are done.

    Args:
        layers: In the order of use.
        block: A part ends at a multiple of so many channels: blocks of patterns such as 2:4 do not cross
            its end.

    Returns:
        The layers in the same order, parts of one layer one after the other.
    """
    found: list[TracedLayer] = []
    for layer in layers:
        width = layer.index.shape[2]
        is_wide = width > WIDEST or layer.index.size * width**2 > MOST_OPERATIONS
        found += _parts(layer, block) if is_wide else [layer]
    return found


def _parts(layer: TracedLayer, block: int) -> list[TracedLayer]:
    wide = int(np.clip(np.sqrt(OPERATIONS / layer.index.size), NARROWEST_PART, WIDEST_PART))
    ends = _ends(layer.index.shape[2], layer.places, wide, block)
    starts = [0, *ends[:-1]]
    return [
        replace(
            layer,
            index=np.ascontiguousarray(layer.index[:, :, start:end]),
            # Within one channel there are no blocks of channels.
            places=layer.places if (end - start) % layer.places == 0 else end - start,
            part=InputPart(number, len(ends), start) if len(ends) > 1 else None,
        )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _ends(size: int, places: int, wide: int, block: int) -> list[int]:
    """Return where each part ends: after whole blocks, or whole channels if these are not wide themselves."""
    step = places * block if places * block <= size else places
    if step == places > wide:
        step = 1
    steps = -(-size // step)
    count = -(-steps // max(1, wide // step))
    return [min(size, step * (steps * (i + 1) // count)) for i in range(count)]
