"""Products that a network's code divides by the square root of their own size."""

from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np

from bmrjax.backend.jaxprs import bind_one
from bmrjax.structure.dataflow import PRODUCTS, product

# Operations that move elements of their first argument, or repeat them.
MOVES = frozenset((
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "rev",
    "convert_element_type", "copy", "copy_p", "reduce_precision", "neg", "dynamic_slice",
))  # fmt: skip


def scaling_weights(
    jaxpr: Any, var: Any, num_params: int, varying: set[Any]
) -> dict[int, np.ndarray] | None:
    """Return which elements of parameters a variable is proportional to; None if it is to none.

    Args:
        jaxpr: Without calls.
        var: The variable.
        num_params: How many of the arguments are parameters.
        varying: The variables that the input reaches.
    """
    made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    places = {v: i for i, v in enumerate(jaxpr.invars[:num_params])}
    found: dict[int, np.ndarray] = {}
    waiting = [(var, np.ones(var.aval.shape, np.float32))]
    while waiting:
        v, mask = waiting.pop()
        if isinstance(v, jec.Literal):
            return None
        if v in places:
            i = places[v]
            found[i] = found.get(i, np.zeros(v.aval.shape, bool)) | (mask > 0)
            continue
        eqn = made.get(v)
        steps = None if eqn is None else _steps(eqn, eqn.outvars.index(v), mask, varying)
        if steps is None:
            return None
        waiting += steps
    return found


def _steps(eqn: Any, place: int, mask: np.ndarray, varying: set[Any]) -> list[Any] | None:
    """Return the arguments that a result is proportional to, together, with masks of their elements."""
    name, ins = eqn.primitive.name, eqn.invars
    zeros = [jnp.zeros(v.aval.shape, jnp.float32) for v in ins]
    if name in ("add", "add_any", "sub", "mul", "div"):
        if name in ("mul", "div"):
            one = ins[0] if name == "div" or _is_varying(ins[0], varying) else ins[1]
            return [(one, _for(mask, one.aval.shape))]
        return [(v, _for(mask, v.aval.shape)) for v in ins]
    if name in MOVES or name == "split":
        if name in ("convert_element_type", "copy", "copy_p", "reduce_precision", "neg"):
            return [(ins[0], mask)]
        if name == "split":
            sizes = [int(n) for n in eqn.params["sizes"]]
            start = sum(sizes[:place])
            whole = np.zeros(ins[0].aval.shape, np.float32)
            where = [slice(None)] * whole.ndim
            where[eqn.params["axis"]] = slice(start, start + sizes[place])
            whole[tuple(where)] = mask
            return [(ins[0], whole)]
        if len(ins) > 1:
            return None
        back = jax.vjp(lambda x: bind_one(eqn, [x]), zeros[0])[1]
        return [(ins[0], np.asarray(back(jnp.asarray(mask))[0]))]
    if name == "concatenate":
        ends = np.cumsum([v.aval.shape[eqn.params["dimension"]] for v in ins])[:-1]
        parts = np.split(mask, ends, axis=eqn.params["dimension"])
        return list(zip(ins, parts, strict=True))
    if name in PRODUCTS:
        k = 1 if _is_varying(ins[0], varying) else 0
        if _is_varying(ins[k], varying):
            return None
        one = jnp.ones(ins[1 - k].aval.shape, jnp.float32)
        run = lambda w: product(eqn, [w, one] if k == 0 else [one, w])  # noqa: E731
        back = jax.vjp(run, zeros[k])[1]
        return [(ins[k], np.asarray(back(jnp.asarray(mask))[0]))]
    return None


def _for(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a result's mask for an argument, which may have been stretched to it."""
    if not shape:
        return np.asarray(mask.max(initial=0))
    axes = tuple(i for i, n in enumerate(shape) if n != mask.shape[i])
    return mask.max(axis=axes, keepdims=True, initial=0) if axes else mask


def _is_varying(v: Any, varying: set[Any]) -> bool:
    return not isinstance(v, jec.Literal) and v in varying
