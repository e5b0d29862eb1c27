"""Where a fit is."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jaxtyping import Array

from bmrjax.infer.state import State


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FitState:
    """Where a fit is; a pytree.

    Attributes:
        svi: Parameters, optimiser and counts.
        keep: Mask of each site that is judged; True stays.
        memory: What the criterion remembers of earlier rounds.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> state = bmr.Fit(program, (x, x[:, 0]), batch_size=None).init(jax.random.key(1))
        >>> state.keep, sorted(state.svi.params)
        ({'beta': Array([ True,  True,  True], dtype=bool)}, ['auto_loc', 'auto_scale_tril'])
    """

    svi: State
    keep: dict[str, Array]
    memory: Any = None


def check_state(state: Any, method: str) -> None:
    """Refuse what is not a state, and a state whose buffers are gone."""
    if not isinstance(state, FitState):
        raise TypeError(
            f"Fit.{method}: state is a {type(state).__name__}; give the state that Fit.init returned, or the "
            "first of the two that epoch and reduce returned."
        )
    count = state.svi.num_steps
    # A state that was saved may hold NumPy arrays, and one inside a jitted function has no buffers.
    held = isinstance(count, jax.Array) and not isinstance(count, Tracer)
    if held and count.is_deleted():
        raise ValueError(
            "Fit: an epoch has consumed this state. Go on from the state that it returned, or copy one "
            "before: jax.tree.map(jnp.copy, state)."
        )
