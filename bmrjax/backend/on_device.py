"""Arrays brought to the device, and copied there."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
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


def held_on_device(array: np.ndarray) -> Array:
    """Return an array of the caller's as one of JAX, which does not change where the caller's does.

    Of `on_device`, it depends on where the array happens to begin whether both share their memory.

    Args:
        array: Of NumPy. One that nobody can write, such as a file mapped for reading, may be shared.
    """
    found = on_device(array)
    if isinstance(found, Tracer) or not array.size or not _can_change(array):
        return found
    found = found.block_until_ready()  # an accelerator may still be reading
    if found.unsafe_buffer_pointer() == array.ctypes.data:
        return on_device(np.array(array))
    return found


def _can_change(array: Any) -> bool:
    """Return whether an array, or one that it is a view of, can be written."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return array is not None and not _is_for_reading(array)


def _is_for_reading(memory: Any) -> bool:
    try:
        return memoryview(memory).readonly
    except TypeError:  # of something else, such as another library's tensor
        return False


def held_on_host(tree: _Tree) -> _Tree:
    """Return a tree with copies of its arrays that are not JAX's, such as those that a loader fills again.

    Args:
        tree: Arrays of NumPy, of JAX, or tensors of other libraries, and anything else.
    """

    def one(x: Any) -> Any:
        is_array = hasattr(x, "shape") and hasattr(x, "__array__")
        if not is_array or isinstance(x, jax.Array | np.generic):
            return x
        return np.array(x, subok=True)

    return jax.tree.map(one, tree)


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
