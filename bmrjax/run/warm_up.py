"""How long the Kullback-Leibler term of a run grows, where nobody said."""

from numpyro.infer.autoguide import AutoDelta

from bmrjax.infer.natural_gradient import NaturalGradient
from bmrjax.run.fit import Fit
from bmrjax.run.settings import Settings

# The part of the epochs, and epochs at most: those before the first round of `schedules.Verified`.
_PART, _MOST = 5, 20
# Priors of the weights that this is for. Others have starts of their own.
_FAMILIES = ("normal", "spike-and-slab")


def warm_up(fit: Fit, settings: Settings, *, steps: int) -> None:
    """Let the divergence of a network's layers come in slowly, unless the settings say how fast.

    From scratch, under the whole divergence, the scales of a factorised posterior grow before the means have
    learned anything, and the posterior falls back to the prior: a product of two columns is then never found,
    although the free energy of the network that knows it is far lower. Natural gradients begin with small
    scales anyway, and a point estimate has none.

    Args:
        fit: Which has begun, and has taken no step.
        settings: See `bmrjax.run.sparsify.sparsify`.
        steps: Of an epoch.
    """
    options = settings.options
    if options.kl_warmup is not None or options.start is not None:
        return
    if isinstance(fit.engine.optimizer, NaturalGradient) or isinstance(fit.guide, AutoDelta):
        return
    weights = (prior for prior in fit.priors.values() if prior.layer is not None)
    if any(prior.family in _FAMILIES for prior in weights):
        fit.engine.step.kl_warmup = steps * min(_MOST, settings.num_epochs // _PART)
