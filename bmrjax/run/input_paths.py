"""Which inputs of a chain of layers still lead to an output."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool


class InputPaths(NamedTuple):
    """The weights of a first layer that lead to an output.

    Attributes:
        site: Name of the first layer's weights.
        leads: Whether a weight is kept, and kept weights lead from its unit to an output; (units, inputs).
    """

    site: str
    leads: Bool[np.ndarray, "units inputs"]


def input_paths(keep: Mapping[str, Any]) -> InputPaths | None:
    """Return which weights of the first layer lead to an output.

    Args:
        keep: Masks by site, of a `zoo.MLP` named ``net``; those of other sites are not used.

    Returns:
        The weights; None where the network is not such a chain.
    """
    layers = sorted(
        (name for name in keep if re.fullmatch(r"net\.layers\.\d+\.weight", name)),
        key=lambda name: int(name.split(".")[2]),
    )
    if not layers or any(np.ndim(keep[name]) != 2 for name in layers):
        return None
    leads = np.asarray(keep[layers[-1]])
    for name in reversed(layers[:-1]):
        kept = np.asarray(keep[name])
        if kept.shape[0] != leads.shape[1]:
            return None
        leads = kept & leads.any(axis=0, keepdims=True).T
    return InputPaths(layers[0], leads)
