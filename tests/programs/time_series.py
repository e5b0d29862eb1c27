"""Time series: the position of a row is part of the model."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

from .program import Program


def ar2_scan(y):
    """From NumPyro's `ar2.py`."""
    alpha_1 = numpyro.sample("alpha_1", dist.Normal(0, 1))
    alpha_2 = numpyro.sample("alpha_2", dist.Normal(0, 1))
    const = numpyro.sample("const", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))

    def transition(carry, _):
        y_prev, y_prev_prev = carry
        m_t = const + alpha_1 * y_prev + alpha_2 * y_prev_prev
        y_t = numpyro.sample("y", dist.Normal(m_t, sigma))
        return (y_t, y_prev), m_t

    timesteps = jnp.arange(y.shape[0] - 2)
    init = (y[1], y[0])
    with numpyro.handlers.condition(data={"y": y[2:]}):
        _, mu = scan(transition, init, timesteps)
    numpyro.deterministic("mu", mu)


def ar2_lags(y, lag1, lag2):
    """The same with the lagged values as columns: rows are exchangeable."""
    alpha_1 = numpyro.sample("alpha_1", dist.Normal(0, 1))
    alpha_2 = numpyro.sample("alpha_2", dist.Normal(0, 1))
    const = numpyro.sample("const", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    mu = const + alpha_1 * lag1 + alpha_2 * lag2
    numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def ar1_shifted(y):
    """Shifts inside the program: the likelihood of a row needs the row before."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("first", dist.Normal(0, 3), obs=y[0])
    numpyro.sample("y", dist.Normal(alpha * y[:-1], sigma), obs=y[1:])


def local_level(y):
    """A random walk observed with noise, all levels in one site."""
    sigma_level = numpyro.sample("sigma_level", dist.HalfNormal(0.5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    level = numpyro.sample("level", dist.GaussianRandomWalk(sigma_level, num_steps=len(y)))
    numpyro.sample("y", dist.Normal(level, sigma), obs=y)


def local_level_scan(T, y=None):
    """The same by `scan`, with non-centred increments, as in NumPyro's forecasting tutorial."""
    sigma_level = numpyro.sample("sigma_level", dist.HalfNormal(0.5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))

    def transition(level, _):
        with reparam(config={"level": LocScaleReparam(centered=0)}):
            level = numpyro.sample("level", dist.Normal(level, sigma_level))
        y_t = numpyro.sample("y", dist.Normal(level, sigma))
        return level, y_t

    with numpyro.handlers.condition(data={"y": y}):
        scan(transition, 0.0, jnp.arange(T))


def stochastic_volatility(returns):
    """From NumPyro's `stochastic_volatility.py`."""
    step_size = numpyro.sample("sigma", dist.Exponential(50.0))
    s = numpyro.sample(
        "s", dist.GaussianRandomWalk(scale=step_size, num_steps=jnp.shape(returns)[0])
    )
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    return numpyro.sample("r", dist.StudentT(df=nu, loc=0.0, scale=jnp.exp(s)), obs=returns)


_rng = np.random.default_rng(4)
_ar = [0.5, 0.4]
for _ in range(158):
    _ar.append(0.2 + 0.85 * _ar[-1] - 0.25 * _ar[-2] + 0.6 * _rng.standard_normal())
_y = jnp.array(_ar, jnp.float32)  # `scan` needs an array of JAX here
_walk = np.cumsum(0.2 * _rng.standard_normal(80))
_levels = jnp.array(_walk + 0.4 * _rng.standard_normal(80), jnp.float32)
_log_scale = -1 + np.cumsum(0.1 * _rng.standard_normal(100))
_returns = (np.exp(_log_scale) * _rng.standard_t(8, 100)).astype(np.float32)

PROGRAMS = [
    Program(
        "ar2_scan",
        ar2_scan,
        (_y,),
        ("alpha_1", "alpha_2", "const", "sigma"),
        minibatch=("y",),
        steps=2000,
    ),
    Program(
        "ar2_lags",
        ar2_lags,
        (_y[2:], _y[1:-1], _y[:-2]),
        ("alpha_1", "alpha_2", "const", "sigma"),
    ),
    Program("ar1_shifted", ar1_shifted, (_y,), ("alpha", "sigma"), minibatch=("y", "first")),
    Program(
        "local_level",
        local_level,
        (_levels,),
        ("sigma_level", "sigma", "level"),
        minibatch=("level", "y"),
        steps=4000,
    ),
    Program(
        "local_level_scan",
        local_level_scan,
        (80, _levels),
        ("sigma_level", "sigma"),
        minibatch=("level_decentered", "level", "y"),
        steps=3000,
    ),
    Program(
        "stochastic_volatility",
        stochastic_volatility,
        (_returns,),
        ("sigma", "nu", "s"),
        minibatch=("s", "r"),
        steps=4000,
    ),
]
