"""Normalised weights of Equinox that are zero."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def finite_weight_norms(network: Any) -> Any:
    """Return a network whose `equinox.nn.WeightNorm` layers give zero where their weights are zero.

    Such a layer computes g · v / |v|, which is 0 / 0 for a row v whose weights were all removed. Here that
    row has g = 0, and one weight other than zero, in the column that is largest in all rows: the product is
    exactly zero, and so is its gradient.

    Args:
        network: An Equinox module, or a pair of one and its state.
    """
    is_norm = lambda x: isinstance(x, eqx.nn.WeightNorm)  # noqa: E731
    if not any(map(is_norm, jax.tree.leaves(network, is_leaf=is_norm))):
        return network
    return jax.tree.map(lambda x: _finite(x) if is_norm(x) else x, network, is_leaf=is_norm)


def _finite(layer: Any) -> Any:
    v, g = getattr(layer.layer, layer.weight_name), layer.g
    along = tuple(i for i, size in enumerate(g.shape) if size == 1)
    others = tuple(i for i, size in enumerate(g.shape) if size != 1)
    zero = jnp.sum(jnp.abs(v), axis=along, keepdims=True) == 0
    strength = jnp.sum(jnp.abs(v), axis=others, keepdims=True)
    one = jnp.zeros(strength.size, v.dtype).at[jnp.argmax(strength)].set(1).reshape(strength.shape)
    return eqx.tree_at(
        lambda x: (getattr(x.layer, x.weight_name), x.g),
        layer,
        (jnp.where(zero, one, v), jnp.where(zero, jnp.zeros((), g.dtype), g)),
    )
