"""Where the elements of a distribution lie."""

from typing import Any

import numpyro.distributions as dist
from numpyro.distributions import constraints


def is_real(fn: dist.Distribution) -> bool:
    """Say whether a distribution is over the real line, element by element."""
    support: Any = fn.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real or support is constraints.real_vector
