"""Functions and classes of libraries that a file may name.

A file names what it was written with, and the network calls it later. So the list holds what computes
something from its arguments and nothing else: no function of it reads or writes a file, calls back into
Python, or changes a setting.
"""

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_JNP = (
    "abs absolute acos acosh add all amax amin angle any append arccos arccosh arcsin arcsinh arctan "
    "arctan2 arctanh argmax argmin argsort around asarray asin asinh astype atan atan2 atanh atleast_1d "
    "atleast_2d atleast_3d average broadcast_to cbrt ceil clip column_stack concat concatenate conj "
    "conjugate convolve copy cos cosh count_nonzero cross cumprod cumsum deg2rad diag diagonal diff "
    "divide dot einsum equal exp exp2 expand_dims expm1 fabs flip fliplr flipud floor floor_divide fmax "
    "fmin greater greater_equal heaviside hstack hypot imag inner interp invert isfinite isinf isnan kron "
    "less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or "
    "logical_xor matmul matrix_transpose max maximum mean median min minimum mod moveaxis multiply "
    "nan_to_num nanmax nanmean nanmin nansum negative not_equal ones_like outer pad permute_dims polyval "
    "positive pow power prod ptp rad2deg ravel real reciprocal remainder repeat reshape rint roll "
    "rollaxis rot90 round searchsorted select sign sin sinc sinh sort split sqrt square squeeze stack std "
    "subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace transpose tril triu "
    "true_divide trunc unstack var vdot vecdot vstack where zeros_like"
).split()
_LAX = (
    "abs add argmax argmin batch_matmul clamp concatenate conv conv_general_dilated conv_transpose cos "
    "cumsum div dot dot_general erf erf_inv exp expand_dims expm1 floor integer_pow log log1p logistic "
    "max min mul neg pmean pow reduce_window reshape rsqrt select sign sin sqrt square stop_gradient sub "
    "tan tanh top_k"
).split()
_SPECIAL = "erf erfc erfinv expit logit logsumexp log_ndtr ndtr xlogy".split()
_RANDOM = "bernoulli categorical exponential gumbel laplace normal truncated_normal uniform".split()
_INITIALISERS = "normal uniform zeros ones constant variance_scaling truncated_normal".split()
_POOLS = "avg_pool max_pool min_pool pool dot_product_attention".split()
NUMBER_TYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32 float64 complex64 "
    "complex128"
).split()


@functools.cache
def library_functions() -> dict[str, Any]:
    """Return functions, and types of numbers, by the names that files have for them.

    Where one has several names, the first is written.

    Example:
        >>> import jax
        >>> library_functions()["relu"] is jax.nn.relu
        True
        >>> "jnp.save" in library_functions()
        False
    """
    named = (
        "relu silu gelu sigmoid softplus elu selu celu leaky_relu relu6 hard_tanh hard_sigmoid hard_swish "
        "soft_sign log_sigmoid glu softmax log_softmax mish identity"
    ).split()
    found = {name: getattr(jax.nn, name) for name in named}
    found |= {f"jnp.{name}": getattr(jnp, name) for name in ("tanh", "sin", "cos", "exp", "abs")}
    found |= {"tanh": jax.nn.tanh, "lax.max": jax.lax.max, "lax.add": jax.lax.add}
    found |= {f"jax.nn.{name}": value for name, value in _public_functions(jax.nn)}
    for prefix, module, names in (
        ("jnp", jnp, [*_JNP, *NUMBER_TYPES]),
        ("lax", jax.lax, _LAX),
        ("jax.scipy.special", jax.scipy.special, _SPECIAL),
        ("jax.random", jax.random, _RANDOM),
        ("jax.nn.initializers", jax.nn.initializers, _INITIALISERS),
    ):
        # A name that this version of the library lacks is one that no file can use here.
        found |= {f"{prefix}.{n}": getattr(module, n) for n in names if hasattr(module, n)}
    found |= {
        f"np.{name}": value
        for name, value in vars(np).items()
        if isinstance(value, np.ufunc)
        or (isinstance(value, type) and issubclass(value, np.number | np.bool_))
    }
    found |= {each.__name__: each for each in (bool, int, float, complex)}
    found |= dict(_private("equinox.nn"))
    found |= dict(_flax_functions())
    return found


def _public_functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        inner = name.startswith(("_", "get_", "scaled_"))
        if not inner and callable(value) and not isinstance(value, type):
            yield name, value


def _flax_functions() -> Iterator[tuple[str, Any]]:
    from flax import nnx

    for name in [*_POOLS, "Carry"]:
        yield f"nnx.{name}", getattr(nnx, name)
    yield from _private("flax.nnx.nn")


def _private(package: str) -> Iterator[tuple[str, Any]]:
    """Yield what the modules of a package of layers have of functions and of initialisers of their own."""
    path = importlib.import_module(package).__path__
    for each in pkgutil.iter_modules(path, f"{package}."):
        module = importlib.import_module(each.name)
        for name, value in vars(module).items():
            home = getattr(value, "__module__", None)
            own = home == module.__name__ or home == "jax._src.nn.initializers"
            if own and callable(value) and not isinstance(value, type) and "__" not in name:
                yield f"{module.__name__}:{name}", value


@functools.cache
def equinox_classes() -> dict[str, type]:
    """Return the modules of `equinox.nn`, and what `filter_vmap` makes, by their names in files."""
    import equinox as eqx

    found = {f"eqx.{name}": value for name, value in vars(eqx.nn).items() if _is_module(value)}
    del found["eqx.StateIndex"]
    vectorised = type(eqx.filter_vmap(jnp.tanh))
    return found | {"eqx.filter_vmap": vectorised, "eqx.if_array": eqx.if_array}


def _is_module(value: Any) -> bool:
    import equinox as eqx

    return isinstance(value, type) and issubclass(value, eqx.Module)


@functools.cache
def flax_layer_classes() -> dict[str, type]:
    """Return the modules and variables of `flax.nnx` by their names in files."""
    from flax import nnx

    kinds = nnx.Module, nnx.Variable, nnx.RngStream, nnx.Rngs
    left_out = nnx.Metric, nnx.Optimizer
    return {"nnx.StateAxes": nnx.StateAxes, "nnx.PathContains": nnx.PathContains} | {
        f"nnx.{name}": value
        for name, value in vars(nnx).items()
        if isinstance(value, type) and issubclass(value, kinds) and not issubclass(value, left_out)
    }


def enumerations() -> dict[str, Any]:
    """Return the members of enumerations of `jax.lax` that layers have options for."""
    kinds = jax.lax.Precision, jax.lax.GatherScatterMode
    return {f"lax.{kind.__name__}.{member.name}": member for kind in kinds for member in kind}


def initialiser_not_saved(*args: Any, **kwargs: Any) -> Any:
    """Stand for a function that drew the first weights of a network, which its file does not have.

    Raises:
        RuntimeError: Whenever it is called.
    """
    raise RuntimeError(
        "This network comes from a file, which has its weights and not the functions that drew the first "
        "ones. Make a new network of its class to draw others."
    )
