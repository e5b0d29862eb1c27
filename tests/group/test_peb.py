"""Group studies, against one big Gaussian, against NUTS of the whole hierarchy, and over seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from group_study import NAMES, Study, fixed
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoLaplaceApproximation
from scipy import stats
from scipy.special import logsumexp

import bmrjax as bmr
from bmrjax import reduction
from bmrjax.group.between import VarianceComponents, integrate_level

# --- the exact hierarchical linear model --------------------------------------------------


def test_given_the_variances_everything_is_exact():
    study = Study()
    found = fixed(study)
    evidence, loc, covariance = study.whole(0.2)
    at = found._level.at(np.full((1, 3), np.log(0.2)))
    assert at.log_evidence[0] == pytest.approx(evidence - study.alone(), abs=1e-6)
    # Importance sampling of what does not vary: Monte Carlo error is all that is left.
    assert found._integral.error < 0.03
    assert found.delta_f == pytest.approx(at.log_evidence[0], abs=0.03)
    unit = np.concatenate([study.prior_scale, study.prior_scale / study.age.std()])
    np.testing.assert_allclose(np.concatenate(list(found.mean.values())), unit * loc, atol=1e-5)
    np.testing.assert_allclose(
        found.covariance, unit[:, None] * covariance * unit, rtol=1e-4, atol=1e-8
    )
    sd = unit * np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.concatenate(list(found.sd.values())), sd, rtol=1e-4)
    half = stats.norm.ppf(0.975) * sd
    np.testing.assert_allclose(
        np.concatenate(list(found.upper.values())), unit * loc + half, atol=1e-4
    )
    positive = stats.norm.cdf(loc / np.sqrt(np.diag(covariance)))
    np.testing.assert_allclose(found.table()["positive"], positive, atol=1e-4)


def test_given_the_variances_subjects_are_exact():
    study = Study(count=6)
    found = fixed(study)
    matrix, y = study.stacked
    count, n, rows = len(study.x), 3, study.rows
    design = np.kron(np.stack([np.ones(count), study.standard], 1), np.diag(study.prior_scale))
    prior = design @ design.T + np.kron(np.eye(count), np.diag((0.2 * study.prior_scale) ** 2))
    observe = np.zeros((count * rows, count * n))
    for i, x in enumerate(study.x):
        observe[i * rows : (i + 1) * rows, i * n : (i + 1) * n] = x
    gain = prior @ observe.T
    gain = gain @ np.linalg.inv(observe @ prior @ observe.T + study.noise_scale**2 * np.eye(len(y)))
    covariance = (prior - gain @ observe @ prior).reshape(count, n, count, n)
    np.testing.assert_allclose(found.subject_loc.ravel(), gain @ y, atol=1e-5)
    own = covariance[np.arange(count), :, np.arange(count)]
    np.testing.assert_allclose(found.subject_covariance, own, rtol=1e-3, atol=1e-7)
    shown = found.subject_table()
    np.testing.assert_allclose(shown["sd"], np.sqrt(np.einsum("inn->in", own)).ravel(), rtol=1e-3)


def test_the_gradient_in_the_variances_is_that_of_the_evidence():
    level = fixed(Study(count=5))._level
    at, step = np.array([-1.0, 0.4, -2.5]), 1e-5
    gradient = level.at(at[None]).gradient[0]
    for i, direction in enumerate(step * np.eye(3)):
        up, down = level.at(np.stack([at + direction, at - direction])).log_evidence
        assert gradient[i] == pytest.approx((up - down) / (2 * step), abs=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_the_integral_over_variances_is_that_of_quadrature(shared):
    study = Study(count=6)
    components = {"all": ["z"]} if shared else {"two": ["gain", "delay"]}
    found = bmr.peb(design={"age": study.age}, names=NAMES, components=components, **study.arrays)
    grid = np.linspace(-6, 6, 601 if shared else 121)
    step = grid[1] - grid[0]
    if shared:
        log_scale = np.log(0.25) + np.tile(grid[:, None], 3)
        log_prior = stats.norm.logpdf(grid) + np.log(step)
    else:
        one, other = (axis.ravel() for axis in np.meshgrid(grid, grid))
        log_scale = np.log(0.25) + np.stack([one, other, one], 1)
        log_prior = stats.norm.logpdf(one) + stats.norm.logpdf(other) + 2 * np.log(step)
    at = found._level.at(log_scale)
    log_weight = at.log_evidence + log_prior
    total = logsumexp(log_weight)
    weight = np.exp(log_weight - total)
    assert found.delta_f == pytest.approx(total, abs=0.05)
    loc = weight @ at.loc
    away = at.loc - loc
    covariance = np.einsum("b,bnm->nm", weight, at.covariance) + (weight * away.T) @ away
    unit, sd = found._unit, np.sqrt(np.diag(covariance))
    mean = np.concatenate(list(found.mean.values()))
    np.testing.assert_allclose(mean / unit, loc, atol=0.02 * sd.max())
    np.testing.assert_allclose(np.concatenate(list(found.sd.values())) / unit, sd, rtol=0.03)
    tau = weight @ np.exp(log_scale) * study.prior_scale
    np.testing.assert_allclose(found.between_sd, tau, rtol=0.03)
    assert found._integral.pareto_k < 0.7


@pytest.mark.slow
def test_many_components_keep_enough_nodes():
    rng = np.random.default_rng(0)
    count, n = 16, 20
    precision = np.stack([np.cov(rng.normal(size=(n, 60))) * 60 for _ in range(count)])
    covariance = np.linalg.inv(precision + np.eye(n))
    theta = 0.3 * rng.normal(size=(count, n))
    score = np.einsum("inm,im->in", precision, theta)
    loc = np.einsum("inm,im->in", covariance, score)
    found = bmr.peb(loc=loc, covariance=covariance, prior=reduction.Normal(0.0, 1.0))
    weight = found._integral.weight
    assert 1 / np.sum(weight**2) > 100
    assert found.findings == ()


# --- NUTS of the whole hierarchy ----------------------------------------------------------


@pytest.mark.slow
def test_effects_and_subjects_are_those_of_nuts_of_the_whole_hierarchy():
    study = Study(count=8)
    x, y = jnp.asarray(np.array(study.x), jnp.float32), jnp.asarray(np.array(study.y), jnp.float32)
    sigma, standard = jnp.asarray(study.prior_scale, jnp.float32), jnp.asarray(study.standard)

    def hierarchy(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        log_tau = numpyro.sample("log_tau", dist.Normal(np.log(0.25), 1).expand([3]).to_event(1))
        noise = numpyro.sample("noise", dist.Normal(0, 1).expand([len(x), 3]).to_event(2))
        theta = beta[0] + standard[:, None] * beta[1] + jnp.exp(log_tau) * noise
        theta = numpyro.deterministic("theta", theta * sigma)
        mean = jnp.einsum("irn,in->ir", x, theta)
        numpyro.sample("y", dist.Normal(mean, study.noise_scale).to_event(2), obs=y)

    mcmc = MCMC(NUTS(hierarchy), num_warmup=1000, num_samples=8000, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y)
    draws = mcmc.get_samples()
    found = bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays)
    beta = np.asarray(draws["beta"], np.float64) * study.prior_scale
    scale = {"mean": 1.0, "age": study.age.std()}
    for k, name in enumerate(found.covariates):
        sd = beta[:, k].std(0)
        # A tenth of a posterior deviation; Monte Carlo error of 8,000 draws is some hundredths.
        assert np.max(np.abs(found.mean[name] * scale[name] - beta[:, k].mean(0)) / sd) < 0.1
        np.testing.assert_allclose(found.sd[name] * scale[name], sd, rtol=0.1)
        ends = np.quantile(beta[:, k], [0.025, 0.975], axis=0)
        assert np.max(np.abs(found.lower[name] * scale[name] - ends[0]) / sd) < 0.2
        assert np.max(np.abs(found.upper[name] * scale[name] - ends[1]) / sd) < 0.2
    theta = np.asarray(draws["theta"], np.float64)
    assert np.max(np.abs(found.subject_loc - theta.mean(0)) / theta.std(0)) < 0.1
    sd = np.sqrt(np.einsum("inn->in", found.subject_covariance))
    np.testing.assert_allclose(sd, theta.std(0), rtol=0.1)
    tau = np.exp(np.asarray(draws["log_tau"], np.float64)) * study.prior_scale
    assert np.max(np.abs(found.between_sd - tau.mean(0)) / tau.std(0)) < 0.15


def subject_model(x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0, 1.5).expand([2]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 2.0))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ theta).to_event(1), obs=y)


@pytest.fixture(scope="module")
def logistic():
    """Fits of six subjects with 300 trials each, by NUTS and by Laplace's approximation."""
    rng = np.random.default_rng(3)
    theta = np.array([1.0, 0.0]) + 0.2 * rng.normal(size=(6, 2))
    theta[3:, 1] += 1.2
    x = rng.normal(size=(6, 300, 2)).astype(np.float32)
    logits = np.einsum("irn,in->ir", x, theta) - 0.5
    y = (rng.random((6, 300)) < 1 / (1 + np.exp(-logits))).astype(np.float32)

    @jax.jit
    @jax.vmap
    def draw(key, x, y):
        mcmc = MCMC(NUTS(subject_model), num_warmup=300, num_samples=2000, progress_bar=False)
        mcmc.run(key, x, y)
        return mcmc.get_samples()

    draws = draw(jax.random.split(jax.random.key(0), 6), x, y)
    chains = [{site: values[i] for site, values in draws.items()} for i in range(6)]
    guides, params = [], []
    for i in range(6):
        guide = AutoLaplaceApproximation(subject_model)
        svi = numpyro.infer.SVI(
            subject_model, guide, numpyro.optim.Adam(0.05), numpyro.infer.Trace_ELBO()
        )
        svi.init(jax.random.key(0), x[i], y[i])
        guides.append(guide)
        params.append({"auto_loc": np.float32(optimum(x[i], y[i]))})
    return list(zip(x, y, strict=True)), chains, guides, params


def optimum(x, y):
    """Return the mode of `subject_model` by Newton's method: two slopes, and the intercept."""
    columns = np.concatenate([x, np.ones((len(x), 1))], 1).astype(np.float64)
    at, precision = np.zeros(3), np.diag(np.array([1.5, 1.5, 2.0]) ** -2)
    for _ in range(20):
        prob = 1 / (1 + np.exp(-columns @ at))
        hessian = (columns * (prob * (1 - prob))[:, None]).T @ columns + precision
        at = at + np.linalg.solve(hessian, columns.T @ (y - prob) - precision @ at)
    return at


@pytest.mark.slow
def test_programs_by_nuts_and_by_laplace_agree(logistic):
    data, chains, guides, params = logistic
    design = pd.DataFrame(
        {"group": ["control"] * 3 + ["patient"] * 3}, index=[f"s{i}" for i in range(6)]
    )
    options = {"data": data, "names": ["drift", "bias"]}
    by_nuts = bmr.peb(chains, design, model=subject_model, **options)
    by_laplace = bmr.peb(guides, design, params=params, **options)
    assert by_nuts.subjects == ("s0", "s1", "s2", "s3", "s4", "s5")
    assert by_nuts.covariates == ("mean", "group[patient]")
    assert by_nuts.elements == ("drift", "bias")
    assert np.isfinite(by_nuts.pareto_k).all()
    assert by_laplace.pareto_k.max() < 0.7
    for name in by_nuts.covariates:
        difference = by_nuts.mean[name] - by_laplace.mean[name]
        assert np.max(np.abs(difference) / by_nuts.sd[name]) < 0.35
    reduced = by_nuts.reduce(forced=["mean"])
    np.testing.assert_array_equal(reduced.chosen["group[patient]"], [False, True])
    assert "s0" not in repr(by_nuts)
    assert "group[patient]" in repr(by_nuts)


# --- leave-one-out ------------------------------------------------------------------------


def test_the_probability_of_a_left_out_subject_is_that_of_the_big_gaussian():
    study = Study(count=8)
    group = np.arange(8) % 2
    found = bmr.peb(
        design={"group": group}, names=NAMES, between_scale=0.2, between_spread=1e-6, **study.arrays
    ).leave_one_out("group")
    for i in (0, 5):
        rest = np.delete(np.arange(8), i)
        centre, scale = group[rest].mean(), group[rest].std()
        evidence = []
        for value in (0, 1):
            column = np.where(np.arange(8) == i, value, group)
            design = np.stack([np.ones(8), (column - centre) / scale], 1)
            matrix = np.concatenate(
                [
                    np.kron(r[None], x * study.prior_scale)
                    for r, x in zip(design, study.x, strict=True)
                ]
            )
            covariance = study.noise_scale**2 * np.eye(len(matrix)) + matrix @ matrix.T
            for j, x in enumerate(study.x):
                block = slice(j * study.rows, (j + 1) * study.rows)
                own = x * study.prior_scale * 0.2
                covariance[block, block] += own @ own.T
            log_p = stats.multivariate_normal(cov=covariance).logpdf(study.stacked[1])
            evidence.append(log_p + np.log(np.mean(group[rest] == value)))
        expected = np.exp(evidence - logsumexp(evidence))
        assert found.prob[i] == pytest.approx(expected[1], abs=1e-4)
        own_score = np.log(expected[group[i]]) - np.log(np.mean(group[rest] == group[i]))
        assert found.log_score[i] == pytest.approx(own_score, abs=1e-3)


@pytest.mark.slow
def test_an_age_that_shows_is_predicted_and_noise_is_not():
    study = Study(count=14, effects=((0.8, 0.0, -1.0), (0.5, 0.5, 0.0)))
    noise = np.random.default_rng(1).normal(size=14)
    found = bmr.peb(design={"age": study.age, "noise": noise}, names=NAMES, **study.arrays)
    age, nothing = found.leave_one_out("age"), found.leave_one_out("noise")
    assert age.correlation > 0.85
    assert age.log_score.mean() > 0.5
    assert nothing.log_score.mean() < 0.1
    error = (age.mean - age.actual) / age.sd
    assert 0.4 < np.sqrt(np.mean(error**2)) < 1.8
    assert np.isnan(age.accuracy)
    assert "correlation" in repr(age)
    assert list(age.table()["actual"]) == list(study.age)


def test_groups_that_differ_are_told_apart():
    study = Study(count=14)
    group = np.where(study.age > np.median(study.age), "old", "young")
    arrays = study.arrays
    found = bmr.peb(design={"group": group}, names=NAMES, **arrays).leave_one_out("group[young]")
    assert found.accuracy >= 0.8
    assert "predicted right" in repr(found)


# --- single precision ---------------------------------------------------------------------


def test_single_precision_arrays_are_enough():
    study = Study(count=10)
    arrays = study.arrays
    single = {n: np.float32(arrays[n]) for n in ("loc", "covariance")}
    one = bmr.peb(design={"age": study.age}, names=NAMES, **arrays)
    two = bmr.peb(design={"age": study.age}, names=NAMES, prior=arrays["prior"], **single)
    for name in one.covariates:
        np.testing.assert_allclose(one.mean[name], two.mean[name], atol=1e-3 * one.sd[name].max())


def test_a_parameter_that_the_data_do_not_inform_stays_at_its_prior():
    study = Study(count=6)
    arrays = study.arrays
    arrays["covariance"][:, 2] = arrays["covariance"][:, :, 2] = 0.0
    arrays["covariance"][:, 2, 2] = study.prior_scale[2] ** 2
    arrays["loc"][:, 2] = 0.0
    found = bmr.peb(names=NAMES, **arrays)
    assert found.mean["mean"][2] == pytest.approx(0.0, abs=1e-6)
    assert found.sd["mean"][2] == pytest.approx(study.prior_scale[2], rel=1e-5)
    assert found.reduce(expected=1.5).inclusion_prob["mean"][2] == pytest.approx(0.5, abs=1e-3)


def test_elements_name_what_varies():
    study = Study(count=6)
    found = bmr.peb(names=NAMES, elements=["decay"], **study.arrays)
    assert found.elements == ("decay",)
    arrays = study.arrays
    one = bmr.peb(
        names=["decay"],
        loc=arrays["loc"][:, 1:2],
        covariance=arrays["covariance"][:, 1:2, 1:2],
        prior=reduction.Normal(0.0, study.prior_scale[1]),
    )
    assert found.delta_f == pytest.approx(one.delta_f, abs=1e-5)


def test_integration_does_not_depend_on_the_start():
    level = fixed(Study(count=6))._level
    components = VarianceComponents(("all",), np.zeros(3, int), 0.25, 1.0)
    one = integrate_level(level, components)
    two = integrate_level(level, components, start=np.array([2.0]))
    assert one.log_evidence == pytest.approx(two.log_evidence, abs=0.02)


# --- designs and misuse -------------------------------------------------------------------


def test_designs_of_all_kinds_are_the_same():
    study = Study(count=8)
    group = np.array(["a", "b"] * 4)
    frame = pd.DataFrame({"age": study.age, "group": pd.Categorical(group, ["b", "a"])})
    of_frame = bmr.peb(design=frame, names=NAMES, **study.arrays)
    assert of_frame.covariates == ("mean", "age", "group[a]")
    columns = {"one": np.ones(8), "age": study.age, "group[a]": group == "a"}
    of_dict = bmr.peb(design=columns, names=NAMES, **study.arrays)
    assert of_dict.covariates == ("one", "age", "group[a]")
    of_array = bmr.peb(design=np.stack([study.age, group == "a"], 1), names=NAMES, **study.arrays)
    assert of_array.covariates == ("mean", "x0", "x1")
    for other in (of_dict, of_array):
        np.testing.assert_allclose(
            np.concatenate(list(of_frame.mean.values())),
            np.concatenate(list(other.mean.values())),
            rtol=1e-9,
        )


@pytest.mark.parametrize("as_frame", [True, False])
def test_categories_that_are_numbers_are_no_numeric_covariate(as_frame):
    study = Study(count=9)
    scanner = pd.Categorical([3, 1, 2] * 3, categories=[2, 1, 3])
    design = pd.DataFrame({"scanner": scanner}) if as_frame else {"scanner": scanner}
    found = bmr.peb(design=design, names=NAMES, **study.arrays)
    assert found.covariates == ("mean", "scanner[1]", "scanner[3]")
    texts = {f"scanner[{level}]": 1.0 * (np.array(scanner) == level) for level in (1, 3)}
    expected = bmr.peb(design=texts, names=NAMES, **study.arrays)
    for name in texts:
        np.testing.assert_allclose(found.mean[name], expected.mean[name], rtol=1e-9)


@pytest.mark.parametrize("part", ["loc", "scale"])
def test_priors_that_differ_in_small_units_are_refused(part):
    loc, scale = np.zeros(2), np.array([1e6, 1e-3])
    changed = {"loc": loc, "scale": scale, part: np.array([loc, scale][part == "scale"])}
    changed[part][1] += 2e-3
    with pytest.raises(ValueError, match=f"another prior than subject '0', in '1' \\({part}"):
        bmr.peb(
            loc=np.zeros((2, 2)),
            covariance=np.stack([np.diag((0.1 * scale) ** 2)] * 2),
            prior=[reduction.Normal(loc, scale), reduction.Normal(**changed)],
        )


def test_units_of_a_covariate_do_not_matter():
    study = Study(count=8)
    years = bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays)
    months = bmr.peb(design={"age": 12 * study.age + 5}, names=NAMES, **study.arrays)
    assert years.delta_f == pytest.approx(months.delta_f, abs=1e-8)
    np.testing.assert_allclose(years.mean["age"], 12 * months.mean["age"], rtol=1e-6)


AGE = np.array([20.0, 30, 50, 40, 60, 35])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"design": {"age": AGE, "months": 12 * AGE}}, ValueError, "determine each other"),
        (
            {"design": {"a": [1, 1, 1, 0, 0, 0], "b": [0, 0, 0, 1, 1, 1]}},
            ValueError,
            "leave out that of the reference",
        ),
        ({"design": {"age": np.full(6, 3.0)}}, ValueError, "same value for all"),
        ({"design": {"age": AGE[:5]}}, ValueError, "there are 6 subjects"),
        ({"design": AGE[:5]}, ValueError, "5 rows"),
        ({"design": {"age": np.append(AGE[:5], np.nan)}}, ValueError, r"missing.*rows \[5\]"),
        ({"design": {"sex": ["f", "m", None, "f", "m", "f"]}}, ValueError, r"missing.*rows \[2\]"),
        ({"design": np.random.default_rng(0).normal(size=(6, 5))}, ValueError, "too few for 6"),
        ({"design": {"gain": AGE}}, ValueError, "rename the covariates"),
        ({"design": {"mean": AGE}}, ValueError, "more than one column"),
        ({"elements": ["velocity"]}, ValueError, "^peb: elements names 'velocity'"),
        ({"elements": "gain"}, TypeError, r"\['gain'\]"),
        ({"components": {"a": ["gain"], "b": ["gain"]}}, ValueError, "one component per element"),
        ({"components": {"a": "gain"}}, TypeError, r"\['gain'\]"),
        ({"between_scale": 0.0}, ValueError, "between_scale is a positive"),
        ({"sites": ["z"]}, TypeError, "'sites' do not apply"),
        ({"prior": None}, TypeError, "prior=reduction.Normal"),
        ({"fits": [1]}, TypeError, "leave them out"),
        ({"names": ["a", "b"]}, ValueError, "^peb: subject 0: names has 2 names"),
    ],
)
def test_misuse_is_refused(changes, error, message):
    study = Study(count=6)
    with pytest.raises(error, match=message):
        bmr.peb(**({"names": NAMES} | study.arrays | changes))


def test_subjects_that_do_not_go_together_are_refused():
    study = Study(count=4)
    arrays = study.arrays
    priors = [arrays["prior"]] * 3
    other = reduction.Normal(jnp.zeros(3), 2 * jnp.asarray(study.prior_scale))
    with pytest.raises(ValueError, match="subject '3' was fitted under another prior"):
        bmr.peb(**(arrays | {"prior": [*priors, other]}))
    one = {n: arrays[n][:1] for n in ("loc", "covariance")}
    with pytest.raises(ValueError, match=r"1 subject cannot.*reduce_fit"):
        bmr.peb(prior=arrays["prior"], **one)
    wide = arrays["covariance"].copy()
    wide[2] *= 100
    with pytest.raises(ValueError, match="subject '2' is wider than the prior"):
        bmr.peb(**(arrays | {"covariance": wide}))
    wide[2] = np.ones((3, 3))
    with pytest.raises(ValueError, match="subject '2': the covariance is singular"):
        bmr.peb(**(arrays | {"covariance": wide}))


def test_fits_that_do_not_go_together_are_refused():
    rng = np.random.default_rng(0)
    data = [(np.zeros((4, 2), np.float32), np.zeros(4, np.float32))] * 6
    shapes = {"theta": (50, 2), "intercept": (50,)}
    chains = [
        {site: rng.normal(size=shape).astype(np.float32) for site, shape in shapes.items()}
        for _ in range(6)
    ]
    guides = [AutoLaplaceApproximation(subject_model) for _ in range(6)]
    params = [{"auto_loc": np.zeros(3, np.float32)}] * 6
    with pytest.raises(TypeError, match="give data="):
        bmr.peb(chains, model=subject_model)
    with pytest.raises(ValueError, match="subjects 0 and 1 share one AutoLaplaceApproximation"):
        bmr.peb([guides[0]] * 6, data=data, params=params)
    with pytest.raises(ValueError, match="params has 2 entries"):
        bmr.peb(guides, data=data, params=params[:2])
    with pytest.raises(TypeError, match="a list with one fit per subject, got dict"):
        bmr.peb(chains[0], model=subject_model, data=data)
    incomplete = [*chains[:-1], {"intercept": chains[-1]["intercept"]}]
    with pytest.raises(ValueError, match=r"subject 5: there are no draws.*'theta'"):
        bmr.peb(incomplete, model=subject_model, data=data)
    with pytest.raises(ValueError, match=r"subject 0: the program has no sites \['phi'\]"):
        bmr.peb(chains, model=subject_model, data=data, sites=["phi"])

    def wider(x, y=None):
        theta = numpyro.sample("theta", dist.Normal(0, 2.5).expand([2]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ theta).to_event(1), obs=y)

    models = [subject_model] * 5 + [wider]
    with pytest.raises(ValueError, match="subject '5' was fitted under another prior"):
        bmr.peb(chains, model=models, data=data)


def test_names_that_are_not_there_are_refused_after_the_fit():
    study = Study(count=6)
    found = bmr.peb(design={"age": AGE}, names=NAMES, **study.arrays)
    with pytest.raises(ValueError, match="there is no covariate 'sex'"):
        found.leave_one_out("sex")
    with pytest.raises(ValueError, match=r"^GroupFit.reduce: forced names 'sex'"):
        found.reduce(forced=["sex"])
    lone = bmr.peb(design={"g": [0, 0, 0, 0, 0, 1]}, names=NAMES, **study.arrays)
    with pytest.raises(ValueError, match="without the subject '5'"):
        lone.leave_one_out("g")


def _line(table, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(table @ beta, 1.0), obs=y)


@pytest.mark.parametrize("given", ["arrays", "fits"])
def test_names_do_not_hide_that_subjects_have_their_columns_in_another_order(given):
    orders = [["a", "b"], ["b", "a"], ["a", "b"]]
    if given == "arrays":
        loc = [pd.Series([0.5, -0.2], order) for order in orders]
        parts = {"loc": loc, "covariance": [np.eye(2) * 0.1] * 3}
        parts["prior"] = reduction.Normal(0.0, 1.0)
    else:
        rng = np.random.default_rng(0)
        tables = [pd.DataFrame(rng.normal(size=(30, 2)), columns=order) for order in orders]
        draws = {"beta": rng.normal(scale=0.2, size=(200, 2))}
        parts = {"fits": [draws] * 3, "model": _line}
        parts["data"] = [(table, rng.normal(size=30)) for table in tables]
    with pytest.raises(ValueError, match="subject '1' has the columns 'b', 'a' and subject '0'"):
        bmr.peb(**parts, names=["gain", "decay"])
