"""A constraint for the scales of a guide: positive numbers, learned as logarithms."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ExpTransform, biject_to

# exp(40) is 2e17: its square is still a float32, and no fit that works comes near.
_LIMIT = 40.0


class _LogScale(constraints.greater_than):
    """Positive, as `numpyro.distributions.constraints.positive`."""


class _BoundedExp(ExpTransform):
    """The exponential, flat outside ±40, so that a diverging step cannot make it infinite."""

    def __call__(self, x: Any) -> Array:
        return jnp.exp(jnp.clip(x, -_LIMIT, _LIMIT))

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Array:
        return jnp.clip(x, -_LIMIT, _LIMIT)


log_scale = _LogScale(0.0)


@biject_to.register(_LogScale)
def _to_log_scale(constraint: Any) -> _BoundedExp:
    return _BoundedExp(constraints.real)
