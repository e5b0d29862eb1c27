"""Data kept out of a fit, and how often it is evaluated on them."""

from dataclasses import dataclass, replace
from typing import Any

from bmrjax.infer.arguments import Data, length

# Posterior samples at the end, and of each point of the path; most and least. The error of a metric that
# comes from the samples falls with their number, the one that comes from the rows does not.
_FINAL, _EACH = (100, 10), (5, 1)
# A training step costs about three passes through the network for each row of its batch. Metrics may cost so
# much of that, half of it at the end and half on the way, where some ten points have them.
_PASSES, _PART, _POINTS = 3, 0.05, 10
# Passes of rows through the network that are always made: 1,000 rows have all samples however short a run is.
_FREE = 100_000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Data kept out of the training, and when the metrics on them are taken.

    Used for reporting only, unless the schedule's `judge` is ``"held-out"``: the metrics stand in
    `Result.history`, in the points of `Result.path` and in `Result.metrics`. `sparsify` and `ensemble` take
    it as ``held_out=``, or the data alone.

    Attributes:
        data: Data like those that the program is fitted on.
        samples: Posterior samples of the metrics of the history and of the path, and of what judges rounds.
            By default 5; fewer, down to 1, where these metrics would cost more than a fortieth of the
            training and more than 100,000 passes of a row through the network, and do not judge.
        every: Epochs between them; by default so many that they cost under a tenth of the training, counted
            in passes through the network. Points of the path have them too.
        final_samples: Posterior samples of the metrics at the end. By default 100; fewer, down to 10, where
            they would cost more than a fortieth of the training and more than 100,000 passes. Ten raise the
            NLL a little, by half the variance of a row's density over its squared mean, divided by ten.

    Raises:
        ValueError: For fewer than one sample or epoch.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> x, y = jnp.ones((20, 3)), jnp.zeros(20)
        >>> bmr.HeldOut((x, y), every=5).every
        5
    """

    data: Data
    samples: int | None = None
    every: int | None = None
    final_samples: int | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "every", "final_samples"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(f"HeldOut: {name} must be at least 1, got {value}.")


def as_held_out(given: Any) -> HeldOut | None:
    """Return data that were given with or without a `HeldOut` around them."""
    return given if given is None or isinstance(given, HeldOut) else HeldOut(given)


def with_samples(held_out: HeldOut, *, steps: int, batch_size: int, judges: bool) -> HeldOut:
    """Return data kept out with numbers of posterior samples in proportion to the training.

    Args:
        held_out: As it was given.
        steps: Steps of the whole run.
        batch_size: Rows of a step.
        judges: Whether its metrics decide which rounds are kept.
    """
    passes, rows = max(_PART / 2 * _PASSES * steps * batch_size, _FREE), length(held_out.data)

    def number(given: int | None, most: int, least: int, times: int) -> int:
        return given if given is not None else min(most, max(least, int(passes / (times * rows))))

    return replace(
        held_out,
        samples=_EACH[0]
        if judges and held_out.samples is None
        else number(held_out.samples, *_EACH, _POINTS),
        final_samples=number(held_out.final_samples, *_FINAL, 1),
    )
