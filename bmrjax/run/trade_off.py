"""What sparsity costs: a metric over what was removed, and the knee of that curve."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmrjax.run.result import Result

_FALLS = ("nll", "ece", "rmse")  # a good model has little of these


@dataclass(frozen=True)
class TradeOff:
    """A held-out metric of a run at each sparsity that it went through.

    Attributes:
        metric: Its name.
        sparsity: Removed fraction of the reducible elements, growing; shape (n,).
        value: The metric, after the last epoch at that sparsity; shape (n,).
        epoch: That epoch; shape (n,).

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> curve = bmr.TradeOff(
        ...     "accuracy",
        ...     sparsity=np.array([0.0, 0.5, 0.8, 0.9, 0.95]),
        ...     value=np.array([0.90, 0.90, 0.89, 0.88, 0.60]),
        ...     epoch=np.arange(5),
        ... )
        >>> float(curve.sparsity[curve.knee])
        0.9
    """

    metric: str
    sparsity: np.ndarray
    value: np.ndarray
    epoch: np.ndarray

    @property
    def knee(self) -> int:
        """Position of the knee: the point farthest on the good side of the chord between the ends.

        References:
            Satopää et al. (2011), Finding a "Kneedle" in a haystack.
        """
        good = -self.value if self.metric in _FALLS else self.value
        span = self.sparsity[-1] - self.sparsity[0]
        height = good.max() - good.min()
        if span <= 0 or height <= 0:
            return len(good) - 1
        x, y = (self.sparsity - self.sparsity[0]) / span, (good - good[-1]) / height
        chord = y[0] * (1 - x)
        return int(np.argmax(y - chord))

    def __str__(self) -> str:
        """Return a table of at most twenty points, the knee marked."""
        shown = set(np.linspace(0, len(self.value) - 1, min(20, len(self.value))).astype(int))
        lines = [f"{'sparsity':>9}  {self.metric}"]
        for i in sorted(shown | {self.knee}):
            mark = "  <- knee" if i == self.knee else ""
            lines.append(f"{self.sparsity[i]:>8.1%}  {self.value[i]:.4f}{mark}")
        return "\n".join(lines)


def trade_off(result: Result, metric: str = "accuracy") -> TradeOff:
    """Return what each sparsity of a run cost, on its held-out data.

    For pruning after training, let the schedule wait until the fit is done, remove a little at a time, and
    fine-tune in between; the criterion says in which order, and where it would stop::

        schedules.Every(wait=50, every=1, fraction=0.05)

    Epochs of rounds that were taken back are left out.

    Args:
        result: Of a run with ``held_out=bmr.HeldOut(data, every=1)``.
        metric: ``"accuracy"``, ``"nll"``, ``"ece"`` or ``"rmse"``.

    Raises:
        ValueError: If the run measured that metric at fewer than two sparsities.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> from bmrjax import criteria, schedules
        >>> x = jax.random.normal(jax.random.key(0), (200, 4))
        >>> data = x, jnp.argmax(x[:, :3], -1)
        >>> network = bmr.zoo.MLP(4, (), 3, key=jax.random.key(1))
        >>> result = bmr.sparsify(
        ...     bmr.programs.classifier(network, bmr.priors.Flat()), data,
        ...     held_out=bmr.HeldOut(data, every=1),
        ...     criterion=criteria.SignalToNoise(fraction=1.0), key=jax.random.key(2), num_epochs=12,
        ...     schedule=schedules.Every(wait=6, fraction=0.3), steps_per_epoch=40, progress=False,
        ... )
        >>> curve = bmr.trade_off(result)
        >>> len(curve.value), round(float(curve.sparsity[-1]), 2)
        (7, 1.0)

    References:
        Wright, Igel and Selvan (2024), section 5.1.
    """
    last: dict[int, dict[str, Any]] = {}
    for row in result.history:
        if metric in row and not row["taken_back"] and math.isfinite(row[metric]):
            last[row["kept"]] = row
    if result.metrics.get(metric) is not None and result.history:
        last[result.num_kept] = {**result.history[-1], metric: result.metrics[metric]}
    if len(last) < 2:
        raise ValueError(
            f"trade_off: the run has the held-out metric {metric!r} at {len(last)} sparsities, and a "
            "curve needs two. Run sparsify with held_out=HeldOut(..., every=1) and a criterion that "
            "removes something."
        )
    kept = sorted(last, reverse=True)
    return TradeOff(
        metric,
        np.array([1 - k / result.num_total for k in kept]),
        np.array([last[k][metric] for k in kept], float),
        np.array([last[k]["epoch"] for k in kept], int),
    )
