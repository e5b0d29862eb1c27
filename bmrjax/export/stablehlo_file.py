"""Networks as serialized programs of JAX."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.export.export_report import ExportedArray, ExportReport
from bmrjax.export.network_function import (
    NetworkFunction,
    check_outputs,
    compiled_call,
    milliseconds,
    network_function,
    output_difference,
)
from bmrjax.files import write_atomically

PLATFORMS = ("cpu", "cuda", "tpu")


@not_after_fork
def stablehlo(
    network: Any,
    example: Any,
    file: str | Path,
    *,
    batch: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
    tolerance: float = 1e-5,
    repeats: int = 20,
) -> ExportReport:
    """Write a network as a program that runs without its code: `jax.export`, serialized.

    The program takes a batch, of any number of rows, in inference. It is read back and compared with the
    network, on the example and on a batch of another size, before it has its name. Weights that are zero
    are in it like others: take units out by `compact` first, and the program is smaller and faster.

    Args:
        network: An Equinox module, an (Equinox module, State) pair, a Flax NNX module, or what `compact`
            returned.
        example: As the network takes it: one data point for Equinox, a batch for Flax; a tuple where it
            takes several arrays. Of a dict, or another tree of arrays, the program takes the leaves, in
            the order of `jax.tree.leaves`.
        file: Where to write it.
        batch: Rows per call, for a network that is not written for any number; by default any.
        platforms: It runs on: of ``"cpu"``, ``"cuda"``, ``"rocm"`` and ``"tpu"``.
        tolerance: Largest difference of an output, relative to the largest output.
        repeats: Calls that are timed, here; 0 for none.

    Returns:
        Size, difference and times. `load_stablehlo` reads the file.

    Raises:
        TypeError: For what is not a network.
        ValueError: If the network does not run on the example, cannot be written for any number of rows, or
            if the program's outputs differ.

    Example:
        >>> import jax, jax.numpy as jnp, tempfile
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = bmr.export.stablehlo(network, jnp.ones(8), f"{folder}/mlp.stablehlo")
        ...     program = bmr.export.load_stablehlo(f"{folder}/mlp.stablehlo")
        >>> program(jnp.ones((5, 8))).shape, report.batch is None
        ((5, 2), True)
    """
    made = network_function("export.stablehlo", network, example)
    data = _program(made, batch, tuple(platforms)).serialize()
    found = export.deserialize(data).call
    error = 0.0
    for rows in {batch} if batch else {len(made.inputs[0]), 3}:
        inputs = made.batch(int(rows or 1))
        error = max(error, output_difference(found(*inputs), made.outputs(inputs)))
    check_outputs("export.stablehlo", file, error, tolerance)
    file = Path(file)
    write_atomically(file, bytes(data))
    inputs = made.batch(batch or len(made.inputs[0]))
    here = milliseconds(compiled_call(found, inputs), repeats)
    return ExportReport(
        file=file,
        kind="StableHLO",
        size=len(data),
        float32_size=len(data),
        batch=batch,
        error=error,
        change=0.0,
        nats=None,
        milliseconds=here,
        float32_milliseconds=here,
        network_milliseconds=milliseconds(compiled_call(made.function(), inputs), repeats),
        rows=len(inputs[0]),
        arrays=[
            ExportedArray(name, a.shape, int((np.asarray(a) == 0).sum()), str(a.dtype))
            for name, a in zip(made.names, made.arrays, strict=True)
        ],
    )


def _program(made: NetworkFunction, batch: int | None, platforms: tuple[str, ...]) -> Any:
    rows: Any = batch
    if batch is None:
        (rows,) = export.symbolic_shape("rows")
    shapes = [jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for x in made.inputs]
    try:
        return export.export(jax.jit(made.function()), platforms=platforms)(*shapes)
    except Exception as error:  # of the network's own code, traced on other shapes
        text = " ".join(str(error).split())
        if batch is not None:
            raise ValueError(
                f"export.stablehlo: the network does not run on {batch} rows ({type(error).__name__}: "
                f"{text:.200}). Its example has {len(made.inputs[0])}: give it as the network takes it, for "
                "a Flax network one row per data point."
            ) from error
        raise ValueError(
            "export.stablehlo: the network cannot be written for any number of rows; give batch=, for a "
            f"program that takes so many ({type(error).__name__}: {text:.200})."
        ) from error


def load_stablehlo(file: str | Path) -> Callable[..., Any]:
    """Return the function that a file of `stablehlo` holds.

    Unlike a file of `codec`, such a program is trusted: load your own.

    Args:
        file: Where it is.

    Returns:
        A function of a batch, which can be compiled with what is around it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no such program, or is damaged.

    Example:
        A program that needs neither the network nor this library:

        >>> import jax, jax.numpy as jnp, tempfile
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> file = tempfile.mkdtemp() + "/mlp.stablehlo"
        >>> _ = bmr.export.stablehlo(network, jnp.ones(8), file, platforms=["cpu"], repeats=1)
        >>> program, x = bmr.export.load_stablehlo(file), jnp.ones((3, 8))
        >>> bool(jnp.allclose(program(x), jax.vmap(network)(x), atol=1e-6))
        True
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return jax.jit(export.deserialize(bytearray(path.read_bytes())).call)
    except Exception as error:  # whatever the reader meets
        raise ValueError(
            f"{path} holds no program of export.stablehlo, or is damaged ({type(error).__name__})."
        ) from None
