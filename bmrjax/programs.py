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
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return program


def regression(network: Any, prior: Prior) -> Callable:
    """Return the program y ~ N(net(x), noise²), noise ~ HalfNormal(1), for standardised targets."""

    def program(x: Any, y: Any = None) -> None:
        mean = lift("net", network, prior)(x)[:, 0]
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)

    return program
