"""The parts of a fit in loops of one's own: traced masks, nothing compiled twice."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import bmrjax as bmr
from bmrjax.criteria.reduce_once import reduce_once
from bmrjax.reduction import Normal

TRUE = jnp.array([1.0, 0.0, 0.0, -2.0, 0.0, 0.0])


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([6]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


@pytest.fixture(scope="module")
def data():
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (80, 6))
    return x, x @ TRUE + 0.3 * jax.random.normal(keys[1], (80,))


def test_svi_prunes_while_it_trains_and_traces_once(data):
    """The masks are arguments of the program, so `SVI.update` takes new ones without a new trace."""
    guide, traces = AutoNormal(regression), {"fit": 0, "reduce": 0}
    criterion = bmr.criteria.SpikeAndSlab()
    svi = SVI(
        lambda keep, *batch: bmr.prune(regression, keep)(*batch),
        lambda keep, *batch: bmr.prune(guide, keep)(*batch),
        optax.adabelief(2e-2),
        TraceMeanField_ELBO(),
    )

    @jax.jit
    def fit(state, keep):
        traces["fit"] += 1
        step = lambda _, s: svi.update(s, keep, *data)[0]  # noqa: E731
        return jax.lax.fori_loop(0, 300, step, state)

    @jax.jit
    def reduce(state, keep):
        traces["reduce"] += 1
        found = bmr.site_posteriors(regression, guide, svi.get_params(state), *data)
        return bmr.limit(found, criterion(found, keep), keep, 0.5)

    keep = {"beta": jnp.ones(6, bool)}
    state = svi.init(jax.random.key(1), keep, *data)
    for _ in range(4):
        state = fit(state, keep)
        keep = reduce(state, keep)
    assert keep["beta"].tolist() == [True, False, False, True, False, False]
    assert traces == {"fit": 1, "reduce": 1}
    # What is left is fitted as the program of these two columns is.
    located = svi.get_params(state)["beta_auto_loc"][jnp.array([0, 3])]
    exact = jnp.linalg.lstsq(data[0][:, jnp.array([0, 3])], data[1])[0]
    np.testing.assert_allclose(located, exact, atol=0.05)


def started(guide, data):
    svi = SVI(regression, guide, optax.adam(1e-2), TraceMeanField_ELBO())
    return svi.get_params(svi.init(jax.random.key(0), *data))


def test_site_posteriors_says_what_cannot_be_read_and_why(data):
    guide = AutoNormal(regression)
    found = bmr.site_posteriors(regression, guide, started(guide, data), *data)
    assert list(found.posterior) == ["beta"]
    assert found.unread == {"scale": "its prior is a HalfNormal"}
    points = AutoDelta(regression)
    found = bmr.site_posteriors(regression, points, started(points, data), *data)
    assert not found.posterior
    assert found.unread["beta"] == "its posterior is a Delta"


def test_site_posteriors_names_a_pair_of_families_without_a_closed_form():
    """A spike-and-slab prior under a normal posterior."""

    def spiked():
        prior = bmr.distributions.DiscreteSpikeAndSlab(jnp.full(2, 0.5), 1.0, 0.5)
        numpyro.sample("w", prior.to_event(1))

    def normal():
        numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))

    found = bmr.site_posteriors(spiked, normal, {})
    why = (
        "there is no closed form for a prior that is spike-and-slab and a posterior that is normal"
    )
    assert found.unread == {"w": why}


def test_site_posteriors_of_a_pruned_program_are_those_of_the_program(data):
    """Masks do not change what is read in a factorised posterior."""
    guide = AutoNormal(regression)
    params = started(guide, data)
    keep = {"beta": jnp.arange(6) < 3}
    plain = bmr.site_posteriors(regression, guide, params, *data)
    pruned = bmr.site_posteriors(bmr.prune(regression, keep), bmr.prune(guide, keep), params, *data)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(pruned), strict=True):
        np.testing.assert_array_equal(one, other)


FOUND = bmr.criteria.SitePosteriors(
    {
        "a": Normal(jnp.array([0.02, 0.01, 3.0, 0.03]), jnp.full(4, 0.1)),
        "b": Normal(jnp.array([2.0, 0.005]), jnp.full(2, 0.1)),
    },
    {"a": Normal(jnp.zeros(4), jnp.ones(4)), "b": Normal(jnp.zeros(2), jnp.ones(2))},
    unread={"scale": "its prior is a HalfNormal"},
)


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 0.99, 1.0])
def test_limit_is_the_cap_of_a_round(fraction):
    criterion, order = bmr.criteria.Shrinkage(), bmr.criteria.smallest_snr_first
    keep = {"a": jnp.array([True, False, True, True]), "b": jnp.ones(2, bool)}
    decision = criterion(FOUND, keep)
    masks = jax.jit(bmr.limit)(FOUND, decision, keep, fraction)
    round_ = reduce_once(criterion, order, FOUND, keep, None, jnp.float32(fraction))
    jax.tree.map(np.testing.assert_array_equal, masks, dict(round_.keep))
    gone = sum(int(jnp.sum(keep[n] & ~masks[n])) for n in keep)
    assert gone == int(round_.removed) == min(int(np.ceil(np.float32(fraction) * 5)), 3)


def test_limit_passes_on_the_masks_of_other_sites():
    keep = {"a": jnp.ones(4, bool), "b": jnp.ones(2, bool), "other": jnp.zeros(3, bool)}
    criterion = bmr.criteria.Shrinkage()
    masks = bmr.limit(FOUND, criterion(FOUND, keep), keep)
    assert masks["other"] is keep["other"]
    assert masks["a"].tolist() == [False, False, True, False]


def test_what_is_unread_passes_through_transformations():
    doubled = jax.jit(lambda found: jax.tree.map(lambda x: 2 * x, found))(FOUND)
    assert doubled.unread == FOUND.unread
    assert doubled.only(["b"]).unread == FOUND.unread


def test_limit_refuses_what_is_no_fraction_and_masks_that_miss_a_site():
    keep = {"a": jnp.ones(4, bool), "b": jnp.ones(2, bool)}
    decision = bmr.criteria.Shrinkage()(FOUND, keep)
    for fraction in (50, -0.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            bmr.limit(FOUND, decision, keep, fraction)
    with pytest.raises(ValueError, match=r"mask of 'a' has shape \(3,\)"):
        bmr.limit(FOUND, decision, {**keep, "a": jnp.ones(3, bool)}, 0.5)
    with pytest.raises(ValueError, match=r"no mask for the sites \['b'\]"):
        bmr.limit(FOUND, decision, {"a": keep["a"]}, 0.5)


def test_site_posteriors_does_not_begin_with_values_of_its_own(data):
    with pytest.raises(ValueError, match=r"params has no \['beta_auto_loc'"):
        bmr.site_posteriors(regression, AutoNormal(regression), {}, *data)
