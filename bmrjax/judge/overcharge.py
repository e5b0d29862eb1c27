"""By how much a factorised posterior overcharges a model, because it leaves correlations out."""

import math
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from bmrjax.checks import check_key
from bmrjax.infer.arguments import length
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.estimate import elbo
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.prepare_guide import prepare_guide
from bmrjax.infer.program_data import program_data
from bmrjax.infer.row_sites import row_sites
from bmrjax.infer.scaled_precision import ScaledPrecision, moved_sites
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.result import Result
from bmrjax.run.serial import one_at_a_time


@dataclass(frozen=True)
class Overcharge:
    """What a factorised posterior costs; see `overcharge`.

    Attributes:
        nats: By how much the VFE is above that of the normal posterior with the same means and all
            correlations; at least 0.
        standard_error: Of `nats`, from the random probes; 0 where all eigenvalues were computed.
        size: Elements that are kept, of the sites that were looked at.
        least: The smallest eigenvalue of the scaled precision.
        clipped: Fraction of the spectrum that was not positive, or nearly so. Where it is not small, the
            means are no optimum, or `num_samples` is too small, and `nats` is a lower bound.
        left_out: Latent sites whose posterior is not normal; they stay as they are.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 1)) + 0.1 * jnp.eye(2)[jnp.arange(100) % 2]
        >>> data = (x, x.sum(1))
        >>> fit = bmr.sparsify(
        ...     program, data, guide=bmr.infer.AutoMeanField(program), key=jax.random.key(2),
        ...     batch_size=None, criterion=None, num_epochs=5, steps_per_epoch=200, progress=False,
        ... )
        >>> found = bmr.overcharge(fit, data, key=jax.random.key(3))
        >>> found.size, found.standard_error, bool(found.nats > 1.0)
        (2, 0.0, True)
    """

    nats: float
    standard_error: float
    size: int
    least: float
    clipped: float
    left_out: tuple[str, ...]

    def __repr__(self) -> str:
        text = f"Overcharge({self.nats:,.1f} ± {self.standard_error:,.1f} nats for {self.size:,} elements"
        text += f", {self.clipped:.1%} of the spectrum clipped" if self.clipped > 0.005 else ""
        return f"{text}, without {', '.join(self.left_out)})" if self.left_out else f"{text})"


@one_at_a_time
def overcharge(
    result: Result,
    data: Any,
    *,
    key: Array,
    num_samples: int = 8,
    num_probes: int = 8,
    num_steps: int = 40,
    batch_size: int | None = None,
    options: FitOptions = FitOptions(),  # noqa: B008 - frozen, and holds no array
) -> Overcharge:
    r"""Estimate how far a mean-field free energy is above that of a posterior with correlations.

    Around its means m a factorised posterior N(m, S²) has, if the log joint is quadratic there with precision
    Λ, a free energy that exceeds that of N(m, Λ⁻¹) by their divergence,

    .. math:: \tfrac12 (\operatorname{tr} M - n - \ln\det M), \qquad M = S \Lambda S,

    which for a converged fit (:math:`M_{ii} = 1`) is :math:`\tfrac12 (\sum_i \ln \Lambda_{ii} - \ln\det
    \Lambda)`. It grows with width and correlation, so a
    mean-field free energy makes removals look better than they are: what is compared should be the VFE less
    this. Λ is the Hessian of the expected negative log joint under the posterior; only products with it are
    computed, each as dear as a few gradients on all data, and the spectrum is summed by Lanczos quadrature,
    or in full for up to 256 elements.

    Args:
        result: A fit whose guide is factorised, with its program. `Result.at` has the points of its path.
        data: What it was fitted on.
        key: PRNG key, of the posterior samples and the probes. With the same one, points are compared under
            the same random numbers.
        num_samples: Posterior samples that Λ is averaged over, at least.
        num_probes: Random vectors; the standard error falls with the root of their number.
        num_steps: Lanczos steps of each. The work is their product.
        batch_size: Data at a time; by default 1,000 for a program that was fitted in minibatches, else all.
        options: Those of the fit, of which the `estimator`, the `loss` and the `static` arguments count.

    Raises:
        TypeError: If `key` is not a JAX PRNG key.
        ValueError: For data or settings that cannot be used, a guide with correlations, or a result without
            its program; the message says what to do.

    Example:
        Two columns of which one is nearly the other: the factorised fit pays for their correlation.

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 1)) * jnp.ones(2)
        >>> x = x + 0.1 * jax.random.normal(jax.random.key(1), (100, 2))
        >>> data = (x, x.sum(1))
        >>> fit = bmr.sparsify(
        ...     program, data, guide=bmr.infer.AutoMeanField(program), key=jax.random.key(2), batch_size=None,
        ...     criterion=None, num_epochs=20, steps_per_epoch=200, progress=False,
        ... )
        >>> found = bmr.overcharge(fit, data, key=jax.random.key(3))
        >>> precision = x.T @ x + jnp.eye(2)
        >>> exact = 0.5 * (jnp.log(jnp.diag(precision)).sum() - jnp.linalg.slogdet(precision)[1])
        >>> bool(abs(found.nats - exact) < 0.05 * exact)
        True

    References:
        Turner and Sahani (2011), on the bias of variational free energies; Ubaru, Chen and Saad (2017), the
        quadrature.
    """
    numbers = {"num_samples": num_samples, "num_probes": num_probes, "num_steps": num_steps}
    check_key(key, "overcharge", **numbers, batch_size=batch_size)
    model, guide = result._programs()
    if isinstance(guide, CorrelatedGuide):
        raise ValueError(  # noqa: TRY004 - a guide of another kind is what helps
            f"overcharge: {type(guide).__name__} has correlations. It is posteriors of independent elements, "
            "such as those of infer.AutoMeanField, that leave them out."
        )
    data = program_data(
        model, data, batch_size=batch_size, static=options.static, name="overcharge: data"
    )
    rows = length(data)
    if batch_size is None:
        batch_size = 1000 if result.by_rows else rows
    batch_size = min(batch_size, rows)
    by_rows = None
    if batch_size < rows:
        by_rows = row_sites(model, data, jax.random.key(0), name="overcharge")
    params = dict(result.params)
    batch = jax.tree.map(lambda a: a[:batch_size], data)
    prepare_guide(model, guide, params, batch, latent_sites=result.latent_sites)
    sites = moved_sites(guide, params, batch)
    if not sites:
        raise ValueError(
            "overcharge: no latent site has a normal posterior with a location and a scale of its own. "
            "Fit with infer.AutoMeanField."
        )
    loss = elbo(options.estimator) if options.loss is None else options.loss
    measure = FreeEnergy(model, guide, loss=loss, batch_size=batch_size, row_sites=by_rows)
    precision = ScaledPrecision(measure, sites, num_samples=num_samples)
    steps = {"num_probes": num_probes, "num_steps": num_steps}
    total, size = precision.overcharge(params, result.keep, data, key, **steps)
    if not math.isfinite(total.value):
        raise ValueError(
            "overcharge: the curvature of this fit is not finite. Look for values that are not finite in the "
            "parameters and the data."
        )
    names = {site.name for site in sites}
    latent = [site.name for site in result.inspection.sites if not site.observed]
    left_out = tuple(name for name in latent if name not in names)
    return Overcharge(total.value, total.standard_error, size, total.least, total.clipped, left_out)
