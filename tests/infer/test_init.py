"""Starting a fit in one compiled program: no tracer stays behind, every guide works after."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import biject_to
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.initialization import init_to_median, init_to_value

import bmrjax as bmr
from bmrjax.backend import shared_programs
from bmrjax.infer import AutoMeanField
from bmrjax.infer.init import init_to_network, initialise
from bmrjax.infer.log_scale import log_scale


def program(x, y=None):
    with numpyro.plate("columns", 2):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    # Bounds that are arrays of the program, and depend on its data.
    top = numpyro.sample("top", dist.Uniform(jnp.zeros(2), jnp.max(x, 0) + 5.0).to_event(1))
    noise = numpyro.deterministic("noise", jnp.sum(top))
    numpyro.sample("y", dist.Normal(x @ beta, 0.1 + noise), obs=y)


def data():
    x = jax.random.normal(jax.random.key(0), (8, 2))
    return x, x[:, 0]


def guide_list(model):
    guides = AutoGuideList(model)
    guides.append(AutoNormal(numpyro.handlers.block(model, hide=["top", "noise"])))
    guides.append(AutoDelta(numpyro.handlers.block(model, expose=["top"])))
    return guides


GUIDES = {
    "AutoNormal": AutoNormal,
    "AutoDelta": AutoDelta,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoGuideList": guide_list,
}


def start(guide, model=program, key=0, loss=None):
    loss = Trace_ELBO() if loss is None else loss
    return initialise(model, guide, loss, jax.random.key(key), data())


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("make", GUIDES.values(), ids=GUIDES.keys())
def test_the_guide_works_eagerly_afterwards(make):
    guide = make(program)
    begun = start(guide)
    params = begun.constrain(begun.params)
    args = data() if isinstance(guide, AutoDelta | AutoGuideList) else ()
    draws = guide.sample_posterior(jax.random.key(1), params, *args, sample_shape=(5,))
    assert draws["beta"].shape == (5, 2)
    assert draws["top"].shape == (5, 2)
    assert bool(jnp.all((draws["top"] > 0) & (draws["top"] < jnp.max(data()[0], 0) + 5.0)))
    leaves = jax.tree.leaves((begun.params, params, draws))
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    assert np.isfinite(np.concatenate([np.ravel(leaf) for leaf in leaves])).all()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make", [AutoNormal, AutoMultivariateNormal])
def test_medians_and_quantiles(make):
    guide = make(program, init_scale=1e-4)
    begun = start(guide)
    params = begun.constrain(begun.params)
    median = guide.median(params)
    low, high = (guide.quantiles(params, q)["beta"] for q in (0.1, 0.9))
    assert bool(jnp.all((low < median["beta"]) & (median["beta"] < high)))
    np.testing.assert_allclose(low, high, atol=1e-3)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("make", [AutoNormal, AutoDelta, AutoMultivariateNormal])
def test_it_starts_where_numpyro_starts(make):
    guide, reference = make(program), make(program)
    begun = start(guide, key=3)
    svi = SVI(program, reference, optax.adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.key(3), *data())
    expected = svi.get_params(state)
    found = begun.constrain(begun.params)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


@pytest.mark.slow
def test_no_tracer_leaks():
    guide = AutoNormal(program)
    with jax.checking_leaks():
        begun = start(guide)
        params = begun.constrain(begun.params)
    assert set(params) == {f"{s}_auto_{p}" for s in ("beta", "top") for p in ("loc", "scale")}


def test_a_start_is_held_once():
    """Of 1e8 weights, each array takes 400 MB."""
    network = bmr.zoo.MLP(3, [4], 2, key=jax.random.key(0))
    classes = bmr.programs.classifier(network, bmr.priors.Flat())
    guide = AutoMeanField(classes)
    loss = TraceMeanField_ELBO()
    initialise(classes, guide, loss, jax.random.key(0), (jnp.ones((8, 3)), jnp.zeros(8, int)))
    site = guide.prototype_trace["net.layers.0.weight"]
    np.testing.assert_allclose(site["value"], network.layers[0].weight / 0.1, rtol=1e-6)
    assert site["infer"]["init"] is site["value"]


def test_the_model_is_traced_once_inside_jit():
    calls = []

    def counted(x, y=None):
        calls.append(isinstance(x, jax.core.Tracer))
        program(x, y)

    start(AutoNormal(counted), counted)
    traced = len(calls)
    assert all(calls)
    start(AutoNormal(counted), counted)
    assert len(calls) == 2 * traced


def test_param_constraints_of_a_hand_written_guide():
    def model(x, y=None):
        low = numpyro.param("low", 0.5, constraint=dist.constraints.interval(0.0, jnp.max(x)))
        numpyro.sample("y", dist.Normal(x[:, 0] * low, 1.0), obs=y)

    begun = start(lambda x, y=None: None, model)
    assert float(begun.constrain(begun.params)["low"]) == pytest.approx(0.5, rel=1e-5)
    assert float(begun.constrain({"low": jnp.array(50.0)})["low"]) == pytest.approx(
        float(jnp.max(data()[0])), rel=1e-5
    )


def test_a_guide_that_was_set_up_before_is_taken_as_it_is():
    guide = AutoNormal(program, init_loc_fn=init_to_value(values={"beta": jnp.array([1.0, 2.0])}))
    first = start(guide, loss=TraceMeanField_ELBO())
    prototype = guide.prototype_trace
    second = start(guide, loss=TraceMeanField_ELBO())
    assert guide.prototype_trace is prototype
    np.testing.assert_allclose(second.params["beta_auto_loc"], [1.0, 2.0])
    np.testing.assert_allclose(first.params["beta_auto_loc"], [1.0, 2.0])


def test_a_start_that_is_not_finite_is_named():
    def bad(x, y=None):
        shift = numpyro.param("shift", jnp.array([0.0, jnp.nan]))
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x @ shift + beta, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"\['shift'\] start at values that are not finite"):
        start(AutoNormal(bad), bad)


def test_init_to_network_starts_at_the_program_s_own_value():
    def model(x, y=None):
        told = numpyro.sample("told", dist.Normal(0.0, 1.0), infer={"init": 3})
        plain = numpyro.sample("plain", dist.Normal(7.0, 1.0))
        numpyro.sample("y", dist.Normal(told + plain, 1.0), obs=y)

    guide = AutoNormal(model, init_loc_fn=bmr.init_to_network)
    begun = start(guide, model)
    assert float(begun.params["told_auto_loc"]) == 3.0
    # What says nothing starts at the median of its prior, of 15 draws.
    reference = AutoNormal(model, init_loc_fn=init_to_median())
    other = start(reference, model)
    assert float(begun.params["plain_auto_loc"]) == pytest.approx(
        float(other.params["plain_auto_loc"])
    )
    assert callable(init_to_network())


def test_log_scales_are_positive_and_never_infinite():
    transform = biject_to(log_scale)
    x = jnp.array([-1e30, -3.0, 0.0, 3.0, 1e30])
    y = transform(x)
    assert bool(jnp.all(jnp.isfinite(y) & jnp.isfinite(y**2) & (y > 0)))
    np.testing.assert_allclose(transform.inv(y)[1:4], x[1:4], atol=1e-6)
    slope = jax.vmap(jax.grad(lambda v: transform(v)))(x)
    np.testing.assert_allclose(
        jnp.log(slope[1:4]), transform.log_abs_det_jacobian(x, y)[1:4], atol=1e-6
    )
    guide = AutoMeanField(lambda: numpyro.sample("w", dist.Normal(0.0, 1.0)))
    assert guide.scale_constraint is log_scale


def test_programs_that_start_at_other_networks_are_compiled_once(monkeypatch):
    def start(seed, width):
        network = bmr.zoo.MLP(3, (width,), 2, key=jax.random.key(seed))
        model = bmr.programs.classifier(network, bmr.priors.Flat())
        guide = bmr.infer.AutoMeanField(model)
        batch = jnp.ones((8, 3)), jnp.zeros(8, int)
        begun = initialise(model, guide, Trace_ELBO(), jax.random.key(0), batch)
        weight = begun.params["net.layers.0.weight_auto_loc"]
        np.testing.assert_allclose(0.1 * weight, network.layers[0].weight, rtol=1e-5)

    monkeypatch.setattr(shared_programs, "_programs", OrderedDict())
    programs = shared_programs._programs
    start(0, 4)
    made = set(programs)
    assert made
    start(1, 4)
    assert set(programs) == made
    start(1, 5)
    assert set(programs) > made
