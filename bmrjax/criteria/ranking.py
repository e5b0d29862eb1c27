"""Baselines: keep what scores highest, down to a threshold or a target fraction."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax import reduction
from bmrjax.criteria.base import Criterion, Decision, Masks, masks
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.criteria.smallest import smallest
from bmrjax.reduction import LogNormal, Normal

ReadPosterior = Normal | LogNormal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ranking(Criterion):
    """Keep what has a score over a threshold, or all but a fraction of the elements.

    Exactly one of the two is given. The score is that of the site's own variable: under `priors.Flat`
    of ŵ, so that layers compare. What a round removes stays removed.

    Args:
        threshold: Elements with a lower score are removed.
        fraction: Fraction of all elements, over all sites, that is removed in the end, earlier removals
            included: the lowest scores.
        family: `reduction.Normal` variables, or `reduction.LogNormal` for multiplicative noise.

    Example:
        A score of one's own: the upper end of what a weight may be.

        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> class UpperEnd(criteria.Ranking):
        ...     def score(self, name, posterior):
        ...         return abs(posterior.loc) + 2 * posterior.scale
        >>> q = {"w": reduction.Normal(jnp.array([0.1, 0.1, 1.0]), jnp.array([0.1, 0.9, 0.1]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(3), jnp.ones(3))}
        >>> UpperEnd(fraction=1 / 3)(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True,  True], dtype=bool)
    """

    threshold: float | Float[Array, ""] | None = None
    fraction: float | None = field(default=None, metadata={"static": True})
    family: type = field(default=Normal, metadata={"static": True})

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.threshold is None) == (self.fraction is None):
            raise ValueError(
                f"{name}: give a threshold or a fraction, and not both; the evidence chooses by "
                "itself in criteria.Shrinkage and criteria.SpikeAndSlab."
            )
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise ValueError(f"{name}: fraction must be in [0, 1], got {self.fraction}.")

    @property
    def may_go_beyond(self) -> bool:
        """No: the threshold or the fraction is the user's."""
        return False

    @abc.abstractmethod
    def score(self, name: str, posterior: ReadPosterior) -> Float[Array, "..."]:
        """Return a non-negative score per element; the lowest are removed first.

        Args:
            name: Of the site.
            posterior: Of the site.
        """

    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`. `delta_f` is for comparison only."""
        kept = masks(found, keep)
        delta_f = {
            name: reduction.delta_f_each(q, found.prior[name])
            for name, q in found.posterior.items()
        }
        scores = {name: self.score(name, q) for name, q in found.posterior.items()}
        if self.fraction is None:
            assert self.threshold is not None
            stays = {name: kept[name] & (s >= self.threshold) for name, s in scores.items()}
            return Decision(stays, delta_f)
        names = list(scores)
        size = sum(scores[name].size for name in names)
        gone = sum(
            (jnp.sum(~kept[name], dtype=jnp.int32) for name in names),
            jnp.zeros((), jnp.int32),
        )
        count = jnp.maximum(round(self.fraction * size) - gone, 0)
        going = smallest([scores[n] for n in names], [kept[n] for n in names], count)
        stays = {n: kept[n] & ~g for n, g in zip(names, going, strict=True)}
        return Decision(stays, delta_f)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SignalToNoise(Ranking):
    """Score by the signal-to-noise ratio: mean over standard deviation; see `Ranking`.

    The published rule for multiplicative noise is ``SignalToNoise(threshold=1.0,
    family=reduction.LogNormal)``.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.2, -3.0]), jnp.array([0.1, 2.0]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.SignalToNoise(fraction=0.5)
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([ True, False], dtype=bool)

    References:
        Graves (2011); Blundell et al. (2015); Beckers et al. (2024), equation 11; for noise,
        Neklyudov et al. (2017), section 4.4 and appendix D (equation 19 is misprinted).
    """

    def score(self, name: str, posterior: ReadPosterior) -> Float[Array, "..."]:
        """See `Ranking.score`."""
        del name
        return posterior.snr


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SignalPlusRobustness(Ranking):
    """Score by mean plus standard deviation: what is large or may be; see `Ranking`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.2, -3.0]), jnp.array([0.1, 2.0]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.SignalPlusRobustness(threshold=1.0)
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Nalisnick (2018), chapter 4; Beckers et al. (2024), equation 12.
    """

    def score(self, name: str, posterior: ReadPosterior) -> Float[Array, "..."]:
        """See `Ranking.score`."""
        del name
        return posterior.magnitude + posterior.standard_deviation


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Magnitude(Ranking):
    """Score by the size of the mean; see `Ranking`.

    For multiplicative noise that is E[θ]: ``Magnitude(threshold=0.1, family=reduction.LogNormal)``.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.2, -3.0]), jnp.array([0.1, 2.0]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.Magnitude(threshold=1.0)
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)
    """

    def score(self, name: str, posterior: ReadPosterior) -> Float[Array, "..."]:
        """See `Ranking.score`."""
        del name
        return posterior.magnitude


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GivenScores(Ranking):
    """Score by numbers that were computed elsewhere, such as norms of weights or of gradients; see `Ranking`.

    Args:
        scores: Site name to non-negative numbers, shaped as the site; the lowest are removed first.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.2, -3.0]), jnp.array([0.1, 2.0]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.GivenScores(fraction=0.5, scores={"w": jnp.array([7.0, 5.0])})
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([ True, False], dtype=bool)
    """

    scores: Mapping[str, Float[Array, "..."]] = field(default_factory=dict)

    def score(self, name: str, posterior: ReadPosterior) -> Float[Array, "..."]:
        """See `Ranking.score`."""
        if name not in self.scores or jnp.shape(self.scores[name]) != posterior.loc.shape:
            raise ValueError(
                f"GivenScores: site '{name}' needs scores of shape {posterior.loc.shape}; `scores` has "
                f"{ {n: jnp.shape(s) for n, s in self.scores.items()} }."
            )
        return jnp.asarray(self.scores[name])
