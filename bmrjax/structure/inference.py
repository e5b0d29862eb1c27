"""A network compiled to be called many times."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from bmrjax.backend.jaxprs import CALLS, bind, closed, evaluate, inner
from bmrjax.structure.shifted import SHIFTED, shifted

# Calls of each form when two are compared; the fastest of them counts.
CALLS_TIMED = 7


def compile_fastest(function: Callable[..., Any], *batch: Array) -> Callable[..., Any]:
    """Compile a function for the shapes it is called with, in the form that is fastest on this machine.

    XLA's convolutions and pooling take as long for two channels as for twenty on a CPU, so a network that
    lost channels gains little. Where adding up shifted images is faster, that is what is compiled: each such
    operation is timed both ways, and so is the whole in the end. Elsewhere than on a CPU the function is
    compiled as it is.

    Args:
        function: Of arrays; what it closes over becomes constants.
        *batch: Arrays of the shapes and dtypes it will be called with.

    Returns:
        The function, compiled. Arrays of other shapes or dtypes go through it as they would through
        `jax.jit`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import structure, zoo
        >>> network, images = zoo.LeNet5(key=jax.random.key(0)), jnp.ones((2, 1, 28, 28))
        >>> structure.compile_fastest(jax.vmap(network), images)(images).shape
        (2, 10)
    """
    plain = jax.jit(function)
    if jax.default_backend() != "cpu":
        return plain
    whole, shape = jax.make_jaxpr(function, return_shape=True)(*batch)
    forms: dict[str, Any] = {}
    _look(whole.jaxpr, forms)
    if not any(forms.values()):
        return plain

    @jax.jit
    def run(yes: Array, *args: Array) -> Any:
        def rule(eqn: Any, inputs: list[Array]) -> list[Array] | None:
            form = forms.get(_key(eqn)) if eqn.primitive.name in SHIFTED else None
            return None if form is None else [_apart(form, yes, *inputs)]

        found = evaluate(whole.jaxpr, whole.consts, args, rule)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    yes, fits = jax.numpy.array(True), [(x.shape, x.dtype) for x in batch]  # noqa: FBT003

    def other(*args: Array) -> Any:
        if [(x.shape, x.dtype) for x in args] != fits:
            return plain(*args)
        return run(yes, *args)

    return other if _faster(other, plain, batch) else plain


def _apart(form: Any, yes: Array, *args: Array) -> Array:
    """Run a form in a branch of its own: else it is fused with what reads it, and computed again there."""
    shape = jax.eval_shape(form, *args)
    return jax.lax.cond(yes, form, lambda *_: jax.numpy.zeros(shape.shape, shape.dtype), *args)


def _key(eqn: Any) -> str:
    """Return what tells operations of a kind apart."""
    return f"{eqn.primitive.name} {[v.aval for v in eqn.invars]} {eqn.params}"


def _look(jaxpr: Any, forms: dict[str, Any]) -> None:
    """Choose the form of each operation that has two."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in CALLS:
            _look(closed(inner(eqn))[0], forms)
        elif eqn.primitive.name not in SHIFTED or _key(eqn) in forms:
            continue
        elif (form := shifted(eqn)) is not None:
            rng = np.random.default_rng(0)
            args = [
                jax.numpy.asarray(rng.standard_normal(v.aval.shape), v.aval.dtype)
                for v in eqn.invars
            ]
            both = [jax.jit(f) for f in (form, lambda *a, eqn=eqn: bind(eqn, list(a))[0])]
            forms[_key(eqn)] = form if _faster(both[0], both[1], args) else None


def _faster(one: Any, other: Any, args: Sequence[Array]) -> bool:
    """Say whether one compiled function takes less time than another."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(CALLS_TIMED + 2):
        for call, kept in zip((one, other), times, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(call(*args))
            if turn >= 2:
                kept.append(time.perf_counter() - begin)
    return min(times[0]) < min(times[1])
