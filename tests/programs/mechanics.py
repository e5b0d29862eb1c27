"""Plates that subsample, factors, observed globals, learnable parameters, rows in odd places."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from .program import Program


def subsampling(x, y):
    """A plate that draws its own rows, by index."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("N", 150, subsample_size=50) as idx:
        numpyro.sample("obs", dist.Normal(x[idx] @ beta, sigma), obs=y[idx])


def subsampling_calls(x, y):
    """The same by `numpyro.subsample`, with the size of the plate from the data."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("N", x.shape[0], subsample_size=50):
        batch_x = numpyro.subsample(x, event_dim=1)
        batch_y = numpyro.subsample(y, event_dim=0)
        numpyro.sample("obs", dist.Normal(batch_x @ beta, sigma), obs=batch_y)


def factor_constraint(x, y):
    """A soft constraint on the weights by a factor: it is no part of the likelihood."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    numpyro.factor("ridge", -1000.0 * jnp.sum(b**2))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def observed_global(group, y):
    """Group effects that sum to zero, by an observation of their sum."""
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([5]).to_event(1))
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    numpyro.sample("sum_to_zero", dist.Normal(effect.sum(), 0.05), obs=0.0)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu + effect[group], 0.7), obs=y)


def observed_vector(x, y, pilot):
    """Results of a pilot study, fewer than the rows, which inform the same weights."""
    b = numpyro.sample("b", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    numpyro.sample("pilot", dist.Normal(b, 0.2), obs=pilot)
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def learnable(x, y):
    """Weights with a prior whose scale is learned, and an intercept without a prior."""
    a = numpyro.param("a", 0.0)
    prior_scale = numpyro.param("prior_scale", 1.0, constraint=constraints.positive)
    w = numpyro.sample("w", dist.Normal(0, prior_scale).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.param("sigma", jnp.array(1.0), constraint=constraints.positive)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + x @ w, sigma), obs=y)


def summed_likelihood(x, y):
    """A likelihood written as one factor: nothing says which row is which."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    numpyro.factor("loglik", dist.Normal(x @ w, 0.8).log_prob(y).sum())


def rows_as_event(x, y):
    """Rows declared to be one event."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ w, sigma).to_event(1), obs=y)


def transposed(x, y):
    """Columns of the design in rows: `x` is (features, rows)."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[0]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(w @ x, sigma), obs=y)


def standardized_inside(x, y):
    """Standardises its inputs itself, so that each row depends on all."""
    x = (x - x.mean(0)) / x.std(0)
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def tempered(x, y):
    """A likelihood to the power of one half."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]), numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Normal(x @ w, 0.8), obs=y)


def two_likelihoods(x, y, detected):
    """Two observed sites by row with shared weights, and a penalty by row that is a factor."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    c = numpyro.sample("c", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.8), obs=y)
        numpyro.sample("detected", dist.Bernoulli(logits=c + x @ w), obs=detected)
        numpyro.factor("bound", -0.1 * jnp.maximum(x @ w, 0.0) ** 2)


_rng = np.random.default_rng(6)
_x = _rng.standard_normal((150, 3)).astype(np.float32)
_w = np.array([0.9, -0.6, 0.2], np.float32)
_y = (_x @ _w + 0.8 * _rng.standard_normal(150)).astype(np.float32)
_many = _rng.standard_normal((2000, 2)).astype(np.float32)
_outcome = (_many @ np.array([1.0, -1.0]) + _rng.standard_normal(2000)).astype(np.float32)
_group = _rng.integers(0, 5, 150)
_grouped = (2 + _rng.standard_normal(5)[_group] + 0.7 * _rng.standard_normal(150)).astype("f4")

# A random index needs arrays of JAX.
_on_device = (jnp.asarray(_x), jnp.asarray(_y))

PROGRAMS = [
    Program(
        "subsampling",
        subsampling,
        _on_device,
        ("beta", "sigma"),
        minibatch=("N", "obs"),
        notes="a noisy loss: the plate draws 50 of 150 rows",
    ),
    Program(
        "subsampling_calls",
        subsampling_calls,
        _on_device,
        ("beta", "sigma"),
        minibatch=("N", "obs"),
        notes="a noisy loss: the plate draws 50 of 150 rows",
    ),
    Program("factor_constraint", factor_constraint, (_many, _outcome), ("b",)),
    Program("observed_global", observed_global, (_group, _grouped), ("mu", "effect")),
    Program("observed_vector", observed_vector, (_x, _y, _w + np.float32(0.1)), ("b",)),
    Program("param", learnable, (_x, _y), ("w",), nuts=False),
    Program("summed_likelihood", summed_likelihood, (_x, _y), ("w",), minibatch=("loglik",)),
    Program("rows_as_event", rows_as_event, (_x, _y), ("w", "sigma"), minibatch=("y",)),
    Program(
        "transposed", transposed, (np.ascontiguousarray(_x.T), _y), ("w", "sigma"), minibatch=("y",)
    ),
    Program(
        "standardized_inside",
        standardized_inside,
        (3.0 + 2.0 * _x, _y),
        ("w", "sigma"),
        minibatch=("y",),
    ),
    Program("tempered", tempered, (_x, _y), ("w",)),
    Program(
        "two_likelihoods",
        two_likelihoods,
        (_x, _y, (_rng.random(150) < 1 / (1 + np.exp(-0.5 - _x @ _w))).astype(np.int32)),
        ("w", "c"),
    ),
]
