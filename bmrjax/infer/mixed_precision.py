"""Matrix products and convolutions of a program in bfloat16, and everything else in float32."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.extend.core as jec
import jax.numpy as jnp

from bmrjax.backend.jaxprs import CALLS, bind, closed

MatmulDtype = Literal["bfloat16"]

# Marks the operations of a program, and those of its derivative, among those of a loss.
_SCOPE = "bmrjax.program"
_PRODUCTS = ("dot_general", "conv_general_dilated")
# Operations whose functions may be written anew. What others hold (a linear solve, a kernel) stays as it is.
_HOLDERS = (*CALLS, "scan", "while", "cond")


def check_matmul_dtype(name: Any) -> None:
    """Raise ValueError for anything but None and ``"bfloat16"``."""
    if name not in (None, "bfloat16"):
        raise ValueError(
            f"matmul_dtype must be None or 'bfloat16', got {name!r}. Give 'bfloat16' for matrix products and "
            "convolutions in bfloat16 with sums in float32, or leave it out for the program's own precision."
        )


def of_program(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark what a function computes as a program's, for `with_low_matmuls` to find."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(_SCOPE):
            return fn(*args, **kwargs)

    return marked


def with_low_matmuls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose programs multiply matrices and convolve in bfloat16.

    Both operands of each float32 matrix product and convolution are rounded to bfloat16, sums are taken in
    float32, and so is the result. That goes for operations in what `of_program` marks, and for those of their
    derivatives: so give the gradient of a loss, not the loss. Other dtypes, products that ask for the highest
    precision, and all other operations stay as they are. bfloat16 has the range of float32, so nothing needs
    to be scaled, but only 8 binary digits.

    Args:
        function: A pure, traceable function of pytrees of arrays. Its derivatives must be taken before.

    Returns:
        The function, traced anew at each call.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax.infer.mixed_precision import of_program, with_low_matmuls
        >>> x = jnp.array([[1.001, 2.0]])  # 1.001 is rounded to 1
        >>> with_low_matmuls(of_program(lambda x: x @ x.T))(x)
        Array([[5.]], dtype=float32)

    References:
        Kalamkar et al. (2019), A study of bfloat16 for deep learning training. Micikevicius et al. (2018),
        Mixed precision training.
    """

    def lowered(*args: Any) -> Any:
        whole, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        found = _run(whole.jaxpr, whole.consts, jax.tree.leaves(args), inside=False)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return lowered


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], *, inside: bool) -> list[Any]:
    """Run a jaxpr with the products of the program in bfloat16."""
    values: dict[Any, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True)
    )

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jec.Literal) else values[var]

    for eqn in jaxpr.eqns:
        # A function inside of an operation has names of its own.
        of_this = inside or _SCOPE in str(eqn.source_info.name_stack)
        found = _apply(eqn, [read(var) for var in eqn.invars], inside=of_this)
        values.update(zip(eqn.outvars, found, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _apply(eqn: Any, inputs: list[Any], *, inside: bool) -> list[Any]:
    if _is_lowered(eqn, inside=inside):
        low = [x.astype(jnp.bfloat16) for x in inputs]
        params = {**eqn.params, "preferred_element_type": jnp.dtype(jnp.float32)}
        return bind(eqn.replace(params=params), low)
    if eqn.primitive.name in _HOLDERS and _lowers(eqn, inside=inside):
        params = {name: _anew(value, inside=inside) for name, value in eqn.params.items()}
        eqn = eqn.replace(params=params)
    return bind(eqn, inputs)


def _is_lowered(eqn: Any, *, inside: bool) -> bool:
    if not inside or eqn.primitive.name not in _PRODUCTS or _is_precise(eqn.params["precision"]):
        return False
    return all(v.aval.dtype == jnp.float32 for v in (*eqn.invars, *eqn.outvars))


def _is_precise(precision: Any) -> bool:
    return jax.lax.Precision.HIGHEST in (
        precision if isinstance(precision, tuple) else (precision,)
    )


def _lowers(eqn: Any, *, inside: bool) -> bool:
    """Say whether an operation is, or holds, one to be lowered."""
    inside = inside or _SCOPE in str(eqn.source_info.name_stack)
    return _is_lowered(eqn, inside=inside) or any(
        _lowers(inner, inside=inside)
        for jaxpr in jec.jaxprs_in_params(eqn.params)
        for inner in jaxpr.eqns
    )


def _anew(value: Any, *, inside: bool) -> Any:
    """Return a parameter of an operation with the functions in it written anew."""
    if isinstance(value, tuple) and any(hasattr(part, "eqns") for part in value):
        return tuple(_anew(part, inside=inside) for part in value)
    if not hasattr(value, "eqns"):
        return value
    jaxpr, consts = closed(value)

    def run(*args: Any) -> list[Any]:
        return _run(jaxpr, consts, args, inside=inside)

    found = jax.make_jaxpr(run)(*[v.aval for v in jaxpr.invars])
    return found if hasattr(value, "consts") else found.jaxpr
