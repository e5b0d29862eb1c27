"""What each round of a path removed, what that was predicted to gain, and what it was measured to gain."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax import reduction
from bmrjax.backend.quick_compile import quick_jit
from bmrjax.criteria import SitePosteriors
from bmrjax.infer.arguments import Data
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.posterior import compiled_posteriors
from bmrjax.run.point import Point

# Elements of a joint posterior of which ΔF is found one after another, at most.
_MOST_IN_TURN = 200


@dataclass(frozen=True)
class MeasuredRound:
    """The way from one point of a path to the next.

    Attributes:
        before: Number of the point that it started from.
        after: Number of the point that it led to.
        removed: Positions of what was removed in the flat array of each site.
        delta_f: ln of the evidence without each removed element over that with it, in nats, by site: alone
            under independent posteriors, and given those before it under a joint one, so that they add up.
            Without the sites where it is not known.
        measured: How far the VFE fell from one point to the other, in nats. Positive favours the round. What
            was gained by training in between counts too.
        taken_back: Whether the run went back to the point before it.
    """

    before: int
    after: int
    removed: dict[str, np.ndarray]
    delta_f: dict[str, np.ndarray]
    measured: float
    taken_back: bool

    @property
    def count(self) -> int:
        """Elements that were removed."""
        return sum(map(len, self.removed.values()))

    @property
    def predicted(self) -> float | None:
        """The sum of ΔF over what was removed, in nats; None where it is not known."""
        if not set(self.removed) <= set(self.delta_f):
            return None
        return float(sum(values.sum() for values in self.delta_f.values()))


def path_rounds(result: Any, batch: Data | None) -> list[MeasuredRound]:
    """Return the rounds of a path that removed something, in order.

    Args:
        result: A `Result` with a path.
        batch: Arguments of the program, for the posterior of each point; None if there are none, and ΔF is
            not known.
    """
    found: list[MeasuredRound] = []
    read = None if batch is None else _reader(result, batch)
    last: int | None = None
    for i, point in enumerate(result.path):
        if last is not None:
            before = result.path[last]
            gone = {
                name: np.flatnonzero(np.asarray(before.keep[name]) & ~np.asarray(mask))
                for name, mask in point.keep.items()
            }
            removed = {name: places for name, places in gone.items() if len(places)}
            if removed:
                grown = any(
                    (np.asarray(mask) & ~np.asarray(before.keep[name])).any()
                    for name, mask in point.keep.items()
                )
                known = {} if read is None or grown else read(before, removed)
                found.append(
                    MeasuredRound(
                        before=last,
                        after=i,
                        removed=removed,
                        delta_f=known,
                        measured=before.vfe - point.vfe,
                        taken_back=point.taken_back,
                    )
                )
        if not point.taken_back:
            last = i
    return found


def removal_of_each(result: Any, rounds: list[MeasuredRound]) -> dict[str, tuple[Any, Any]]:
    """Return when each element was removed that the result does not have.

    Args:
        result: A `Result`.
        rounds: From `path_rounds`.

    Returns:
        Site name to two arrays: the number of the point at which an element was first gone, -1 for those that
        are kept or whose removal is not on the path, and its ΔF there in nats, NaN where that is not known.
    """
    found = {}
    for name, mask in result.keep.items():
        keep = np.asarray(mask)
        at, delta_f = np.full(keep.shape, -1), np.full(keep.shape, np.nan)
        for one in rounds:
            if one.taken_back or name not in one.removed:
                continue
            # Where something was regrown, the last time counts.
            at.flat[one.removed[name]] = one.after
            delta_f.flat[one.removed[name]] = one.delta_f.get(name, np.nan)
        at[keep], delta_f[keep] = -1, np.nan
        found[name] = at, delta_f
    return found


def _reader(
    result: Any, batch: Data
) -> Callable[[Point, Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return a function to the ΔF of removed elements, from the posterior before their removal."""
    guide = result.unpruned_guide
    read = compiled_posteriors(result.unpruned_model, guide, batch)
    of_each = quick_jit(_delta_f_each, num_calls=1)

    def delta_f(point: Point, removed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        sites = read(point.params, {name: jnp.asarray(mask) for name, mask in point.keep.items()})
        if isinstance(guide, CorrelatedGuide):
            return _delta_f_in_turn(guide, point, sites.prior, removed)
        each = of_each(sites)
        return {
            name: np.asarray(each[name], np.float64).ravel()[places]
            for name, places in removed.items()
            if name in each
        }

    return delta_f


def _delta_f_each(sites: SitePosteriors) -> dict[str, Array]:
    """Return ΔF of each element, of the sites whose elements can be removed one by one."""
    found = {}
    for name, q in sites.posterior.items():
        with contextlib.suppress(TypeError):  # of another family
            found[name] = reduction.delta_f_each(q, sites.prior[name])
    return found


def _delta_f_in_turn(
    guide: Any, point: Point, prior: Mapping[str, Any], removed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return ΔF of the removed elements of a joint posterior, each given that those before it are zero.

    By the chain rule they add up to the Savage-Dickey ratio of the set.
    """
    if sum(map(len, removed.values())) > _MOST_IN_TURN or not set(removed) <= set(prior):
        return {}
    found: dict[str, np.ndarray] = {}
    params, keep = point.params, {name: jnp.asarray(mask) for name, mask in point.keep.items()}
    for name, places in removed.items():
        p, shape = prior[name], keep[name].shape
        loc, scale = (np.broadcast_to(part, shape) for part in (p.loc, p.scale))
        values = []
        for index in zip(*np.unravel_index(places, shape), strict=True):
            q = guide.posterior(params, keep)[name]
            one = reduction.delta_f_each(
                reduction.Normal(q.loc[index], q.scale[index]),
                reduction.Normal(jnp.asarray(loc[index]), jnp.asarray(scale[index])),
            )
            values.append(float(one))
            after = {**keep, name: keep[name].at[index].set(False)}
            params, keep = guide.condition(params, keep, after), after
        found[name] = np.array(values)
    return found
