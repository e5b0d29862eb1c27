"""Point estimates: sites of a guide without a distribution."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from bmrjax.families.base import center
from bmrjax.families.guide_form import GuideForm, GuideSite, offer


class PointForm(GuideForm):
    """A point estimate, at ``loc``."""

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        return dist.Delta(center(normal), event_dim=normal.event_dim)

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        return _Point(parameter("loc"))


class _Point(dist.Delta):
    """A point, all of whose quantiles it is."""

    def icdf(self, q: Any) -> Array:
        return jnp.broadcast_to(self.v, jnp.broadcast_shapes(jnp.shape(q), jnp.shape(self.v)))


offer("point", PointForm())
