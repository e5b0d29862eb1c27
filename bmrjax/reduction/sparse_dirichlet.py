"""Which outcomes a categorical distribution has at all, averaged over an Occam window."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from bmrjax.reduction.conjugate import Dirichlet, dirichlet


class SparseDirichlet(NamedTuple):
    """What `sparse_dirichlet` gives.

    Attributes:
        delta_f: ln of the evidence of the chosen submodel over that of the full model, in nats, shaped as the
            batch. Positive favours the submodel; zero where all outcomes are kept.
        keep: Outcomes of the chosen submodel, (..., k).
        inclusion_prob: Probability of each outcome to be in the model, over the submodels of the window.
        reduced: Posterior of the chosen submodel; outcomes that are removed have the concentration
            `removed`, and whatever they were observed.
        mean: Expected probability of each outcome, averaged over the window.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> prior = reduction.Dirichlet(jnp.ones(4))
        >>> posterior = reduction.Dirichlet(jnp.array([21.0, 11.0, 1.0, 1.0]))  # two outcomes never came
        >>> found = reduction.sparse_dirichlet(posterior, prior)
        >>> found.keep, f"{found.delta_f:.1f} nats"
        (Array([ True,  True, False, False], dtype=bool), '5.2 nats')
        >>> [f"{prob:.2f}" for prob in found.mean]  # without the reduction, the last would be 0.03
        ['0.66', '0.34', '0.00', '0.00']
    """

    delta_f: Float[Array, "..."]
    keep: Bool[Array, "... k"]
    inclusion_prob: Float[Array, "... k"]
    reduced: Dirichlet
    mean: Float[Array, "... k"]


def sparse_dirichlet(
    posterior: Dirichlet,
    prior: Dirichlet,
    *,
    removed: float = 1e-3,
    window: float = 3.0,
    least: float = 0.0,
) -> SparseDirichlet:
    r"""Choose the outcomes that a categorical distribution has, from its Dirichlet posterior alone.

    A submodel puts the concentration of a set of outcomes at `removed`, close to zero, under which they
    hardly ever occur. Its evidence is that of `dirichlet`. Where the prior is the same for all
    outcomes, the best set of each size has the fewest counts in it, so that k submodels are all that
    have to be computed; where it is not, outcomes are taken in the order of their gain one at a time.

    Pure, of fixed shapes: it runs inside `jit`, `vmap` and `scan`, batched over leading axes, so that an
    agent can reduce its model while it learns.

    Args:
        posterior: Dirichlet posterior over k outcomes, batched over leading axes.
        prior: The prior it was learned under, above `removed` everywhere; broadcasts over the batch.
        removed: Concentration of an outcome that is removed.
        window: Occam's window: submodels whose evidence is within so many nats of the best are averaged.
        least: Gain in nats that the chosen submodel has to have over the full model; otherwise all is kept.

    Returns:
        The chosen submodel, and averages over the window, in which all submodels are as probable before
        the data.

    Raises:
        ValueError: For a prior that is not above `removed` everywhere (inside `jit`, values are not looked
            at), or a `removed` that is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> counts = jnp.array([[12.0, 0.0, 8.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
        >>> prior = reduction.Dirichlet(jnp.ones(4))
        >>> posterior = reduction.Dirichlet(counts + 1.0)
        >>> found = jax.jit(reduction.sparse_dirichlet)(posterior, prior)
        >>> found.keep.astype(int)
        Array([[1, 0, 1, 0],
               [0, 1, 0, 1]], dtype=int32)
        >>> found.delta_f.round(1)
        Array([4.4, 1.2], dtype=float32)

    References:
        Friston, Lin, Frith, Pezzulo, Hobson and Ondobaka (2017), Neural Computation 29, Active inference,
        curiosity and insight; Madigan and Raftery (1994), Journal of the American Statistical
        Association 89, for the window.
    """
    if not removed > 0:
        raise ValueError(f"sparse_dirichlet: removed must be positive, got {removed}.")
    if not isinstance(prior.concentration, Tracer):
        least_of_prior = float(jnp.min(prior.concentration))
        if not least_of_prior > removed:
            raise ValueError(
                f"sparse_dirichlet: the prior has a concentration of {least_of_prior:.3g}, and one of "
                f"{removed} stands for an outcome that is removed; give a smaller `removed`."
            )
    a, before = jnp.broadcast_arrays(posterior.concentration, prior.concentration)
    size = a.shape[-1]
    low = jnp.asarray(removed, a.dtype)
    # Alone, in the order of what removing each would gain; by counts if the prior is the same for all.
    alone = jnp.where(jnp.eye(size, dtype=bool), low, before[..., None, :])
    gain = dirichlet(
        Dirichlet(a[..., None, :]), Dirichlet(before[..., None, :]), Dirichlet(alone)
    ).delta_f
    order = jnp.argsort(jnp.argsort(-gain, axis=-1), axis=-1)
    # Submodel s lacks the first s outcomes of that order.
    kept = order[..., None, :] >= jnp.arange(size)[:, None]
    reduced_prior = jnp.where(kept, before[..., None, :], low)
    found = dirichlet(
        Dirichlet(a[..., None, :]), Dirichlet(before[..., None, :]), Dirichlet(reduced_prior)
    )
    log_evidence = jnp.where(jnp.isfinite(found.delta_f), found.delta_f, -jnp.inf)
    best = jnp.max(log_evidence, axis=-1)
    inside = log_evidence >= best[..., None] - window
    weight = jax.nn.softmax(jnp.where(inside, log_evidence, -jnp.inf), axis=-1)
    chosen = jnp.where(best > least, jnp.argmax(log_evidence, axis=-1), 0)

    def pick(values: Array) -> Array:
        at = chosen.reshape(*chosen.shape, *[1] * (values.ndim - chosen.ndim))
        return jnp.take_along_axis(values, at, axis=chosen.ndim).squeeze(chosen.ndim)

    concentration = found.reduced.concentration
    mean = concentration / concentration.sum(-1, keepdims=True)
    mean = jnp.where(inside[..., None], mean, 0.0)
    return SparseDirichlet(
        pick(found.delta_f),
        pick(kept),
        jnp.einsum("...s,...sk->...k", weight, kept.astype(a.dtype)),
        Dirichlet(pick(concentration)),
        jnp.einsum("...s,...sk->...k", weight, mean),
    )
