"""Mean and covariance of the judged elements, in closed form or from draws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Float, Int
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.autoguide import AutoContinuous, AutoGuide, AutoNormal

from bmrjax.fitted.finished_fit import FinishedFit
from bmrjax.fitted.joint_normal import moments
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.skewness import skewed
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.draws import posterior_draws
from bmrjax.infer.posterior import site_posteriors
from bmrjax.reduction import Normal
from bmrjax.run.diagnose import Finding

# Independent draws per element below which the noise of a covariance moves probabilities by .2 and more.
LEAST_SIZE_PER_ELEMENT = 20

# Draws from a guide that has no joint normal in closed form.
GUIDE_DRAWS = 4000


@dataclass(frozen=True)
class Whole:
    """A joint normal over all latent elements on the unconstrained space.

    Attributes:
        loc: Mean.
        covariance: Covariance; rows of elements that are fixed are zero.
        unpack: Vector to values by site, unconstrained.
        functions: What was compiled of the program; copies with other moments share it.
    """

    loc: Float[np.ndarray, " m"]
    covariance: Float[np.ndarray, "m m"]
    unpack: Callable[[Any], Mapping[str, Any]]
    functions: dict[str, Any] = field(default_factory=dict, repr=False)

    def positions(self, layout: ElementLayout) -> Int[np.ndarray, " n"]:
        """Return where the judged elements are, which have no constraint.

        Args:
            layout: The judged elements.
        """
        return layout.flat(self.unpack(np.arange(len(self.loc)))).astype(int)


@dataclass(frozen=True)
class FittedPosterior:
    """Moments of the judged elements, and what is known of the whole posterior.

    Attributes:
        loc: Mean of the judged elements.
        covariance: Their covariance.
        text: Where they come from, in words.
        draws: Latent site to draws, one leading axis; None for a closed form.
        whole: The joint normal over all latent elements, if the guide has it in closed form.
        findings: What is wrong with the draws.
        independent_draws: Number of independent draws that the draws of the judged elements are worth; None
            for a closed form.
    """

    loc: Float[np.ndarray, " n"]
    covariance: Float[np.ndarray, "n n"]
    text: str
    draws: dict[str, np.ndarray] | None = None
    whole: Whole | None = None
    findings: tuple[Finding, ...] = ()
    independent_draws: float | None = None


def fitted_posterior(
    fit: FinishedFit,
    model: Callable,
    data: Data,
    layout: ElementLayout,
    latent: Mapping[str, tuple[int, ...]],
    *,
    seed: int,
) -> FittedPosterior:
    """Read the posterior of the judged elements; all other latent sites are marginalised.

    Args:
        fit: The fit.
        model: Its program.
        data: Arguments of the program.
        layout: The judged elements.
        latent: Latent site to shape.
        seed: Of the draws from a guide that has no joint normal in closed form.

    Raises:
        ValueError: If a judged site is missing, or draws have the wrong shape, are too few or not finite.
    """
    if fit.draws is not None:
        return draws_posterior(fit.draws, fit.text, layout, latent)
    assert fit.params is not None
    has_all = all(np.all(mask) for mask in fit.keep.values())
    if has_all and isinstance(fit.guide, AutoContinuous):
        found = _of_continuous(fit, layout)
        if found is not None:
            return found
    draws = _guide_draws(fit, data, GUIDE_DRAWS, seed)
    if has_all and isinstance(fit.guide, AutoNormal):
        found = _of_mean_field(fit, model, data, layout, draws)
        if found is not None:
            return found
    return draws_posterior(draws, fit.text, layout, latent)


def _of_continuous(fit: FinishedFit, layout: ElementLayout) -> FittedPosterior | None:
    """Return the posterior of a guide with one normal over all latent elements; None if it is none."""
    family: list[type] = []

    # Compiled as one program: the Hessian of Laplace's approximation takes many operations.
    @jax.jit
    def read(params: dict[str, Any]) -> list[Any]:
        posterior = fit.guide.get_posterior(params)
        base = posterior.base_dist if isinstance(posterior, dist.Independent) else posterior
        family.append(type(base))
        return [getattr(base, name) for name in _STORED.get(type(base), ())]

    try:
        stored = [np.asarray(value, np.float64) for value in read(dict(fit.params or {}))]
    except NotImplementedError:
        return None
    if not stored:
        return None
    loc, factor, *diagonal = stored
    # In double precision, from the factors that are stored.
    if family[0] is dist.Normal:
        covariance = np.diag(factor**2)
    else:
        covariance = factor @ factor.T + (np.diag(diagonal[0]) if diagonal else 0.0)
    where = fit.guide._unpack_latent(jnp.arange(len(loc)))
    at = layout.flat(where).astype(int)
    return FittedPosterior(
        loc[at],
        covariance[np.ix_(at, at)],
        f"{fit.text}, in closed form",
        whole=Whole(loc, covariance, fit.guide._unpack_latent),
    )


# Posterior of a guide to the parameters that it stores.
_STORED: dict[type, tuple[str, ...]] = {
    dist.Normal: ("loc", "scale"),
    dist.MultivariateNormal: ("loc", "scale_tril"),
    dist.LowRankMultivariateNormal: ("loc", "cov_factor", "cov_diag"),
}


def _of_mean_field(
    fit: FinishedFit,
    model: Callable,
    data: Data,
    layout: ElementLayout,
    draws: dict[str, np.ndarray],
) -> FittedPosterior | None:
    """Return the posterior of a guide with independent elements; None if a judged site is not normal."""
    args, kwargs = arguments(data)
    found = site_posteriors(model, fit.guide, fit.params or {}, *args, **kwargs).posterior
    if not all(isinstance(found.get(name), Normal) for name in layout.index):
        return None
    shapes = {name: where.shape for name, where in layout.index.items()}
    loc, scale = (
        layout.flat({n: np.broadcast_to(getattr(found[n], part), s) for n, s in shapes.items()})
        for part in ("loc", "scale")
    )
    text = f"{fit.text}, in closed form, without correlations"
    return FittedPosterior(loc, np.diag(scale**2), text, draws=draws)


def _guide_draws(fit: FinishedFit, data: Data, count: int, seed: int) -> dict[str, np.ndarray]:
    key = jax.random.key(seed)
    args, kwargs = arguments(data)
    # A guide of Laplace's approximation is a point where it is traced.
    if isinstance(fit.guide, AutoGuide) and not fit.keep:

        @jax.jit
        def sample(key: Any, params: dict[str, Any]) -> Any:
            return fit.guide.sample_posterior(key, params, *args, sample_shape=(count,), **kwargs)

        drawn = sample(key, dict(fit.params or {}))
    else:
        drawn = posterior_draws(fit.guide, fit.params or {}, fit.keep, key, count, data)
    return {name: np.asarray(value) for name, value in drawn.items()}


def draws_posterior(
    draws: Mapping[str, Any],
    text: str,
    layout: ElementLayout,
    latent: Mapping[str, tuple[int, ...]],
) -> FittedPosterior:
    """Read the posterior of the judged elements from draws.

    Args:
        draws: Site to draws, with leading axes for draws or for chains and draws.
        text: Where they come from, in words.
        layout: The judged elements.
        latent: Site to shape.

    Raises:
        ValueError: As `fitted_posterior` does.
    """
    missing = [name for name in layout.index if name not in draws]
    if missing:
        raise ValueError(
            f"reduce_fit: there are no draws of the judged sites {missing}; there are some of "
            f"{sorted(draws)}."
        )
    known = {name: _by_chain(name, draws[name], latent[name]) for name in latent if name in draws}
    counts = {name: value.shape[:2] for name, value in known.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"reduce_fit: sites have different numbers of chains or draws: {counts}.")
    chains = layout.flat(known)
    flat = chains.reshape(-1, layout.size)
    loc, covariance = moments(flat, layout.label)
    of_all = {n: v.reshape(-1, *v.shape[2:]) for n, v in known.items()}
    size = _sizes(chains)
    return FittedPosterior(
        loc,
        covariance,
        f"{len(flat):,} draws" if text == "draws" else f"{len(flat):,} draws of {text}",
        draws=of_all,
        findings=(*_findings(chains, size, layout), *skewed(flat, layout.label, float(size.min()))),
        independent_draws=float(size.min()),
    )


def _by_chain(name: str, draws: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return draws with axes for chain and draw in front."""
    draws = np.asarray(draws)
    for lead in (1, 2):
        if draws.ndim == lead + len(shape) and draws.shape[lead:] == shape:
            return draws if lead == 2 else draws[None]
    raise ValueError(
        f"reduce_fit: the draws of '{name}' have shape {draws.shape}; the site has shape {shape}, so "
        f"(draws, *{shape}) or (chains, draws, *{shape}) is expected. Is `data` what the model was fitted on?"
    )


def _sizes(chains: Float[np.ndarray, "chains draws n"]) -> Float[np.ndarray, " n"]:
    """Return how many independent draws those of each element are worth; all of them for short chains."""
    if chains.shape[1] < 8:
        return np.full(chains.shape[2], float(chains.shape[0] * chains.shape[1]))
    with np.errstate(all="ignore"):
        return np.nan_to_num(effective_sample_size(chains), nan=0.0)


def _findings(
    chains: Float[np.ndarray, "chains draws n"],
    size: Float[np.ndarray, " n"],
    layout: ElementLayout,
) -> list[Finding]:
    """Return what is wrong with the draws of the judged elements."""
    if chains.shape[1] < 8:
        return []
    found = []
    with np.errstate(all="ignore"):
        spread = np.nan_to_num(split_gelman_rubin(chains), nan=np.inf)
    least = int(np.argmin(size))
    if size[least] < LEAST_SIZE_PER_ELEMENT * layout.size:
        found.append(
            Finding(
                "few-draws",
                f"The draws of '{layout.label[least]}' are worth {size[least]:.0f} independent ones, for the "
                f"covariance of {layout.size} elements.",
                f"Draw on, until they are worth {100 * layout.size} if possible.",
            )
        )
    worst = int(np.argmax(spread))
    if spread[worst] > 1.05:
        found.append(
            Finding(
                "chains-disagree",
                f"R-hat of '{layout.label[worst]}' is {spread[worst]:.2f}.",
                "Run the chains for longer, or find out why they stay apart.",
            )
        )
    return found
