"""A batch of an iterator, where the step wants it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.infer.arguments import Batch, Data
from bmrjax.infer.check_data import check_data, check_range
from bmrjax.infer.placement import Placement


def placed(batch: Data, placement: Placement) -> Data:
    """Return a batch as arrays, by rows over the devices if there are several.

    Args:
        batch: Arguments of the program, of a shape that is checked if it is not a `Batch`.
        placement: Where arrays live.

    Raises:
        ValueError: For whole numbers that wrap around.
    """
    if not isinstance(batch, Batch) and any(not hasattr(x, "shape") for x in _values(batch)):
        batch = check_data(batch, "batch")
    for array in jax.tree.leaves(batch):
        check_range(array, "A batch")
    if placement.mesh is None:
        return jax.tree.map(jnp.asarray, batch)
    return placement.by_rows(jax.tree.map(np.asarray, batch))


def _values(batch: Any) -> list[Any]:
    return list(batch.values()) if isinstance(batch, Mapping) else list(batch)
