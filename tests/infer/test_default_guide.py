"""Which guide a program gets for which none is given."""

import warnings

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO

import bmrjax as bmr
from bmrjax.infer import AutoMeanField, AutoMultivariate
from bmrjax.infer.default_guide import LARGEST_JOINT, default_guide, guide_of

DATA = (jnp.ones((6, 3)), jnp.ones(6))


def regression(size=3, **infer):
    def program(x, y=None):
        shape = [size]
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand(shape).to_event(1), infer=infer)
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta[:3], noise), obs=y)

    return program


SPIKE_AND_SLAB = bmr.criteria.SpikeAndSlab()


def chosen(program, criterion=SPIKE_AND_SLAB, **settings):
    return default_guide(program, DATA, criterion=criterion, **settings)


def test_a_small_program_gets_a_joint_posterior():
    assert chosen(regression()) is AutoMultivariate
    assert chosen(regression(LARGEST_JOINT - 1)) is AutoMultivariate  # and the noise
    assert chosen(regression(LARGEST_JOINT)) is AutoMeanField
    assert chosen(regression(), bmr.criteria.Shrinkage()) is AutoMultivariate
    assert chosen(regression(), bmr.criteria.SignalToNoise(fraction=0.5)) is AutoMultivariate


@pytest.mark.parametrize(
    "settings",
    [
        {"criterion": None},
        {"criterion": bmr.criteria.Inclusion()},
        {"criterion": bmr.criteria.BMRSNormal()},
        {"estimator": "local"},
        {"loss": Trace_ELBO()},
        {"mesh": object()},
    ],
)
def test_settings_that_ask_for_a_factorised_posterior_get_it(settings):
    assert chosen(regression(), **settings) is AutoMeanField


def test_a_mesh_says_that_it_changes_the_posterior():
    with pytest.warns(bmr.FitWarning, match="give guide=bmr.infer.AutoMeanField"):
        assert chosen(regression(), mesh=object()) is AutoMeanField
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen(regression(LARGEST_JOINT), mesh=object()) is AutoMeanField


def test_sites_that_ask_for_a_posterior_or_are_a_part_of_a_network_are_factorised():
    assert chosen(regression(posterior="point")) is AutoMeanField
    assert chosen(regression(layer="net.layers.0")) is AutoMeanField

    def network(x, y=None):
        net = bmr.random_module(
            "net", bmr.zoo.MLP(3, [2], 1, key=jax.random.key(0)), bmr.priors.Flat()
        )
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    def spiked(x, y=None):
        beta = bmr.priors.SpikeAndSlabPrior().sample("beta", (3,))
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    def library(x, y=None):
        beta = bmr.priors.NormalPrior(1.0).sample("beta", (3,))
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    def positive(x, y=None):
        noise = numpyro.sample("noise", dist.HalfNormal(1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ noise, 1.0), obs=y)

    assert chosen(network) is AutoMeanField
    assert chosen(spiked) is AutoMeanField
    assert chosen(library) is AutoMultivariate
    assert chosen(positive) is AutoMeanField  # nothing of it could be removed


def test_a_fit_that_goes_on_keeps_the_posterior_of_its_start():
    joint = bmr.Result({"auto_loc": 0, "auto_scale_tril": 0}, {}, {}, 6)
    assert chosen(regression(), start=joint, criterion=None) is AutoMultivariate
    factorised = bmr.Result({"beta_auto_loc": 0, "beta_auto_scale": 0}, {}, {}, 6)
    assert chosen(regression(), start=factorised) is AutoMeanField
    assert guide_of({"auto_scale_tril": 0}) is AutoMultivariate
