"""How multiplicative noise is drawn: a question of a program, and the handler that answers it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numpyro.primitives import Messenger, apply_stack


class NoiseDraws(NamedTuple):
    """How multiplicative noise is drawn.

    Attributes:
        num_data: One draw per data point for so many; None for a single draw.
        at_mean: No draws at all, the noise is at its mean.
    """

    num_data: int | None = None
    at_mean: bool = False


class draws(Messenger):
    """Say how multiplicative noise is drawn; see `noise_draws`.

    Args:
        fn: A NumPyro program or its guide.
        num_data: One draw per data point for so many; None for a single draw.
        at_mean: No draws at all, the noise is at its mean.
    """

    def __init__(
        self, fn: Callable | None = None, num_data: int | None = None, *, at_mean: bool = False
    ):
        self.answer: NoiseDraws = NoiseDraws(num_data, at_mean)
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Answer the question."""
        if msg["type"] == "noise_draws":
            msg["value"] = self.answer


def noise_draws() -> NoiseDraws:
    """Return how the `draws` handler around the caller wants noise drawn; by default, once.

    While it trains, and where it measures the free energy, the engine asks for one draw per data point; where
    it predicts, for the mean.

    Example:
        >>> from bmrjax import handlers
        >>> handlers.noise_draws()
        NoiseDraws(num_data=None, at_mean=False)
        >>> with handlers.draws(num_data=128):
        ...     handlers.noise_draws().num_data
        128
    """
    message: dict[str, Any] = {
        "type": "noise_draws",
        "fn": NoiseDraws,
        "args": (),
        "kwargs": {},
        "value": NoiseDraws(),
    }
    return apply_stack(message)["value"]
