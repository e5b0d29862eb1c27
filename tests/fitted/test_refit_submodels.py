"""Submodels whose other latent variables are fitted again: against enumeration and quadrature."""

import functools
import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import bmrjax as bmr
import bmrjax.fitted.search as search_module
from bmrjax.fitted.model_prior import SharedProbability
from bmrjax.fitted.nodes import Nodes

PRIOR_SCALE, OF_INTERCEPT = 0.8, 2.0
GRID = np.linspace(-5.0, 3.0, 1601)


def _linear(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, OF_INTERCEPT))
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, noise), obs=y)


def _make(rows, columns, seed, noise=0.7):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    beta = np.zeros(columns)
    beta[:2] = 1.5, -1.2
    y = 0.5 + x @ beta + noise * rng.standard_normal(rows)
    return x.astype(np.float32), y.astype(np.float32), beta


def _given_noise(x, y, inside):
    """ln of the evidence at each noise scale of the grid, times its prior and step."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    of_y = PRIOR_SCALE**2 * x[:, inside] @ x[:, inside].T + OF_INTERCEPT**2
    values, vectors = np.linalg.eigh(of_y)
    variance = values + np.exp(2 * GRID)[:, None]
    along = vectors.T @ y
    log_density = -0.5 * (along**2 / variance + np.log(2 * np.pi * variance)).sum(1)
    # HalfNormal(1) on the noise scale, in its logarithm.
    log_prior = 0.5 * np.log(2 / np.pi) - 0.5 * np.exp(2 * GRID) + GRID
    return log_density + log_prior + np.log(GRID[1] - GRID[0])


def _enumerated(x, y):
    units = x.shape[1]
    masks = (np.arange(2**units)[:, None] >> np.arange(units)) & 1 == 1
    evidence = np.array([logsumexp(_given_noise(x, y, mask)) for mask in masks])
    log_prob = evidence + SharedProbability(units).log_prob(masks)
    prob = np.exp(log_prob - logsumexp(log_prob))
    return masks, evidence, prob


def _draws(x, y, count=4000, seed=0):
    """Exact draws from the posterior of the full model: the noise from the grid, the rest given it."""
    rng = np.random.default_rng(seed)
    log_prob = _given_noise(x, y, np.ones(x.shape[1], bool))
    prob = np.exp(log_prob - logsumexp(log_prob))
    wide = np.concatenate([np.ones((len(x), 1)), x], 1).astype(np.float64)
    prior = np.diag(1 / np.array([OF_INTERCEPT, *[PRIOR_SCALE] * x.shape[1]]) ** 2)
    found = np.empty((count, wide.shape[1] + 1))
    which, counts = np.unique(rng.choice(len(GRID), count, p=prob), return_counts=True)
    start = 0
    for i, some in zip(which, counts, strict=True):
        precision = wide.T @ wide / np.exp(2 * GRID[i]) + prior
        factor = np.linalg.cholesky(precision)
        half = np.linalg.solve(factor, wide.T @ y / np.exp(2 * GRID[i]))
        normal = rng.standard_normal((wide.shape[1], some))
        rows = slice(start, start + some)
        found[rows, :-1] = np.linalg.solve(factor.T, half[:, None] + normal).T
        found[rows, -1] = np.exp(GRID[i])
        start += some
    rng.shuffle(found)
    parts = {"intercept": found[:, 0], "beta": found[:, 1:-1], "noise": found[:, -1]}
    return {name: value.astype(np.float32) for name, value in parts.items()}


@functools.cache
def _found(rows, columns, seed, **options):
    x, y, _ = _make(rows, columns, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bmr.reduce_fit(_draws(x, y), model=_linear, data=(x, y), **options)


@pytest.mark.parametrize(("rows", "columns", "seed"), [(5, 6, 0), (8, 6, 1), (30, 5, 2)])
def test_a_linear_model_agrees_with_enumeration_and_quadrature(rows, columns, seed):
    found = _found(rows, columns, seed, refit=True)
    x, y, _ = _make(rows, columns, seed)
    masks, evidence, prob = _enumerated(x, y)
    # Data and draws are float32; nothing else is approximate but the quadrature.
    np.testing.assert_allclose(found.inclusion_prob["beta"], prob @ masks, atol=2e-3)
    # Of submodels that are far less probable the noise scale is elsewhere.
    models = found.models()
    models = models[models["prob"] > 1e-4]
    number = models[list(found.candidates)].to_numpy() @ (1 << np.arange(columns))
    np.testing.assert_allclose(models["prob"], prob[number], atol=2e-3)
    np.testing.assert_allclose(models["delta_f"], evidence[number] - evidence[-1], atol=0.02)
    alone = evidence[[2**columns - 1 - (1 << i) for i in range(columns)]] - evidence[-1]
    near = alone > -4
    np.testing.assert_allclose(found.delta_f["beta"][near], alone[near], atol=0.02)
    chosen = int(np.argmax(prob))
    flipped = np.array([evidence[chosen ^ (1 << i)] for i in range(columns)])
    given = np.where(masks[chosen], flipped - evidence[chosen], evidence[chosen] - flipped)
    near = given > -4
    assert near.any()
    np.testing.assert_allclose(found.delta_f_given["beta"][near], given[near], atol=0.02)
    assert "integrated anew for each submodel over 'noise'" in str(found)


def test_more_candidates_than_data_points_are_refitted_without_being_told():
    x, y, beta = _make(20, 30, 1000, noise=0.4)
    draws = _draws(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = bmr.reduce_fit(draws, model=_linear, data=(x, y))
        plain = bmr.reduce_fit(draws, model=_linear, data=(x, y), refit=False)
    np.testing.assert_array_equal(found.chosen["beta"], beta != 0)
    assert found.pareto_k < 0.7 < plain.pareto_k
    assert "not-normal" in [finding.code for finding in plain.findings]
    assert not {"not-normal", "elsewhere", "not-exact"} & {f.code for f in found.findings}


def test_few_data_points_per_element_are_enough_for_it():
    x, y, _ = _make(90, 5, 3)
    masks, _, prob = _enumerated(x, y)
    found = _found(90, 5, 3)
    assert "integrated anew for each submodel over 'noise'" in str(found)
    np.testing.assert_allclose(found.inclusion_prob["beta"], prob @ masks, atol=2e-3)
    assert "anew" not in str(_found(100, 5, 3))


def test_sampling_agrees_with_computing_all_submodels(monkeypatch):
    exact = _found(8, 6, 1, refit=True)
    monkeypatch.setattr(search_module, "EXHAUSTIVE_UNITS", 0)
    nodes = exact._nodes
    assert len(nodes) > 5
    sampled = search_module.search(nodes, SharedProbability(6), np.random.default_rng(0))
    inclusion = sampled.weight @ sampled.inclusion
    np.testing.assert_allclose(
        inclusion, exact.inclusion_prob["beta"], atol=max(5 * sampled.error, 0.02)
    )
    assert (sampled.masks[0] == exact._found.masks[0]).all()
    np.testing.assert_allclose(sampled.delta_f[0], exact._found.delta_f[0], rtol=1e-9)


def test_draws_the_path_and_measured_evidence_are_those_of_the_refit():
    found = _found(30, 5, 2, refit=True, verify=True)
    draws = found.draws(20000)["beta"]
    error = 5 * found.sd["beta"] / np.sqrt(20000) + 1e-3
    assert (np.abs(draws.mean(0) - found.mean["beta"]) < error).all()
    np.testing.assert_allclose((draws != 0).mean(0), found.inclusion_prob["beta"], atol=0.02)
    check = found.verification
    probable = found.models()["prob"].to_numpy()[: len(check.measured)] > 0.01
    assert (np.abs(check.predicted - check.measured) < 0.05 + 5 * check.standard_error)[
        probable
    ].all()
    path = found.path()
    assert path["size"].tolist() == list(range(6))
    # With enough rows the full model's normal says the same of submodels that are large enough.
    plain = _found(30, 5, 2, refit=False).path()
    np.testing.assert_allclose(path["elpd"][2:], plain["elpd"][2:], atol=0.5)
    assert int(path["size"][path["difference"].idxmax()]) >= 2


def test_one_joint_normal_is_a_mixture_of_one():
    found = _found(30, 5, 2, refit=False)
    nodes, mask = found._nodes, np.array([True, False, True, False, True])
    twice = Nodes([nodes.precisions[0]] * 2, np.log([0.25, 0.75]))
    assert abs(nodes.delta_f(mask) - twice.delta_f(mask)) < 1e-9
    np.testing.assert_allclose(nodes.removal(mask), twice.removal(mask), atol=1e-9)


def test_a_logistic_model_of_few_rows_is_expanded_where_the_chosen_submodel_is():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 3)).astype(np.float32)
    y = (rng.random(12) < 1 / (1 + np.exp(-2.5 * x[:, 0]))).astype(np.int32)

    def logistic(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    line = np.linspace(-12, 12, 121)
    sign = np.where(y == 1, 1.0, -1.0)
    masks = (np.arange(8)[:, None] >> np.arange(3)) & 1 == 1
    evidence = []
    for mask in masks:
        axes = [line if kept else np.zeros(1) for kept in mask]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
        log_joint = -np.logaddexp(0, -(points @ x.T) * sign).sum(1)
        log_joint += (-0.125 * points**2 - np.log(2 * np.sqrt(2 * np.pi)))[:, mask].sum(1)
        evidence.append(logsumexp(log_joint) + mask.sum() * np.log(line[1] - line[0]))
        full = points, log_joint
    log_prob = np.array(evidence) + SharedProbability(3).log_prob(masks)
    exact = np.exp(log_prob - logsumexp(log_prob)) @ masks
    weight = np.exp(full[1] - full[1].max())
    drawn = full[0][rng.choice(len(full[0]), 4000, p=weight / weight.sum())]
    drawn = drawn + rng.uniform(-0.1, 0.1, drawn.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = bmr.reduce_fit(
            {"beta": drawn.astype(np.float32)}, model=logistic, data=(x, y), refit=True, verify=True
        )
    assert "expanded anew at the mode of the chosen submodel" in str(found)
    # Laplace's approximation is far off with twelve rows; what the program says is not.
    np.testing.assert_allclose(found.inclusion_prob["beta"], exact, atol=0.02)


def test_a_fit_of_other_data_is_not_replaced_by_the_program():
    x, y, _ = _make(20, 30, 1000, noise=0.4)
    other = x, y[::-1].copy()
    with pytest.warns(bmr.FitWarning, match="Do not trust this"):
        found = bmr.reduce_fit(_draws(x, y), model=_linear, data=other)
    assert "lies elsewhere than the fit" in str(found)
    with pytest.warns(bmr.FitWarning, match="standard deviations from that of the fit"):
        bmr.reduce_fit(_draws(x, y), model=_linear, data=other, refit=True)


def test_too_many_scales_leave_the_fit_as_it_is():
    x, y, _ = _make(12, 3, 5)

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([3]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0).expand([12]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    rng = np.random.default_rng(0)
    draws = {
        "beta": rng.normal(0, 0.3, (2000, 3)) + np.array([1.0, -1.0, 0.0]),
        "noise": np.exp(rng.normal(-0.5, 0.3, (2000, 12))),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = bmr.reduce_fit(draws, model=model, data=(x, y), refit=True)
    assert "not refitted, since 12 elements of ['noise'] are not normal" in str(found)


def test_arrays_have_no_program_to_refit():
    prior = bmr.reduction.Normal(jnp.zeros(2), jnp.ones(2))
    with pytest.raises(TypeError, match="refit"):
        bmr.reduce_fit(loc=np.ones(2), covariance=0.1 * np.eye(2), prior=prior, refit=True)
