"""What a prior sees of a network: one layer at a time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Array, Float


@dataclass(frozen=True)
class Noise:
    """What makes an array of a network multiplicative noise, and not a weight.

    Attributes:
        low: Lower bound of ln θ.
        high: Upper bound of ln θ.
        kl_weight: Factor on its divergence.
        per_datum: Whether every data point of a batch has a draw of its own while training.
    """

    low: float = -20.0
    high: float = 0.0
    kl_weight: float = 1.0
    per_datum: bool = True


@dataclass(frozen=True)
class Tensor:
    """One array of a layer that becomes random.

    Attributes:
        shape: Its shape.
        fan_in: How many of its elements meet in one output; 1 for biases and gains.
        init: Its value in the network at hand, where a fit starts; None for none.
        row_axis: The axis along which its rows lie, one per unit of the layer's output.
        noise: Set where it is noise that multiplies what passes through; no prior draws that.
    """

    shape: tuple[int, ...]
    fan_in: int = 1
    init: Float[Array, "..."] | None = None
    row_axis: int = 0
    noise: Noise | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Number of rows; 1 for a scalar."""
        return self.shape[self.row_axis] if self.shape else 1

    def along_rows(self, values: Float[Array, "... rows"]) -> Float[Array, "..."]:
        """Return one value a row, shaped to broadcast against the tensor; plates are in front."""
        if not self.shape:
            return values[..., 0]
        shape = [1] * len(self.shape)
        shape[self.row_axis] = self.num_rows
        return values.reshape(*values.shape[:-1], *shape)

    def over_all(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return one value for the whole tensor, shaped to broadcast; plates are in front."""
        return value.reshape(*value.shape, *(1 for _ in self.shape))


@dataclass(frozen=True)
class Layer:
    """The tensors that a prior draws together: the weight and the bias of a linear layer, say.

    Attributes:
        name: Full name, such as ``"net.layers.0"``; sites are named below it.
        tensors: Tensor name to its description; site ``f"{name}.{tensor}"``.
        kind: Name of the layer's class, such as ``"Linear"``.
        index: Position in the network, from 0.
        depth: Number of layers of the network.
    """

    name: str
    tensors: Mapping[str, Tensor]
    kind: str = ""
    index: int = 0
    depth: int = 1
    sites: Mapping[str, str] = field(default_factory=dict)

    def site(self, part: str) -> str:
        """Return the name of the site for a tensor or for a variable of the prior's own."""
        return self.sites.get(part, f"{self.name}.{part}")

    @property
    def fan_in(self) -> int:
        """The largest fan-in of its tensors."""
        return max(tensor.fan_in for tensor in self.tensors.values())
