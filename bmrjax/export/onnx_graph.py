"""Graphs of ONNX: made by jax2onnx, run by ONNX Runtime, with weights of eight bits in them."""

import contextlib
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.backend.jaxprs import bind, evaluate
from bmrjax.export.eight_bits import Rounded
from bmrjax.export.network_function import NetworkFunction, output_difference

INSTALL = (
    "export.onnx needs jax2onnx and onnxruntime ({}). Install them by pip install 'bmrjax[onnx]'."
)


def make_graph(made: NetworkFunction, batch: int | None, tolerance: float) -> Any:
    """Return an ONNX model of a network.

    The converter has forms of its own for whole layers and for padding, which do not fit all networks. Where
    a model does not run, or does not compute what the network does, the operations of the network are
    converted one by one instead.

    Args:
        made: The network.
        batch: Rows per call; None for any number.
        tolerance: Largest difference of outputs with which a model is taken at once, relative to the largest.

    Raises:
        ImportError: Without jax2onnx or onnxruntime.
        ValueError: If an operation of the network has no counterpart there.
    """
    with _quiet():
        try:
            from jax2onnx import to_onnx
        except ImportError as error:
            raise ImportError(INSTALL.format(error)) from None
        names = ["x"] if len(made.inputs) == 1 else [f"x{i}" for i in range(len(made.inputs))]
        convert = partial(to_onnx, model_name="network", input_names=names)
        model, failed = _converted(convert, made, batch, tolerance)
        if model is not None:
            return model
        rows, hint = len(made.inputs[0]), ""
        if batch is None and _converted(convert, made, rows, tolerance)[0] is not None:
            hint = f" For so many rows per call it can: batch={rows}, say."
    text = " ".join(str(failed[0]).split())
    raise ValueError(
        f"export.onnx: the network cannot be converted ({type(failed[0]).__name__}: {text:.300}).{hint}"
    ) from failed[0]


def _converted(
    convert: Callable[..., Any], made: NetworkFunction, batch: int | None, tolerance: float
) -> tuple[Any, list[Exception]]:
    """Return the model that is nearest to the network, or None, and what ways to make one have raised."""
    shapes, structs = _shapes(made, batch)
    plain = made.function()
    failed: list[Exception] = []
    differs: list[tuple[float, Any]] = []
    for wrapped, given in (
        (lambda: plain, shapes),
        (lambda: _without_pads(plain), shapes),
        (lambda: _one_by_one(plain, structs), structs),
    ):
        try:
            model = convert(wrapped(), given)
            error = graph_error(open_graph(model.SerializeToString()), made, batch)
        except ImportError:
            raise
        except Exception as error:  # of the converter or of the runtime, whatever they raise
            failed.append(error)
            continue
        if error <= tolerance:
            return model, failed
        if np.isfinite(error):
            differs.append((error, model))
    if differs:
        return min(differs, key=lambda each: each[0])[1], failed
    failed.append(ValueError("its outputs there have another shape, or are not finite"))
    return None, failed


# What the converter puts in place of functions of jax.numpy, and leaves there.
_OF_THE_CONVERTER: dict[str, Any] = {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converter's notes from the reader, and take its functions out of jax.numpy again.

    Its `cumsum` there takes no axis by position, say.
    """
    before, own = logging.root.manager.disable, dict(vars(jnp))
    logging.disable(logging.WARNING)
    for name, each in _OF_THE_CONVERTER.items():
        setattr(jnp, name, each)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        changed = {name: each for name, each in vars(jnp).items() if own.get(name) is not each}
        _OF_THE_CONVERTER.update(changed)
        for name in changed:
            if name in own:
                setattr(jnp, name, own[name])
            else:
                delattr(jnp, name)


def graph_error(
    found: Callable[..., Any],
    made: NetworkFunction,
    batch: int | None,
    arrays: Any = None,
) -> float:
    """Return the largest difference of a graph's outputs from a network's, relative to the largest.

    Args:
        found: What the graph computes.
        made: The network, with example inputs.
        batch: Rows per call; None for any number, of which two are tried.
        arrays: In place of the network's.
    """
    error = 0.0
    for rows in {batch} if batch else {len(made.inputs[0]), 3}:
        inputs = made.batch(int(rows or 1))
        with jax.default_matmul_precision("highest"):  # as ONNX Runtime multiplies
            error = max(error, output_difference(found(*inputs), made.outputs(inputs, arrays)))
    return error


def _shapes(made: NetworkFunction, batch: int | None) -> tuple[Any, list[Any]]:
    """Return the shapes of the inputs as the converter takes them, and as JAX does."""
    rows: Any = jax.export.symbolic_shape("rows")[0] if batch is None else batch
    structs = [jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for x in made.inputs]
    if any(x.dtype != np.float32 for x in made.inputs):
        return structs, structs
    return [("rows" if batch is None else batch, *x.shape[1:]) for x in made.inputs], structs


def _one_by_one(function: Callable[..., Any], shapes: list[Any]) -> Callable[..., Any]:
    """Return a function traced in advance, for the converter to see operations and no layers."""
    # A function of its own: JAX would remember what the converter has traced of the other.
    whole, shape = jax.make_jaxpr(lambda *x: function(*x), return_shape=True)(*shapes)

    def rule(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
            return None
        dtypes = {x.dtype for x in inputs}
        if len(dtypes) == 1:
            return None
        # ONNX has products of one type only.
        return bind(eqn, [x.astype(jnp.result_type(*dtypes)) for x in inputs])

    return lambda *inputs: jax.tree.unflatten(
        jax.tree.structure(shape), evaluate(whole.jaxpr, whole.consts, inputs, rule)
    )


def _without_pads(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose padding is concatenation, which converts for any number of rows."""

    def rule(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        if eqn.primitive.name != "pad":
            return None
        x, value = inputs
        config = eqn.params["padding_config"]
        if any(inside or low < 0 or high < 0 for low, high, inside in config):
            return None
        for axis, (low, high, _) in enumerate(config):
            shape = lambda n, axis=axis: (*x.shape[:axis], n, *x.shape[axis + 1 :])  # noqa: B023, E731
            before, after = (jnp.broadcast_to(value, shape(n)) for n in (low, high))
            parts = [*([before] if low else []), x, *([after] if high else [])]
            x = jnp.concatenate(parts, axis) if len(parts) > 1 else x
        return [x]

    def run(*inputs: Any) -> Any:
        whole, shape = jax.make_jaxpr(function, return_shape=True)(*inputs)
        return jax.tree.unflatten(
            jax.tree.structure(shape), evaluate(whole.jaxpr, whole.consts, inputs, rule)
        )

    return run


def stored_arrays(model: Any, made: NetworkFunction) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return where a graph has the arrays of a network, as they are or with their axes in another order.

    Args:
        model: The graph.
        made: The network.

    Returns:
        Path of an array to the name of the constant and the order of axes. Those that the converter has
        merged with others are missing.
    """
    from onnx import numpy_helper

    left = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    found = {}
    for name, array in zip(made.names, made.arrays, strict=True):
        values = np.asarray(array)
        if 1 < values.ndim <= 4 and values.dtype == np.float32:
            match = _match(values, left)
            if match is not None:
                found[name] = match
                del left[match[0]]
    return found


def _match(values: np.ndarray, left: dict[str, np.ndarray]) -> tuple[str, tuple[int, ...]] | None:
    for name, other in left.items():
        if other.dtype != values.dtype or sorted(other.shape) != sorted(values.shape):
            continue
        for order in itertools.permutations(range(values.ndim)):
            turned = values.transpose(order)
            if turned.shape == other.shape and np.array_equal(turned, other):
                return name, order
    return None


def with_eight_bits(
    model: Any, stored: dict[str, tuple[str, tuple[int, ...]]], chosen: dict[str, Rounded]
) -> Any:
    """Return a graph whose constants are whole numbers of eight bits, which it multiplies by their steps.

    Args:
        model: The graph; it is not changed.
        stored: See `stored_arrays`.
        chosen: Arrays by their path.
    """
    import onnx
    from onnx import helper, numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = []
    for name, one in chosen.items():
        constant, order = stored[name]
        old = next(i for i in made.graph.initializer if i.name == constant)
        made.graph.initializer.remove(old)
        codes = np.ascontiguousarray(one.codes.transpose(order))
        names = f"{constant}_codes", f"{constant}_steps"
        made.graph.initializer.extend(
            numpy_helper.from_array(a, n) for a, n in zip((codes, one.steps), names, strict=True)
        )
        axis = order.index(one.axis)
        nodes.append(helper.make_node("DequantizeLinear", names, [constant], axis=axis))
    later = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*nodes, *later])
    return made


def open_graph(data: bytes) -> Callable[..., Any]:
    """Return the function that a graph computes, by ONNX Runtime on the CPU.

    Raises:
        ImportError: Without onnxruntime.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(INSTALL.format(error)) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *inputs: session.run(
        None, {n: np.asarray(x) for n, x in zip(names, inputs, strict=True)}
    )
