"""NumPyro programs around a network: a classifier and a regression."""

from collections.abc import Callable
from typing import Any

import numpyro
import numpyro.distributions as dist

from bmrjax.distributions import PrecisionNormal
from bmrjax.nn.lift import lift
from bmrjax.priors import Prior


def classifier(network: Any, prior: Prior) -> Callable:
    """Return the program y ~ Categorical(softmax(net(x))) with random weights under `prior`."""

    def program(x: Any, y: Any = None) -> None:
        logits = lift("net", network, prior)(x)
        classes: Any = dist.Categorical(logits=logits)
        numpyro.sample("y", classes, obs=y)

    return program


def regression(
    network: Any, prior: Prior, *, precision: tuple[float, float] | None = None
) -> Callable:
    """Return the program y ~ N(net(x), noise²), one output a target dimension.

    A single target may come as a vector.

    Args:
        network: The network.
        prior: Prior of its weights.
        precision: Shape and rate of a gamma prior of one over the noise's variance, a target dimension.
            `infer.AutoMeanField` gives it a gamma posterior, which the estimators ``"local"`` and
            ``"moments"`` take in closed form. By default noise ~ HalfNormal(1), for standardised targets.

    Example:
        >>> import jax
        >>> import bmrjax as bmr
        >>> network = bmr.nn.MLP(3, (50,), 1, key=jax.random.key(0))
        >>> program = bmr.programs.regression(network, bmr.priors.Flat(), precision=(1.0, 1.0))

    References:
        Beckers et al. (2024), equations 1 to 3, for the gamma prior.
    """

    def with_precision(x: Any, y: Any = None) -> None:
        mean = lift("net", network, prior)(x)
        assert precision is not None
        gamma: Any = dist.Gamma(*precision).expand(mean.shape[1:]).to_event(1)
        inverse: Any = numpyro.sample("precision", gamma, infer={"posterior": "gamma"})
        if mean.shape[1] == 1 and (y is None or y.ndim == 1):
            numpyro.sample("y", PrecisionNormal(mean[:, 0], inverse[0]), obs=y)
        else:
            numpyro.sample("y", PrecisionNormal(mean, inverse).to_event(1), obs=y)

    def program(x: Any, y: Any = None) -> None:
        mean = lift("net", network, prior)(x)
        noise: Any = numpyro.sample(
            "noise", dist.HalfNormal(1.0).expand(mean.shape[1:]).to_event(1)
        )
        if mean.shape[1] == 1 and (y is None or y.ndim == 1):
            mean, noise = mean[:, 0], noise[0]
            numpyro.sample("y", dist.Normal(mean, noise), obs=y)
        else:
            numpyro.sample("y", dist.Normal(mean, noise).to_event(1), obs=y)

    return program if precision is None else with_precision
