"""`bmrjax export`."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from bmrjax import codec, export
from bmrjax.cli.run_documents import read_results
from bmrjax.cli.saved_options import ExportOptions
from bmrjax.cli.saved_run import loaded_run, of_a_whole_run
from bmrjax.nn import without_noise
from bmrjax.structure import compact
from bmrjax.structure.network_arrays import is_nnx


@dataclass(frozen=True, eq=False)
class RunUnits:
    """From inputs in their own units to what `bmrjax predict` returns.

    Attributes:
        mean: Of an input.
        scale: Of an input.
        target_mean: Of the targets; None for classes.
        target_scale: Of the targets; None for classes.
    """

    mean: np.ndarray
    scale: np.ndarray
    target_mean: np.ndarray | None
    target_scale: np.ndarray | None

    def inputs(self, x: Array) -> Array:
        """Return standardised inputs."""
        return (x - self.mean) / self.scale

    def outputs(self, y: Array) -> Array:
        """Return class probabilities, or targets in their unit."""
        if self.target_mean is None or self.target_scale is None:
            return jax.nn.softmax(y)
        y = y[..., 0] if y.shape[-1] == 1 else y
        return y * self.target_scale + self.target_mean


class EquinoxInUnits(eqx.Module):
    """An Equinox network of one data point, and its units."""

    network: Any
    units: RunUnits = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        """Predict one data point."""
        return self.units.outputs(self.network(self.units.inputs(x)))


class FlaxInUnits(nnx.Module):
    """A Flax network of a batch, and its units."""

    def __init__(self, network: Any, units: RunUnits):
        self.network: Any = network
        self.units: RunUnits = nnx.static(units)

    def __call__(self, x: Array) -> Array:
        """Predict a batch."""
        return self.units.outputs(self.network(self.units.inputs(x)))


def run_export(options: ExportOptions) -> None:
    """Write a saved run's network for other programs."""
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch must be at least 1, got {options.batch}.")
    if options.int8 and options.to != "onnx":
        raise ValueError("--int8 needs --to onnx.")
    document = read_results(options.directory)
    run, result = loaded_run(options.directory, document)
    shape = tuple(document["input_shape"])
    example = jnp.zeros((2, *shape))
    with of_a_whole_run(options.directory):
        (network,) = result.network(example).values()
        scales = codec.posterior_scales(result, example) if options.int8 and result.keep else {}
    if run.method == "with-noise":
        network = without_noise(network)
    if options.compact:
        small = compact(network, example if is_nnx(network) else example[0])
        network, scales = small.network, small.cut(scales)
    flax = is_nnx(network)
    units = units_of_run(document, shape)
    network = FlaxInUnits(network, units) if flax else EquinoxInUnits(network, units)
    # Inputs as they are on average, so that outputs are of a usual size.
    raw = jnp.asarray(units.mean + np.zeros((2, *shape), np.float32))
    given: dict[str, Any] = {"batch": options.batch}
    if options.to == "onnx" and options.int8:
        named = {f"network.{name}": scale for name, scale in scales.items()}
        given["int8"] = export.Int8(posterior_scale=named)
    write = export.onnx if options.to == "onnx" else export.stablehlo
    print(write(network, raw if flax else raw[0], options.out, **given))


def units_of_run(document: dict[str, Any], shape: tuple[int, ...]) -> RunUnits:
    """Return the units of a run, from its results."""

    def of_one(part: str) -> np.ndarray:
        value = np.asarray(document[f"input_{part}"], np.float32)
        return np.broadcast_to(value, (1, *shape))[0]

    targets: Any = (None, None)
    if document["num_classes"] is None:
        targets = [np.asarray(document[f"target_{p}"], np.float32) for p in ("mean", "scale")]
        if document["outputs"] == 1:
            targets = [value.reshape(()) for value in targets]
    return RunUnits(of_one("mean"), of_one("scale"), *targets)
