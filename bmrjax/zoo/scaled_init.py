"""Initial weights of the zoo."""

import functools
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.backend.quick_compile import quick_jit

Linear = TypeVar("Linear", eqx.nn.Linear, eqx.nn.Conv2d)


@functools.partial(quick_jit, static_argnums=(1, 2, 3))
def _drawn(key: Array, shape: tuple[int, ...], dtype: Any, gain: float) -> Array:
    """Draw weights whose first axis are the outputs, the second the inputs, the others space."""
    draw = jax.nn.initializers.variance_scaling(gain, "fan_in", "normal", in_axis=1, out_axis=0)
    if len(shape) == 2:
        return draw(key, shape, dtype)
    axes = (*range(2, len(shape)), 1, 0)
    draw = jax.nn.initializers.variance_scaling(gain, "fan_in", "normal")
    fresh = draw(key, tuple(shape[a] for a in axes), dtype)
    return jnp.transpose(fresh, tuple(axes.index(a) for a in range(len(shape))))


def scaled(
    kind: type[Linear], *sizes: int, gain: float = 1.0, key: Array, **options: Any
) -> Linear:
    """Return a layer with weights of variance gain / fan-in and biases of zero.

    Equinox draws weights of a third of that variance. Under a prior that pulls every weight to
    zero, a swish network starting there loses its signal before the likelihood takes hold.

    Args:
        kind: The class of a linear or convolution layer.
        *sizes: Its sizes.
        gain: 1 for tanh (LeCun et al. 1998), 2 for rectifiers and swish (He et al. 2015).
        key: PRNG key.
        **options: What else the class takes.
    """
    layer = eqx.filter_eval_shape(kind, *sizes, key=key, **options)
    weight = _drawn(key, layer.weight.shape, layer.weight.dtype, gain)
    layer = eqx.tree_at(lambda x: x.weight, layer, weight)
    if layer.bias is None:
        return layer
    return eqx.tree_at(
        lambda x: x.bias, layer, jnp.asarray(np.zeros(layer.bias.shape, layer.bias.dtype))
    )
