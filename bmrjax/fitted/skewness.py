"""Whether draws of single elements have the density at zero that a normal has."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bmrjax.run.diagnose import Finding

# An element further from zero than this is in the model whatever the tail; nearer, its density at zero may be
# off by so many nats.
_FAR, _MOST_NATS = 3.0, 0.5


def density_off_at_zero(
    draws: Float[np.ndarray, "draws n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return by how many nats the log density of draws at zero is off that of a normal, as skewness has it.

    Edgeworth's expansion with the third and the fourth cumulant.

    Args:
        draws: One row per draw.

    Returns:
        The difference, positive where the draws have the larger density, and the standard error of the
        expansion per root of the number of independent draws.

    References:
        Barndorff-Nielsen and Cox (1989), Asymptotic Techniques for Use in Statistics, chapter 4.
    """
    loc, sd = draws.mean(0), draws.std(0)
    z = (draws - loc) / sd
    skewness, kurtosis = (z**3).mean(0), (z**4).mean(0) - 3.0
    at = -loc / sd
    third, fourth = at**3 - 3 * at, at**4 - 6 * at**2 + 3
    sixth = at**6 - 15 * at**4 + 45 * at**2 - 15
    change = skewness / 6 * third + kurtosis / 24 * fourth + skewness**2 / 72 * sixth
    error = np.sqrt(6 * (third / 6) ** 2 + 24 * (fourth / 24) ** 2)
    return np.log(np.maximum(1 + change, 0.02)), error


def skewed(
    draws: Float[np.ndarray, "draws n"], labels: Sequence[str], independent_draws: float
) -> list[Finding]:
    """Return that the density at zero is not that of a normal, if it matters.

    Args:
        draws: One row per draw.
        labels: Name of each element.
        independent_draws: Number of independent draws that they are worth.
    """
    off, error = density_off_at_zero(draws)
    clear = np.abs(off) - 2 * error / np.sqrt(max(independent_draws, 1.0))
    clear[np.abs(draws.mean(0)) > _FAR * draws.std(0)] = 0.0
    worst = int(np.argmax(clear))
    if clear[worst] <= _MOST_NATS:
        return []
    return [
        Finding(
            "skewed",
            f"The draws of '{labels[worst]}' are not normal: at zero their density is about "
            f"{off[worst]:+.1f} nats from that of a normal, and so is the evidence without it.",
            "Measure the evidence with the program (verify=True), or write the program so that its posterior "
            "is closer to a normal.",
        )
    ]
