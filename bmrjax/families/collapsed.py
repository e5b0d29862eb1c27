"""The best posterior of a precision, in closed form, given the posteriors of the elements that it scales."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions.kl import kl_divergence

from bmrjax.families.gamma import LogGamma
from bmrjax.families.guide_form import GuideForm, GuideSite, offer


class CollapsedForm(GuideForm):
    r"""The log-normal posterior of a precision τ that maximises the ELBO, given those of what it scales.

    For elements :math:`w_i \sim N(0, u^2 / τ)` with normal posteriors :math:`N(m_i, s_i^2)` and
    :math:`τ \sim Γ(a, b)`, the ELBO is highest at

    .. math::

        \ln τ \sim N\left(\ln \frac{A}{B} - \frac{1}{2 A}, \frac{1}{A}\right), \quad
        A = a + \frac{n}{2}, \quad B = b + \sum_i \frac{m_i^2 + s_i^2}{2 u^2},

    where n counts the elements that are kept. So the scale is not learned: it follows the weights at
    once, as in the collapsed bound. The best gamma posterior, Γ(A, B), has the same mean, and nearly the
    same width.

    A program requests it by ``infer={"posterior": "collapsed", "scales": {"w": u}, "name": "tau"}``, with the
    sites that the precision scales, their units u, and its own name, which is needed inside a
    `numpyro.handlers.scope`. The precision has no plates, or those of all the sites that it scales, and the
    parameters of its prior are constants. The ELBO is a bound whatever ``scales`` specifies; it is the
    best one only if that is what the program does. The parameters ``loc`` and ``scale`` of the precision
    are not used.

    References:
        Tomczak, Swaroop, Foong and Turner (2021), Collapsed variational bounds for Bayesian neural networks.
    """

    def check(self, site: GuideSite) -> None:
        """Raise ValueError if the site has no gamma prior, or no units of what it scales."""
        is_gamma = isinstance(_element(site.prior), dist.Gamma)
        if not is_gamma:
            raise ValueError(
                f"AutoMeanField: site '{site.name}' asks for a collapsed posterior, and its prior is not a "
                "Gamma. Give it one, or take infer={'posterior': 'collapsed'} away."
            )
        units = site.infer.get("scales")
        if not isinstance(units, Mapping) or not units:
            raise ValueError(
                f"AutoMeanField: site '{site.name}' asks for a collapsed posterior; name the sites that it "
                "is the precision of, in infer={'posterior': 'collapsed', 'scales': {'w': 1.0}}."
            )
        for name, unit in units.items():
            if isinstance(unit, int | float) and not unit > 0:
                raise ValueError(
                    f"AutoMeanField: site '{site.name}' scales '{name}' in units of {unit}; the unit must be "
                    "positive."
                )

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`."""
        loc, scale = log_precision(site)
        return _LogNormal(loc, scale).to_event(normal.event_dim)

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`."""
        del parameter
        return dist.Normal(*log_precision(site))


def log_precision(site: GuideSite) -> tuple[Array, Array]:
    """Return mean and standard deviation of the logarithm of a precision; see `CollapsedForm`.

    Args:
        site: The precision, with ``infer={"scales": ...}``.
    """
    prior, shape = _element(site.prior), site.prior.shape()
    shift = site.name.removesuffix(site.infer.get("name", site.name))
    count: Any = jnp.zeros(shape)
    square: Any = jnp.zeros(shape)
    for other, unit in site.infer["scales"].items():
        loc, scale, keep = site.normal_of(shift + other)
        axes = tuple(range(len(shape), jnp.ndim(loc)))
        count = count + jnp.sum(jnp.where(keep, jnp.ones_like(loc), 0.0), axes)
        # In units of the prior: its own square could leave float32.
        mean_square = jnp.square(loc / unit) + jnp.square(scale / unit)
        square = square + jnp.sum(jnp.where(keep, mean_square, 0.0), axes)
    concentration = prior.concentration + 0.5 * count
    rate = prior.rate + 0.5 * square
    scale = 1 / jnp.sqrt(concentration)
    return jnp.log(concentration / rate) - 0.5 * jnp.square(scale), scale


def _element(fn: Any) -> Any:
    """Return the distribution of each element of a site, as it is stored."""
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return fn


class _LogNormal(dist.LogNormal):
    """A log-normal posterior whose divergence from a gamma prior is exact."""


@kl_divergence.register(_LogNormal, dist.Gamma)
def _kl_log_normal_gamma(q: Any, p: Any) -> Array:
    # That of the logarithms, which is the same.
    return kl_divergence(dist.Normal(q.loc, q.scale), LogGamma(p.concentration, p.rate))


offer("collapsed", CollapsedForm(), where="for the precision of normal sites")
