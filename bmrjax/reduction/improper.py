"""The log-uniform prior of sparse variational dropout."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax.reduction.normal import Normal, delta_f_under

# Molchanov, Ashukha and Vetrov (2017), equation 14.
_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ImproperLogUniform:
    """Independent variables with p(w) ∝ 1/``|w|``, on the whole line: no scale is likelier than another.

    It has no integral, so no evidence: nothing can be reduced under it in closed form. What a fit of
    normals has is `log_uniform_divergence`.

    Attributes:
        scale: Ones, shaped as the variables; the density is the same in every unit.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import families, reduction
        >>> prior = reduction.ImproperLogUniform(jnp.ones(1))
        >>> families.has_closed_form(reduction.Normal(jnp.zeros(1), jnp.ones(1)), prior)
        True
    """

    scale: Float[Array, "..."]


def dropout_rate(posterior: Normal) -> Float[Array, "..."]:
    """Return b = σ² / (μ² + σ²), the rate of the binary dropout that is as noisy as the posterior.

    Args:
        posterior: Normal posterior, any shape, positive scale.

    Returns:
        Numbers in (0, 1], shaped as the posterior; b ≥ 0.95 is ``|μ|`` / σ ≤ 0.229.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> reduction.dropout_rate(reduction.Normal(jnp.array([0.0, 3.0]), jnp.ones(2)))
        Array([1. , 0.1], dtype=float32)

    References:
        Federici, Ullrich and Welling (2017), Appendix B.1.
    """
    return 1.0 / (1.0 + jnp.square(posterior.loc / posterior.scale))


def log_uniform_divergence(posterior: Normal) -> Float[Array, "..."]:
    r"""Approximate the Kullback-Leibler divergence of a normal from the log-uniform prior.

    .. math::

        \mathrm{KL} ≈ k_1 (1 - σ(k_2 + k_3 \ln α)) + \tfrac12 \ln(1 + 1/α), \qquad α = σ^2 / μ^2

    in nats, with σ(·) the logistic function and a constant such that a variable of which nothing is known
    (α → ∞) costs nothing. The largest error is 0.0094. Safe in float32 for any μ, zero too.

    Args:
        posterior: Normal posterior, any shape, positive scale.

    Returns:
        The divergences, not negative, shaped as the posterior.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import reduction
        >>> q = reduction.Normal(jnp.array([0.0, 1.0, 100.0]), jnp.ones(3))
        >>> [f"{nats:.2f}" for nats in reduction.log_uniform_divergence(q)]
        ['0.00', '0.43', '5.24']

    References:
        Molchanov, Ashukha and Vetrov (2017), equation 14; Federici, Ullrich and Welling (2017), equation 4,
        which prints it with the other sign and k_1 in the constant. The exact divergence is
        :math:`2 \int_0^x D(t) dt` with Dawson's function D and x = ``|μ|`` / (√2 σ): Hron, Matthews and
        Ghahramani (2018).
    """
    # ln(1/α); the smallest normal number keeps the derivative at zero finite.
    signal = posterior.loc / posterior.scale
    square = jnp.square(signal)
    log_signal = jnp.log(square + jnp.finfo(square.dtype).tiny)
    return _K1 * jax.nn.sigmoid(_K3 * log_signal - _K2) + 0.5 * jnp.log1p(square)


@delta_f_under.register(ImproperLogUniform)
def _(prior: ImproperLogUniform, posterior: Normal, reduced_prior: Normal) -> Float[Array, "..."]:
    raise TypeError(
        "A log-uniform prior has no evidence, so nothing can be reduced under it in closed form. Take "
        "criteria.DropoutRate, or a prior with an integral, such as priors.Flat."
    )
