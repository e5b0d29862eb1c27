"""Structure learning of discrete generative models, as pymdp's agents have them, inside `jit` and `scan`."""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.reduction import Dirichlet, SparseDirichlet, sparse_dirichlet

Agent = TypeVar("Agent")


def reduce_factors(
    posterior: Sequence[Array | None],
    prior: Sequence[Array | None],
    *,
    axis: int = 0,
    window: float = 3.0,
    least: float = 3.0,
    removed: float = 1e-3,
) -> list[SparseDirichlet | None]:
    """Reduce the Dirichlet parameters of several factors or modalities of a generative model.

    Args:
        posterior: Concentrations of each, with the outcomes along `axis`; None is passed over.
        prior: Concentrations before learning; each broadcasts to its posterior.
        axis: Axis of the outcomes: 0, or 1 after an axis for a batch of agents.
        window: Occam's window, in nats; see `reduction.sparse_dirichlet`.
        least: Gain in nats from which on a column is reduced.
        removed: Concentration of an outcome that is removed.

    Returns:
        For each what `reduction.sparse_dirichlet` gives, with the outcomes along `axis` again.

    Raises:
        ValueError: If the two differ in length, or a prior does not fit its posterior.

    Example:
        Three outcomes in each of two states; one modality is not learned.

        >>> import jax.numpy as jnp
        >>> from bmrjax.active_inference import reduce_factors
        >>> prior = jnp.ones((3, 2))
        >>> posterior = prior + jnp.array([[9.0, 0.0], [0.0, 4.0], [0.0, 5.0]])
        >>> found, nothing = reduce_factors([posterior, None], [prior, None], least=1.0)
        >>> found.keep.astype(int)
        Array([[1, 0],
               [0, 1],
               [0, 1]], dtype=int32)
        >>> nothing is None
        True
    """
    if len(posterior) != len(prior):
        raise ValueError(
            f"reduce_factors: there are {len(posterior)} posteriors and {len(prior)} priors; give one prior "
            "for each."
        )
    found: list[SparseDirichlet | None] = []
    for i, (a, before) in enumerate(zip(posterior, prior, strict=True)):
        if a is None:
            found.append(None)
            continue
        if before is None:
            raise ValueError(
                f"reduce_factors: the prior of factor {i} is None, and its posterior is not."
            )
        try:
            before = jnp.broadcast_to(before, a.shape)
        except ValueError:
            raise ValueError(
                f"reduce_factors: the prior of factor {i} has shape {jnp.shape(before)}, which does not "
                f"broadcast to that of its posterior, {a.shape}."
            ) from None
        last = [Dirichlet(jnp.moveaxis(x, axis, -1)) for x in (a, before)]
        reduced = sparse_dirichlet(*last, removed=removed, window=window, least=least)
        found.append(
            SparseDirichlet(
                reduced.delta_f,
                jnp.moveaxis(reduced.keep, -1, axis),
                jnp.moveaxis(reduced.inclusion_prob, -1, axis),
                Dirichlet(jnp.moveaxis(reduced.reduced.concentration, -1, axis)),
                jnp.moveaxis(reduced.mean, -1, axis),
            )
        )
    return found


def reduce_agent(
    agent: Agent,
    *,
    prior_A: Sequence[Array | None] | None = None,  # noqa: N803
    prior_B: Sequence[Array | None] | None = None,  # noqa: N803
    window: float = 3.0,
    least: float = 3.0,
) -> tuple[Agent, dict[str, list[SparseDirichlet | None]]]:
    """Reduce what an agent of pymdp has learned: the outcomes of each state, and where each state leads.

    Each column of the likelihood and of the transitions loses the outcomes that its counts do not need, if
    the evidence gains at least `least` nats. The agent then expects them no more, and goes on learning
    under the reduced concentrations. It runs inside `jit`, `vmap` and `scan`.

    Args:
        agent: A `pymdp.agent.Agent` (1.x), or any Equinox module with the attributes ``pA`` and ``A``, ``pB``
            and ``B``: lists of arrays with axes for a batch of agents, for outcomes, and for what they depend
            on. The agent itself stays as it is.
        prior_A: The concentrations ``pA`` before learning; None leaves the likelihood as it is.
        prior_B: The concentrations ``pB`` before learning; None leaves the transitions as they are.
        window: Occam's window, in nats.
        least: Gain in nats from which on a column is reduced.

    Returns:
        The reduced agent, and the reductions under the keys ``"A"`` and ``"B"``, one per modality or factor.

    Raises:
        ValueError: Without any prior, for an agent that has not learned, or priors that do not fit.

    Example:
        >>> import equinox as eqx, jax.numpy as jnp
        >>> from bmrjax.active_inference import reduce_agent
        >>> class Agent(eqx.Module):
        ...     A: list
        ...     pA: list
        >>> counts = jnp.array([[[9.0, 0.0], [0.0, 4.0], [0.0, 5.0]]])  # one agent, 3 outcomes, 2 states
        >>> prior = [jnp.ones((1, 3, 2))]
        >>> pA = [prior[0] + counts]
        >>> learned = Agent([pA[0] / pA[0].sum(1)], pA)
        >>> agent, found = eqx.filter_jit(reduce_agent)(learned, prior_A=prior, least=1.0)
        >>> found["A"][0].keep.astype(int)
        Array([[[1, 0],
                [0, 1],
                [0, 1]]], dtype=int32)
        >>> bool(agent.A[0][0, 1, 0] < 0.001)
        True
    """
    priors = {"A": prior_A, "B": prior_B}
    if all(prior is None for prior in priors.values()):
        raise ValueError(
            "reduce_agent: give prior_A=, prior_B= or both, as they were before learning."
        )
    found: dict[str, list[SparseDirichlet | None]] = {}
    for name, prior in priors.items():
        if prior is None:
            continue
        learned = getattr(agent, f"p{name}", None)
        if learned is None:
            raise ValueError(
                f"reduce_agent: the agent has no p{name}, so it does not learn {name}; leave out "
                f"prior_{name}."
            )
        found[name] = reduce_factors(learned, prior, axis=1, window=window, least=least)
        concentration = [
            old if new is None else new.reduced.concentration
            for old, new in zip(learned, found[name], strict=True)
        ]
        expected = [
            old if c is None else c / c.sum(1, keepdims=True)
            for old, c in zip(getattr(agent, name), concentration, strict=True)
        ]

        def where(tree: Any, name: str = name) -> list[Any]:
            return [getattr(tree, f"p{name}"), getattr(tree, name)]

        agent = eqx.tree_at(where, agent, [concentration, expected], is_leaf=lambda x: x is None)
    return agent, found
