"""Partial pooling: effects by group."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from .program import Program

# Rubin (1981).
_effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
_errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(J, sigma, y=None):
    """The first example of NumPyro's README."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", J):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def eight_schools_noncentered(J, sigma, y=None):
    """The second example of NumPyro's README."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", J):
        with reparam(config={"theta": TransformReparam()}):
            theta = numpyro.sample(
                "theta",
                dist.TransformedDistribution(
                    dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(mu, tau)
                ),
            )
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


eight_schools_reparam = reparam(eight_schools, config={"theta": LocScaleReparam(0.0)})


def radon_centered(county, floor, log_radon=None):
    """The number of counties comes from the data, as in NumPyro's tutorial on hierarchies."""
    mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 2.0))
    sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
    mu_b = numpyro.sample("mu_b", dist.Normal(0.0, 2.0))
    sigma_b = numpyro.sample("sigma_b", dist.HalfNormal(1.0))
    n_counties = len(np.unique(county))
    with numpyro.plate("plate_i", n_counties):
        alpha = numpyro.sample("alpha", dist.Normal(mu_a, sigma_a))
        beta = numpyro.sample("beta", dist.Normal(mu_b, sigma_b))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(county)):
        numpyro.sample(
            "obs", dist.Normal(alpha[county] + beta[county] * floor, sigma), obs=log_radon
        )


def radon_noncentered(county, floor, n_counties, log_radon=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("counties", n_counties):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
    alpha = numpyro.deterministic("alpha", mu + tau * raw)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(county)):
        numpyro.sample("obs", dist.Normal(alpha[county] + slope * floor, sigma), obs=log_radon)


def _radon(county, floor, n_counties, log_radon=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("counties", n_counties):
        alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(county)):
        numpyro.sample("obs", dist.Normal(alpha[county] + slope * floor, sigma), obs=log_radon)


radon_reparam = reparam(_radon, config={"alpha": LocScaleReparam(0)})


def crossed(subject, item, condition, correct=None, *, num_subjects, num_items):
    """A logistic mixed model with crossed effects of subjects and items."""
    b0 = numpyro.sample("b0", dist.Normal(0, 2))
    b1 = numpyro.sample("b1", dist.Normal(0, 1))
    sd_subject = numpyro.sample("sd_subject", dist.HalfNormal(1))
    sd_item = numpyro.sample("sd_item", dist.HalfNormal(1))
    with numpyro.plate("subjects", num_subjects):
        z_subject = numpyro.sample("z_subject", dist.Normal(0, 1))
    with numpyro.plate("items", num_items):
        z_item = numpyro.sample("z_item", dist.Normal(0, 1))
    logits = b0 + b1 * condition + sd_subject * z_subject[subject] + sd_item * z_item[item]
    numpyro.sample("correct", dist.Bernoulli(logits=logits), obs=correct)


# Efron and Morris (1975): hits in the first 45 at bats of 1970.
_hits = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
_at_bats = np.full(18, 45)


def baseball(at_bats, hits=None):
    """`partially_pooled` of NumPyro's `baseball.py`."""
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
    num_players = at_bats.shape[0]
    with numpyro.plate("num_players", num_players):
        phi = numpyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        return numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def baseball_logit(at_bats, hits=None):
    """`partially_pooled_with_logit` of NumPyro's `baseball.py`."""
    loc = numpyro.sample("loc", dist.Normal(-1, 1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1))
    num_players = at_bats.shape[0]
    with numpyro.plate("num_players", num_players):
        alpha = numpyro.sample("alpha", dist.Normal(loc, scale))
        return numpyro.sample("obs", dist.Binomial(at_bats, logits=alpha), obs=hits)


def cafes(cafe, afternoon, N, wait=None):
    """Correlated intercepts and slopes, after McElreath's cafés as ported to NumPyro."""
    a = numpyro.sample("a", dist.Normal(5, 2))
    b = numpyro.sample("b", dist.Normal(-1, 0.5))
    sigma_cafe = numpyro.sample("sigma_cafe", dist.Exponential(1).expand([2]))
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    L_Rho = numpyro.sample("L_Rho", dist.LKJCholesky(2, 2.0))
    scale_tril = sigma_cafe[..., None] * L_Rho
    with numpyro.plate("cafes", N):
        effects = numpyro.sample(
            "effects", dist.MultivariateNormal(jnp.stack([a, b]), scale_tril=scale_tril)
        )
    mu = effects[cafe, 0] + effects[cafe, 1] * afternoon
    numpyro.sample("wait", dist.Normal(mu, sigma), obs=wait)


def item_response(student, item, response, num_students, num_items):
    """A Rasch model with two parameters per item."""
    with numpyro.plate("students", num_students):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("items", num_items):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 1))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0, 0.5))
    logits = discrimination[item] * (ability[student] - difficulty[item])
    with numpyro.plate("responses", response.shape[0]):
        numpyro.sample("response", dist.Bernoulli(logits=logits), obs=response)


_rng = np.random.default_rng(3)
_county = np.r_[np.arange(12), _rng.integers(0, 12, 148)]
_floor = _rng.integers(0, 2, 160).astype(np.float32)
_alpha = 1.5 + 0.4 * _rng.standard_normal(12)
_log_radon = (_alpha[_county] - 0.6 * _floor + 0.7 * _rng.standard_normal(160)).astype(np.float32)

_subject, _item = (a.ravel() for a in np.meshgrid(np.arange(15), np.arange(10)))
_condition = _rng.integers(0, 2, 150).astype(np.float32)
_logits = (
    0.3 + _condition + _rng.standard_normal(15)[_subject] + 0.5 * _rng.standard_normal(10)[_item]
)
_correct = (_rng.random(150) < 1 / (1 + np.exp(-_logits))).astype(np.int32)

_cafe = np.repeat(np.arange(20), 10)
_afternoon = np.tile([0.0, 1.0], 100).astype(np.float32)
_ab = _rng.multivariate_normal([3.5, -1.0], [[1.0, -0.35], [-0.35, 0.25]], 20)
_wait = (_ab[_cafe, 0] + _ab[_cafe, 1] * _afternoon + 0.5 * _rng.standard_normal(200)).astype("f4")

_schools = ("theta", "obs", "sigma", "J")

PROGRAMS = [
    Program(
        "eight_schools",
        eight_schools,
        (8, _errors, _effects),
        ("mu", "tau", "theta"),
        minibatch=_schools,
    ),
    Program(
        "eight_schools_noncentered",
        eight_schools_noncentered,
        (8, _errors, _effects),
        ("mu", "tau", "theta_base"),
        minibatch=(*_schools, "theta_base"),
    ),
    Program(
        "eight_schools_reparam",
        eight_schools_reparam,
        {"J": 8, "sigma": _errors, "y": _effects},
        ("mu", "tau", "theta_decentered"),
        minibatch=(*_schools, "theta_decentered"),
    ),
    Program(
        "radon_centered",
        radon_centered,
        (_county, _floor, _log_radon),
        ("mu_a", "sigma_a", "mu_b", "alpha"),
        minibatch=("county", "alpha", "beta", "plate_i", "obs"),
        notes="np.unique of an argument",
    ),
    Program(
        "radon_noncentered",
        radon_noncentered,
        (_county, _floor, 12, _log_radon),
        ("mu", "tau", "slope", "raw"),
    ),
    Program(
        "radon_reparam",
        radon_reparam,
        (_county, _floor, 12, _log_radon),
        ("mu", "tau", "slope", "alpha_decentered"),
    ),
    Program(
        "crossed_effects",
        crossed,
        {
            "subject": _subject,
            "item": _item,
            "condition": _condition,
            "correct": _correct,
            "num_subjects": 15,
            "num_items": 10,
        },
        ("b0", "b1", "sd_subject", "sd_item"),
    ),
    Program(
        "baseball", baseball, (_at_bats, _hits), ("m", "kappa", "phi"), minibatch=("phi", "obs")
    ),
    Program(
        "baseball_logit",
        baseball_logit,
        (_at_bats, _hits),
        ("loc", "scale", "alpha"),
        minibatch=("alpha", "obs"),
    ),
    Program("lkj_cafes", cafes, (_cafe, _afternoon, 20, _wait), ("a", "b", "sigma_cafe", "L_Rho")),
    Program(
        "item_response",
        item_response,
        (_subject, _item, _correct, 15, 10),
        ("ability", "difficulty", "discrimination"),
    ),
]
