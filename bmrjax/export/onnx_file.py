"""Networks as ONNX files."""

from pathlib import Path
from typing import Any

import numpy as np

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.export.eight_bits import Int8, Rounded, replaced, weights_to_round
from bmrjax.export.export_report import ExportedArray, ExportReport
from bmrjax.export.network_function import (
    check_outputs,
    compiled_call,
    milliseconds,
    network_function,
    output_difference,
)
from bmrjax.export.onnx_graph import (
    graph_error,
    make_graph,
    open_graph,
    stored_arrays,
    with_eight_bits,
)
from bmrjax.files import write_atomically


@not_after_fork
def onnx(
    network: Any,
    example: Any,
    file: str | Path,
    *,
    batch: int | None = None,
    int8: Int8 | None = None,
    tolerance: float = 1e-4,
    repeats: int = 20,
) -> ExportReport:
    """Write a network as an ONNX graph, by jax2onnx, and check it by ONNX Runtime.

    The graph takes a batch, of any number of rows, in inference. It is run on the example and on a batch of
    another size, and compared with the network before the file has its name. Weights that are zero are in it
    like others: take units out by `compact` first, and the graph is smaller and faster.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, a Flax NNX module, or what `compact`
            returned.
        example: As the network takes it: one data point for Equinox, a batch for Flax; a tuple where it
            takes several arrays. Of a dict, or another tree of arrays, the graph takes the leaves, in the
            order of `jax.tree.leaves`.
        file: Where to write it.
        batch: Rows per call, for a network that cannot be converted for any number; by default any.
        int8: Bounds within which weights are stored in eight bits; the file is up to four times smaller. They
            are multiplied out when it runs, so it is not faster.
        tolerance: Largest difference of an output from the network with the same weights, relative to
            the largest output.
        repeats: Calls that are timed, here; 0 for none.

    Returns:
        Sizes, differences and times, with eight bits beside float32.

    Raises:
        ImportError: Without jax2onnx and onnxruntime; ``pip install 'bmrjax[onnx]'``.
        TypeError: For what is not a network.
        ValueError: If the network does not run on the example, or cannot be converted, or if the outputs
            differ.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> bmr.export.onnx(network, jnp.ones(8), "mlp.onnx")  # doctest: +SKIP
        mlp.onnx: ONNX, 1,098 bytes, any number of rows per call
          outputs as the network's, to 5.9e-08 of the largest
          a batch of 1: 0.012 ms; the network compiled by JAX: 0.025 ms
    """
    caller = "export.onnx"
    made = network_function(caller, network, example)
    model = make_graph(made, batch, tolerance)
    plain = model.SerializeToString()
    stored = stored_arrays(model, made)
    chosen: dict[str, Rounded] = {}
    if int8 is not None:
        chosen = weights_to_round(made, set(stored), int8)
    data = with_eight_bits(model, stored, chosen).SerializeToString() if chosen else plain
    found = open_graph(data)
    arrays = replaced(made, chosen)
    error = graph_error(found, made, batch, arrays)
    check_outputs(caller, file, error, tolerance)
    file = Path(file)
    write_atomically(file, data)
    inputs = made.batch(batch or len(made.inputs[0]))
    here = milliseconds(lambda: found(*inputs), repeats)
    other = open_graph(plain) if chosen else None
    nats = [one.nats for one in chosen.values() if one.nats is not None]
    return ExportReport(
        file=file,
        kind="ONNX",
        size=len(data),
        float32_size=len(plain),
        batch=batch,
        error=error,
        change=output_difference(made.outputs(made.inputs, arrays), made.outputs(made.inputs))
        if chosen
        else 0.0,
        nats=sum(nats) if nats else None,
        milliseconds=here,
        float32_milliseconds=milliseconds(lambda: other(*inputs), repeats) if other else here,
        network_milliseconds=milliseconds(compiled_call(made.function(), inputs), repeats),
        rows=len(inputs[0]),
        arrays=[
            _row(name, np.asarray(array), chosen.get(name))
            for name, array in zip(made.names, made.arrays, strict=True)
        ],
    )


def _row(name: str, array: np.ndarray, one: Rounded | None) -> ExportedArray:
    zeros = int((array == 0).sum())
    if one is None:
        return ExportedArray(name, array.shape, zeros, str(array.dtype))
    return ExportedArray(name, array.shape, zeros, "int8", one.nats, one.change)
