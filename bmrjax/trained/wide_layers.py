"""Layers that sum over many inputs, as several layers that each sum over some of these."""

from dataclasses import replace

import numpy as np

from bmrjax.trained.layers import InputPart, TracedLayer

# A layer that sums over more inputs than this is taken in parts.
WIDEST = 1024
# In every round the covariance of the kept inputs is inverted for each row of weights, at a cost that grows
# with the cube of their number. Parts are as wide as so many operations allow, some seconds of a core.
OPERATIONS = 1e11
NARROWEST_PART, WIDEST_PART = 256, 2048
# A part ends at a multiple of so many channels where there are enough: blocks of patterns such as 2:4 do not
# cross its end.
CHANNELS = 32


def in_parts(layers: list[TracedLayer]) -> list[TracedLayer]:
    """Return layers with those that are wide taken apart.

    Parts have the name and the uses of their layer. Inputs of different parts are taken as uncorrelated in
    the curvature; that they are not shows in the outputs, which later rounds correct for.

    Args:
        layers: In the order of use.
    """
    found: list[TracedLayer] = []
    for layer in layers:
        found += _parts(layer) if layer.index.shape[2] > WIDEST else [layer]
    return found


def _parts(layer: TracedLayer) -> list[TracedLayer]:
    wide = int(np.clip(np.sqrt(OPERATIONS / layer.index.size), NARROWEST_PART, WIDEST_PART))
    ends = _ends(layer.index.shape[2], layer.places, wide)
    if len(ends) == 1:
        return [layer]
    starts = [0, *ends[:-1]]
    return [
        replace(
            layer,
            index=np.ascontiguousarray(layer.index[:, :, start:end]),
            # The first has the bias.
            bias=layer.bias if start == 0 else None,
            # One channel whose kernel is wide has no blocks of channels.
            places=layer.places if (end - start) % layer.places == 0 else end - start,
            part=InputPart(number, len(ends), start),
        )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _ends(size: int, places: int, wide: int) -> list[int]:
    """Return where each part ends: after a whole number of channels, if these are not wide themselves."""
    step = places if places <= wide else 1
    channels = size // step
    each = -(-channels // -(-size // wide))
    for multiple in (CHANNELS, 8, 4):
        if each >= 2 * multiple:
            each = -(-each // multiple) * multiple
            break
    return [min(end * step, size) for end in range(each, channels + each, each)]
