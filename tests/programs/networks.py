"""Networks: written by hand, and by `numpyro.contrib.module`."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.module import eqx_module, flax_module, random_eqx_module, random_flax_module

from .program import Program


class _Net(nn.Module):
    n_units: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.n_units)(x[..., None])
        x = nn.relu(x)
        mean = nn.Dense(1)(x)
        return mean.squeeze(-1)


def flax_bayesian(x, y=None, batch_size=None):
    """From the docstring of `random_flax_module`."""
    net = random_flax_module("nn", _Net(n_units=4), prior=dist.Normal(0.0, 1.0), input_shape=())
    with numpyro.plate("batch", x.shape[0], subsample_size=batch_size):
        batch_x = numpyro.subsample(x, event_dim=0)
        batch_y = numpyro.subsample(y, event_dim=0) if y is not None else None
        mean = net(batch_x)
        numpyro.sample("obs", dist.Normal(mean, 0.3), obs=batch_y)


def flax_priors(x, y=None):
    """A prior for each kind of parameter, by name."""
    net = random_flax_module(
        "nn",
        _Net(n_units=4),
        prior={
            "Dense_0.bias": dist.Cauchy(),
            "Dense_0.kernel": dist.Normal(),
            "Dense_1.bias": dist.Normal(0, 5),
            "Dense_1.kernel": dist.Normal(0, 0.5),
        },
        input_shape=(),
    )
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(net(x), sigma), obs=y)


def flax_deterministic(x, y=None):
    """A network of parameters without priors; only the noise is a latent."""
    net = flax_module("nn", _Net(n_units=3), input_shape=())
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(net(x), sigma), obs=y)


_mlp = eqx.nn.MLP(1, 1, width_size=4, depth=1, activation=jnp.tanh, key=jax.random.key(0))


def eqx_bayesian(x, y=None):
    net = random_eqx_module("nn", _mlp, prior=dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        mean = jax.vmap(net)(x[:, None])[:, 0]
        numpyro.sample("obs", dist.Normal(mean, 0.3), obs=y)


def eqx_deterministic(x, y=None):
    net = eqx_module("nn", _mlp)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(jax.vmap(net)(x[:, None])[:, 0], sigma), obs=y)


def bnn(X, Y, D_H, D_Y=1):
    """From NumPyro's `bnn.py`, with one hidden layer less."""
    N, D_X = X.shape
    w1 = numpyro.sample("w1", dist.Normal(jnp.zeros((D_X, D_H)), jnp.ones((D_X, D_H))))
    z1 = jnp.tanh(jnp.matmul(X, w1))
    w3 = numpyro.sample("w3", dist.Normal(jnp.zeros((D_H, D_Y)), jnp.ones((D_H, D_Y))))
    z3 = jnp.matmul(z1, w3)
    prec_obs = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
    sigma_obs = 1.0 / jnp.sqrt(prec_obs)
    with numpyro.plate("data", N):
        numpyro.sample("Y", dist.Normal(z3, sigma_obs).to_event(1), obs=Y)


_rng = np.random.default_rng(7)
_x = np.sort(_rng.uniform(-2, 2, 60)).astype(np.float32)
_y = (np.tanh(2 * _x) + 0.3 * _rng.standard_normal(60)).astype(np.float32)
_powers = np.c_[np.ones(60), _x, _x**2].astype(np.float32)
_local = "local optima"

PROGRAMS = [
    Program(
        "random_flax_module",
        flax_bayesian,
        (_x, _y),
        ("nn/Dense_0.kernel", "nn/Dense_1.bias"),
        notes=_local,
    ),
    Program("random_flax_priors", flax_priors, (_x, _y), ("sigma",), notes=_local),
    Program("flax_module", flax_deterministic, (_x, _y), ("sigma",), nuts=False, notes=_local),
    Program("random_eqx_module", eqx_bayesian, (_x, _y), (), notes=_local),
    Program("eqx_module", eqx_deterministic, (_x, _y), ("sigma",), nuts=False, notes=_local),
    Program("bnn", bnn, (_powers, _y[:, None], 5), ("prec_obs",), notes=_local),
]
