"""What the library asks of a family of posteriors, and a program with Laplace priors from end to end."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from scipy import stats

import bmrjax as bmr
from bmrjax import criteria, families, infer, reduction, schedules
from bmrjax.handlers import at_step, draws, prune

KEY = jax.random.key(0)
KEEP = jnp.array([True, False, True])

# A NumPyro distribution of three elements, its family, and the value of a removed element.
FAMILIES = {
    "normal": (dist.Normal(jnp.array([0.3, -1.0, 2.0]), 0.5), reduction.Normal, 0.0),
    "spike-and-slab": (
        families.DiscreteSpikeAndSlab(jnp.array([0.3, -1.0, 2.0]), 0.5, 1.0),
        reduction.ZeroOrNormal,
        0.0,
    ),
    "log-normal": (
        families.TruncatedLogNormal(jnp.array([-0.3, -1.0, -2.0]), 0.5),
        reduction.LogNormal,
        1.0,
    ),
    "Laplace": (dist.Laplace(jnp.array([0.3, -1.0, 2.0]), 0.5), reduction.Laplace, 0.0),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    return (request.param, *FAMILIES[request.param])


class TestQuestions:
    def test_reading_does_not_depend_on_the_form(self, family):
        name, fn, kind, _ = family
        q = families.read(fn)
        assert type(q) is kind
        assert families.facts(q).name == families.facts_of(kind).name == name
        forms = [fn.to_event(1), families.pruned(fn, KEEP, name="w")]
        forms.append(families.pruned(fn.to_event(1), KEEP, name="w"))
        for form in forms:
            found = families.read(form)
            for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(q), strict=True):
                assert ours.shape == (3,)
                np.testing.assert_array_equal(ours, theirs)
        wide = families.read(fn.expand((2, 3)))
        assert jax.tree.leaves(wide)[0].shape == (2, 3)

    def test_removal_keeps_the_others_and_the_table_shows_it(self, family):
        _, fn, kind, value = family
        q = families.removed(families.read(fn), KEEP)
        assert type(q) is kind
        shown = families.shown_elements(q, KEEP)
        assert shown.value == value
        assert (np.asarray(shown.distribution.variance) > 0).all()  # nothing divides by a zero
        for moment in ("mean", "variance"):
            ours = getattr(shown.distribution, moment)[KEEP]
            np.testing.assert_allclose(ours, getattr(fn, moment)[KEEP], rtol=1e-6)

    def test_moments_are_those_of_the_distribution(self, family):
        name, fn, _, _ = family
        q = families.read(fn)
        if name != "spike-and-slab":  # of its slab
            np.testing.assert_allclose(q.standard_deviation, jnp.sqrt(fn.variance), rtol=1e-5)
            np.testing.assert_allclose(q.snr, abs(fn.mean) / jnp.sqrt(fn.variance), rtol=1e-5)
            np.testing.assert_allclose(q.magnitude, abs(fn.mean), rtol=1e-5)

    def test_what_has_no_family_says_so(self):
        assert families.read(dist.Cauchy(0.0, 1.0)) is None
        assert (
            families.read(dist.Normal(0.0, 1.0).expand([2]).mask(jnp.array([True, False]))) is None
        )
        assert families.read(dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))) is None
        with pytest.raises(TypeError, match="removed: no element can be removed"):
            families.removed(reduction.ImproperLogUniform(jnp.ones(2)), KEEP)

    def test_an_affine_transform_of_a_laplace_is_a_laplace(self):
        steps = [transforms.AffineTransform(1.0, -2.0), transforms.AffineTransform(0.5, 3.0)]
        fn = dist.TransformedDistribution(dist.Laplace(jnp.array([0.0, 1.0]), 0.4), steps)
        q = families.read(fn)
        assert isinstance(q, reduction.Laplace)
        value = jnp.array([0.7, -1.3])
        expected = dist.Laplace(q.loc, q.scale).log_prob(value)
        np.testing.assert_allclose(fn.log_prob(value), expected, rtol=1e-5)
        exp = [transforms.ExpTransform()]
        assert families.read(dist.TransformedDistribution(dist.Laplace(0.0, 1.0), exp)) is None


PAIRS = {
    "normal from Laplace": (dist.Normal(0.4, 0.3), dist.Laplace(0.1, 0.8)),
    "Laplace from Laplace": (dist.Laplace(0.4, 0.3), dist.Laplace(0.1, 0.8)),
    "Laplace from normal": (dist.Laplace(0.4, 0.3), dist.Normal(0.1, 0.8)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_divergences_agree_with_draws_and_are_zero_where_pruned(pair):
    q, p = PAIRS[pair]
    value = q.sample(KEY, (200_000,))
    log_ratio = np.asarray(q.log_prob(value) - p.log_prob(value), np.float64)
    found = kl_divergence(q, p)
    np.testing.assert_allclose(found, log_ratio.mean(), atol=5 * log_ratio.std() / np.sqrt(2e5))
    wide = [families.pruned(fn.expand([3]).to_event(1), KEEP, name="w") for fn in (q, p)]
    np.testing.assert_allclose(kl_divergence(*wide), 2 * found, rtol=1e-5)


# --- a program with Laplace priors -------------------------------------------------------------


def lasso(x, y=None, *, posterior=None):
    prior = dist.Laplace(0.0, 0.5).expand([x.shape[1]]).to_event(1)
    infer = {} if posterior is None else {"posterior": posterior}
    beta = numpyro.sample("beta", prior, infer=infer)
    numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)


TRUE = np.array([1.0, -0.7, 0.0, 0.0, 0.0])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(60, 5)))[0] * np.sqrt(60)  # orthogonal columns
    y = x @ TRUE + 0.3 * rng.normal(size=60)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def exact_delta_f(x, y, scale=0.5, noise=0.3):
    """ln of the evidence without over with each coefficient, which are independent here, by quadrature."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    grid = np.linspace(-3, 3, 600_001)
    found = []
    for column in x.T:
        precision = column @ column / noise**2
        mean = column @ y / noise**2 / precision
        log_likelihood = -0.5 * precision * ((grid - mean) ** 2 - mean**2)
        joint = np.exp(log_likelihood + stats.laplace.logpdf(grid, 0, scale))
        found.append(-np.log(joint.sum() * (grid[1] - grid[0])))
    return np.array(found)


@functools.cache
def fitted(guide, posterior=None):
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(60, 5)))[0] * np.sqrt(60)
    y = x @ TRUE + 0.3 * rng.normal(size=60)
    batch = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    program = functools.partial(lasso, posterior=posterior)
    family = reduction.Normal if posterior is None else reduction.Laplace
    return batch, bmr.sparsify(
        program,
        batch,
        key=jax.random.key(1),
        guide=guide(program) if guide else None,
        criterion=criteria.SpikeAndSlab(family=family),
        schedule=schedules.Every(wait=8),
        batch_size=None,
        num_epochs=12,
        progress=False,
    )


@pytest.mark.parametrize(
    ("guide", "posterior"),
    [
        (None, None),
        pytest.param(infer.AutoMeanField, None, marks=pytest.mark.slow),
        (infer.AutoMeanField, "laplace"),
    ],
)
def test_sparsify_finds_the_coefficients_under_a_laplace_prior(guide, posterior):
    (x, y), result = fitted(guide, posterior)
    if guide is None:
        assert type(result.unpruned_guide) is infer.AutoMultivariate
    np.testing.assert_array_equal(result.keep["beta"], TRUE != 0)
    assert result.inspection["beta"].judged
    q = result.posterior(x)["beta"]
    assert type(q) is (reduction.Normal if posterior is None else reduction.Laplace)
    np.testing.assert_allclose(q.loc[:2], TRUE[:2], atol=0.15)
    np.testing.assert_array_equal(q.loc[2:], 0.0)
    np.testing.assert_array_equal(q.scale[2:], 0.0)
    table = result.summary(x)
    np.testing.assert_allclose(table["sd"][:2], np.asarray(q.standard_deviation)[:2], rtol=1e-5)
    assert (table["mean"][2:] == 0).all()
    drawn = result.sample(KEY, 4000, x)["beta"]
    np.testing.assert_allclose(drawn[:, :2].std(0), q.standard_deviation[:2], rtol=0.1)
    np.testing.assert_array_equal(drawn[:, 2:], 0.0)


def fit_whole(program, guide, batch, loss, steps=3000):
    svi = SVI(program, guide, numpyro.optim.Adam(lambda i: 0.02 * 0.998**i), loss)
    state = svi.init(KEY, *batch)
    state, _ = jax.jit(lambda s: jax.lax.scan(lambda s, _: svi.update(s, *batch), s, length=steps))(
        state
    )
    return svi.get_params(state)


def test_predicted_evidence_differences_agree_with_the_exact_ones(data):
    # The columns are orthogonal, so the exact posterior factorises, and is nearly normal.
    guide = infer.AutoMeanField(lasso)
    params = fit_whole(lasso, guide, data, TraceMeanField_ELBO())
    found = bmr.site_posteriors(lasso, guide, params, *data)
    assert found.unread == {}
    assert isinstance(found.prior["beta"], reduction.Laplace)
    exact = exact_delta_f(*data)
    predicted = reduction.delta_f_each(found.posterior["beta"], found.prior["beta"])
    # Of those that are far from zero, which a normal says less of, the sign and the size.
    np.testing.assert_allclose(predicted[2:], exact[2:], atol=0.15)
    np.testing.assert_array_equal(predicted[:2] < -50, exact[:2] < -50)
    for criterion in (criteria.SpikeAndSlab(), criteria.Shrinkage()):
        np.testing.assert_array_equal(criterion(found).keep["beta"], exact < 0)
    narrow = criteria.Shrinkage(variance=1e-12)(found).delta_f["beta"]
    np.testing.assert_allclose(narrow[2:], predicted[2:], atol=1e-3)
    with pytest.raises(
        TypeError, match=r"RegularizedHorseshoe reads normal posteriors under normal"
    ):
        criteria.RegularizedHorseshoe(0.1)(found)


def test_without_sampling_the_loss_is_that_of_many_samples(data):
    guide = infer.AutoMeanField(lasso)
    svi = SVI(lasso, guide, numpyro.optim.Adam(0.1), TraceMeanField_ELBO())
    params = svi.get_params(svi.init(KEY, *data))
    closed = infer.PropagatedELBO("moments").loss(KEY, params, lasso, guide, *data)
    each = jax.jit(
        jax.vmap(lambda key: TraceMeanField_ELBO().loss(key, params, lasso, guide, *data))
    )(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(closed, each.mean(), atol=5 * float(each.std()) / np.sqrt(4000))
    # The divergence of a Laplace prior is closed too, so that no draw of it is in the loss.
    again = infer.PropagatedELBO("moments").loss(jax.random.key(1), params, lasso, guide, *data)
    np.testing.assert_allclose(closed, again, rtol=1e-6)


def test_a_guide_written_by_hand_may_have_laplace_sites(data):
    def guide(x, y=None):
        del y
        loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
        scale = numpyro.param("scale", jnp.ones(x.shape[1]))
        numpyro.sample("beta", dist.Laplace(loc, scale).to_event(1))

    params = {"loc": jnp.arange(5.0), "scale": jnp.full(5, 0.02)}
    found = bmr.site_posteriors(lasso, guide, params, *data)
    q = found.posterior["beta"]
    assert isinstance(q, reduction.Laplace)
    np.testing.assert_array_equal(q.loc, jnp.arange(5.0))
    keep = criteria.SpikeAndSlab(family=reduction.Laplace)(found).keep["beta"]
    np.testing.assert_array_equal(keep, [False, True, True, True, True])
    assert not criteria.SpikeAndSlab().reads(q, found.prior["beta"])


def test_only_sites_on_the_real_line_may_ask_for_a_laplace_posterior():
    def positive():
        numpyro.sample("rate", dist.Gamma(1.0, 1.0), infer={"posterior": "laplace"})

    with pytest.raises(
        ValueError, match="'rate' asks for a Laplace posterior, and its prior is not"
    ):
        SVI(positive, infer.AutoMeanField(positive), numpyro.optim.Adam(0.1), Trace_ELBO()).init(
            KEY
        )


# --- what a guide says of its posteriors -------------------------------------------------------


def mixed():
    numpyro.sample("normal", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    numpyro.sample("spiked", families.DiscreteSpikeAndSlab(0.0, 1.0, 0.0).expand([3]).to_event(1))
    numpyro.sample("noise", families.PerDatum(families.TruncatedLogUniform(jnp.full(3, -20.0))))
    numpyro.sample("positive", dist.HalfNormal(1.0))
    asks = {"infer": {"posterior": "gamma"}}
    numpyro.sample("rate", dist.Gamma(2.0, 1.0), **asks)
    numpyro.sample("point", dist.Normal(0.0, 1.0), infer={"posterior": "point"})


def test_a_guide_says_what_the_distributions_of_its_sites_are():
    guide = infer.AutoMeanField(mixed)
    svi = SVI(mixed, guide, numpyro.optim.Adam(0.1), TraceMeanField_ELBO())
    params = svi.get_params(svi.init(KEY))
    params = {n: v + 0.1 * jax.random.uniform(KEY, jnp.shape(v)) for n, v in params.items()}
    found = guide.posterior(params, {})
    assert set(found) == {"normal", "spiked", "noise"}
    substituted = numpyro.handlers.substitute(numpyro.handlers.seed(guide, KEY), data=params)
    for step in (None, 3):
        program = substituted if step is None else at_step(substituted, step)
        trace = numpyro.handlers.trace(draws(program, None)).get_trace()
        for name, q in found.items():
            read = families.read(trace[name]["fn"])
            assert type(read) is type(q)
            for ours, theirs in zip(jax.tree.leaves(q), jax.tree.leaves(read), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_a_joint_guide_says_what_the_kept_elements_are_given_zeros(data):
    guide = infer.AutoMultivariate(lasso)
    svi = SVI(lasso, guide, numpyro.optim.Adam(0.1), Trace_ELBO())
    params = svi.get_params(svi.init(KEY, *data))
    keep = {"beta": jnp.array([True, True, False, True, True])}
    q = guide.posterior(params, keep)["beta"]
    assert isinstance(q, reduction.Normal)
    assert (q.scale > 0).all()
    removed = families.removed(q, keep["beta"])
    drawn = prune(guide, keep)
    trace = jax.vmap(
        lambda key: numpyro.handlers.seed(numpyro.handlers.substitute(drawn, params), key)(*data)
    )(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(trace["beta"].std(0), removed.scale, rtol=0.06, atol=1e-6)
