r"""The fixed point of `criteria.SpikeAndSlab` from sums that were taken near it.

The inclusion probability of a weight is q = σ(ζ - ΔF), and only Σq over a layer takes the iteration on. So
sums at ζ_c tell Σq at ζ = ζ_c + δ by Taylor's theorem,

.. math:: \sum q(ζ) = S_0 + δ S_1 + \tfrac12 δ² S_2 + R, \quad
    |R| ≤ \frac{|δ|³}{6} \min(n / 8,\ e^{|δ|} S_1)

with S_0 = Σq, S_1 = Σq(1-q), S_2 = Σq(1-q)(1-2q) at ζ_c: the third derivative of σ is
u(1 - 6u) with u = q(1-q) ≤ ¼, at most ⅛ and at most u, which grows no faster than e^{|δ|}. The
sum also rises with ζ, and is at most what n weights that are all alike would give, so a far ζ is
enclosed too. Without S_2, the remainder is δ²/2 times the second derivative, at most u and 1/10.
Intervals go through the iteration end by end, because every step of it is increasing.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import digamma

from bmrjax.streaming.sums import RELATIVE_ERROR_OF_ODDS


@dataclass(frozen=True)
class Interval:
    """What is known of a number: it lies between `low` and `high`."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The centre."""
        return 0.5 * (self.low + self.high)

    @property
    def radius(self) -> float:
        """Half the width."""
        return 0.5 * (self.high - self.low)


@dataclass(frozen=True)
class Solution:
    """The fixed point of a layer.

    Attributes:
        zeta: ζ of each iteration, in nats; the last one decides what is kept.
        included: Σq at the last ζ.
        truncation: How far the last ζ could be off by Taylor's remainder alone, in nats.
    """

    zeta: list[Interval]
    included: Interval
    truncation: float


def zeta_of(included: float, total: float, alpha: float, beta: float) -> float:
    """Return ψ(α + included) - ψ(β + total - included), in nats."""
    return float(digamma(alpha + included) - digamma(beta + total - included))


def included_at(
    zeta: float,
    center: float,
    moments: Float[np.ndarray, " power"],
    total: float,
    *,
    rounding: float = 0.0,
) -> Interval:
    """Enclose Σq at `zeta` by the sums at `center`.

    Args:
        zeta: Where, in nats.
        center: Where the sums were taken.
        moments: Σq, Σq², Σq³ at `center`; Σq alone if `zeta` is about
            `center`; without Σq³ the series ends a term before.
        total: n.
        rounding: Relative error of the sums; zero for exact ones, and then that of e^{ΔF} is not
            counted either.

    Example:
        >>> import numpy as np
        >>> from bmrjax.streaming.solve import included_at
        >>> q = 1 / (1 + np.exp(np.linspace(-8.0, 3.0, 1000)))
        >>> found = included_at(0.02, 0.0, np.array([q.sum(), (q**2).sum(), (q**3).sum()]), 1000)
        >>> exact = (1 / (1 + np.exp(np.linspace(-8.0, 3.0, 1000) - 0.02))).sum()
        >>> bool(found.low <= exact <= found.high), f"{found.radius:.0e}"
        (True, '1e-04')
    """
    first, delta = float(moments[0]), zeta - center
    if total == 0:
        return Interval(0.0, 0.0)
    if len(moments) == 1:
        # The centre is ζ up to its rounding.
        low, high = first * math.exp(-abs(delta)), first * math.exp(abs(delta))
        slope = first
    else:
        second = float(moments[1])
        slope = max(first - second, 0.0) + 2.0 * rounding * first
        growth = math.exp(min(abs(delta), 300.0))
        value = first + delta * (first - second)
        if len(moments) == 3:
            value += 0.5 * delta**2 * (first - 3.0 * second + 2.0 * float(moments[2]))
            remainder = abs(delta) ** 3 / 6 * min(total / 8, slope * growth)
        else:
            remainder = delta**2 / 2 * min(total / 10, slope * growth)
        # n weights that are all alike: q is a concave function of what it was for δ > 0, else convex.
        mean = min(max(first / total, 0.0), 1.0)
        factor = math.exp(min(max(delta, -300.0), 300.0))
        alike = total * mean * factor / (1.0 + mean * (factor - 1.0))
        least, most = sorted((first, alike))
        low, high = sorted((max(least, value - remainder), min(most, value + remainder)))
        slope *= growth
    slack = 0.0
    if rounding:
        terms = (1.0 + 2.0 * abs(delta) + 3.0 * delta**2) * math.exp(min(abs(delta), 300.0))
        slack = rounding * first * terms + RELATIVE_ERROR_OF_ODDS * slope
    return Interval(max(low - slack, 0.0), min(high + slack, total))


def solve(
    centers: Float[np.ndarray, " steps"],
    moments: list[Float[np.ndarray, " power"]],
    total: float,
    *,
    alpha: float,
    beta: float,
    rounding: float,
) -> Solution:
    """Iterate, enclosing what rounding and Taylor's remainder may do.

    Args:
        centers: ζ at which the sums of each iteration were taken; the first one is exact.
        moments: Σq, Σq², Σq³ an iteration, as many as `sums.powers_of` says.
        total: Weights of the layer.
        alpha: α_0 of the criterion.
        beta: β_0.
        rounding: Relative error of the sums.
    """
    exact, rounded = [_through(centers, moments, total, alpha, beta, r) for r in (0.0, rounding)]
    return Solution(rounded[0], rounded[1], exact[0][-1].radius)


def _through(
    centers: Float[np.ndarray, " steps"],
    moments: list[Float[np.ndarray, " power"]],
    total: float,
    alpha: float,
    beta: float,
    rounding: float,
) -> tuple[list[Interval], Interval]:
    start = float(digamma(alpha) - digamma(beta))
    zetas, included = [Interval(start, start)], Interval(0.0, 0.0)
    for j, (center, sums) in enumerate(zip(centers, moments, strict=True)):
        low, high = (
            included_at(end, float(center), sums, total, rounding=rounding)
            for end in (zetas[-1].low, zetas[-1].high)
        )
        included = Interval(low.low, high.high)
        if j + 1 < len(moments):
            ends = (zeta_of(e, total, alpha, beta) for e in (included.low, included.high))
            zetas.append(Interval(*ends))
    return zetas, included
