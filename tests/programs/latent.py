"""Latent structure: mixtures, missing values, Gaussian processes, factors by row."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential

from .program import Program


def latent_per_row(y):
    """One latent per row, found by its position."""
    z = numpyro.sample("z", dist.Normal(0, 5).expand([40]).to_event(1))
    numpyro.sample("y", dist.Normal(z, 0.5), obs=y)


def mixture(data, K=2):
    """A Gaussian mixture with ordered means, the components summed out."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
    means = numpyro.sample(
        "means",
        dist.TransformedDistribution(
            dist.Normal(0, 3).expand([K]).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    scales = numpyro.sample("scales", dist.HalfNormal(1).expand([K]).to_event(1))
    with numpyro.plate("data", len(data)):
        numpyro.sample(
            "obs",
            dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, scales)),
            obs=data,
        )


def imputation(age, group, survived=None, bayesian_impute=True):  # noqa: FBT002
    """After NumPyro's tutorial on missing values; NaN marks them."""
    b_age = numpyro.sample("b_age", dist.Normal(0, 1))
    if bayesian_impute:
        age_mu = numpyro.sample("age_mu", dist.Normal(0, 1).expand([3]))
        age_sigma = numpyro.sample("age_sigma", dist.HalfNormal(1).expand([3]))
        age_nanidx = np.nonzero(np.isnan(age))[0]
        age_impute = numpyro.sample(
            "age_impute",
            dist.Normal(age_mu[group[age_nanidx]], age_sigma[group[age_nanidx]]).mask(False),  # noqa: FBT003
        )
        age = jnp.asarray(age).at[age_nanidx].set(age_impute)
        numpyro.sample("age", dist.Normal(age_mu[group], age_sigma[group]), obs=age)
    a = numpyro.sample("a", dist.Normal(0, 1).expand([3]))
    numpyro.sample("survived", dist.Bernoulli(logits=a[group] + b_age * age), obs=survived)


def hsgp(x, ell, m, y=None, non_centered=True):  # noqa: FBT002
    alpha = numpyro.sample("alpha", dist.LogNormal(0.0, 1.0))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    f = hsgp_squared_exponential(
        x=x, alpha=alpha, length=length, ell=ell, m=m, non_centered=non_centered
    )
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("likelihood", dist.Normal(f, noise), obs=y)


def _kernel(X, Z, var, length, noise, jitter=1.0e-5):
    deltaXsq = jnp.power((X[:, None] - Z) / length, 2.0)
    return var * jnp.exp(-0.5 * deltaXsq) + (noise + jitter) * jnp.eye(X.shape[0])


def gp(X, Y):
    """From NumPyro's `gp.py`."""
    var = numpyro.sample("kernel_var", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("kernel_noise", dist.LogNormal(-2.0, 1.0))
    length = numpyro.sample("kernel_length", dist.LogNormal(0.0, 1.0))
    k = _kernel(X, X, var, length, noise)
    numpyro.sample(
        "Y",
        dist.MultivariateNormal(loc=jnp.zeros(X.shape[0]), covariance_matrix=k),
        obs=Y,
    )


def spatial(distance, x, y=None):
    """A spatial effect: the distances between all pairs of rows are an argument."""
    etasq = numpyro.sample("etasq", dist.Exponential(1.0))
    rhosq = numpyro.sample("rhosq", dist.Exponential(0.5))
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    cov = etasq * jnp.exp(-rhosq * distance**2) + 0.01 * jnp.eye(distance.shape[0])
    k = numpyro.sample("k", dist.MultivariateNormal(0.0, cov))
    numpyro.sample("y", dist.Poisson(jnp.exp(k + beta * x)), obs=y)


def factor_analysis(y, num_factors=2):
    """Factors by row, as many as there are rows."""
    n, d = y.shape
    loadings = numpyro.sample("loadings", dist.Normal(0, 1).expand([num_factors, d]).to_event(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("rows", n):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([num_factors]).to_event(1))
        numpyro.sample("y", dist.Normal(z @ loadings, sigma).to_event(1), obs=y)


def measurement_error(D_obs, D_sd, A):
    """From McElreath, chapter 15: the true outcome of each row is a latent."""
    a = numpyro.sample("a", dist.Normal(0, 0.2))
    bA = numpyro.sample("bA", dist.Normal(0, 0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    D_true = numpyro.sample("D_true", dist.Normal(a + bA * A, sigma))
    numpyro.sample("D_obs", dist.Normal(D_true, D_sd), obs=D_obs)


_rng = np.random.default_rng(5)


def _f4(values):
    return np.asarray(values, np.float32)


_steps = np.r_[np.full(20, 3.0), np.zeros(20)].astype("f4")
_two = np.where(_rng.random(150) < 0.4, -1.5, 1.5) + 0.6 * _rng.standard_normal(150)

_group = np.r_[np.arange(3), _rng.integers(0, 3, 117)]
_age = np.array([-0.7, 0.0, 0.6])[_group] + 0.6 * _rng.standard_normal(120)
_survived = (_rng.random(120) < 1 / (1 + np.exp(0.8 * _age))).astype(np.int32)
_age[_rng.random(120) < 0.15] = np.nan

_x = np.sort(_rng.uniform(-1, 1, 80))
_wave = np.sin(4 * _x) + 0.3 * _rng.standard_normal(80)

_place = _rng.uniform(0, 4, (25, 2))
_distance = np.linalg.norm(_place[:, None] - _place[None], axis=-1)
_east = _place[:, 0] - 2
_cases = _rng.poisson(np.exp(0.5 + 0.4 * _east + 0.3 * np.sin(2 * _place[:, 1])))

_z = _rng.standard_normal((40, 2)) @ _rng.standard_normal((2, 5))
_A = _rng.standard_normal(50)
_sd = _rng.uniform(0.1, 0.6, 50)
_D = -0.6 * _A + 0.5 * _rng.standard_normal(50) + _sd * _rng.standard_normal(50)

PROGRAMS = [
    Program("latent_per_row", latent_per_row, (_steps,), ("z",), minibatch=("z", "y")),
    Program("mixture", mixture, (_f4(_two),), ("weights", "means", "scales"), steps=3000),
    Program(
        "imputation",
        imputation,
        (_f4(_age), _group, _survived),
        ("b_age", "age_mu", "age_impute"),
        minibatch=("age_impute", "age"),
    ),
    Program(
        "hsgp",
        hsgp,
        (_f4(_x), 1.5, 12, _f4(_wave)),
        ("alpha", "length", "noise", "beta"),
    ),
    Program(
        "gaussian_process",
        gp,
        (_f4(_x[::2]), _f4(_wave[::2])),
        ("kernel_var", "kernel_noise", "kernel_length"),
        minibatch=("Y",),
    ),
    Program(
        "spatial",
        spatial,
        (_f4(_distance), _f4(_east), _cases),
        ("etasq", "rhosq", "beta", "k"),
        minibatch=("k", "y", "distance", "beta"),
        notes="a pairwise matrix",
    ),
    Program(
        "factor_analysis",
        factor_analysis,
        (_f4(_z + 0.3 * _rng.standard_normal((40, 5))),),
        ("sigma",),
        minibatch=("z",),
        notes="rotations are equally good",
    ),
    Program(
        "measurement_error",
        measurement_error,
        {"D_obs": _f4(_D), "D_sd": _f4(_sd), "A": _f4(_A)},
        ("a", "bA", "sigma", "D_true"),
        minibatch=("D_true", "D_obs"),
    ),
]
