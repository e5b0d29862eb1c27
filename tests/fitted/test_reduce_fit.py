"""Reduction of finished fits, against exact enumeration of conjugate models."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from exact_regression import Linear
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation, AutoNormal
from scipy import stats

import bmrjax as bmr
from bmrjax import infer, reduction
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.normality import tail_shape
from bmrjax.fitted.swept import Precision, Swept


def svi(model, guide, data, steps=10):
    fit = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO())
    return fit.run(jax.random.key(1), steps, *data, progress_bar=False).params


# --- exact posteriors ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_posterior_gives_what_enumeration_gives(seed):
    exact = Linear(8, seed=seed)
    found = bmr.reduce_fit(**exact.arrays)
    inclusion, chosen = exact.enumerated()
    np.testing.assert_allclose(found.inclusion_prob["z"], inclusion, atol=1e-6)
    np.testing.assert_array_equal(found.chosen["z"], chosen)
    np.testing.assert_array_equal(found.median["z"], inclusion > 0.5)
    masks, evidence = exact.submodels
    best = found.models().iloc[0]
    _, posterior = exact.posterior()
    at = np.argmax(posterior)
    assert best["delta_f"] == pytest.approx(evidence[at] - evidence[0], abs=1e-5)
    assert best["prob"] == pytest.approx(posterior.max(), abs=1e-6)
    prob = found.models()["prob"]
    assert prob.is_monotonic_decreasing
    assert len(prob) >= 64
    assert len(prob) >= np.sum(posterior > posterior.max() / 20)


def test_evidences_are_those_of_the_closed_forms(x64):
    exact = Linear(8, seed=3)
    posterior = reduction.MultivariateNormal(
        jnp.asarray(exact.loc), jnp.linalg.cholesky(exact.covariance)
    )
    prior = reduction.Normal(jnp.zeros(8), jnp.full(8, exact.prior_scale))
    found = bmr.reduce_fit(loc=exact.loc, covariance=exact.covariance, prior=prior)
    np.testing.assert_allclose(
        found.delta_f["z"], reduction.delta_f_each(posterior, prior), rtol=1e-9
    )
    keep = found.chosen["z"]
    chosen = float(reduction.remove(posterior, prior, keep).delta_f)
    assert found.models()["delta_f"][0] == pytest.approx(chosen, rel=1e-9)
    for i in range(8):
        other = keep.copy()
        other[i] = not other[i]
        changed = float(reduction.remove(posterior, prior, other).delta_f) - chosen
        expected = changed if keep[i] else -changed
        assert found.delta_f_given["z"][i] == pytest.approx(expected, abs=1e-9)


def test_averages_are_those_of_the_mixture():
    exact = Linear(5, seed=4)
    found = bmr.reduce_fit(**exact.arrays)
    masks, weight = exact.posterior()
    rng = np.random.default_rng(0)
    draws = np.zeros((200_000, 5))
    which = rng.choice(len(masks), len(draws), p=weight)
    for m in np.unique(which):
        inside, rows = masks[m], np.flatnonzero(which == m)
        precision = np.linalg.inv(exact.covariance)[np.ix_(inside, inside)]
        covariance = np.linalg.inv(precision)
        eta = (exact.x.T @ exact.y / exact.noise_scale**2)[inside]
        sample = rng.multivariate_normal(covariance @ eta, covariance, len(rows))
        draws[np.ix_(rows, inside)] = sample
    # Tolerances: four Monte Carlo standard errors of 200,000 draws with deviations up to 0.2.
    np.testing.assert_allclose(found.mean["z"], draws.mean(0), atol=0.002)
    np.testing.assert_allclose(found.sd["z"], draws.std(0), atol=0.002)
    lower, upper = np.quantile(draws, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(found.lower["z"], lower, atol=0.01)
    np.testing.assert_allclose(found.upper["z"], upper, atol=0.01)


def test_an_element_that_the_data_do_not_inform_keeps_its_prior_odds():
    prior = reduction.Normal(jnp.zeros(2), jnp.asarray([1.3, 0.4]))
    covariance = np.diag(np.asarray(prior.scale, np.float64) ** 2)
    found = bmr.reduce_fit(loc=np.zeros(2), covariance=covariance, prior=prior, expected=0.5)
    np.testing.assert_allclose(found.delta_f["z"], 0.0, atol=1e-12)
    np.testing.assert_allclose(found.inclusion_prob["z"], 0.25)


def test_a_swept_submodel_stays_exact():
    exact = Linear(7, seed=5)
    normal = bmr.fitted.joint_normal.JointNormal(
        exact.loc, exact.covariance, np.full(7, 0.1), np.full(7, 0.9)
    )
    precision = Precision(normal, [np.array([0, 3]), *(np.array([i]) for i in (1, 2, 4, 5))])
    swept, rng = Swept(precision, np.ones(5, bool)), np.random.default_rng(0)
    for unit in rng.integers(0, 5, 300):
        before = swept.delta_f()
        gain = swept.log_bayes_factors()
        assert gain[unit] == pytest.approx(swept.log_bayes_factor(unit), rel=1e-9)
        sign = -1 if swept.mask[unit] else 1
        swept.flip(unit)
        assert swept.delta_f() - before == pytest.approx(sign * gain[unit], abs=1e-8)
    afresh = Swept(precision, swept.mask)
    np.testing.assert_allclose(swept.moments(), afresh.moments(), rtol=1e-9)


# --- draws --------------------------------------------------------------------------------


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(("expected", "draws"), [(5.0, 4000), (None, 16_000)])
@pytest.mark.parametrize("seed", range(3))
def test_draws_come_close_to_enumeration(seed, expected, draws):
    exact = Linear(10, seed=10 + seed)
    found = bmr.reduce_fit(
        exact.draws(draws, seed=seed), model=exact.model, data=exact.data, expected=expected
    )
    inclusion, _ = exact.enumerated(expected)
    # The covariance of 4,000 draws has a relative error of some 2 %. Uniform sizes carry an error of one
    # evidence on to the other candidates.
    np.testing.assert_allclose(found.inclusion_prob["beta"], inclusion, atol=0.05)
    assert found.pareto_k < 0.5
    assert not found.findings


def test_chains_and_names_of_a_table():
    exact = Linear(4, seed=0)
    x, y = exact.data
    draws = exact.draws()["beta"].reshape(4, 1000, 4)
    table = pd.DataFrame(x, columns=["age", "bmi", "bp", "sex"])
    found = bmr.reduce_fit({"beta": draws}, model=exact.model, data=(table, y), verify=True)
    rows = found.table()
    assert list(rows["element"]) == ["age", "bmi", "bp", "sex"]
    assert rows["kept"].tolist() == found.chosen["beta"].tolist()
    assert "age" in str(found)
    assert "covers the posterior" in str(found)
    assert "sex" in found.models().columns
    # The submodel's evidence, measured with the program, is the exact one.
    check = found.verification
    actual = exact.log_evidence(found.chosen["beta"]) - exact.log_evidence(np.ones(4, bool))
    assert check.measured[0] == pytest.approx(actual, abs=0.02)
    assert check.predicted[0] == pytest.approx(actual, abs=0.2)
    assert check.pareto_k.max() < 0.5
    inclusion, _ = exact.enumerated()
    np.testing.assert_allclose(found.inclusion_prob["beta"], inclusion, atol=0.01)
    assert found.models()["measured_prob"].sum() == pytest.approx(found.models()["prob"].sum())
    assert "predicted_inclusion_prob" in found.table()


def test_single_precision_is_enough_for_nearly_collinear_columns():
    exact = Linear(4, seed=1)
    exact.x[:, 1] = exact.x[:, 0] + 1e-3 * exact.x[:, 3]
    precision = exact.x.T @ exact.x / exact.noise_scale**2 + np.eye(4) / exact.prior_scale**2
    exact.covariance = np.linalg.inv(precision)
    exact.loc = exact.covariance @ exact.x.T @ exact.y / exact.noise_scale**2
    assert exact.covariance[0, 1] ** 2 > 0.98 * exact.covariance[0, 0] * exact.covariance[1, 1]
    draws = exact.draws()["beta"]
    found = [
        bmr.reduce_fit({"beta": d}, model=exact.model, data=exact.data)
        for d in (draws, np.float32(draws))
    ]
    for name in ("inclusion_prob", "delta_f", "mean", "sd"):
        one, other = (getattr(each, name)["beta"] for each in found)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    inclusion, _ = exact.enumerated()
    np.testing.assert_allclose(found[1].inclusion_prob["beta"], inclusion, atol=0.05)


def test_a_covariance_that_single_precision_cannot_hold_is_refused():
    near = np.array([[1.0, 1 - 1e-6], [1 - 1e-6, 1.0]])
    prior = reduction.Normal(jnp.zeros(2), jnp.full(2, 1.3))
    assert bmr.reduce_fit(loc=np.ones(2), covariance=near, prior=prior).candidates == ("0", "1")
    with pytest.raises(ValueError, match="give the covariance in double precision"):
        bmr.reduce_fit(loc=np.ones(2), covariance=np.float32(near), prior=prior)


def test_a_tree_of_arviz_is_taken():
    xr = pytest.importorskip("xarray")
    exact = Linear(4, seed=0)
    draws = exact.draws()["beta"]
    variables = {"beta": (("chain", "draw", "beta_dim"), draws.reshape(4, 1000, 4))}
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(variables)})
    found = bmr.reduce_fit(tree, model=exact.model, data=exact.data)
    same = bmr.reduce_fit({"beta": draws}, model=exact.model, data=exact.data)
    np.testing.assert_allclose(found.inclusion_prob["beta"], same.inclusion_prob["beta"])


# --- other fits ---------------------------------------------------------------------------


def _logistic(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1.3).expand([6]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)


@pytest.fixture(scope="module")
def logistic_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    logits = 0.3 + x @ np.array([1.2, 0, -1, 0, 0, 0])
    return x, (rng.random(400) < 1 / (1 + np.exp(-logits))).astype(np.int32)


def test_a_logistic_regression_by_nuts_and_by_laplace(logistic_data):
    mcmc = MCMC(NUTS(_logistic), num_warmup=200, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(0), *logistic_data)
    by_nuts = bmr.reduce_fit(mcmc, data=logistic_data)
    guide = AutoLaplaceApproximation(_logistic)
    params = svi(_logistic, guide, logistic_data, 1000)
    by_laplace = bmr.reduce_fit(guide, params=params, data=logistic_data)
    for found in (by_nuts, by_laplace):
        assert found.chosen["beta"].tolist() == [True, False, True, False, False, False]
        assert found.pareto_k < 0.7
        assert "'intercept': one element" in str(found)
    one, other = by_nuts.inclusion_prob["beta"], by_laplace.inclusion_prob["beta"]
    np.testing.assert_allclose(one, other, atol=0.08)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("make", [AutoNormal, infer.AutoMeanField, infer.AutoMultivariate])
def test_guides_are_read_in_closed_form(make):
    exact = Linear(4, seed=0)
    guide = make(exact.model)
    params = svi(exact.model, guide, exact.data)
    found = bmr.reduce_fit(guide, params=params, data=exact.data)
    assert "in closed form" in str(found)
    q = bmr.site_posteriors(exact.model, guide, params, *exact.data)
    expected = reduction.delta_f_each(q.posterior["beta"], q.prior["beta"])
    np.testing.assert_allclose(found.delta_f["beta"], expected, rtol=1e-3, atol=1e-3)


def test_a_result_goes_in_with_what_it_has_removed():
    exact = Linear(6, seed=0)
    result = bmr.sparsify(
        exact.model, exact.data, key=jax.random.key(0), num_epochs=30, progress=False
    )
    found = bmr.reduce_fit(result, data=exact.data)
    removed = ~np.asarray(result.keep["beta"])
    assert 0 < removed.sum() < 6
    assert (found.inclusion_prob["beta"][removed] == 0).all()
    assert np.isnan(found.delta_f["beta"][removed]).all()
    assert found.chosen["beta"][:2].all()


@pytest.mark.parametrize("shape", [0.3, 1.0])
def test_the_shape_of_a_tail_is_that_of_the_weights(shape):
    weights = shape * np.random.default_rng(0).exponential(size=4000)
    # The standard error of the shape from 190 draws of the tail is (1 + shape) / 14.
    assert tail_shape(weights) == pytest.approx(shape, abs=0.3)
    assert tail_shape(-weights) < 0.1
    assert tail_shape(np.full(4000, -np.inf)) == np.inf


def _banana(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1.3).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(beta[0] + beta[1] ** 2 + 0 * x, 0.1), obs=y)


def test_a_posterior_like_a_banana_is_not_to_be_trusted():
    rng = np.random.default_rng(0)
    b = np.random.default_rng(1).normal(0, 1.3, 200_000)
    a = 0.5 - b**2 + 0.02 * rng.normal(size=b.size)
    weight = stats.norm.pdf(a, 0, 1.3)
    pick = rng.choice(b.size, 4000, p=weight / weight.sum())
    draws = {"beta": np.stack([a[pick], b[pick]], 1)}
    data = np.zeros(25, np.float32), np.full(25, 0.5, np.float32)
    with pytest.warns(bmr.FitWarning, match="Do not trust this"):
        found = bmr.reduce_fit(draws, model=_banana, data=data)
    assert found.pareto_k > 0.7
    assert "do not trust this" in str(found)
    assert [finding.code for finding in found.findings] == ["not-normal"]


# --- what is refused ----------------------------------------------------------------------


def _hierarchy(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0, scale).expand([4]).to_event(1))
    tail = numpyro.sample("tail", dist.Laplace(0, 1).expand([4]).to_event(1))
    gamma = numpyro.sample("gamma", dist.Normal(0, 2.0).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ (beta + gamma + tail), 0.5), obs=y)


def test_a_latent_scale_is_refused_by_name():
    exact = Linear(4, seed=0)
    draws = {
        **{n: exact.draws()["beta"] for n in ("beta", "gamma", "tail")},
        "scale": np.ones(4000),
    }
    with pytest.raises(ValueError, match=r"\['beta'\] cannot be judged.*\['gamma'\]") as error:
        bmr.reduce_fit(draws, model=_hierarchy, data=exact.data, sites=["beta"])
    assert "the scale of its prior is latent" in str(error.value)
    assert "reparam.LocScaleReparam(centered=0)" in str(error.value)
    with pytest.raises(ValueError, match="its prior is Laplace"):
        bmr.reduce_fit(draws, model=_hierarchy, data=exact.data, sites=["tail"])


def test_a_flat_prior_of_the_intercept_does_not_matter():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = 2.0 + x[:, 0] + 0.2 * x[:, 1] + 0.5 * rng.normal(size=60)
    centred = x - x.mean(0)
    covariance = np.linalg.inv(centred.T @ centred / 0.25 + np.eye(3))
    loc = covariance @ centred.T @ y / 0.25
    beta = rng.multivariate_normal(loc, covariance, 4000)
    level = y.mean() - beta @ x.mean(0) + rng.normal(size=4000) * 0.5 / np.sqrt(60)

    def model(x, y=None):
        flat = dist.ImproperUniform(dist.constraints.real, (), ())
        level = numpyro.sample("level", flat)
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(level + x @ beta, 0.5), obs=y)

    found = bmr.reduce_fit({"level": level, "beta": beta}, model=model, data=(x, y))
    exact = bmr.reduce_fit(loc=loc, covariance=covariance, prior=bmr.reduction.Normal(0.0, 1.0))
    np.testing.assert_allclose(
        found.inclusion_prob["beta"], np.ravel(list(exact.inclusion_prob.values())), atol=0.02
    )


def test_the_reparametrised_hierarchy_is_judged():
    from numpyro.infer.reparam import LocScaleReparam

    exact = Linear(4, seed=0)
    model = numpyro.handlers.reparam(_hierarchy, config={"beta": LocScaleReparam(centered=0)})
    draws = {"beta_decentered": exact.draws()["beta"]}
    found = bmr.reduce_fit(draws, model=model, data=exact.data, sites=["beta_decentered"])
    assert found.inclusion_prob["beta_decentered"].shape == (4,)
    assert "normality was not checked: there are no draws of" in str(found)


def _with(draws, **changes):
    return {**draws, **changes}


EXACT = Linear(4, seed=0)
DRAWS = EXACT.draws()
BETA = DRAWS["beta"]


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (
            {"beta": np.where(np.arange(4000)[:, None] == 7, np.nan, BETA)},
            "1 of 4000 draws are not",
        ),
        ({"beta": BETA[:9]}, "9 draws are too few.*at least 10 are needed"),
        ({"beta": BETA * np.array([1, 1, 0, 1])}, "'2' do not vary"),
        ({"beta": BETA[:, [0, 1, 2, 2]]}, "'2', '3' determine each other, up to rounding"),
        ({"beta": BETA[:, :3]}, r"have shape \(4000, 3\); the site has shape \(4,\)"),
        ({"gamma": BETA}, r"no draws of the judged sites \['beta'\]"),
    ],
)
def test_bad_draws_are_refused(draws, message):
    with pytest.raises(ValueError, match=message):
        bmr.reduce_fit(draws, model=EXACT.model, data=EXACT.data)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sites": ["delta"]}, ValueError, r"no sites \['delta'\]; its sample sites are"),
        ({"sites": []}, ValueError, "sites is empty"),
        ({"sites": "beta"}, TypeError, r"sites=\['beta'\]"),
        ({"names": ["a", "b"]}, ValueError, "names has 2 names, and no judged site"),
        ({"names": ["a", "b", "c", "a"]}, ValueError, r"\['a'\] of 'beta' occur more than once"),
        (
            {"names": {"gamma": list("abcd")}},
            ValueError,
            r"sites \['gamma'\], which are not judged",
        ),
        ({"groups": {"g": ["a"]}}, ValueError, "the group 'g' names 'a', and there is no judged"),
        ({"groups": {"g": [0, 9]}}, ValueError, "has the number 9"),
        ({"groups": {"g": [0], "h": [0, 1]}}, ValueError, "'0' is in the groups 'g' and 'h'"),
        ({"groups": {"g": []}}, ValueError, "the group 'g' is empty"),
        ({"groups": {"g": [0, 1]}, "forced": [0]}, ValueError, "a part of the group 'g'"),
        ({"forced": ["beta"]}, ValueError, "every element is forced"),
        ({"forced": "beta"}, TypeError, r"forced=\['beta'\]"),
        ({"expected": 4}, ValueError, "between 0 and 4, got 4"),
        ({"loc": np.zeros(4)}, TypeError, "leave them out where `fit` is given"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        bmr.reduce_fit(DRAWS, model=EXACT.model, data=EXACT.data, **options)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"prior": None}, TypeError, r"prior=reduction.Normal\(loc, scale\)"),
        ({"prior": 1.0}, TypeError, "got float"),
        ({"loc": np.zeros((2, 2))}, ValueError, r"loc has shape \(2, 2\)"),
        ({"covariance": np.eye(3)}, ValueError, r"covariance has shape \(3, 3\)"),
        ({"covariance": np.ones((4, 4))}, ValueError, "determine each other, up to rounding"),
        ({"covariance": np.eye(4) + np.eye(4, k=1)}, ValueError, "not symmetric"),
        ({"covariance": np.diag([1.0, 1, 0, 1])}, ValueError, "'2' have no posterior"),
        ({"loc": np.array([0, np.inf, 0, 0])}, ValueError, "loc has values that are not finite"),
        ({"prior": reduction.Normal(jnp.zeros(3), jnp.ones(3))}, ValueError, "do not broadcast"),
        ({"prior": reduction.Normal(jnp.zeros(4), jnp.zeros(4))}, ValueError, "must be positive"),
        ({"verify": True}, TypeError, "arrays have no program"),
    ],
)
def test_bad_arrays_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        bmr.reduce_fit(**{**EXACT.arrays, **changes})


def test_fits_of_other_kinds_are_refused():
    with pytest.raises(TypeError, match="Give it as model="):
        bmr.reduce_fit(DRAWS)
    with pytest.raises(TypeError, match="got int"):
        bmr.reduce_fit(3)
    with pytest.raises(TypeError, match=r"needs its parameters: params=svi_result.params"):
        bmr.reduce_fit(AutoNormal(EXACT.model), data=EXACT.data)
    with pytest.raises(TypeError, match="AutoDelta is a point"):
        bmr.reduce_fit(AutoDelta(EXACT.model), params={}, data=EXACT.data)
    not_run = MCMC(NUTS(EXACT.model), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match="call its run first"):
        bmr.reduce_fit(not_run, data=EXACT.data)
    with pytest.raises(
        TypeError, match="params belongs to a guide or to draws; an MCMC has its own"
    ):
        bmr.reduce_fit(not_run, data=EXACT.data, params={})


def test_few_draws_and_disagreeing_chains_are_findings():
    apart = BETA.reshape(4, 1000, 4) + np.arange(4)[:, None, None]
    with pytest.warns(bmr.FitWarning) as caught:
        found = bmr.reduce_fit({"beta": apart}, model=EXACT.model, data=EXACT.data)
    assert {"few-draws", "chains-disagree"} <= {finding.code for finding in found.findings}
    assert any("R-hat" in str(warning.message) for warning in caught)


def test_a_prediction_that_the_program_contradicts_is_a_finding():
    spread = np.sqrt(np.diag(EXACT.covariance))
    wrong = EXACT.loc + 1.6 * (BETA - EXACT.loc) - spread
    with pytest.warns(bmr.FitWarning, match="nats from the measured one"):
        found = bmr.reduce_fit({"beta": wrong}, model=EXACT.model, data=EXACT.data, verify=True)
    assert found.findings[-1].code == "evidence-off"
    models = found.models()
    predicted = models.loc[models["prob"].idxmax(), list(found.candidates)].to_numpy(bool)
    full = EXACT.log_evidence(np.ones(4, bool))
    actual = EXACT.log_evidence(predicted) - full
    assert found.verification.measured[0] == pytest.approx(actual, abs=0.3)
    # What is chosen is the best by measured evidence, and is another one.
    assert not np.array_equal(found.chosen["beta"], predicted)
    actual = EXACT.log_evidence(found.chosen["beta"]) - full
    assert models["measured"][0] == pytest.approx(actual, abs=0.3)


def test_a_posterior_wider_than_its_prior_is_a_finding():
    exact = Linear(3, seed=0)
    wide = exact.covariance.copy()
    wide[1] = wide[:, 1] = 0.0
    wide[1, 1] = 1.5 * exact.prior_scale**2
    with pytest.warns(bmr.FitWarning, match="wider-than-prior: The posterior of '1' is wider"):
        found = bmr.reduce_fit(**(exact.arrays | {"covariance": wide}))
    assert [finding.code for finding in found.findings] == ["wider-than-prior"]
    wide[1, 1] = exact.prior_scale**2
    assert bmr.reduce_fit(**(exact.arrays | {"covariance": wide})).findings == ()


def test_noise_of_draws_is_not_taken_for_a_wide_posterior():
    exact = Linear(6, seed=0, rows=2)
    found = bmr.reduce_fit(exact.draws(800), model=exact.model, data=exact.data)
    # Two rows inform two directions; the other four are as wide as the prior, up to noise.
    assert "wider-than-prior" not in [finding.code for finding in found.findings]


@pytest.mark.usefixtures("all_compiled")
@pytest.mark.parametrize(("refit", "size"), [(None, 4), (False, 5)])
def test_other_data_of_the_same_shapes_compile_nothing(refit, size):
    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1.3).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y)

    compiled = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(duration)

    found = []
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for seed in range(2):
            exact = Linear(size, seed=seed)
            draws = exact.draws(500, seed=seed)
            found.append(bmr.reduce_fit(draws, model=model, data=exact.data, refit=refit))
            if not seed:
                assert compiled
                compiled.clear()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    # Below 20 data points per element: by default the normal is the program's own, which is exact.
    shapes = [one.pareto_k for one in found]
    assert shapes == [0, 0] if refit is None else 0 < min(shapes) < max(shapes) < 0.7
    assert found[0].inclusion_prob["beta"][3] != found[1].inclusion_prob["beta"][3]


def test_a_program_that_reads_values_of_its_data_is_evaluated():
    exact = Linear(3, seed=0)

    def model(x, y):
        scale = 1.3 if float(y.sum()) > -1e6 else 5.0
        beta = numpyro.sample("beta", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y)

    draws = exact.draws(1000)
    found = bmr.reduce_fit(draws, model=model, data=exact.data)
    plain = bmr.reduce_fit(draws, model=exact.model, data=exact.data)
    assert found.pareto_k == pytest.approx(plain.pareto_k, abs=1e-3)


def test_names_of_several_sites():
    layout = ElementLayout.of_sites({"a": (2,), "b": (), "c": (2, 2)}, {"c": ["x", "y"]})
    assert layout.label == ("a[0]", "a[1]", "b", "c[0, x]", "c[0, y]", "c[1, x]", "c[1, y]")
    assert layout.find("a", "forced") == [0, 1]
    assert layout.find("c[1, x]", "forced") == [5]
    assert layout.find("0, y", "forced") == [4]
    with pytest.raises(ValueError, match="Numbers count the elements of one"):
        layout.find(0, "forced")
    twice = ElementLayout.of_sites({"a": (2,), "b": (2,)}, ["x", "y"])
    with pytest.raises(ValueError, match=r"Write which one: \['a\[x\]', 'b\[x\]'\]"):
        twice.find("x", "forced")
    back = twice.by_site(np.arange(4.0), np.nan)
    np.testing.assert_array_equal(back["b"], [2, 3])
    np.testing.assert_array_equal(twice.flat(back), np.arange(4))
