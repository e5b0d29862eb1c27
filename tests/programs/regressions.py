"""Regressions: independent rows, so that minibatches are valid for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from .program import Program

_rng = np.random.default_rng(1)
N = 150
_x = _rng.standard_normal((N, 4)).astype(np.float32)
_beta = np.array([1.0, -0.7, 0.0, 0.4], np.float32)
_mean = 0.5 + _x @ _beta


def _f4(values):
    return np.asarray(values, np.float32)


def linear(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = numpyro.deterministic("mu", intercept + x @ beta)
    with numpyro.plate("data", x.shape[0]):
        return numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def logistic(data, labels):
    dim = data.shape[1]
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(dim), jnp.ones(dim)))
    offset = numpyro.sample("offset", dist.Normal(0.0, 10.0))
    logits = offset + jnp.dot(data, coefs)
    return numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=labels)


def poisson(x, y=None):
    b0 = numpyro.sample("b0", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("obs_plate", x.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(b0 + x @ b)), obs=y)


def negative_binomial(x, exposure, y=None):
    b0 = numpyro.sample("b0", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    phi = numpyro.sample("phi", dist.Gamma(2.0, 0.5))
    mu = exposure * jnp.exp(b0 + x @ b)
    with numpyro.plate("obs_plate", x.shape[0]):
        numpyro.sample("counts", dist.NegativeBinomial2(mu, phi), obs=y)


def ordinal(X, Y, nclasses, anchor_point=0.0):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    cutpoints = numpyro.sample(
        "c",
        dist.TransformedDistribution(
            dist.Dirichlet(jnp.ones(nclasses)),
            dist.transforms.SimplexToOrderedTransform(anchor_point),
        ),
    )
    with numpyro.plate("obs", X.shape[0]):
        numpyro.sample("Y", dist.OrderedLogistic(X @ b, cutpoints), obs=Y)


def softmax(x, y=None, num_classes=3):
    with numpyro.plate("classes", num_classes):
        alpha = numpyro.sample("alpha", dist.Normal(0, 2))
        beta = numpyro.sample("beta", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    numpyro.sample("y", dist.Categorical(logits=alpha + x @ beta.T), obs=y)


def multinomial(x, total, counts=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4, 3]).to_event(2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("counts", dist.Multinomial(logits=x @ beta, total_count=total), obs=counts)


def zero_inflated_poisson(X, Y):
    b1 = numpyro.sample("b1", dist.Normal(0.0, 1.0).expand([X.shape[1]]))
    b2 = numpyro.sample("b2", dist.Normal(0.0, 1.0).expand([X.shape[1]]))
    gate_logits = numpyro.deterministic("gate", jnp.dot(X, b1))
    rate = numpyro.deterministic("rate", jnp.exp(jnp.clip(jnp.dot(X, b2), -4, 4)))
    with numpyro.plate("obs", X.shape[0]):
        numpyro.sample("Y", dist.ZeroInflatedPoisson(jax.nn.sigmoid(gate_logits), rate), obs=Y)


def weibull_censored(treated, time, event):
    """Survival times; those of censored rows are only known to be longer."""
    beta0 = numpyro.sample("beta0", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    shape = numpyro.sample("shape", dist.Uniform(0.5, 3.0))
    scale = jnp.exp(beta0 + beta * treated)
    with numpyro.plate("rows", treated.shape[0]):
        with numpyro.handlers.mask(mask=event):
            numpyro.sample("time", dist.Weibull(scale, shape), obs=time)
        numpyro.factor("censored", jnp.where(event, 0.0, -((time / scale) ** shape)))


def student_t(x, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.StudentT(nu, alpha + x @ beta, sigma), obs=y)


def horseshoe(y_obs, X):
    """The regression of NumPyro's `horseshoe_regression.py`."""
    p = X.shape[1]
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(p)))
    tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(1)))
    unscaled_betas = numpyro.sample("unscaled_betas", dist.Normal(0.0, jnp.ones(p)))
    betas = numpyro.deterministic("betas", tau * lambdas * unscaled_betas)
    prec_obs = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
    numpyro.sample("Y", dist.Normal(jnp.dot(X, betas), 1.0 / jnp.sqrt(prec_obs)), obs=y_obs)


def gamma_glm(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.HalfNormal(5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Gamma(concentration, concentration / jnp.exp(x @ beta)), obs=y)


def missing_outcome(x, y, observed):
    """Rows without an outcome have a mask: they carry no likelihood."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ beta, sigma).mask(observed), obs=y)


def two_responses(x, y=None):
    """Rows at dimension -2 and responses at dimension -1, each in a plate of its own."""
    responses = numpyro.plate("responses", 2, dim=-1)
    with responses:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("rows", x.shape[0], dim=-2), responses:
        numpyro.sample("y", dist.Normal(x @ w.T, sigma), obs=y)


_count = _rng.poisson(np.exp(0.5 * _mean))
_exposure = _f4(_rng.uniform(0.5, 2, N))
_latent = _mean + _rng.logistic(size=N)
_total = _rng.integers(5, 20, N)
_probs = jax.nn.softmax(_x @ _rng.standard_normal((4, 3)), -1)
_counts3 = np.stack(
    [_rng.multinomial(n, p / p.sum()) for n, p in zip(_total, np.float64(_probs), strict=True)]
)
_treated = _rng.integers(0, 2, N).astype(np.float32)
_survival = np.exp(0.8 * _treated) * _rng.weibull(1.5, N)
_limit = _rng.uniform(1, 5, N)
_y = _f4(_mean + 0.5 * _rng.standard_normal(N))
_observed = _rng.random(N) < 0.8
_w2 = _rng.standard_normal((4, 2))

PROGRAMS = [
    Program("linear", linear, (_x, _y), ("intercept", "beta", "sigma")),
    Program("logistic", logistic, (_x, (_latent > 0).astype(np.int32)), ("offset", "coefs")),
    Program("poisson", poisson, (_x, _count), ("b0", "b")),
    Program(
        "negative_binomial",
        negative_binomial,
        (_x, _exposure, _rng.negative_binomial(3, 3 / (3 + _exposure * np.exp(0.5 * _mean)))),
        ("b0", "b", "phi"),
    ),
    Program("ordinal", ordinal, (_x, np.digitize(_latent, [-1.0, 0.5, 2.0]), 4), ("b", "c")),
    Program("softmax", softmax, (_x, np.digitize(_latent, [-0.5, 1.5])), ("alpha", "beta")),
    Program("multinomial", multinomial, (_x, _total, _counts3), ("beta",)),
    Program(
        "zero_inflated_poisson",
        zero_inflated_poisson,
        (_x, np.where(_rng.random(N) < jax.nn.sigmoid(_x[:, 0] - _x[:, 3]), 0, _count)),
        ("b1", "b2"),
    ),
    Program(
        "weibull_censored",
        weibull_censored,
        (_treated, _f4(np.minimum(_survival, _limit)), _survival < _limit),
        ("beta0", "beta", "shape"),
    ),
    Program(
        "student_t",
        student_t,
        (_x, _f4(_mean + 0.4 * _rng.standard_t(2.5, N))),
        ("alpha", "beta", "nu", "sigma"),
    ),
    Program(
        "horseshoe",
        horseshoe,
        (_y, np.c_[_x, _f4(_rng.standard_normal((N, 8)))]),
        ("tau", "lambdas", "prec_obs"),
        steps=4000,
    ),
    Program(
        "gamma_glm",
        gamma_glm,
        (_x, _f4(_rng.gamma(3.0, np.exp(_x @ _beta) / 3.0))),
        ("beta", "concentration"),
    ),
    Program(
        "missing_outcome",
        missing_outcome,
        (_x, np.where(_observed, _y, 0.0), _observed),
        ("beta", "sigma"),
    ),
    Program(
        "two_responses",
        two_responses,
        (_x, _f4(_x @ _w2 + 0.5 * _rng.standard_normal((N, 2)))),
        ("w", "sigma"),
    ),
]
