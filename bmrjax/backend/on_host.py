"""A program that runs once, run by the host's processor where the default device is an accelerator."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bmrjax.backend.quick_compile import host_options
from bmrjax.backend.shared_programs import compiled


def on_host(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, computed on the host, with its arrays on the default device.

    To compile a program for a GPU takes many times as long as for the host, since kernels are tried out: too
    long for one that runs a single time. Where JAX may not use the host, the default device has it.

    Args:
        function: Pure; it is compiled.
        args: Trees of arrays.
    """
    try:
        host = jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names accelerators only
        return jax.jit(function)(*args)
    with jax.default_device(host):
        # Arrays that lie on an accelerator for good would take the program there.
        there = jax.tree.map(lambda x: jax.device_put(x, host), args)
        found = compiled(jax.jit(function).trace(*there), host_options())(*there)
    return jax.tree.map(_on_default_device, found)


def _on_default_device(x: Any) -> Any:
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = _on_default_device(jax.random.key_data(x))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    return jax.device_put(np.asarray(x))
