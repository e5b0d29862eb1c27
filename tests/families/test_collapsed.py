"""The posterior of a precision that is computed from those of what it scales."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import SVI, TraceMeanField_ELBO

import bmrjax as bmr
from bmrjax import families, handlers, infer, priors
from bmrjax.families.collapsed import _LogNormal, log_precision
from bmrjax.infer.default_guide import default_guide

UNIT = 0.5


def site(loc, scale, keep=None):
    """A precision whose elements have the given posteriors."""
    said = {"scales": {"w": UNIT}, "name": "tau"}
    return families.GuideSite(
        "tau",
        dist.Gamma(2.0, 3.0),
        infer=said,
        normal_of=lambda name: (loc, scale, True if keep is None else keep),
    )


def expected_elbo(mean, width, loc, scale):
    """Return E[ln p(w | τ) + ln p(τ) − ln q(τ)] for ln τ ~ N(mean, width²), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    log_tau = mean + width * nodes
    tau = np.exp(log_tau)
    square = np.sum(loc**2 + scale**2) / UNIT**2
    terms = 0.5 * loc.size * log_tau - 0.5 * tau * square  # of the weights
    terms += 2.0 * log_tau - 3.0 * tau  # of the precision, with the Jacobian
    return np.sum(weights * terms) / np.sqrt(2 * np.pi) + np.log(width)


@pytest.mark.parametrize("size", [0, 1, 30])
def test_it_is_the_best_of_all_log_normals(size):
    rng = np.random.default_rng(size)
    loc, scale = rng.normal(size=size), rng.uniform(0.1, 0.5, size=size)
    mean, width = map(float, log_precision(site(jnp.asarray(loc), jnp.asarray(scale))))
    best = expected_elbo(mean, width, loc, scale)
    for step in (-0.02, 0.02):
        assert expected_elbo(mean + step, width, loc, scale) < best
        assert expected_elbo(mean, width * (1 + step), loc, scale) < best


def test_only_kept_elements_count():
    loc, scale = jnp.array([1.0, 50.0]), jnp.array([0.1, 9.0])
    half = log_precision(site(loc, scale, jnp.array([True, False])))
    one = log_precision(site(loc[:1], scale[:1]))
    np.testing.assert_allclose(half, one, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_large_and_small_weights_stay_finite_in_float32(size):
    loc = jnp.full(3, size)
    found = families.GuideSite(
        "tau",
        dist.Gamma(2.0, 2.0),
        infer={"scales": {"w": size}},
        normal_of=lambda name: (loc, loc, True),
    )
    assert np.isfinite(log_precision(found)).all()


def test_its_divergence_is_exact():
    q, p = _LogNormal(0.3, 0.4), dist.Gamma(2.0, 3.0)
    draws = q.sample(jax.random.key(0), (200_000,))
    monte_carlo = jnp.mean(q.log_prob(draws) - p.log_prob(draws))
    assert kl_divergence(q, p) == pytest.approx(float(monte_carlo), abs=0.01)


def data(rows=120):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8)).astype(np.float32)
    y = x[:, :2] @ np.array([1.0, -2.0]) + 0.3 * rng.normal(size=rows)
    return x, y.astype(np.float32)


def regression(prior):
    """A regression under a prior."""

    def program(x, y=None):
        beta = prior.sample("beta", (8,))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ beta, 0.3), obs=y)

    return program


def test_the_fit_reaches_the_vfe_of_a_learned_scale_and_keeps_what_matters():
    x, y = data()
    results = {}
    for collapsed in (False, True):
        program = regression(priors.Flat(collapsed=collapsed))
        results[collapsed] = bmr.sparsify(
            program,
            (x, y),
            key=jax.random.key(0),
            guide=infer.AutoMeanField(program),
            optimizer=optax.adabelief(3e-2),
            num_epochs=40,
            progress=False,
        )
    learned, collapsed = results[False], results[True]
    assert collapsed.vfe < learned.vfe + 0.5
    np.testing.assert_array_equal(np.flatnonzero(collapsed.keep["beta"]), [0, 1])
    # The weights themselves, and a precision that counts the two that are kept.
    np.testing.assert_allclose(collapsed.center(x)["beta"][:2], [1.0, -2.0], atol=0.1)
    q = collapsed.posterior()["beta"]
    square = np.sum(q.loc**2 + q.scale**2) / 0.1**2
    a, b = 2 + 0.5 * 2, 2 + 0.5 * square
    expected = float(a / b * np.exp(-0.5 / a))
    assert collapsed.center(x)["beta.weight_precision"].item() == pytest.approx(expected, rel=1e-4)
    median = collapsed.guide.median(collapsed.params)["beta.weight_precision"]
    assert median.item() == pytest.approx(expected, rel=1e-4)
    found = bmr.site_posteriors(collapsed.model, collapsed.guide, collapsed.params, x, y)
    assert found.prior["beta"].scale[0].item() == pytest.approx(0.1 / np.sqrt(expected), rel=1e-4)


def test_a_saved_result_is_read_again(tmp_path):
    x, y = data()
    program = regression(priors.Flat(collapsed=True))
    guide, key = infer.AutoMeanField(program), jax.random.key(0)
    result = bmr.sparsify(program, (x, y), key=key, guide=guide, num_epochs=4, progress=False)
    result.save(tmp_path / "run")
    again = bmr.load(tmp_path / "run", model=program)
    key = jax.random.key(1)
    expected, found = (r.evaluate(key, (x, y))["nll"] for r in (result, again))
    assert found == expected
    with pytest.raises(ValueError, match="weight_precision"):
        bmr.load(tmp_path / "run", model=regression(priors.Flat())).evaluate(key, (x, y))


def test_numpyro_svi_takes_it_in_scopes_and_plates():
    def program():
        with numpyro.plate("groups", 3):
            priors.Flat(collapsed=True).sample("w", (4,))

    scoped = numpyro.handlers.scope(program, prefix="one")
    for model, name in ((program, "w"), (scoped, "one/w")):
        guide = infer.AutoMeanField(model)
        svi = SVI(model, guide, optax.adabelief(0.05), TraceMeanField_ELBO(num_particles=4))
        fit = svi.run(jax.random.key(0), 300, progress_bar=False)
        # Nothing is observed: posterior and prior are one another's, as far as mean field allows.
        assert fit.losses[-1] < fit.losses[0]
        masks = {name: jnp.array([[True] * 4, [True] * 4, [False] * 4])}
        with handlers.known_masks(masks):
            centre = guide.median(fit.params)[f"{name}_precision".replace("w_", "w.weight_")]
        assert centre.shape == (3,)
        # The group without elements has the prior's best log-normal.
        assert centre[2].item() == pytest.approx(2.0 / 2.0 * np.exp(-0.5 / 2.0), rel=1e-4)


def test_what_it_cannot_do_is_refused_by_name():
    def program(**said):
        numpyro.sample("w", dist.Normal(0, 1))
        numpyro.sample("tau", said.pop("prior", dist.Gamma(1, 1)), infer=said)

    asks = {"posterior": "collapsed"}
    for said, message in [
        (asks, "name the sites"),
        (asks | {"scales": {"w": 1.0}, "prior": dist.HalfNormal(1.0)}, "not a Gamma"),
        (asks | {"scales": {"v": 1.0}}, "scales 'v', which is not a latent site"),
        (asks | {"scales": ["w"]}, "name the sites"),
        (asks | {"scales": {"w": 0.0}}, "must be positive"),
    ]:
        guide = infer.AutoMeanField(lambda said=said: program(**dict(said)))
        with pytest.raises(ValueError, match=message):
            numpyro.handlers.seed(guide, 0)()
    with pytest.raises(ValueError, match="must be numbers"):
        jax.jit(lambda scale: priors.Flat(scale, collapsed=True).sample("w", (2,)))(0.1)


@pytest.mark.slow
def test_members_of_an_ensemble_have_scales_of_their_own():
    x, y = data()
    program = regression(priors.Flat(collapsed=True))
    settings = dict(num_epochs=3, progress=False)
    keys, kind = jax.random.split(jax.random.key(0), 2), infer.AutoMeanField
    members = bmr.ensemble(program, (x, y), keys=keys, guide=kind, **settings)
    alone = bmr.sparsify(program, (x, y), key=keys[1], guide=kind(program), **settings)
    assert members[1].vfe == pytest.approx(alone.vfe, rel=1e-4)


def test_plain_coefficients_have_a_joint_posterior_by_default():
    program = regression(priors.Flat(collapsed=True))
    guide = default_guide(program, data(), criterion=bmr.criteria.SpikeAndSlab())
    assert guide is infer.AutoMultivariate


def test_plates_that_differ_and_sites_that_are_not_normal_are_refused():
    asks = {"posterior": "collapsed", "scales": {"w": 1.0}}

    def inner(subsample=None):
        w = dist.Normal(0, 1)
        with numpyro.plate("groups", 3, subsample_size=subsample, dim=-1):
            numpyro.sample("tau", dist.Gamma(1, 1), infer=asks)
            if subsample:
                numpyro.sample("w", w)
        if not subsample:
            with numpyro.plate("rows", 2, dim=-2), numpyro.plate("groups again", 3, dim=-1):
                numpyro.sample("w", w)

    def positive():
        numpyro.sample("tau", dist.Gamma(1, 1), infer=asks)
        numpyro.sample("w", dist.HalfNormal(1.0))

    for program, message in [
        (inner, "same plates"),
        (lambda: inner(2), "without subsampling"),
        (positive, "not normal"),
    ]:
        with pytest.raises(ValueError, match=message):
            numpyro.handlers.seed(infer.AutoMeanField(program), 0)()


def test_a_start_of_the_other_form_is_refused():
    x, y = data()
    network = bmr.zoo.MLP(8, (4,), 1, key=jax.random.key(0))
    learned, collapsed = (
        bmr.programs.regression(network, priors.Flat(collapsed=c)) for c in (False, True)
    )
    rows, settings = (x, y[:, None]), dict(num_epochs=1, steps_per_epoch=2, progress=False)
    first = bmr.sparsify(learned, rows, key=jax.random.key(0), criterion=None, **settings)
    with pytest.raises(ValueError, match=r"other form of priors\.Flat"):
        bmr.sparsify(
            collapsed,
            rows,
            key=jax.random.key(0),
            options=bmr.FitOptions(start=first),
            **settings,
        )


def test_a_weight_starts_as_wide_as_the_program_specifies():
    def program(**said):
        numpyro.sample("w", dist.Normal(0, 1), infer=said)

    guide = infer.AutoMeanField(lambda: program(init_scale=0.03), init_scale=0.5)
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        guide()
    assert trace["w_auto_scale"]["value"] == pytest.approx(0.03)
    with pytest.raises(ValueError, match="site 'w' has infer"):
        numpyro.handlers.seed(infer.AutoMeanField(lambda: program(init_scale=0.0)), 0)()
