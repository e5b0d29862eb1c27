"""Operations outside of any program, computed by NumPy where that gives the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import config, core, pjit
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla
from jax.sharding import SingleDeviceSharding

# An operation on an array of a new shape is a program of its own: nine tenths of the time that it takes are
# lowering, compilation and the folder of compiled programs. Two thirds of the programs of the tests are such.
MOST_ELEMENTS = 100_000
USUAL = {
    np.dtype(each) for each in ("float32", "float64", "int32", "int64", "uint32", "uint8", "bool")
}
_compile = pjit._pjit_call_impl_python
_known: dict[int, tuple[Any, bool]] = {}


def install() -> None:
    """Compute by NumPy what IEEE 754 determines to the last bit, and compile the rest as JAX does."""
    pjit._pjit_call_impl_python = _call


def _call(*args: Any, jaxpr: Any, **settings: Any) -> Any:
    """Run a program that stands for one operation: the results, and that nothing was compiled."""
    if not (_is_plain(args, settings) and _is_exact(jaxpr)):
        return _compile(*args, jaxpr=jaxpr, **settings)
    with np.errstate(all="ignore"):
        values = [np.asarray(x, aval.dtype) for x, aval in zip(args, jaxpr.in_avals, strict=True)]
        results = _evaluate(jaxpr.jaxpr, values)
    if results is None:
        return _compile(*args, jaxpr=jaxpr, **settings)
    held = [x for x in args if isinstance(x, ArrayImpl)]
    device = held[0].device if held else jax.devices()[0]
    committed = any(x.committed for x in held)
    arrays = [
        pxla.batched_device_put(
            aval, SingleDeviceSharding(device), [np.array(x, order="C")], [device], committed
        )
        for x, aval in zip(results, jaxpr.out_avals, strict=True)
    ]
    return arrays, None, None, []


def _is_plain(args: Any, settings: Any) -> bool:
    """Return whether all arrays lie on one device, and the program has no settings of its own."""
    if (
        config.debug_nans.value
        or config.debug_infs.value
        or config.default_device.value is not None
    ):
        return False
    if settings["compiler_options_kvs"] or not settings["ctx_mesh"].empty:
        return False
    if any(settings["donated_invars"]) or any(settings["in_layouts"] + settings["out_layouts"]):
        return False
    shardings = settings["in_shardings"] + settings["out_shardings"]
    if not all(each is pjit.UNSPECIFIED for each in shardings):
        return False
    held = [x for x in args if isinstance(x, ArrayImpl)]
    if not all(isinstance(x.sharding, SingleDeviceSharding) for x in held):
        return False
    known = (ArrayImpl, np.ndarray, np.generic, float, int)
    return len({x.device for x in held}) <= 1 and all(isinstance(x, known) for x in args)


def _is_exact(jaxpr: Any) -> bool:
    """Return whether NumPy gives the same bits as a compiled program."""
    found = _known.get(id(jaxpr))
    if found is None or found[0] is not jaxpr:  # an `id` is given again
        if len(_known) > 20_000:
            _known.clear()
        found = _known[id(jaxpr)] = jaxpr, _roundings(jaxpr) <= 1
    return found[1]


def _roundings(closed: Any) -> float:
    """Return how many operations round, of which XLA may fuse two; infinite where NumPy may differ."""
    ends = (*closed.jaxpr.invars, *closed.jaxpr.outvars)
    if closed.consts or closed.effects or not all(map(_is_usual, ends)):
        return np.inf
    count = 0.0
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit"):
            count += _roundings(eqn.params["jaxpr"])
        elif eqn.primitive not in NUMPY or not all(map(_is_usual, (*eqn.invars, *eqn.outvars))):
            return np.inf
        else:
            floats = bool(eqn.invars) and eqn.invars[0].aval.dtype.kind == "f"
            elsewhere = _OF_INTEGERS if floats else _OF_FLOATS
            if eqn.primitive in elsewhere or _is_special(eqn, floats=floats):
                return np.inf
            count += floats and eqn.primitive in _ROUNDS
    return count


def _is_usual(var: Any) -> bool:
    """Return whether a value has a type that both know, and is small."""
    return getattr(var.aval, "dtype", None) in USUAL and var.aval.size <= MOST_ELEMENTS


def _is_special(eqn: Any, *, floats: bool) -> bool:
    """Return whether the parameters of an operation ask for more than is written here."""
    if eqn.primitive is lax.convert_element_type_p:
        # Beyond the range of the integers, NumPy and XLA differ.
        return floats and np.dtype(eqn.params["new_dtype"]).kind != "f"
    if eqn.primitive is lax.integer_pow_p:
        return eqn.params["y"] != 2
    if eqn.primitive is lax.reshape_p:
        return eqn.params["dimensions"] is not None
    if eqn.primitive is lax.div_p:  # by a constant, XLA multiplies by its inverse
        return any(isinstance(var, core.Literal) for var in eqn.invars)
    return False


def _evaluate(jaxpr: Any, args: list[Any]) -> list[Any] | None:
    """Compute the results of a jaxpr; none where a number is subnormal, which XLA takes for zero."""
    values = dict(zip(jaxpr.invars, args, strict=True))
    if any(map(_has_subnormal, args)):
        return None

    def read(var: Any) -> Any:
        return np.asarray(var.val, var.aval.dtype) if isinstance(var, core.Literal) else values[var]

    for eqn in jaxpr.eqns:
        inputs = list(map(read, eqn.invars))
        if eqn.primitive.name in ("jit", "pjit"):
            results = _evaluate(eqn.params["jaxpr"].jaxpr, inputs)
        else:
            results = [NUMPY[eqn.primitive](*inputs, **eqn.params)]
        if results is None or any(map(_has_subnormal, results)):
            return None
        for var, value in zip(eqn.outvars, results, strict=True):
            values[var] = np.asarray(value).astype(var.aval.dtype, copy=False)
    return list(map(read, jaxpr.outvars))


def _has_subnormal(x: Any) -> bool:
    return x.dtype.kind == "f" and bool(np.any((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)))


def _broadcast(x: Any, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    return x[tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))]


def _select(which: Any, *cases: Any) -> Any:
    return np.choose(which.astype(int), [np.broadcast_to(x, cases[0].shape) for x in cases])


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **_: function(*args)


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *, axes, **_: function(x, axis=tuple(axes))


NUMPY: dict[Any, Callable[..., Any]] = {
    lax.abs_p: _each(np.abs),
    lax.add_p: _each(np.add),
    lax.and_p: _each(np.bitwise_and),
    lax.broadcast_in_dim_p: _broadcast,
    lax.ceil_p: _each(np.ceil),
    lax.concatenate_p: lambda *args, dimension: np.concatenate(args, dimension),
    lax.convert_element_type_p: lambda x, *, new_dtype, **_: x.astype(new_dtype),
    lax.copy_p: _each(np.array),
    lax.div_p: _each(np.divide),
    lax.eq_p: _each(np.equal),
    lax.floor_p: _each(np.floor),
    lax.ge_p: _each(np.greater_equal),
    lax.gt_p: _each(np.greater),
    lax.integer_pow_p: _each(np.square),
    lax.is_finite_p: _each(np.isfinite),
    lax.le_p: _each(np.less_equal),
    lax.lt_p: _each(np.less),
    lax.mul_p: _each(np.multiply),
    lax.ne_p: _each(np.not_equal),
    lax.neg_p: _each(np.negative),
    lax.not_p: _each(np.invert),
    lax.or_p: _each(np.bitwise_or),
    lax.reduce_and_p: _over(np.all),
    lax.reduce_max_p: _over(np.max),
    lax.reduce_min_p: _over(np.min),
    lax.reduce_or_p: _over(np.any),
    lax.reduce_sum_p: _over(np.sum),
    lax.reshape_p: lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    lax.rev_p: lambda x, *, dimensions: np.flip(x, tuple(dimensions)),
    lax.select_n_p: _select,
    lax.slice_p: _slice,
    lax.sqrt_p: _each(np.sqrt),
    lax.square_p: _each(np.square),
    lax.squeeze_p: lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)),
    lax.sub_p: _each(np.subtract),
    lax.transpose_p: lambda x, *, permutation: x.transpose(permutation),
    lax.xor_p: _each(np.bitwise_xor),
}
_OF_FLOATS = {lax.div_p, lax.sqrt_p, lax.ceil_p, lax.floor_p, lax.is_finite_p}
_OF_INTEGERS = {lax.reduce_sum_p}  # the order of a sum of floats is each's own
_ROUNDS = {lax.add_p, lax.sub_p, lax.mul_p, lax.div_p, lax.sqrt_p, lax.square_p, lax.integer_pow_p}
