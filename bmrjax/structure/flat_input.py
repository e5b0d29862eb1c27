"""Networks that flatten their input first."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.structure.equivalence import random_inputs
from bmrjax.structure.network_arrays import Parts


def flat_input(parts: Parts, inputs: tuple[Array, ...], *, batch: bool) -> Array | None:
    """Return the input flattened, if the network does that first and so takes it like that too.

    Args:
        parts: The network.
        inputs: Example inputs that it runs on.
        batch: Whether the first axis holds data.

    Returns:
        The input with one axis of features; None if the network takes several inputs, no real
        numbers, or images as images.
    """
    if len(inputs) != 1 or not jnp.issubdtype(inputs[0].dtype, jnp.floating):
        return None
    shape = (inputs[0].shape[0], -1) if batch else (-1,)
    if inputs[0].ndim < len(shape):
        return None
    if inputs[0].ndim == len(shape):
        return inputs[0]
    (x,) = random_inputs(inputs)[1]
    try:
        jax.eval_shape(parts.call, parts.arrays, (x.reshape(shape),))
    except Exception:  # it takes images as images
        return None
    run = jax.jit(parts.call)
    found = [run(parts.arrays, (v,)) for v in (x, x.reshape(shape))]
    a, b = map(jax.tree.leaves, found)
    same = len(a) == len(b) and all(
        u.shape == v.shape and bool(jnp.allclose(u, v, rtol=1e-5, atol=1e-6))
        for u, v in zip(a, b, strict=True)
    )
    return inputs[0].reshape(shape) if same else None
