"""What a fit takes over from an earlier one, by name."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def common_values(
    params: Mapping[str, Any], now: Mapping[str, Any], names: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of an earlier fit that the program has too, in the program's types.

    Args:
        params: Constrained parameters and mutable sites of the earlier fit.
        now: Those of the program.
        names: Its parameters, for the message.

    Raises:
        ValueError: If no name is common, or a shape differs.
    """
    common = {name: value for name, value in params.items() if name in now}
    if not common:
        raise ValueError(
            f"sparsify: nothing of `start` fits: it has the parameters {sorted(params)[:3]}, and the "
            f"program has {sorted(names)[:3]}."
        )
    for name, value in common.items():
        shapes, old = (jax.tree.map(jnp.shape, tree) for tree in (value, now[name]))
        if shapes != old:
            raise ValueError(
                f"sparsify: '{name}' has shape {shapes} in `start`, and {old} in the program."
            )
    return {name: jax.tree.map(_as_type_of, now[name], value) for name, value in common.items()}


def _as_type_of(own: Any, value: Any) -> Any:
    """Return a value in another's type: a fit in double precision may be the start of one in single."""
    dtype = jnp.result_type(own)
    return value if jnp.result_type(value) == dtype else jnp.asarray(value, dtype)


def mutable_values(
    mutable: Mapping[str, Any] | None, common: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return copies of mutable sites, with the running statistics of the earlier fit.

    Statistics are learned, and kept in dicts; a hyper-parameter is an array, and given.

    Args:
        mutable: Those of the program; None if it has none.
        common: What `common_values` returned.
    """
    if mutable is None:
        return None
    taken = {
        name: common.get(name, value) if isinstance(value, Mapping) else value
        for name, value in mutable.items()
    }
    return jax.tree.map(lambda x: jnp.array(x, copy=True), taken)
