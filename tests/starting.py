"""Guides and losses without an engine, each in one compiled program: op by op is slow to compile."""

import jax
from numpyro.infer import TraceMeanField_ELBO

from bmrjax.infer.init import initialise


def started(model, guide, *args, key=None):
    """Let a guide meet its model, and return the parameters that it starts with."""
    key = jax.random.key(1) if key is None else key
    start = initialise(model, guide, TraceMeanField_ELBO(), key, args)
    return start.constrain(start.params)


def loss_of(loss, key, params, model, guide, *args):
    """Return an ELBO's loss."""
    return jax.jit(lambda params, args: loss.loss(key, params, model, guide, *args))(params, args)
