"""How the Kullback-Leibler term of a run grows, where nobody said."""

from numpyro.infer.autoguide import AutoDelta

from bmrjax.infer.kl_growth import KLGrowth, as_growth
from bmrjax.infer.natural_gradient import NaturalGradient
from bmrjax.run.fit import Fit
from bmrjax.run.settings import Settings

# The warm-up is this part of the run, or more of a short one: so many steps, up to the second part.
_PART, _STEPS, _MOST = 0.15, 2500, 0.5
# At temperature 1, the divergence stays at this weight from the first to the second part of the warm-up.
_WEIGHT, _FROM, _TO = 0.1, 0.1, 0.6
# Priors of the weights that this is for. Others have starts of their own.
_FAMILIES = ("normal", "spike-and-slab")


def default_growth(num_steps: int, temperature: float = 1.0) -> KLGrowth:
    """Return how the divergence comes in for a network that starts from scratch.

    Args:
        num_steps: Of the whole run.
        temperature: Of its likelihood; the posterior of a low one is cold already.

    Example:
        >>> default_growth(10_000)
        ((250.0, 0.1), (1500.0, 0.1), (2500.0, 1.0))
    """
    steps = min(max(_PART * num_steps, _STEPS), _MOST * num_steps)
    weight = min(_WEIGHT / temperature, 1.0)
    return as_growth([(_FROM * steps, weight), (_TO * steps, weight), (steps, 1.0)])


def warm_up(fit: Fit, settings: Settings, *, steps: int) -> KLGrowth:
    """Let the divergence of a network's layers come in slowly, unless the settings say how fast.

    From scratch, under the whole divergence, the scales of a factorised posterior grow before the means have
    learned anything, and the posterior falls back to the prior: a product of two columns is then never found,
    although the free energy of the network that knows it is far lower. At a tenth of the divergence the
    network learns what a point estimate does, and what is superfluous is lost when the rest comes in. Natural
    gradients begin with small scales anyway, and a point estimate has none. Where a schedule ends epochs once
    they have converged, nobody knows how long the run is, and the divergence is whole from the start.

    Args:
        fit: Which has begun, and has taken no step.
        settings: See `bmrjax.run.sparsify.sparsify`.
        steps: Of an epoch.

    Returns:
        How the divergence comes in.
    """
    if settings.options.kl_warmup is None and _is_from_scratch(fit, settings):
        fit.engine.step.kl_growth = default_growth(
            steps * settings.num_epochs, settings.options.temperature
        )
    return fit.engine.step.kl_growth


def _is_from_scratch(fit: Fit, settings: Settings) -> bool:
    """Return whether the weights have learned nothing, and it is known how long they will learn."""
    if settings.options.start is not None or isinstance(fit.guide, AutoDelta):
        return False
    if isinstance(fit.engine.optimizer, NaturalGradient):
        return False
    if settings.schedule is not None and settings.schedule.until is not None:
        return False
    weights = {
        site: prior
        for site, prior in fit.priors.items()
        if prior.family in _FAMILIES and prior.layer is not None
    }
    # A vector beside a matrix is its bias; one with a layer of its own multiplies.
    matrices = sum(prior.num_axes > 1 for prior in weights.values())
    vectors = sum(prior.num_axes == 1 and prior.layer == site for site, prior in weights.items())
    return matrices > 0 and matrices + vectors > 1
