"""What a fit carries from step to step."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What the next step needs.

    Attributes:
        params: Unconstrained parameters of the guide (and of the model) by name.
        opt_state: State of the optimiser.
        mutable: Mutable sites, such as running statistics; None if there are none.
        num_steps: Steps tried so far.
        num_skipped: Steps skipped so far because their loss or gradient was not finite.
        bad_in_row: Skipped steps since the last good one.
        worst_in_row: The longest run of skipped steps in this epoch, with those that led into it.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 2))
        >>> fit = bmr.Fit(program, (x, 2.0 * x[:, 0]), batch_size=None)
        >>> state, _ = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=200)
        >>> int(state.svi.num_steps), int(state.svi.num_skipped)
        (200, 0)
    """

    params: dict[str, Array]
    opt_state: Any
    mutable: dict[str, Any] | None
    num_steps: Int[Array, ""]
    num_skipped: Int[Array, ""]
    bad_in_row: Int[Array, ""]
    worst_in_row: Int[Array, ""]


class EpochInfo(NamedTuple):
    """Diagnostics of one epoch.

    Attributes:
        losses: The negative ELBO of each step in nats for the whole data set; NaN where the
            step was skipped, and after the last one.
        num_steps: How many steps were taken: fewer than asked for where the fit had settled.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 2))
        >>> fit = bmr.Fit(program, (x, 2.0 * x[:, 0]), batch_size=None)
        >>> state, info = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=200)
        >>> info.losses.shape, int(info.num_steps), bool(info.losses[-20:].mean() < info.losses[:20].mean())
        ((200,), 200, True)
    """

    losses: Float[Array, " steps"]
    num_steps: Int[Array, ""]


def counted(state: State, after: tuple[Any, Any, Any], good: Array) -> State:
    """Return the state after a step: what it made of parameters, optimiser and mutable sites, and the counts.

    Args:
        state: Before the step.
        after: The new `params`, `opt_state` and `mutable`.
        good: Whether the step was taken.
    """
    bad = jnp.where(good, 0, state.bad_in_row + 1)
    return State(
        *after,
        num_steps=state.num_steps + 1,
        num_skipped=state.num_skipped + jnp.where(good, 0, 1),
        bad_in_row=bad,
        worst_in_row=jnp.maximum(state.worst_in_row, bad),
    )
