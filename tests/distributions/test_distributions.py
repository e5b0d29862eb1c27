"""Distributions with removed elements: densities, divergences, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints, transforms
from numpyro.distributions.kl import kl_divergence

from bmrjax.distributions import (
    NotElementwiseError,
    center,
    elementwise,
    normal_parameters,
    pruned,
)

KEEP = jnp.array([[True, False, True], [False, False, True]])
LOC = jnp.arange(6.0).reshape(2, 3) / 5

FACTORISED = {
    "independent": dist.Normal(LOC, 0.7).to_event(1),
    "independent twice": dist.Normal(LOC, 0.7).to_event(1).to_event(1),
    "expanded": dist.Normal(0.3, 0.7).expand([3]).to_event(1).expand([2]),
    "expanded event": dist.Gamma(2.0, 3.0).expand([2, 3]).to_event(2),
    "log-normal": dist.LogNormal(LOC, 0.4).to_event(1),
    "affine": dist.TransformedDistribution(
        dist.Normal(LOC, 0.4).to_event(1),
        transforms.IndependentTransform(transforms.AffineTransform(1.0, 2.0), 1),
    ),
}


@pytest.fixture(params=FACTORISED.values(), ids=FACTORISED)
def factorised(request):
    return request.param


class TestElementwise:
    def test_density_adds_up(self, factorised):
        base = elementwise(factorised)
        assert (base.batch_shape, base.event_shape) == ((2, 3), ())
        value = factorised.sample(jax.random.key(0))
        each = base.log_prob(value)
        assert each.shape == (2, 3)
        axes = tuple(range(-factorised.event_dim, 0))
        np.testing.assert_allclose(each.sum(axes), factorised.log_prob(value), rtol=1e-5)

    def test_univariate_is_left_alone(self):
        fn = dist.Normal(LOC, 1.0)
        assert elementwise(fn) is fn

    def test_a_mask_goes_with_its_elements(self):
        fn = dist.Normal(LOC, 1.0).to_event(1).mask(jnp.array([True, False]))
        each = elementwise(fn).log_prob(jnp.zeros((2, 3)))
        assert (each[0] != 0).all()
        assert (each[1] == 0).all()

    def test_a_delta_stays_at_its_point(self):
        np.testing.assert_array_equal(elementwise(dist.Delta(LOC, event_dim=1)).v, LOC)

    @pytest.mark.parametrize(
        "fn",
        [
            dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)),
            dist.Dirichlet(jnp.ones(3)),
            dist.TransformedDistribution(
                dist.Normal(jnp.zeros(3), 1.0).to_event(1),
                transforms.LowerCholeskyAffine(jnp.zeros(3), jnp.eye(3)),
            ),
        ],
        ids=["multivariate normal", "Dirichlet", "Cholesky"],
    )
    def test_dependence_is_refused(self, fn):
        with pytest.raises(NotElementwiseError, match=f"elements of {type(fn).__name__} depend"):
            elementwise(fn)


class TestPruned:
    def test_keeps_the_shapes_and_zeroes_the_removed(self, factorised):
        keep = jnp.broadcast_to(KEEP, factorised.batch_shape + factorised.event_shape)
        less = pruned(factorised, keep, name="z")
        assert (less.batch_shape, less.event_shape) == (
            factorised.batch_shape,
            factorised.event_shape,
        )
        draws = less.sample(jax.random.key(0), (50,))
        assert (draws[:, ~KEEP] == 0).all()
        assert (draws[:, KEEP] != 0).all()
        np.testing.assert_array_equal(
            draws[:, KEEP], factorised.sample(jax.random.key(0), (50,))[:, KEEP]
        )

    def test_density_is_that_of_what_stays(self, factorised):
        less = pruned(factorised, KEEP, name="z")
        value = jnp.where(KEEP, factorised.sample(jax.random.key(1)), 0.0)
        each = jnp.where(KEEP, elementwise(factorised).log_prob(jnp.where(KEEP, value, 1.5)), 0.0)
        expected = each.sum(tuple(range(-factorised.event_dim, 0)))
        np.testing.assert_allclose(less.log_prob(value), expected, rtol=1e-5, atol=1e-6)

    def test_moments_are_zero_where_removed(self):
        less = pruned(dist.Gamma(2.0, 4.0).expand([2, 3]), KEEP, name="z")
        np.testing.assert_allclose(less.mean, jnp.where(KEEP, 0.5, 0.0))
        np.testing.assert_allclose(less.variance, jnp.where(KEEP, 0.125, 0.0))

    def test_density_with_intermediates_is_the_same(self):
        less = pruned(dist.LogNormal(LOC, 0.4).to_event(1), KEEP, name="z")
        value, intermediates = less.sample_with_intermediates(jax.random.key(2))
        assert intermediates
        np.testing.assert_allclose(
            less.log_prob(value, intermediates), less.log_prob(value), rtol=1e-5
        )

    @pytest.mark.parametrize(
        ("family", "parameters"),
        [
            (dist.Gamma, (0.5, 1.0)),  # a pole at zero
            (dist.Beta, (0.5, 0.5)),
            (dist.HalfNormal, (1.0,)),
            (dist.InverseGamma, (2.0, 1.0)),  # exp(-1 / 0)
            (dist.LogNormal, (0.0, 1.0)),  # log 0
            (dist.Uniform, (1.0, 2.0)),  # zero outside the support
        ],
    )
    def test_gradients_at_zero_are_finite(self, family, parameters):
        def total(value, arguments):
            return pruned(family(*arguments), KEEP, name="z").log_prob(value).sum()

        value = jnp.where(KEEP, family(*parameters).sample(jax.random.key(3), (2, 3)), 0.0)
        arguments = tuple(jnp.full((2, 3), p) for p in parameters)
        for gradient in jax.tree.leaves(jax.grad(total, argnums=(0, 1))(value, arguments)):
            assert np.isfinite(gradient).all()
            assert (gradient[~KEEP] == 0).all()

    def test_travels_through_jit(self):
        less = pruned(dist.Normal(LOC, 1.0).to_event(1), KEEP, name="z")
        got = jax.jit(lambda fn, z: fn.log_prob(z))(less, LOC)
        np.testing.assert_allclose(got, less.log_prob(LOC), rtol=1e-6)

    def test_integers_stay_integers(self):
        draws = pruned(dist.Poisson(5.0).expand([2, 3]), KEEP, name="z").sample(jax.random.key(0))
        assert jnp.issubdtype(draws.dtype, jnp.integer)
        assert (draws[~KEEP] == 0).all()


class TestDivergence:
    def test_is_that_of_what_stays(self):
        q, p = dist.Normal(LOC, 0.3).to_event(1), dist.Normal(0.0, 2.0).expand([2, 3]).to_event(1)
        each = np.log(2.0 / 0.3) + (0.09 + np.square(LOC)) / 8.0 - 0.5
        got = kl_divergence(pruned(q, KEEP, name="z"), pruned(p, KEEP, name="z"))
        np.testing.assert_allclose(got, np.where(KEEP, each, 0.0).sum(-1), rtol=1e-5)

    def test_of_nothing_is_exactly_zero_with_zero_gradient(self):
        none = jnp.zeros((2, 3), bool)

        def total(loc, scale):
            q, p = dist.Normal(loc, scale), dist.Normal(0.0, 2.0).expand([2, 3])
            return kl_divergence(pruned(q, none, name="z"), pruned(p, none, name="z")).sum()

        scale = jnp.full((2, 3), 0.3)
        assert total(LOC, scale) == 0.0
        for gradient in jax.grad(total, argnums=(0, 1))(LOC, scale):
            assert (gradient == 0).all()

    def test_of_a_point_is_the_negative_log_prior_of_what_stays(self):
        q, p = dist.Delta(LOC, event_dim=1), dist.Gamma(0.5, 1.0).expand([2, 3]).to_event(1)
        q = dist.Delta(jnp.where(KEEP, LOC + 0.1, 0.0), event_dim=1)
        got = kl_divergence(pruned(q, KEEP, name="z"), pruned(p, KEEP, name="z"))
        each = -dist.Gamma(0.5, 1.0).log_prob(LOC + 0.1)
        np.testing.assert_allclose(got, np.where(KEEP, each, 0.0).sum(-1), rtol=1e-5)

    def test_without_a_closed_form_is_left_to_sampling(self):
        """The ELBO of NumPyro catches this and takes the difference of log densities."""
        q, p = dist.LogNormal(LOC, 0.3), dist.Gamma(2.0, 1.0).expand([2, 3])
        with pytest.raises(NotImplementedError):
            kl_divergence(pruned(q, KEEP, name="z"), pruned(p, KEEP, name="z"))


class TestReadingOff:
    def test_parameters_of_normals_have_the_shape_of_the_site(self):
        for fn in (
            dist.Normal(LOC, 0.7).to_event(1),
            dist.Normal(LOC[0], 0.7).expand([2, 3]).to_event(2),
            pruned(dist.Normal(LOC, 0.7).to_event(2), KEEP, name="z"),
        ):
            loc, scale = normal_parameters(fn)
            assert loc.shape == scale.shape == (2, 3)
            assert (scale == jnp.float32(0.7)).all()

    @pytest.mark.parametrize(
        "fn",
        [
            dist.Gamma(2.0, 1.0),
            dist.LogNormal(0.0, 1.0),
            dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)),
        ],
        ids=["gamma", "log-normal", "multivariate"],
    )
    def test_others_have_no_normal_parameters(self, fn):
        assert normal_parameters(fn) is None

    @pytest.mark.parametrize(
        ("fn", "point"),
        [
            (dist.Normal(LOC, 0.7).to_event(1), LOC),
            (dist.LogNormal(LOC, 0.7), jnp.exp(LOC)),  # the median, not the mean
            (dist.Delta(LOC, event_dim=2), LOC),
            (dist.Gamma(3.0, 2.0).expand([2, 3]), jnp.full((2, 3), 1.5)),
        ],
        ids=["normal", "log-normal", "point", "gamma"],
    )
    def test_centre(self, fn, point):
        np.testing.assert_allclose(center(fn), point, rtol=1e-6)

    def test_no_closed_form_has_no_centre(self):
        class Odd(dist.Distribution):
            support = constraints.real

            @property
            def mean(self):
                raise NotImplementedError

        assert center(Odd()) is None
