"""Matrix products and convolutions of a program in bfloat16, and everything else in float32."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from bmrjax.backend.jaxprs import bind
from bmrjax.backend.rewrite import Form, rewritten

MatmulDtype = Literal["bfloat16"]

# Marks the operations of a program, and those of its derivative, among those of a loss.
_SCOPE = "bmrjax.program"
_PRODUCTS = ("dot_general", "conv_general_dilated")


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
    return rewritten(function, _lowered)


def _lowered(eqn: Any, names: str) -> Form | None:
    """Return an operation of a program in bfloat16, if it is a product in float32."""
    if _SCOPE not in names or eqn.primitive.name not in _PRODUCTS:
        return None
    if _is_precise(eqn.params["precision"]):
        return None
    if any(v.aval.dtype != jnp.float32 for v in (*eqn.invars, *eqn.outvars)):
        return None
    params = {**eqn.params, "preferred_element_type": jnp.dtype(jnp.float32)}
    low = eqn.replace(params=params)
    return lambda inputs: bind(low, [x.astype(jnp.bfloat16) for x in inputs])


def _is_precise(precision: Any) -> bool:
    return jax.lax.Precision.HIGHEST in (
        precision if isinstance(precision, tuple) else (precision,)
    )
