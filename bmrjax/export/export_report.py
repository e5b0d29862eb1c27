"""What an exported file takes, and what it gives."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ExportedArray:
    """What became of one array.

    Attributes:
        name: Path to it in the network.
        shape: Its shape.
        zeros: How many of its numbers are zero.
        stored: ``"float32"`` or the like, or ``"int8"``.
        nats: What rounding it costs by its posterior, in nats: the sum of (w - ŵ)²/2σ². None without one.
        change: Largest change of an output by rounding it alone, relative to the largest output; None where
            it was not measured.

    Example:
        >>> import jax, jax.numpy as jnp, tempfile
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> file = tempfile.mkdtemp() + "/mlp.stablehlo"
        >>> arrays = bmr.export.stablehlo(network, jnp.ones(8), file, platforms=["cpu"], repeats=1).arrays
        >>> [(array.name, array.shape, array.stored) for array in arrays][:2]
        [('layers.0.weight', (4, 8), 'float32'), ('layers.0.bias', (4,), 'float32')]
    """

    name: str
    shape: tuple[int, ...]
    zeros: int
    stored: str
    nats: float | None = None
    change: float | None = None


@dataclass(frozen=True, repr=False)
class ExportReport:
    """What an exported file takes, and how it compares with the network.

    Attributes:
        file: Where it is.
        kind: ``"ONNX"`` or ``"StableHLO"``.
        size: Its bytes.
        float32_size: Bytes of the file with all weights in float32; the same where none is rounded.
        batch: How many rows a call takes; None for any number.
        error: Largest difference between the file's outputs and the network's with the same weights,
            relative to the largest output.
        change: Largest change of an output by rounding weights to eight bits, in the same unit.
        nats: What rounding costs by the posterior, in nats for all weights; None without posterior scales.
        milliseconds: Median time of a call of the file, on the example's batch.
        float32_milliseconds: The same with all weights in float32.
        network_milliseconds: The same of the network, compiled by JAX.
        rows: Rows of the batch that was timed.
        arrays: What became of each array.

    Example:
        >>> import jax, jax.numpy as jnp, tempfile
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> file = tempfile.mkdtemp() + "/mlp.stablehlo"
        >>> report = bmr.export.stablehlo(network, jnp.ones(8), file, platforms=["cpu"], repeats=1)
        >>> report.kind, report.size == report.file.stat().st_size, report.error < 1e-5
        ('StableHLO', True, True)
    """

    file: Path
    kind: str
    size: int
    float32_size: int
    batch: int | None
    error: float
    change: float
    nats: float | None
    milliseconds: float
    float32_milliseconds: float
    network_milliseconds: float
    rows: int
    arrays: list[ExportedArray] = field(repr=False)

    def __repr__(self) -> str:
        """Say in a few lines what was written."""
        numbers = sum(_size(a) for a in self.arrays)
        zeros = sum(a.zeros for a in self.arrays)
        short = [a for a in self.arrays if a.stored == "int8"]
        rows = "any number of rows" if self.batch is None else f"a batch of {self.batch}"
        lines = [
            f"{self.file}: {self.kind}, {self.size:,} bytes, {rows} per call",
            f"  outputs as the network's, to {self.error:.1e} of the largest",
            f"  a batch of {self.rows}: {self.milliseconds:.3f} ms; the network compiled by JAX: "
            f"{self.network_milliseconds:.3f} ms",
        ]
        if short:
            cost = "" if self.nats is None else f", {self.nats:.3g} nats by the posterior"
            lines += [
                f"  {len(short)} of {len(self.arrays)} arrays with eight bits per weight: outputs change by "
                f"{self.change:.1e} of the largest{cost}",
                f"  in float32: {self.float32_size:,} bytes, {self.float32_milliseconds:.3f} ms",
            ]
        if zeros:
            lines.append(
                f"  {zeros:,} of {numbers:,} weights are zero, and take as much time and space here as others"
            )
        return "\n".join(lines)


def _size(array: ExportedArray) -> int:
    found = 1
    for n in array.shape:
        found *= n
    return found
