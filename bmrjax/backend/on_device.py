"""Arrays brought to the device, and copied there."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from bmrjax.backend.quick_compile import quick_jit

_Tree = TypeVar("_Tree")


def on_device(tree: Any) -> Any:
    """Return a tree with its arrays and numbers as JAX arrays, without compiling anything.

    ``jnp.asarray`` compiles a program for each shape and type, some .02 s of a core each. As with it, an
    array of NumPy may share its memory with what is returned: do not change it afterwards.

    Args:
        tree: Arrays of NumPy or of JAX, or numbers.
    """
    # Where a program has closed over an array, device_put returns the buffer that is cached for it: in single
    # precision, also after double precision was switched on. A view is another array.
    return jax.device_put(
        jax.tree.map(lambda a: a.view() if isinstance(a, np.ndarray) else a, tree)
    )


def in_precision(tree: _Tree) -> _Tree:
    """Return a tree without numbers in double precision, where that is off.

    Args:
        tree: Arrays of NumPy or of JAX, keys among them.
    """

    def one(a: Any) -> Any:
        if jnp.issubdtype(a.dtype, jax.dtypes.extended):
            return a
        dtype = jax.dtypes.canonicalize_dtype(a.dtype)
        return a if a.dtype == dtype else np.asarray(a).astype(dtype)

    return jax.tree.map(one, tree)


def floats_on_device(values: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Return numbers as a JAX array of the default floating-point type, without compiling anything.

    Args:
        values: Concrete numbers.
    """
    return on_device(np.asarray(values, jnp.result_type(float)))


def copied(tree: Any) -> Any:
    """Return a copy of the arrays of a tree, made by one program in place of one for each shape.

    Args:
        tree: Arrays of JAX.
    """
    if jax.device_count() > 1:  # a program of its own may place its results elsewhere
        return jax.tree.map(jnp.copy, tree)
    return _copied(tree)


@quick_jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
