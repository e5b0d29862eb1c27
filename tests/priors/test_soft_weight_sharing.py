"""Soft weight sharing: the mixture by hand, its start, point posteriors, and weights that collapse."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions.kl import kl_divergence
from scipy import stats

import bmrjax as bmr
from bmrjax import codec, distributions, priors, reduction
from bmrjax.structure import named_arrays

WEIGHTS = np.array([0.9, 0.06, 0.04])
MEANS = np.array([0.0, -0.5, 0.8])
PRECISIONS = np.array([400.0, 100.0, 25.0])
VALUES = np.array([0.0, 0.03, -0.4, 2.0])


def shared(base, factor=1.0):
    parts = (jnp.asarray(a, jnp.float32) for a in (np.log(WEIGHTS), MEANS, np.log(PRECISIONS)))
    return distributions.SharedCenters(base, *parts, factor=factor, batch_shape=(4,))


def log_mixture():
    density = stats.norm(MEANS, PRECISIONS**-0.5).pdf(VALUES[:, None]) @ WEIGHTS
    return np.log(np.maximum(density, 1e-300))


class TestDistribution:
    @pytest.mark.parametrize("base", [None, dist.Normal(0.0, 2.0)])
    def test_a_point_pays_the_log_mixture(self, base):
        expected = 0.1 * log_mixture()
        if base is not None:
            expected = expected + stats.norm(0, 2).logpdf(VALUES)
        found = shared(base, 0.1).log_prob(jnp.asarray(VALUES, jnp.float32))
        np.testing.assert_allclose(found, expected, rtol=2e-4)
        point = dist.Delta(jnp.asarray(VALUES, jnp.float32))
        np.testing.assert_allclose(kl_divergence(point, shared(base, 0.1)), -expected, rtol=2e-4)

    def test_a_normal_pays_it_at_its_mean(self):
        q = dist.Normal(jnp.asarray(VALUES, jnp.float32), 0.3)
        alone = reduction.log_uniform_divergence(reduction.Normal(q.loc, q.scale))
        base = distributions.ImproperReciprocal((4,))
        found = kl_divergence(q, shared(base, 0.02))
        np.testing.assert_allclose(found, alone - 0.02 * log_mixture(), rtol=1e-4, atol=1e-5)

    def test_far_from_all_components_it_stays_finite(self):
        found = jax.value_and_grad(lambda w: shared(None).log_prob(jnp.full(4, w)).sum())(1e4)
        assert np.isfinite(found).all()

    def test_a_normal_needs_a_prior_of_its_width(self):
        with pytest.raises(ValueError, match="nothing holds its width"):
            kl_divergence(dist.Normal(jnp.zeros(4), 1.0), shared(None))

    def test_draws_centres(self):
        draws = np.asarray(shared(None).sample(jax.random.key(0), (20000,))).ravel()
        np.testing.assert_allclose(draws.mean(), WEIGHTS @ MEANS, atol=0.005)
        second = WEIGHTS @ (MEANS**2 + 1 / PRECISIONS)
        np.testing.assert_allclose(np.mean(draws**2), second, rtol=0.05)


def network(key=0):
    return bmr.zoo.MLP(3, (8,), 2, key=jax.random.key(key))


DATA = (jax.random.normal(jax.random.key(1), (64, 3)), jnp.arange(64) % 2)


def sites(prior):
    model = bmr.programs.classifier(network(), prior)
    seeded = numpyro.handlers.substitute(
        numpyro.handlers.seed(model, jax.random.key(0)), substitute_fn=bmr.init_to_network
    )
    return jax.jit(
        lambda x: {
            name: site["value"]
            for name, site in numpyro.handlers.trace(seeded).get_trace(x).items()
            if site["type"] in ("sample", "param", "deterministic")
        }
    )(DATA[0])


class TestPrior:
    def test_starts_as_published(self):
        found = sites(priors.SoftWeightSharing())
        arrays = [np.asarray(a).ravel() for a in named_arrays(network()).values()]
        weights = np.concatenate(arrays)
        spacing = 2 * np.sqrt(np.mean(weights[weights != 0] ** 2)) / 17
        expected = [0.0, *(k * spacing for k in range(-8, 9) if k)]
        np.testing.assert_allclose(found["net.sharing.mean"], expected, rtol=1e-5)
        log_weight = [np.log(0.999), *np.full(16, np.log(0.001 / 16))]
        np.testing.assert_allclose(found["net.sharing.log_weight"], log_weight, rtol=1e-3)
        precision = np.full(17, (0.9 * spacing) ** -2)
        np.testing.assert_allclose(found["net.sharing.precision"], precision, rtol=1e-4)
        # Not drawn a layer: one mixture for all.
        assert sum("sharing.precision" in name for name in found) == 1

    def test_starts_where_it_is_told(self):
        found = sites(priors.SoftWeightSharing(components=5, start_scale=0.25, start_reach=0.6))
        np.testing.assert_allclose(
            found["net.sharing.mean"], [0.0, -0.6, -0.3, 0.3, 0.6], rtol=1e-5
        )
        np.testing.assert_allclose(found["net.sharing.precision"], np.full(5, 16.0), rtol=1e-5)
        # As wide as they are apart, unless told.
        found = sites(priors.SoftWeightSharing(components=5, start_reach=0.6))
        np.testing.assert_allclose(found["net.sharing.precision"], 0.27**-2, rtol=1e-4)

    def test_plain_arrays_too(self):
        def program():
            return priors.SoftWeightSharing(components=3).sample("w", (2, 2))

        assert numpyro.handlers.seed(program, jax.random.key(0))().shape == (2, 2)

    @pytest.mark.parametrize(
        ("numbers", "message"),
        [
            ({"components": 4}, "components must be odd"),
            ({"components": 1}, "components must be odd"),
            ({"zero_weight": 1.0}, "zero_weight must be between"),
            ({"factor": 0.0}, "factor must be positive"),
            ({"start_scale": -0.1}, "start_scale must be positive"),
            ({"start_reach": 0.0}, "start_reach must be positive"),
        ],
    )
    def test_bad_numbers(self, numbers, message):
        with pytest.raises(ValueError, match=message):
            priors.SoftWeightSharing(**numbers)

    def test_the_published_learning_rates(self):
        names = {
            "net.layers.0.weight_auto_loc": 5e-5,
            "net.layers.0.weight_auto_scale": 5e-5,
            "net.sharing.means": 1e-4,
            "net.sharing.precision_auto_loc": 1e-4,
            "net.sharing.logits": 3e-3,
        }
        optimizer = priors.SoftWeightSharing.optimizer(2.0)
        params = dict.fromkeys(names, jnp.zeros(1))
        updates, _ = optimizer.update(
            jax.tree.map(jnp.ones_like, params), optimizer.init(params), params
        )
        for name, rate in names.items():
            np.testing.assert_allclose(updates[name], -2 * rate, rtol=1e-4)


def test_a_point_posterior_ends_at_the_mode():
    """The mode of a precision with a gamma prior and normal data: (a - 1 + n/2) / (b + S/2)."""
    y = jnp.linspace(-1.0, 2.0, 40)

    def program(y):
        infer = {"posterior": "point"}
        precision = numpyro.sample("precision", dist.Gamma(5.0, 2.0), infer=infer)
        numpyro.sample("y", dist.Normal(0.0, precision**-0.5), obs=y)

    result = bmr.sparsify(
        program, (y,), key=jax.random.key(0), num_epochs=1, steps_per_epoch=600, batch_size=None,
        criterion=None, optimizer=optax.adam(3e-2), progress=False,
    )  # fmt: skip
    mode = (5.0 - 1.0 + 20.0) / (2.0 + 0.5 * float(jnp.sum(y**2)))
    np.testing.assert_allclose(result.center(y)["precision"], mode, rtol=1e-3)
    draws = result.sample(jax.random.key(1), 3, y)["precision"]
    np.testing.assert_allclose(draws, mode, rtol=1e-3)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="points"),
        pytest.param(True, id="dropout", marks=pytest.mark.slow),
    ],
)
def fitted(request):
    sharing = priors.SoftWeightSharing(
        components=5,
        zero_weight=0.5,
        concentration=100.0,
        rate=1.0,
        factor=5.0,
        dropout=request.param,
    )
    return bmr.sparsify(
        bmr.programs.classifier(network(), sharing), DATA, key=jax.random.key(2), num_epochs=1,
        steps_per_epoch=2000, batch_size=None, criterion=None, optimizer=optax.adam(1e-2),
        options=bmr.FitOptions(estimator="local" if request.param else "global"), progress=False,
    )  # fmt: skip


class TestCollapse:
    def test_weights_go_to_their_component(self, fitted):
        found = fitted.center(DATA[0])
        log_weight, mean, precision = (
            np.asarray(found[f"net.sharing.{part}"], np.float64)
            for part in ("log_weight", "mean", "precision")
        )
        mixture = codec.learned_mixture(fitted, DATA[0])
        arrays = named_arrays(fitted.network(DATA[0])["net"])
        assert set(mixture.assignments) == set(arrays)
        for name, array in arrays.items():
            scores = log_weight + stats.norm(mean, precision**-0.5).logpdf(
                np.asarray(array, np.float64)[..., None]
            )
            near = np.sort(scores, -1)
            sure = near[..., -1] - near[..., -2] > 1e-3
            agree = scores.argmax(-1) == mixture.assignments[name]
            assert agree[sure].all()

    def test_it_clusters(self, fitted):
        """A strong factor leaves every weight within a few widths of its component."""
        mixture = codec.learned_mixture(fitted, DATA[0])
        for name, array in named_arrays(fitted.network(DATA[0])["net"]).items():
            gap = np.abs(np.asarray(array) - mixture.means[mixture.assignments[name]])
            assert gap.max() < 0.35

    def test_the_file_holds_the_components(self, fitted):
        mixture = codec.learned_mixture(fitted, DATA[0])
        data = codec.encode(fitted, inputs=DATA[:1], quantiser=mixture)
        for name, array in named_arrays(codec.decode(data)).items():
            np.testing.assert_array_equal(array, mixture.means[mixture.assignments[name]])


def test_no_mixture_is_told():
    model = bmr.programs.classifier(network(), priors.NormalPrior(1.0))
    result = bmr.sparsify(
        model, DATA, key=jax.random.key(2), num_epochs=1, criterion=None, progress=False
    )
    with pytest.raises(codec.CodecError, match=r"priors\.SoftWeightSharing"):
        codec.learned_mixture(result, DATA[0])
