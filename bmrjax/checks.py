"""Keys and arrays of NumPy, checked before anything is computed with them."""

from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_key(key: Any, caller: str = "sparsify", **counts: int | None) -> None:
    """Raise TypeError unless `key` is a JAX PRNG key, and ValueError for counts below one.

    Args:
        key: What a caller gave as the key, which may be a seed, or the data.
        caller: Name of the function, for the messages.
        **counts: Numbers of draws, rows and the like, by the name of the argument; None passes.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        got = repr(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(f"{caller}: key must be a PRNG key, as jax.random.key(0); got {got}.")
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral)):
            raise TypeError(f"{caller}: {name} must be an integer, got {count!r}.")
        if count is not None and count < 1:
            raise ValueError(f"{caller}: {name} must be at least 1, got {count}.")


def check_unmasked(array: Any, name: str) -> None:
    """Raise ValueError for an array of `numpy.ma` with masked entries: what is under a mask is no data.

    Args:
        array: Anything.
        name: What it is called, for the message.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError(
            f"{name} is a masked array, with {np.ma.count_masked(array)} of {array.size} entries masked. "
            "Give the rows without any, or numbers in their place, by its filled()."
        )


def plain_array(array: np.ndarray) -> np.ndarray:
    """Return an array as JAX takes it: in the order of bytes of this machine, and not of `numpy.ma`.

    Files of other machines, such as FITS and netCDF, are read in their own order.

    Args:
        array: Of any type; without masked entries, which are not seen any more.
    """
    plain = np.ma.getdata(array) if isinstance(array, np.ma.MaskedArray) else array
    return plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))
