"""Lowering of the operations that most programs of the tests share, done once."""

import types
from functools import partial
from typing import Any

import jax
from jax._src import config
from jax._src.interpreters import mlir, partial_eval
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func
from jax._src.random import threefry2x32

# Of the time of a file of tests, a third is lowering. Tracing each of these once saves 3 % of the whole, and
# reading the text of threefry 4 %.
_traced: dict[Any, Any] = {}
_hashes: dict[Any, bytes] = {}
_threefry = partial(threefry2x32._threefry2x32_lowering, use_rolled_loops=True)  # JAX's own on CPU


def install() -> None:
    """Lower as JAX does, but from what earlier programs of this process were lowered to."""
    mlir.pe = types.SimpleNamespace(
        trace_to_jaxpr_dynamic=_trace_once, close_jaxpr=partial_eval.close_jaxpr
    )
    mlir.register_lowering(
        threefry2x32.threefry2x32_p, _threefry_once, platform="cpu", inline=False
    )


def _trace_once(fun: Any, in_avals: Any, **settings: Any) -> Any:
    """Trace a function of JAX's own, to lower an operation, or return what an earlier program traced."""
    try:
        how = tuple(settings.items()), config.trace_context()
        key = _same_function(fun.f), fun.params, tuple(in_avals), how
        found = _traced.get(key)
    except TypeError:  # parameters without a hash
        return partial_eval.trace_to_jaxpr_dynamic(fun, in_avals, **settings)
    if found is None:
        found = partial_eval.trace_to_jaxpr_dynamic(fun, in_avals, **settings)
        small = all(getattr(each, "size", 0) < 100 for each in found[2])
        if small and len(_traced) < 5000:  # no large arrays are kept
            _traced[key] = found
    return found


def _same_function(fun: Any) -> Any:
    """Return what a function without a name is known by: JAX makes one for each program."""
    if getattr(fun, "__name__", "") != "<lambda>":
        return fun
    held = tuple(_same_function(cell.cell_contents) for cell in fun.__closure__ or ())
    return fun.__code__, fun.__defaults__, held


def _threefry_once(ctx: Any, *words: Any) -> Any:
    """Add the function that hashes arrays of these shapes to the program, and call it."""
    key = tuple(ctx.avals_in), config.trace_context()
    if key not in _hashes:
        shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in ctx.avals_in]
        lowered: Any = jax.jit(_threefry).lower(*shapes)
        _hashes[key] = mlir.module_to_bytecode(lowered._lowering.stablehlo())
    program = ctx.module_context
    name = mlir.merge_mlir_modules(
        program.module,
        "threefry2x32",
        ir.Module.parse(_hashes[key], program.context),
        program.symbol_table,
    )
    results = [mlir.aval_to_ir_type(program, each) for each in ctx.avals_out]
    return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), words).results
