"""Programs with a likelihood that counts more, or less, than once."""

import math
from collections.abc import Callable
from typing import Any

from numpyro.primitives import Messenger


class temper(Messenger):  # noqa: N801 - a handler, named as NumPyro's
    """Raise the likelihood of a program to the power 1 / temperature.

    Every observed site counts 1 / temperature times, `numpyro.factor` included, so the posterior is that of
    as many times the data: colder below 1, and flatter above. Predictions of the program are not changed,
    its free energy is: that of the tempered program is E[-log likelihood] / temperature + KL.

    Args:
        fn: A NumPyro program.
        temperature: A positive number; 1 leaves the program as it is.

    Raises:
        ValueError: For a temperature that is not a positive number.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer.util import log_density
        >>> from bmrjax import handlers
        >>> def program(y):
        ...     numpyro.sample("y", dist.Normal(0, 1), obs=y)
        >>> whole, _ = log_density(program, (jnp.ones(10),), {}, {})
        >>> cold, _ = log_density(handlers.temper(program, temperature=0.5), (jnp.ones(10),), {}, {})
        >>> float((cold / whole).round(1))
        2.0
    """

    def __init__(self, fn: Callable | None = None, *, temperature: float):
        if not 0 < temperature < math.inf:
            raise ValueError(f"temper: temperature must be positive and finite, got {temperature}.")
        self.temperature: float = float(temperature)
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Multiply the scale of observed sites."""
        if msg["type"] == "sample" and msg["is_observed"]:
            factor = 1 / self.temperature
            msg["scale"] = factor if msg["scale"] is None else factor * msg["scale"]
