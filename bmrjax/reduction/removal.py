"""Evidence without single elements, or without a set of them, for any family of posteriors.

The functions here dispatch on the posterior; the file of each family registers its formulas.
"""

import functools
from typing import Any

from jaxtyping import Array, Bool, Float


@functools.singledispatch
def delta_f_each(posterior: Any, prior: Any) -> Float[Array, "..."]:
    """Compute the evidence difference of removing each element alone.

    An element is removed by a reduced prior that puts it at zero: the Savage-Dickey ratio
    ln q_i(0) - ln p_i(0) of its marginals, in nats, positive where the evidence favours removing
    that element and no other. The values do not add up over correlated elements; see `remove`
    for a set and `prune_greedily` for a path.

    Args:
        posterior: A `Normal`, `SpikeAndSlab`, `LogNormal`, `MultivariateNormal`, `LowRankNormal` or
            `MatrixNormal`. A `LogNormal` has no density at zero: its lower bound stands for it.
        prior: The prior it was fitted under: a `SpikeAndSlab` for a `SpikeAndSlab`, a `LogUniform` for a
            `LogNormal`, else an independent `Normal`; broadcasts.

    Returns:
        The evidence differences, shaped as the posterior's variables.

    Raises:
        TypeError: For a posterior of another family, or an improper prior.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MultivariateNormal(
        ...     jnp.array([0.2, 1.0]), jnp.array([[0.3, 0.0], [0.2, 0.1]])
        ... )
        >>> p = reduction.Normal(jnp.zeros(2), jnp.full(2, 2.0))
        >>> print(reduction.delta_f_each(q, p).round(2))
        [ 1.67 -7.81]

    References:
        Dickey (1971), Annals of Mathematical Statistics 42.
    """
    raise TypeError(
        f"delta_f_each takes a posterior of bmrjax.reduction, got {type(posterior).__name__}."
    )


@functools.singledispatch
def remove(posterior: Any, prior: Any, keep: Bool[Array, "... n"]) -> Any:
    r"""Compute the evidence difference and the posterior of removing a set of elements.

    The reduced prior puts the removed set S at zero and leaves the rest: the Savage-Dickey ratio

    .. math::  ΔF = \ln q_S(0) - \ln p_S(0)

    of the *joint* marginals of S, in nats; positive favours removal. The reduced posterior is
    that of the kept elements given that S is zero. Exact when the posterior is the exact one.

    Args:
        posterior: A `MultivariateNormal` (batched over leading axes) or a `LowRankNormal` over n
            variables. Over a `Normal` the elements are independent: add up `delta_f_each`.
        prior: The independent normal prior it was fitted under, positive scale; broadcasts.
        keep: False for the elements to remove; may be traced, so that one compiled program
            serves every set.

    Returns:
        `delta_f`, shaped as the batch, and the `reduced` posterior, of the same family, in which
        a removed element has loc zero and no variance.

    Raises:
        TypeError: For a posterior of another family.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.MultivariateNormal(
        ...     jnp.array([0.2, 1.0]), jnp.array([[0.3, 0.0], [0.2, 0.1]])
        ... )
        >>> p = reduction.Normal(jnp.zeros(2), jnp.full(2, 2.0))
        >>> delta_f, reduced = reduction.remove(q, p, jnp.array([True, False]))
        >>> print(f"{delta_f:.2f} nats", reduced.loc.round(2))
        -7.81 nats [-1. 0.]

    References:
        Dickey (1971), Annals of Mathematical Statistics 42; Friston and Penny (2011), NeuroImage
        56, on reduced priors of zero variance.
    """
    raise TypeError(
        "remove takes a reduction.MultivariateNormal or reduction.LowRankNormal, got "
        f"{type(posterior).__name__}."
    )
