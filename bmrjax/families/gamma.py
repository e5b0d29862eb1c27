"""Gamma posteriors, and the logarithm of a gamma variable: a scale parameter on the real line."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import promote_shapes
from scipy.special import gammaincinv

from bmrjax.families.elements import elementwise
from bmrjax.families.guide_form import GuideForm, GuideSite, offer


class LogGamma(dist.Distribution):
    r"""x = ln g with g ~ Gamma(concentration, rate).

    A gamma variable of shape ½ has its mode at zero and half of its mass below 0.23; in float32 its
    smallest values underflow, and its density there is infinite. Its logarithm has a smooth density
    on the whole line, and a normal posterior of it is a log-normal one of g. The
    Kullback-Leibler divergence from a normal is exact.

    Args:
        concentration: Shape of the gamma distribution, positive.
        rate: Its rate, positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax.families import LogGamma
        >>> LogGamma(2.0, 3.0).log_prob(jnp.log(0.5)).round(2)  # Gamma(2, 3) at 0.5, times 0.5
        Array(-0.69, dtype=float32, weak_type=True)
    """

    concentration: Any
    rate: Any
    arg_constraints: dict[str, Any] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support: Any = constraints.real
    reparametrized_params: list[str] = ["concentration", "rate"]

    def __init__(
        self, concentration: ArrayLike, rate: ArrayLike = 1.0, *, validate_args: bool | None = None
    ):
        parameters: Any = promote_shapes(concentration, rate)
        self.concentration, self.rate = parameters
        shape = jax.lax.broadcast_shapes(jnp.shape(concentration), jnp.shape(rate))
        super().__init__(shape, (), validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw in log space, where nothing underflows."""
        shape = sample_shape + self.batch_shape
        return jax.random.loggamma(key, self.concentration, shape) - jnp.log(self.rate)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Log density on the real line."""
        scaled = jnp.asarray(value) + jnp.log(self.rate)
        return self.concentration * scaled - jnp.exp(scaled) - gammaln(self.concentration)

    def icdf(self, q: ArrayLike) -> Array:
        """Quantiles, by SciPy on the host."""
        shape = jax.lax.broadcast_shapes(jnp.shape(q), self.batch_shape)
        like = jax.ShapeDtypeStruct(shape, jnp.result_type(float))

        def host(concentration: Any, level: Any) -> Any:
            concentration, level = np.asarray(concentration, float), np.asarray(level, float)
            return np.log(gammaincinv(concentration, level)).astype(like.dtype)

        args = (jnp.broadcast_to(self.concentration, shape), jnp.broadcast_to(q, shape))
        return jax.pure_callback(host, like, *args) - jnp.log(self.rate)

    @property
    def mean(self) -> Array:
        """E[x] = ψ(concentration) − ln rate."""
        mean = jax.scipy.special.digamma(self.concentration) - jnp.log(self.rate)
        return jnp.broadcast_to(mean, self.batch_shape)

    @property
    def variance(self) -> Array:
        """Var[x] = ψ′(concentration)."""
        variance = jax.scipy.special.polygamma(1, self.concentration)
        return jnp.broadcast_to(variance, self.batch_shape)


@kl_divergence.register(dist.Normal, LogGamma)
def _kl_normal_log_gamma(q: Any, p: LogGamma) -> Array:
    loc = q.loc + jnp.log(p.rate)
    mean_of_exp = jnp.exp(loc + 0.5 * jnp.square(q.scale))
    expected = p.concentration * loc - mean_of_exp - gammaln(p.concentration)
    return -(0.5 + 0.5 * jnp.log(2 * jnp.pi) + jnp.log(q.scale)) - expected


class GammaForm(GuideForm):
    """A gamma posterior: ``loc`` is the log of its mean, ``scale`` its standard deviation over its mean."""

    def check(self, site: GuideSite) -> None:
        """Raise ValueError if the site is not positive."""
        if elementwise(site.prior).support is not constraints.positive:
            raise ValueError(
                f"AutoMeanField: site '{site.name}' asks for a gamma posterior, and its prior is not on the "
                "positive numbers. Give it a Gamma prior, or take infer={'posterior': 'gamma'} away."
            )

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        on_the_line: Any = elementwise(normal.base_dist)
        parameters = _concentration_and_rate(on_the_line.loc, on_the_line.scale)
        return dist.Gamma(*parameters).to_event(normal.event_dim)

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        return LogGamma(*_concentration_and_rate(parameter("loc"), parameter("scale")))


def _concentration_and_rate(loc: Array, scale: Array) -> tuple[Array, Array]:
    """Return the parameters of a gamma distribution with mean exp(loc)."""
    concentration = 1 / jnp.square(scale)
    return concentration, concentration * jnp.exp(-loc)


offer("gamma", GammaForm(), where="for positive sites")
