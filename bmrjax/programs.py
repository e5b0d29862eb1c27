"""NumPyro programs around a network: a classifier and a regression."""

from collections.abc import Callable, Sequence
from typing import Any

import numpyro
import numpyro.distributions as dist

from bmrjax.distributions import PrecisionNormal
from bmrjax.nn.random_module import random_module
from bmrjax.priors import Prior


def classifier(network: Any, prior: Prior | None) -> Callable:
    """Return the program y ~ Categorical(softmax(net(x))) with random weights under `prior`.

    Args:
        network: The network.
        prior: Prior of its weights; None for point estimates, where noise is what is random.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 3, key=jax.random.key(0))
        >>> program = bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0))
        >>> bmr.inspect(program, (jnp.ones((10, 4)), jnp.zeros(10, int))).judged
        ['net.layers.0.weight', 'net.layers.0.bias', 'net.layers.1.weight', 'net.layers.1.bias']
    """

    def program(x: Any, y: Any = None) -> None:
        logits = random_module("net", network, prior)(x)
        classes: Any = dist.Categorical(logits=logits)
        numpyro.sample("y", classes, obs=y)

    return program


def regression(
    network: Any, prior: Prior | None, *, precision: tuple[float, float] | None = None
) -> Callable:
    """Return the program y ~ N(net(x), noise²), one output a target dimension.

    A single target may come as a vector.

    Args:
        network: The network.
        prior: Prior of its weights; None for point estimates.
        precision: Shape and rate of a gamma prior of one over the noise's variance, a target dimension.
            `infer.AutoMeanField` gives it a gamma posterior, which the estimators ``"local"`` and
            ``"moments"`` take in closed form. By default noise ~ HalfNormal(1), for standardised targets.

    Raises:
        ValueError: For a `precision` that is not two positive numbers.

    Example:
        >>> import jax
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(3, (50,), 1, key=jax.random.key(0))
        >>> program = bmr.programs.regression(network, bmr.priors.Flat(), precision=(1.0, 1.0))

    References:
        Beckers et al. (2024), equations 1 to 3, for the gamma prior.
    """
    pair = isinstance(precision, Sequence) and len(precision) == 2
    if precision is not None and not (pair and all(x > 0 for x in precision)):
        raise ValueError(
            f"regression: precision is the shape and the rate of a gamma prior, two positive numbers such as "
            f"(1.0, 1.0); got {precision}."
        )

    def program(x: Any, y: Any = None) -> None:
        mean = random_module("net", network, prior)(x)
        name, spread, likelihood, infer = "noise", dist.HalfNormal(1.0), dist.Normal, {}
        if precision is not None:
            name, spread, likelihood = "precision", dist.Gamma(*precision), PrecisionNormal
            infer = {"posterior": "gamma"}
        over: Any = spread.expand(mean.shape[1:]).to_event(1)
        value: Any = numpyro.sample(name, over, infer=infer)
        if mean.shape[1] == 1 and (y is None or y.ndim == 1):
            numpyro.sample("y", likelihood(mean[:, 0], value[0]), obs=y)
        else:
            numpyro.sample("y", likelihood(mean, value).to_event(1), obs=y)

    return program
