import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from bmrjax import criteria, schedules, sparsify
from bmrjax.criteria import SitePosteriors
from bmrjax.reduction import Normal

TRUE = {3: 1.5, 17: -2.0, 42: 0.8, 60: -1.0, 99: 2.5}


def decide(criterion, loc, scale, prior_scale=1.0):
    q = {"w": Normal(jnp.asarray(loc, jnp.float32), jnp.asarray(scale, jnp.float32))}
    p = {"w": Normal(jnp.zeros_like(q["w"].loc), jnp.full_like(q["w"].loc, prior_scale))}
    return jax.jit(criterion)(SitePosteriors(q, p))


def test_weights_against_brute_force_quadrature():
    """E[1 − κ] of four elements with υ, λ and c integrated on dense grids, in float64."""
    loc = np.array([0.02, 0.3, 0.05, 1.5])
    scale = np.array([0.1, 0.12, 0.6, 0.2])
    v = 1 / (1 / scale**2 - 1)
    estimate = v * loc / scale**2
    log_u = np.log(0.1) + np.linspace(-9, 9, 181)
    log_l = np.linspace(-14, 14, 561)
    levels = (np.arange(20) + 0.5) / 20
    precision = stats.gamma(2.0, scale=1 / 6.0).ppf(levels)
    half_cauchy = stats.halfcauchy.pdf(np.exp(log_l)) * np.exp(log_l)
    prior_u = stats.halfcauchy.pdf(np.exp(log_u) / 0.1) * np.exp(log_u)
    psi = np.exp(log_u[:, None] + log_l)
    total, weighted = 0.0, np.zeros(4)
    for c in precision:
        gamma2 = 1 / (c + psi**-2.0)
        evidence, shrunk = [], []
        for e, var in zip(estimate, v, strict=True):
            density = stats.norm.pdf(e, 0, np.sqrt(gamma2 + var)) * half_cauchy
            evidence.append(density.sum(1))
            shrunk.append((density * gamma2 / (gamma2 + var)).sum(1))
        joint = prior_u * np.prod(evidence, axis=0)
        total += joint.sum()
        weighted += [(joint * s / e).sum() for s, e in zip(shrunk, evidence, strict=True)]
    found = decide(criteria.RegularizedHorseshoe(0.1), loc, scale).statistics["weight"]["w"]
    np.testing.assert_allclose(found, weighted / total, atol=0.02)


@pytest.mark.slow
def test_finds_the_signals_in_a_sea_of_noise():
    rng = np.random.default_rng(0)
    true = np.zeros(6000)
    true[:60] = rng.choice([-1, 1], 60) * rng.uniform(0.6, 2, 60)
    scale = np.full(6000, 0.1)
    loc = true + 0.1 * rng.standard_normal(6000)
    decision = decide(criteria.RegularizedHorseshoe(0.01), loc, scale)
    keep = np.asarray(decision.keep["w"])
    assert keep[:60].all()
    assert keep[60:].sum() <= 30
    assert decision.statistics["weight"]["w"][:60].min() > 0.8


def test_scale_of_the_prior_is_the_unit():
    loc, scale = np.array([0.01, 0.2, 1.0]), np.array([0.1, 0.1, 0.1])
    one = decide(criteria.RegularizedHorseshoe(0.1), loc, scale)
    other = decide(criteria.RegularizedHorseshoe(0.1), 50 * loc, 50 * scale, prior_scale=50.0)
    np.testing.assert_allclose(
        one.statistics["weight"]["w"], other.statistics["weight"]["w"], rtol=1e-3
    )


@pytest.mark.slow
def test_layers_share_their_scale_and_blocks_do_not_matter():
    rng = np.random.default_rng(1)
    loc, scale = 0.2 * rng.standard_normal(9000), rng.uniform(0.05, 0.9, 9000)
    whole = decide(criteria.RegularizedHorseshoe(), loc, scale).statistics
    q = {
        "a": Normal(jnp.asarray(loc[:1000], jnp.float32), jnp.asarray(scale[:1000], jnp.float32)),
        "b": Normal(jnp.asarray(loc[1000:], jnp.float32), jnp.asarray(scale[1000:], jnp.float32)),
    }
    p = {name: Normal(jnp.zeros_like(s.loc), jnp.ones_like(s.loc)) for name, s in q.items()}
    criterion = criteria.RegularizedHorseshoe()
    split = criterion(SitePosteriors(q, p, {"a": "l", "b": "l"})).statistics
    np.testing.assert_allclose(split["weight"]["b"], whole["weight"]["w"][1000:], atol=2e-3)
    np.testing.assert_allclose(split["log_scale"]["a"], whole["log_scale"]["w"], atol=1e-2)
    with pytest.raises(ValueError, match=r"no layer for the sites \['b'\]"):
        criterion(SitePosteriors(q, p, {"a": "l"}))


def test_what_went_stays_away_and_its_last_posterior_counts():
    criterion = criteria.RegularizedHorseshoe(0.1)
    loc = jnp.array([2.0, 3.0, 0.0, 0.05, -0.1, 0.02, 0.01, -0.03])
    first = decide(criterion, loc, jnp.full(8, 0.1))
    assert first.keep["w"].tolist() == [True, True] + 6 * [False]
    # Their posteriors drift afterwards, to the prior or anywhere; nothing follows from it.
    q = {"w": Normal(loc.at[2:].set(9.0), jnp.full(8, 0.1))}
    p = {"w": Normal(jnp.zeros(8), jnp.ones(8))}
    second = criterion(SitePosteriors(q, p), first.keep, first.memory)
    assert second.keep["w"].tolist() == first.keep["w"].tolist()
    assert (second.statistics["weight"]["w"][2:] == 0).all()
    np.testing.assert_allclose(
        second.statistics["log_scale"]["w"], first.statistics["log_scale"]["w"], rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1e-18, 1e-6, 0.999999, 1.0, 3.0])
@pytest.mark.parametrize("loc", [0.0, 1e-12, 5.0])
def test_extremes_stay_finite(loc, scale):
    state = decide(criteria.RegularizedHorseshoe(), [loc, 0.1], [scale, 0.1]).statistics
    assert np.isfinite(state["weight"]["w"]).all()
    assert np.isfinite(state["log_scale"]["w"])


def test_vmap_over_the_global_scale():
    q = {"w": Normal(jnp.array([0.05, 0.25, 1.0]), jnp.full(3, 0.1))}
    p = {"w": Normal(jnp.zeros(3), jnp.ones(3))}

    def weights(scale):
        criterion = criteria.RegularizedHorseshoe(scale)
        return criterion(SitePosteriors(q, p)).statistics["weight"]["w"]

    grid = jnp.array([0.001, 0.1])
    np.testing.assert_allclose(
        jax.vmap(weights)(grid), jnp.stack([weights(s) for s in grid]), rtol=1e-4
    )


@pytest.mark.slow
def test_sparsify_with_it_finds_five_coefficients_among_a_hundred():
    x = jax.random.normal(jax.random.key(0), (200, 100))
    beta = jnp.zeros(100).at[jnp.array(list(TRUE))].set(jnp.array(list(TRUE.values())))
    y = x @ beta + 0.5 * jax.random.normal(jax.random.key(100), (200,))

    def linear(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([100]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    result = sparsify(
        linear,
        (x, y),
        key=jax.random.key(0),
        criterion=criteria.RegularizedHorseshoe(0.01),
        schedule=schedules.Every(every=5, wait=20),
        batch_size=None,
        steps_per_epoch=100,
        num_epochs=40,
        progress=False,
    )
    assert np.flatnonzero(result.keep["beta"]).tolist() == sorted(TRUE)


@pytest.mark.parametrize("name", ["global_scale", "slab_concentration", "slab_rate"])
def test_bad_numbers_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        criteria.RegularizedHorseshoe(**{name: 0.0})


def test_removed_is_zero_wherever_the_prior_is():
    """What the data say decides, and the mean of the prior is a part of the posterior alone."""
    loc, scale = np.r_[5.0, np.linspace(-0.1, 0.1, 8), 4.9], np.r_[np.full(9, 0.1), 0.3]
    criterion = criteria.RegularizedHorseshoe(0.1)
    decisions = []
    for mean in (0.0, 5.0, -3.0):
        variance = 1 / (1 / scale**2 + 1)
        moved = variance * (loc / scale**2 + mean)
        q = {"w": Normal(jnp.float32(moved), jnp.float32(variance**0.5))}
        p = {"w": Normal(jnp.full(10, mean), jnp.ones(10))}
        decisions.append(jax.jit(criterion)(SitePosteriors(q, p)))
    for decision in decisions:
        np.testing.assert_array_equal(np.flatnonzero(decision.keep["w"]), [0, 9])
        weight = decisions[0].statistics["weight"]["w"]
        np.testing.assert_allclose(decision.statistics["weight"]["w"], weight, rtol=2e-3)


def test_a_strong_signal_does_not_drown_the_scale():
    """Thousands of nats of evidence for one element leave digits for the scale of the others."""
    weights = [
        decide(criteria.RegularizedHorseshoe(0.01), [strong, 0.0], [0.1, 0.1]).statistics["weight"][
            "w"
        ]
        for strong in (1e3, 1e6)
    ]
    np.testing.assert_allclose(weights[1], weights[0], rtol=0.02)
    assert weights[0][0] > 0.99


def test_an_empty_site_is_nothing():
    assert decide(criteria.RegularizedHorseshoe(), np.zeros(0), np.zeros(0)).keep["w"].shape == (0,)
