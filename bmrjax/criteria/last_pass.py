"""What the last pass of a run reduces by, once the criterion proposes nothing more."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.criteria.base import Criterion, Decision
from bmrjax.criteria.groups import Groups
from bmrjax.criteria.in_turn import has_turns
from bmrjax.criteria.order import default_order
from bmrjax.criteria.ranking import Ranking
from bmrjax.criteria.shrinkage import Shrinkage
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import Normal

# With more elements than this, trying them one by one would take longer than the run.
LARGEST_SINGLE = 300


def for_last_pass(criterion: Criterion) -> Shrinkage | None:
    """Return the criterion of the last pass of a run, or None if there is none.

    There is none for posteriors that are not normal, and for rankings, whose threshold or fraction is the
    user's choice.

    Args:
        criterion: Of the run; its groups, if it has any, are respected.
    """
    if criterion.family is not Normal or isinstance(criterion, Ranking):
        return None
    if isinstance(criterion, Shrinkage):
        return criterion
    return Shrinkage(groups=criterion.groups)


@dataclass(frozen=True)
class LeastEvidence:
    """Order elements, or groups, by the evidence for keeping them, least first; in turn if it is joint.

    Args:
        groups: Which elements belong together; by default each one is on its own.
    """

    groups: Groups | None = None

    def __call__(self, found: SitePosteriors, decision: Decision) -> Mapping[str, Array]:
        """See `criteria.Order`."""
        delta_f = decision.delta_f
        if has_turns(found):
            return default_order(found, decision)
        if self.groups is None:
            return {name: _score(df) for name, df in delta_f.items()}
        # The scores of a group are added as squares, and a group that is still there is there as a whole.
        ones = {name: jnp.ones_like(df) for name, df in delta_f.items()}
        size = jnp.maximum(self.groups.sum(ones), 1)
        return self.groups.spread(_score(self.groups.sum(delta_f)) / jnp.sqrt(size), delta_f)


def _score(delta_f: Array) -> Array:
    """Return a positive number that falls with ΔF, whose square does not overflow."""
    return jnp.exp(-jnp.clip(delta_f, -640.0, 640.0) / 16.0)
