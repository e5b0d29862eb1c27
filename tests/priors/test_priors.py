import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from scipy import stats
from starting import started

from bmrjax import infer, init_to_network, priors, programs, zoo

PRIORS = [
    priors.Flat(),
    priors.Flat(0.5, 3.0, 1.0),
    priors.NormalPrior(0.7),
    priors.RegularizedHorseshoePrior(0.1),
    priors.RegularizedHorseshoePrior(0.1, local=True),
    priors.SpikeAndSlabPrior(0.3),
]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
class TestContract:
    def test_draws_plain_arrays(self, prior):
        draws = Predictive(lambda: {"b": prior.sample("b", (3, 2))}, num_samples=4)
        assert jax.jit(draws)(jax.random.key(0))["b"].shape == (4, 3, 2)

    @pytest.mark.parametrize("guide_class", [AutoNormal, AutoDelta])
    def test_a_fit_starts_at_the_network(self, prior, guide_class):
        if isinstance(prior, priors.SpikeAndSlabPrior):
            return  # which these guides refuse; see below
        network, x = zoo.MLP(3, [4], 2, key=jax.random.key(0)), jnp.ones((5, 3))
        args = (x, jnp.zeros(5, int))
        model = programs.classifier(network, prior)
        guide = guide_class(model, init_loc_fn=init_to_network)
        params = started(model, guide, *args)

        def logits(params):
            at_start = numpyro.handlers.substitute(
                numpyro.handlers.seed(model, jax.random.key(0)), data=guide.median(params)
            )
            return numpyro.handlers.trace(at_start).get_trace(*args)["y"]["fn"].logits

        found = jax.jit(logits)(params)
        expected = jax.vmap(network)(x)
        np.testing.assert_allclose(found - found[:, :1], expected - expected[:, :1], rtol=1e-4)

    def test_tensors_of_a_layer_share_its_name(self, prior):
        model = programs.classifier(zoo.MLP(3, [4], 2, key=jax.random.key(0)), prior)
        layers = {}

        def look(x):
            seeded = numpyro.handlers.seed(model, jax.random.key(0))
            for name, site in numpyro.handlers.trace(seeded).get_trace(x).items():
                layers[name] = site.get("infer", {}).get("layer")

        jax.eval_shape(look, jnp.ones((2, 3)))
        assert [layers[f"net.layers.1.{p}"] for p in ("weight", "bias")] == ["net.layers.1"] * 2


def test_a_spike_and_slab_fit_starts_at_the_network():
    network, x = zoo.MLP(3, [4], 2, key=jax.random.key(0)), jnp.ones((5, 3))
    model = programs.classifier(network, priors.SpikeAndSlabPrior(0.3))
    params = started(model, infer.AutoMeanField(model), x, jnp.zeros(5, int))
    start = 0.3 * params["net.layers.0.weight_auto_loc"]
    np.testing.assert_allclose(start, network.layers[0].weight, rtol=1e-6)


def test_flat_is_a_students_t():
    """w = γ c ŵ with c⁻² ~ Gamma(2, 2) is γ times a Student's t with 4 degrees of freedom."""
    prior = priors.Flat(0.1)
    draws = Predictive(lambda: numpyro.deterministic("w", prior.sample("b")), num_samples=20000)
    w = np.asarray(draws(jax.random.key(0))["w"])
    assert stats.kstest(w / 0.1, stats.t(4).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.NormalPrior(0.0), "NormalPrior: scale must be positive"),
        (lambda: priors.Flat(scale=-1.0), "Flat: scale must be positive"),
        (lambda: priors.Flat(rate=0.0), "Flat: rate must be positive"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_hyperparameter_may_be_traced():
    def total(tau):
        prior = priors.RegularizedHorseshoePrior(global_scale=tau, slab_rate=10 * tau)
        return numpyro.handlers.seed(prior.sample, jax.random.key(0))("b", (5,)).sum()

    assert np.isfinite(jax.jit(jax.grad(total))(0.1))


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.slow
def test_a_plate_repeats_the_whole_layer(prior):
    def program():
        with numpyro.plate("groups", 3):
            return prior.sample("b", (5, 2))

    draws = Predictive(program, num_samples=2000)(jax.random.key(0))["b"]
    assert draws.shape == (2000, 3, 5, 2)
    alone = Predictive(lambda: prior.sample("b", (5, 2)), num_samples=2000)(jax.random.key(1))["b"]
    for group in range(3):
        assert stats.ks_2samp(draws[:, group, 1, 0], alone[:, 1, 0]).pvalue > 1e-4
