"""What a fitted program predicts."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LEVELS = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)


class Prediction(NamedTuple):
    """The posterior predictive of an observed site, averaged over posterior samples.

    The data are the first axis of every array, also where the site has them last. All values are in the
    unit of the targets that the program was fitted on; class probabilities are between 0 and 1.

    Attributes:
        mean: Class probabilities (data, classes) for a categorical or Bernoulli site, else the
            predictive mean, shaped as the site.
        log_prob: Log predictive density of the observed values, in nats per data point; (data,).
        value: The observed values; without targets, draws.
        is_probability: Whether `mean` holds class probabilities.
        std: Standard deviation, shaped as `mean`. Of a predicted value: that of the posterior predictive,
            with the noise of the observations. Of a class probability: over the posterior, how uncertain
            the probability itself is. NaN or infinite where the likelihood has no variance (Cauchy).
        levels: Levels of the quantiles that `quantiles` has without samples.
        at_levels: Quantiles at these levels; (levels, data, ...). Take them by `quantiles`.
        samples: Draws from the posterior predictive; of class probabilities, their values over the
            posterior; (num_samples, data, ...). None unless `return_samples` was set.
        counted: Which values the program does not mask, shaped as `value`; None without masks.
        site: The observed site, of several the first that has values by row.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from bmrjax.infer import Prediction
        >>> draws = np.random.default_rng(0).normal([1.0, 5.0], [0.1, 2.0], (1000, 2))
        >>> found = Prediction(
        ...     mean=jnp.array([1.0, 5.0]), log_prob=jnp.zeros(2), value=jnp.ones(2), is_probability=False,
        ...     std=jnp.array([0.1, 2.0]), samples=draws,
        ... )
        >>> low, high = found.interval(0.9)
        >>> (high - low).round(1)
        Array([0.3, 6.3], dtype=float32)
    """

    mean: Array
    log_prob: Array
    value: Array
    is_probability: bool
    std: Array | None = None
    levels: tuple[float, ...] = ()
    at_levels: Array | None = None
    samples: np.ndarray | None = None
    counted: np.ndarray | None = None
    site: str | None = None

    def quantiles(self, levels: Sequence[float]) -> Float[Array, "levels data ..."]:
        """Return quantiles of the posterior predictive (of class probabilities: over the posterior).

        Args:
            levels: Between 0 and 1: those that `Result.predict` was called with, or any others if it
                returned its samples.

        Returns:
            Quantiles of the posterior samples, in the unit of `mean`, with the levels along the first axis.

        Raises:
            ValueError: For levels outside (0, 1), or that are not there.
        """
        bad = [level for level in levels if not 0 < level < 1]
        if bad:
            raise ValueError(f"quantiles: levels are between 0 and 1, got {bad}.")
        if self.samples is not None:
            return quantiles_of(self.samples, levels)
        known = np.asarray(self.levels)
        where = [np.flatnonzero(np.isclose(known, level, rtol=0, atol=1e-6)) for level in levels]
        missing = [level for level, at in zip(levels, where, strict=True) if not at.size]
        if missing or self.at_levels is None:
            raise ValueError(
                f"quantiles: the prediction has the levels {list(self.levels)}, not {missing}. Call "
                f"predict(..., levels={list(levels)}), or predict(..., return_samples=True) for any."
            )
        return self.at_levels[np.array([at[0] for at in where], int)]

    def interval(self, prob: float = 0.9) -> tuple[Array, Array]:
        """Return the central interval of the posterior predictive.

        Args:
            prob: Its probability: 0.9 by default, from the 5 % to the 95 % quantile.

        Returns:
            Lower and upper bounds, shaped as `mean`, in its unit.

        Raises:
            ValueError: For a probability outside (0, 1), or quantiles that are not there.
        """
        if not 0 < prob < 1:
            raise ValueError(f"interval: prob is between 0 and 1, got {prob}.")
        low, high = self.quantiles([round((1 - prob) / 2, 9), round((1 + prob) / 2, 9)])
        return low, high


def quantiles_of(samples: np.ndarray, levels: Sequence[float]) -> Float[Array, "levels data ..."]:
    """Return quantiles over the first axis of draws; on the host, where a sort needs no compiling."""
    return jnp.asarray(np.quantile(samples, np.asarray(levels), axis=0), float)
