"""Arguments that are not a flat tuple of arrays, and none at all."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from .program import Program

_rng = np.random.default_rng(2)
N = 120
_age = _rng.standard_normal(N).astype(np.float32)
_dose = _rng.uniform(0, 2, N).astype(np.float32)
_y = (1.0 + 0.8 * _age - 0.5 * _dose + 0.3 * _rng.standard_normal(N)).astype(np.float32)


def keywords(marriage=None, age=None, divorce=None):
    """Optional predictors, as in the NumPyro tutorial on Bayesian regression."""
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    M, A = 0.0, 0.0
    if marriage is not None:
        bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
        M = bM * marriage
    if age is not None:
        bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
        A = bA * age
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = a + M + A
    numpyro.sample("obs", dist.Normal(mu, sigma), obs=divorce)


def nested(batch, target=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    weights = {name: numpyro.sample(f"b_{name}", dist.Normal(0, 1)) for name in batch["covariates"]}
    mu = alpha + sum(weights[name] * values for name, values in batch["covariates"].items())
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(mu, sigma), obs=target["y"])


def optional(x, y=None, offset=None, degree=1, likelihood="normal"):
    """None, an integer and a string decide what the program is."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([degree + 1]).to_event(1))
    mu = sum(w[k] * x**k for k in range(degree + 1))
    if offset is not None:
        mu = mu + offset
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    if likelihood == "normal":
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)
    else:
        numpyro.sample("y", dist.StudentT(4.0, mu, sigma), obs=y)


def flag(x, y, use_trend, prior_scale):
    """A Python bool that decides, and a Python float that is a constant."""
    level = numpyro.sample("level", dist.Normal(0, prior_scale))
    slope = numpyro.sample("slope", dist.Normal(0, prior_scale)) if use_trend else 0.0
    numpyro.sample("y", dist.Normal(level + slope * x, 0.5), obs=y)


def table_argument(x, group, group_size, y=None):
    """An argument with one row per group beside arguments with one row per data point."""
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    gamma = numpyro.sample("gamma", dist.Normal(0, 1))
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    with numpyro.plate("groups", group_size.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(gamma * jnp.log(group_size), tau))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + beta * x, 0.5), obs=y)


def many_tables(size, income, region, trend, group, x, y=None):
    """More arrays with a row per group than with a row per data point."""
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([4]).to_event(1))
    level = gamma[0] * jnp.log(size) + gamma[1] * income + gamma[2] * region + gamma[3] * trend
    numpyro.sample("y", dist.Normal(level[group] + beta * x, 0.5), obs=y)


def table_as_long_as_the_data(table, index, y=None):
    """A table that is looked up by index, and has as many rows as the data by accident."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(a + b * table[index], 0.5), obs=y)


_six = np.array([2.1, 1.4, 2.9, 1.8, 2.2, 2.5], np.float32)


def no_arguments():
    """Data by closure."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("data", len(_six)):
        numpyro.sample("obs", dist.Normal(mu, sigma), obs=_six)


def dual_moon():
    """A density without any data, from NumPyro's `neutra.py`, in one dimension less."""
    x = numpyro.sample("x", dist.Normal(0, 2).expand([2]).to_event(1))
    numpyro.factor("energy", -0.5 * ((jnp.linalg.norm(x - 3.0) - 2) / 0.4) ** 2)


_group = _rng.integers(0, 7, N)
_sizes = np.array([3, 10, 25, 40, 80, 150, 300], np.float32)
_effect = 0.3 * np.log(_sizes) + 0.2 * _rng.standard_normal(7)
_income = _rng.standard_normal(7).astype(np.float32)
_region = np.array([0, 0, 1, 1, 0, 1, 1], np.float32)
_trend = _rng.standard_normal(7).astype(np.float32)
_level = 0.3 * np.log(_sizes) + 0.5 * _income - 0.4 * _region
_leveled = (_level[_group] + 0.8 * _age + 0.5 * _rng.standard_normal(N)).astype(np.float32)
_index = _rng.integers(0, N, N)

PROGRAMS = [
    Program("keywords", keywords, {"age": _age, "divorce": _y - _y.mean()}, ("a", "bA", "sigma")),
    Program(
        "nested_dicts",
        nested,
        ({"covariates": {"age": _age, "dose": _dose}}, {"y": _y}),
        ("alpha", "b_age", "b_dose", "sigma"),
    ),
    Program("none_int_str", optional, (_age, _y, None, 2, "student"), ("w", "sigma")),
    Program(
        "keywords_none_int_str",
        optional,
        {"x": _age, "y": _y, "offset": None, "degree": 2, "likelihood": "normal"},
        ("w", "sigma"),
    ),
    Program("bool_float", flag, (_age, _y, True, 3.0), ("level", "slope")),
    Program(
        "group_table",
        table_argument,
        (
            _age,
            _group,
            _sizes,
            (_effect[_group] + 0.8 * _age + 0.5 * _rng.standard_normal(N)).astype(np.float32),
        ),
        ("tau", "gamma", "beta", "effect"),
    ),
    Program(
        "many_tables",
        many_tables,
        (_sizes, _income, _region, _trend, _group, _age, _leveled),
        ("beta", "gamma"),
    ),
    Program(
        "table_as_long_as_data",
        table_as_long_as_the_data,
        (_age, _index, (0.5 + 0.9 * _age[_index] + 0.5 * _dose).astype(np.float32)),
        ("a", "b"),
        minibatch=("y",),
    ),
    Program("no_arguments", no_arguments, (), ("mu", "sigma")),
    Program("no_data", dual_moon, (), ("x",), notes="a ring"),
]
