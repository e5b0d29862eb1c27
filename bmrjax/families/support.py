"""What is inside a distribution, and where its elements lie."""

from typing import Any

import numpyro.distributions as dist
from numpyro.distributions import constraints

# What says how elements are arranged, and nothing of how they are distributed.
_ARRANGED = (dist.Independent, dist.ExpandedDistribution)


def inside(fn: Any, kinds: tuple[type, ...] = _ARRANGED) -> Any:
    """Return what distributions of some kinds are around.

    Args:
        fn: A distribution.
        kinds: Classes of distributions with another one inside. By default those that expand a distribution,
            or make events of its elements.

    Example:
        >>> import numpyro.distributions as dist
        >>> from bmrjax.families import inside
        >>> type(inside(dist.Normal(0.0, 1.0).expand([2]).to_event(1))).__name__
        'Normal'
    """
    while isinstance(fn, kinds) and hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def element_support(fn: Any) -> Any:
    """Return the constraint on one element of a distribution.

    Example:
        >>> import numpyro.distributions as dist
        >>> from bmrjax.families import element_support
        >>> element_support(dist.Gamma(1.0, 1.0).expand([2]).to_event(1)) is dist.constraints.positive
        True
    """
    support = fn.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def is_real(fn: dist.Distribution) -> bool:
    """Say whether a distribution is over the real line, element by element."""
    support = element_support(fn)
    return support is constraints.real or support is constraints.real_vector
