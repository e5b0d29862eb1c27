"""A normal distribution by its precision, for which a gamma posterior is conjugate."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import digamma
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes


class PrecisionNormal(dist.Distribution):
    r"""N(loc, 1 / precision).

    Its log density is linear in the precision and its logarithm, so that under a gamma posterior of the
    precision the expected log density has a closed form. `infer.PropagatedELBO` takes it.

    Args:
        loc: Mean.
        precision: Inverse variance, positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.distributions import PrecisionNormal
        >>> PrecisionNormal(1.0, 4.0).log_prob(jnp.array(1.5)).round(3)
        Array(-0.726, dtype=float32, weak_type=True)

    References:
        Beckers et al. (2024), equations 1 and 3.
    """

    loc: Any
    precision: Any
    arg_constraints: dict[str, Any] = {"loc": constraints.real, "precision": constraints.positive}
    support: Any = constraints.real
    reparametrized_params: list[str] = ["loc", "precision"]

    def __init__(self, loc: ArrayLike, precision: ArrayLike, *, validate_args: bool | None = None):
        parameters: Any = promote_shapes(loc, precision)
        self.loc, self.precision = parameters
        shape = jax.lax.broadcast_shapes(jnp.shape(loc), jnp.shape(precision))
        super().__init__(shape, (), validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw."""
        noise = jax.random.normal(
            key, sample_shape + self.batch_shape, jnp.result_type(self.loc, self.precision, float)
        )
        return self.loc + noise / jnp.sqrt(self.precision)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density, nats."""
        square = jnp.square(jnp.asarray(value) - self.loc)
        return 0.5 * (jnp.log(self.precision / (2 * jnp.pi)) - self.precision * square)

    @property
    def mean(self) -> Array:
        """The location."""
        return jnp.broadcast_to(self.loc, self.batch_shape)

    @property
    def variance(self) -> Array:
        """One over the precision."""
        return jnp.broadcast_to(1 / self.precision, self.batch_shape)


def expected_log_prob(
    square: Float[Array, "..."],
    concentration: Float[Array, "..."],
    rate: Float[Array, "..."],
) -> Float[Array, "..."]:
    """Return E[ln N(y; f, 1/γ)] under γ ~ Gamma(concentration, rate), nats per element.

    Args:
        square: E[(y - f)²]: a squared residual, plus the variance of f where that is uncertain too.
        concentration: Shape of the gamma posterior.
        rate: Its rate.

    References:
        Beckers et al. (2024), equation 7, for the likelihood and posterior of equations 1 and 8.
    """
    log_precision = digamma(concentration) - jnp.log(rate)
    return 0.5 * (log_precision - jnp.log(2 * jnp.pi) - concentration / rate * square)
