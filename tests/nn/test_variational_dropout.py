"""Sparse variational dropout: the divergence against Dawson's function, the prior, the rule."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions.kl import kl_divergence
from scipy import integrate, special, stats

import bmrjax as bmr
from bmrjax import criteria, distributions, infer, priors, reduction, schedules
from bmrjax.criteria import SitePosteriors

SIGNALS = np.exp(np.linspace(-6, 6, 60))


def divergence(loc, scale=1.0):
    loc, scale = jnp.broadcast_arrays(jnp.asarray(loc, jnp.float32), jnp.float32(scale))
    return reduction.log_uniform_divergence(reduction.Normal(loc, scale))


class TestDivergence:
    def test_is_close_to_the_exact_one(self):
        """∫ D over Dawson's function, with the constant that makes it zero where nothing is known."""
        exact = [
            2 * integrate.quad(special.dawsn, 0, r / np.sqrt(2), limit=500)[0] for r in SIGNALS
        ]
        np.testing.assert_allclose(divergence(SIGNALS), exact, atol=0.0095)

    def test_the_exact_one_is_that_of_the_density(self):
        """E ln q - E ln p by quadrature, between two posteriors: the constant of the prior drops out."""

        def by_quadrature(loc, scale):
            q = stats.norm(loc, scale)
            edges = [*(loc + scale * np.linspace(-9, 9, 7)), 0.0]
            parts = [
                integrate.quad(lambda w: q.pdf(w) * np.log(abs(w)), a, b, limit=500)[0]
                for a, b in zip(sorted(edges), sorted(edges)[1:], strict=False)
            ]
            return sum(parts) - q.entropy()

        found = divergence(2.0, 0.7) - divergence(0.1, 0.4)
        np.testing.assert_allclose(
            found, by_quadrature(2.0, 0.7) - by_quadrature(0.1, 0.4), atol=0.02
        )

    def test_a_unit_changes_nothing(self):
        np.testing.assert_allclose(divergence(SIGNALS * 1e-3, 1e-3), divergence(SIGNALS), rtol=1e-4)

    @pytest.mark.parametrize("loc", [0.0, 1e-30, 1e-10, 1.0, 1e10])
    @pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
    def test_finite_with_its_gradient(self, loc, scale):
        found = jax.value_and_grad(lambda x: divergence(*x))(jnp.array([loc, scale]))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
        assert found[0] >= 0


class TestDistribution:
    def test_divergence_is_registered(self):
        q = dist.Normal(jnp.array([0.3, -2.0]), 0.5)
        expected = divergence(jnp.array([0.3, -2.0]), 0.5)
        p = distributions.ImproperReciprocal((2,))
        np.testing.assert_allclose(kl_divergence(q, p), expected, rtol=1e-6)
        whole = kl_divergence(q.to_event(1), p.to_event(1))
        np.testing.assert_allclose(whole, expected.sum(), rtol=1e-6)

    def test_a_removed_element_costs_nothing(self):
        keep = jnp.array([True, False])
        q = distributions.pruned(dist.Normal(jnp.array([0.3, -2.0]), 0.5), keep, name="w")
        p = distributions.pruned(distributions.ImproperReciprocal((2,)), keep, name="w")
        found = kl_divergence(q, p)
        np.testing.assert_allclose(found, [divergence(0.3, 0.5), 0.0], rtol=1e-6)

    def test_cannot_be_drawn(self):
        with pytest.raises(NotImplementedError, match="1/|w| has no integral"):
            distributions.ImproperReciprocal().sample(jax.random.key(0))

    def test_goes_through_jax(self):
        p = distributions.ImproperReciprocal((3,))
        assert jax.jit(lambda p: p)(p).batch_shape == (3,)
        assert np.isfinite(p.log_prob(jnp.array([0.0, 1e-30, 2.0]))).all()


class TestCriterion:
    def test_removes_by_rate(self):
        loc = jnp.array([0.0, 0.2, 0.228, 0.231, -3.0])
        q = {"w": reduction.Normal(loc, jnp.ones(5))}
        p = {"w": reduction.ImproperLogUniform(jnp.ones(5))}
        criterion = criteria.DropoutRate()
        decision = criterion(SitePosteriors(q, p))
        assert decision.keep["w"].tolist() == [False, False, False, True, True]
        rates = reduction.dropout_rate(q["w"])
        np.testing.assert_array_equal(rates >= 0.95, ~decision.keep["w"])
        assert decision.delta_f["w"][0] == 0
        assert (np.diff(decision.delta_f["w"]) < 0).all()

    def test_what_is_gone_stays_gone(self):
        q = {"w": reduction.Normal(jnp.array([5.0, 5.0]), jnp.ones(2))}
        criterion = criteria.DropoutRate()
        keep = {"w": jnp.array([True, False])}
        assert criterion(SitePosteriors(q, {}), keep).keep["w"].tolist() == [True, False]

    def test_bad_threshold(self):
        with pytest.raises(ValueError, match="threshold must be in"):
            criteria.DropoutRate(1.5)

    def test_other_criteria_say_that_there_is_no_evidence(self):
        q = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        p = {"w": reduction.ImproperLogUniform(jnp.ones(2))}
        for criterion in (criteria.SpikeAndSlab(), criteria.SignalToNoise(threshold=1.0)):
            with pytest.raises(TypeError, match="no evidence"):
                criterion(SitePosteriors(q, p))


def regression(x, y=None):
    beta = priors.LogUniformPrior().sample("beta", (20,))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


@pytest.fixture(scope="module")
def sparse_regression():
    x = jax.random.normal(jax.random.key(0), (200, 20))
    truth = jnp.zeros(20).at[jnp.array([2, 7, 11])].set(jnp.array([1.0, -2.0, 0.5]))
    return (x, x @ truth + 0.5 * jax.random.normal(jax.random.key(1), (200,))), truth


def test_finds_a_sparse_truth(sparse_regression):
    data, truth = sparse_regression
    result = bmr.sparsify(
        regression,
        data,
        key=jax.random.key(2),
        num_epochs=12,
        batch_size=None,
        steps_per_epoch=300,
        criterion=criteria.DropoutRate(),
        schedule=schedules.Every(wait=4),
        options=bmr.FitOptions(estimator="local", kl_warmup=300),
        progress=False,
    )
    kept = np.asarray(result.keep["beta"])
    assert kept[np.asarray(truth) != 0].all()
    # A weight within about 1.5 standard errors of zero goes: most of the 17 that are none.
    assert kept.sum() <= 10, kept
    np.testing.assert_allclose(result.center(data[0])["beta"], truth, atol=0.15)


def test_the_default_criterion_is_refused_before_training(sparse_regression):
    data, _ = sparse_regression
    # One epoch has no reduction, so nothing but a look ahead can find it.
    with pytest.raises(TypeError, match=r"no evidence.*criteria\.DropoutRate"):
        bmr.sparsify(regression, data, key=jax.random.key(0), num_epochs=1, progress=False)


class TestStart:
    """Going on from an earlier result."""

    def fit(self, model, data, **more):
        settings = {"num_epochs": 2, "batch_size": None, "steps_per_epoch": 50, "progress": False}
        return bmr.sparsify(model, data, key=jax.random.key(3), **(settings | more))

    def test_takes_over_parameters_and_masks(self, sparse_regression):
        data, _ = sparse_regression

        def normal(x, y=None):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([20]).to_event(1))
            numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

        factorised = {"guide": infer.AutoMeanField(normal), "num_epochs": 8}
        first = self.fit(normal, data, schedule=schedules.Every(wait=6), **factorised)
        assert 0 < first.num_kept < 20
        slow = {"num_epochs": 1, "steps_per_epoch": 1, "optimizer": optax.sgd(0.0)}
        same = self.fit(
            regression, data, criterion=None, options=bmr.FitOptions(start=first), **slow
        )
        np.testing.assert_array_equal(same.keep["beta"], first.keep["beta"])
        for part in ("loc", "scale"):
            name = f"beta_auto_{part}"
            np.testing.assert_allclose(same.params[name], first.params[name], rtol=1e-5)
        more = self.fit(
            regression, data, criterion=criteria.DropoutRate(), options=bmr.FitOptions(start=first)
        )
        assert not (more.keep["beta"] & ~first.keep["beta"]).any()

    def test_what_does_not_fit_is_refused(self, sparse_regression):
        (x, y), _ = sparse_regression
        first = self.fit(regression, (x, y), criterion=None)

        def other(x, y=None):
            gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([20]).to_event(1))
            numpyro.sample("y", dist.Normal(x @ gamma, 0.5), obs=y)

        def smaller(x, y=None):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([10]).to_event(1))
            numpyro.sample("y", dist.Normal(x[:, :10] @ beta, 0.5), obs=y)

        with pytest.raises(ValueError, match="nothing of `start` fits"):
            self.fit(other, (x, y), options=bmr.FitOptions(start=first))
        with pytest.raises(ValueError, match=r"'beta_auto_loc' has shape \(20,\) in `start`"):
            self.fit(smaller, (x, y), options=bmr.FitOptions(start=first))

    def test_what_fits_in_part_is_said(self, sparse_regression):
        (x, y), _ = sparse_regression

        def program(*sites):
            def model(x, y=None):
                beta = numpyro.sample("beta", dist.Normal(0, 1).expand([20]).to_event(1))
                level = sum(numpyro.sample(name, dist.Normal(0, 1)) for name in sites)
                numpyro.sample("y", dist.Normal(level + x @ beta, 0.5), obs=y)

            return model

        first = self.fit(program("level"), (x, y), criterion=None, num_epochs=1)
        more = {"criterion": None, "options": bmr.FitOptions(start=first), "num_epochs": 1}
        with pytest.warns(
            bmr.FitWarning, match="'offset_auto_loc', .* begin anew, and 'level_auto"
        ):
            self.fit(program("offset"), (x, y), **more)
        with warnings.catch_warnings():
            warnings.simplefilter("error", bmr.FitWarning)
            later = self.fit(program("level", "offset"), (x, y), **more)
        assert {"level_auto_loc", "offset_auto_loc"} <= set(later.params)

    def test_masks_without_a_place_are_refused(self, sparse_regression):
        (x, y), _ = sparse_regression
        first = self.fit(regression, (x, y), criterion=None)
        first.keep = {"alpha": jnp.array([True, False])}
        with pytest.raises(ValueError, match="elements of site 'alpha'"):
            self.fit(regression, (x, y), criterion=None, options=bmr.FitOptions(start=first))


def test_estimators_need_a_guide_of_normals():
    model = bmr.programs.classifier(
        bmr.zoo.MLP(3, (4,), 2, key=jax.random.key(0)), priors.LogUniformPrior()
    )
    guide = numpyro.infer.autoguide.AutoDelta(model, init_loc_fn=bmr.init_to_network)
    data = (jnp.ones((8, 3)), jnp.zeros(8, int))
    with pytest.raises(ValueError, match="independent normals"):
        bmr.sparsify(
            model, data, key=jax.random.key(0), guide=guide, criterion=None,
            options=bmr.FitOptions(estimator="local"), num_epochs=1, progress=False,
        )  # fmt: skip


def test_a_custom_derivative_stays_in_force():
    """Under "local" a function with a derivative of its own is called whole, not written out."""

    @jax.custom_jvp
    def halved(x):
        return x

    halved.defjvp(lambda primals, tangents: (primals[0], 0.5 * tangents[0]))

    def program(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(halved(x @ w), 1.0), obs=y)

    guide = infer.AutoMeanField(program, init_scale=1e-6)
    x, y = jnp.eye(2), jnp.ones(2)
    params = {"w_auto_loc": jnp.zeros(2), "w_auto_scale": jnp.full(2, 1e-6)}
    loss = infer.PropagatedELBO("local")

    def run(loc):
        guide_ready = guide
        return loss.loss(
            jax.random.key(1), params | {"w_auto_loc": loc}, program, guide_ready, x, y
        )

    gradient = jax.jit(jax.grad(run))(jnp.zeros(2))
    np.testing.assert_allclose(gradient, [-0.5, -0.5], atol=1e-3)
