"""What a streamed reduction did."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    Attributes:
        tensors: The weights in it, by the names before ``.loc``.
        total: How many weights.
        kept: How many stay.
        inclusion_prob: Mean of q(π), α / (α + β); None without a spike-and-slab prior.
        delta_f: Sum of ΔF over what is removed, in nats; positive favours removal.
        iterations: Of the fixed point; 0 without one.
        zeta: What stays has ΔF at most this, in nats.
        error_bound: How far `zeta` may be off, in nats: proven, rounding included.
        unproven: Weights that lie so near that the bound does not decide them; they are judged by `zeta`.
        sampled: Weights that were also read for the first guess.
        reads: How often the layer was read whole.
        seconds: Of work on it, added over threads.
        bytes_per_second: Its bytes, times `reads`, over `seconds`.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> from bmrjax import criteria, streaming
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> posterior = {"w.loc": np.float32([0.01, 3.0]), "w.scale": np.float32([0.1, 0.1])}
        >>> save_file(posterior, folder / "model.safetensors")
        >>> out = folder.with_name(folder.name + "-masks")
        >>> found = streaming.reduce_folder(folder, out, criteria.SpikeAndSlab(), prior_scale=1.0)
        >>> layer = found.layers["w"]
        >>> layer.kept, layer.total, layer.unproven, round(layer.delta_f, 1)
        (1, 2, 0, 2.3)
    """

    tensors: list[str]
    total: int
    kept: int
    inclusion_prob: float | None
    delta_f: float
    iterations: int
    zeta: float
    error_bound: float
    unproven: int
    sampled: int
    reads: int
    seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Reduced:
    """What a streamed reduction did; ``reduction.json`` holds the same.

    Attributes:
        criterion: Its name.
        total: How many weights.
        kept: How many stay.
        delta_f: Sum of ΔF over what is removed, in nats.
        unproven: See `LayerReport`.
        bytes: Of means and widths, once.
        bytes_read: As they were read, samples included.
        seconds: Of the whole, without compilation.
        compile_seconds: Of compilation.
        bytes_per_second: `bytes` over `seconds`.
        ignored: Tensors in the folder that belong to no posterior.
        layers: Layer to what became of it.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> from bmrjax import criteria, streaming
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> posterior = {"w.loc": np.float32([0.01, 3.0]), "w.scale": np.float32([0.1, 0.1])}
        >>> save_file(posterior, folder / "model.safetensors")
        >>> out = folder.with_name(folder.name + "-masks")
        >>> print(streaming.reduce_folder(folder, out, criteria.SpikeAndSlab(), prior_scale=1.0))
        kept 1 of 2 weights in 1 layers, ΔF of the rest 2.297... nats; ...
    """

    criterion: str
    total: int
    kept: int
    delta_f: float
    unproven: int
    bytes: int
    bytes_read: int
    seconds: float
    compile_seconds: float
    bytes_per_second: float
    ignored: list[str] = field(default_factory=list)
    layers: dict[str, LayerReport] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"kept {self.kept:,} of {self.total:,} weights in {len(self.layers)} layers, ΔF of the rest "
            f"{self.delta_f:.6g} nats; {self.bytes / 1e6:.1f} MB in {self.seconds:.2f} s "
            f"({self.bytes_per_second / 1e9:.2f} GB/s), and {self.compile_seconds:.2f} s to compile"
        )
