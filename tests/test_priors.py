import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from scipy import stats
from starting import started

from bmrjax import init_to_network, nn, priors, programs

PRIORS = [
    priors.Flat(),
    priors.Flat(0.5, 3.0, 1.0),
    priors.Normal(0.7),
    priors.RegularizedHorseshoe(0.1),
    priors.RegularizedHorseshoe(0.1, local=True),
    priors.SpikeAndSlab(0.3),
]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
class TestContract:
    def test_draws_plain_arrays(self, prior):
        draws = Predictive(lambda: {"b": prior.sample("b", (3, 2))}, num_samples=4)
        assert jax.jit(draws)(jax.random.key(0))["b"].shape == (4, 3, 2)

    @pytest.mark.parametrize("guide_class", [AutoNormal, AutoDelta])
    def test_a_fit_starts_at_the_network(self, prior, guide_class):
        network, x = nn.MLP(3, [4], 2, key=jax.random.key(0)), jnp.ones((5, 3))
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
        model = programs.classifier(nn.MLP(3, [4], 2, key=jax.random.key(0)), prior)
        layers = {}

        def look(x):
            seeded = numpyro.handlers.seed(model, jax.random.key(0))
            for name, site in numpyro.handlers.trace(seeded).get_trace(x).items():
                layers[name] = site.get("infer", {}).get("layer")

        jax.eval_shape(look, jnp.ones((2, 3)))
        assert [layers[f"net.layers.1.{p}"] for p in ("weight", "bias")] == ["net.layers.1"] * 2


def test_flat_is_a_students_t():
    """w = γ c ŵ with c⁻² ~ Gamma(2, 2) is γ times a Student's t with 4 degrees of freedom."""
    prior = priors.Flat(0.1)
    draws = Predictive(lambda: numpyro.deterministic("w", prior.sample("b")), num_samples=20000)
    w = np.asarray(draws(jax.random.key(0))["w"])
    assert stats.kstest(w / 0.1, stats.t(4).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.Normal(0.0), "Normal: scale must be positive"),
        (lambda: priors.Flat(scale=-1.0), "Flat: scale must be positive"),
        (lambda: priors.Flat(rate=0.0), "Flat: rate must be positive"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
