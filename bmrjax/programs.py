"""NumPyro programs around a network: a classifier and a regression."""

from collections.abc import Callable
from typing import Any

import numpyro
import numpyro.distributions as dist

from bmrjax.nn.lift import lift
from bmrjax.priors import Prior


def classifier(network: Any, prior: Prior) -> Callable:
    """Return the program y ~ Categorical(softmax(net(x))) with random weights under `prior`."""

    def program(x: Any, y: Any = None) -> None:
        logits = lift("net", network, prior)(x)
        classes: Any = dist.Categorical(logits=logits)
        numpyro.sample("y", classes, obs=y)

    return program


def regression(network: Any, prior: Prior) -> Callable:
    """Return the program y ~ N(net(x), noise²) for standardised targets.

    One output a target dimension, each with its own noise ~ HalfNormal(1); a single one may come
    as a vector.
    """

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

    return program
