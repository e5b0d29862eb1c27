"""Finished fits that do not belong to the data, the parameters or the program that come with them."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer.autoguide import AutoDAIS, AutoLaplaceApproximation, AutoMultivariateNormal
from numpyro.primitives import mutable

import bmrjax as bmr
from bmrjax.backend.shared_programs import compiled
from bmrjax.fitted import fitted_posterior
from bmrjax.fitted.guide_on_data import guide_on_data

PRIOR_SCALE, NOISE = 1.3, 0.7


def _model(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SCALE).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def _with_intercept(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SCALE).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, NOISE), obs=y)


def _data(seed, beta, spread):
    rng = np.random.default_rng(seed)
    x = spread * rng.normal(size=(50, 3))
    return np.float32(x), np.float32(x @ np.array(beta) + NOISE * rng.normal(size=50))


def _exact(x, y):
    x, y = np.float64(x), np.float64(y)
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(3) / PRIOR_SCALE**2)
    return covariance @ x.T @ y / NOISE**2, covariance


WIDE, NARROW = _data(0, [1, 0.5, 0], 1.0), _data(1, [0, 0, 0.6], 0.4)
LOC, COVARIANCE = _exact(*NARROW)
EXACT = bmr.reduce_fit(
    loc=LOC, covariance=COVARIANCE, prior=bmr.reduction.Normal(0.0, PRIOR_SCALE)
).inclusion_prob["z"]
# Laplace's approximation of a conjugate model at its mode, so that nothing has to be fitted.
AT_MODE = {"auto_loc": np.float32(LOC)}


def _made_on(guide, data):
    return guide_on_data(guide, data)  # as a call of the guide does, in one compiled program


@pytest.mark.parametrize("made_on", [WIDE, NARROW, None])
def test_laplace_takes_its_curvature_on_the_data_that_are_given(made_on):
    guide = AutoLaplaceApproximation(_model)
    if made_on is not None:
        guide = _made_on(guide, made_on)
    before = dict(vars(guide))
    found = bmr.reduce_fit(guide, params=AT_MODE, data=NARROW)
    np.testing.assert_allclose(found.inclusion_prob["beta"], EXACT, atol=1e-3)
    assert found.findings == ()
    assert found.pareto_k < 0.5
    assert vars(guide) == before  # the caller's guide is as it was


def _with_parameters(x, y):
    noise = numpyro.param("noise", 3.0, constraint=dist.constraints.positive)
    shift = numpyro.param("shift", {"by": np.float32(1.0)})
    running = mutable("running", {"mean": np.float32(-2.0)})
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SCALE).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta + shift["by"] + running["mean"], noise), obs=y)


def test_parameters_of_the_program_have_the_values_of_the_fit():
    params = AT_MODE | {"noise": np.float32(NOISE), "shift": {"by": np.float32(0.0)}}
    params |= {"running": {"mean": np.float32(0.0)}}
    guide = AutoLaplaceApproximation(_with_parameters)
    # What is fitted again, measured and predicted is computed with the program.
    for options in ({}, {"refit": True}, {"verify": True}):
        found = bmr.reduce_fit(guide, params=params, data=NARROW, **options)
        np.testing.assert_allclose(found.inclusion_prob["beta"], EXACT, atol=2e-3)
        assert found.pareto_k < 0.3
        assert found.findings == ()
    elpd = bmr.reduce_fit(AutoLaplaceApproximation(_model), params=AT_MODE, data=NARROW).path()
    np.testing.assert_allclose(found.path()["elpd"], elpd["elpd"], atol=0.05)


def test_parameters_of_the_program_without_a_value_are_asked_for():
    rng = np.random.default_rng(0)
    draws = {"beta": rng.normal(scale=0.1, size=(500, 3))}
    options = {"model": _with_parameters, "data": NARROW}
    with pytest.raises(
        ValueError, match=r"has 'noise', 'shift', 'running' .*params=.*in svi_result.params."
    ):
        bmr.reduce_fit(draws, **options)
    with pytest.raises(ValueError, match=r"has 'running' \(numpyro.mutable\)"):
        bmr.reduce_fit(draws, **options, params={"noise": 2.0, "shift": {"by": np.float32(0.0)}})
    params = {"noise": np.float32(NOISE), "shift": {"by": np.float32(0.0)}}
    params |= {"running": {"mean": np.float32(0.0)}}
    found = bmr.reduce_fit(draws, **options, params=params).path()
    plain = bmr.reduce_fit(draws, model=_model, data=NARROW).path()
    np.testing.assert_allclose(found["elpd"], plain["elpd"], atol=1e-3)
    # What a handler sets needs no value.
    fixed = numpyro.handlers.substitute(_with_parameters, data=params)
    found = bmr.reduce_fit(draws, model=fixed, data=NARROW).path()
    np.testing.assert_allclose(found["elpd"], plain["elpd"], atol=1e-3)


def _by_minibatches(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SCALE).expand([3]).to_event(1))
    with numpyro.plate("rows", 50, subsample_size=10) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ beta, NOISE), obs=y[rows])


def _of_one_batch(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SCALE).expand([3]).to_event(1))
    with numpyro.plate("rows", 50, subsample_size=len(x)):
        numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("guide", [AutoLaplaceApproximation, AutoMultivariateNormal])
def test_a_program_that_subsamples_is_evaluated_on_all_data(guide):
    params = AT_MODE | {"auto_scale_tril": np.float32(np.linalg.cholesky(COVARIANCE))}
    for program in (_by_minibatches, _of_one_batch):
        found = bmr.reduce_fit(guide(program), params=params, data=NARROW, verify=True)
        np.testing.assert_allclose(found.inclusion_prob["beta"], EXACT, atol=2e-3)
        assert found.pareto_k < 0.3
        assert found.findings == ()
    x, y = NARROW
    with pytest.raises(ValueError, match=r"'rows' has 50 rows and draws 10.* give all of them"):
        bmr.reduce_fit(guide(_of_one_batch), params=params, data=(x[:10], y[:10]))


def test_a_guide_that_follows_gradients_follows_those_of_the_data_that_are_given(monkeypatch):
    monkeypatch.setattr(fitted_posterior, "GUIDE_DRAWS", 500)
    guide = _made_on(AutoDAIS(_model, K=2), NARROW)

    @jax.jit
    def start():
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
            guide(*NARROW)
        return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}

    params = start()
    right = bmr.reduce_fit(guide, params=params, data=NARROW)
    other = _made_on(AutoDAIS(_model, K=2), WIDE)
    found = bmr.reduce_fit(other, params=params, data=NARROW)
    np.testing.assert_allclose(
        found.inclusion_prob["beta"], right.inclusion_prob["beta"], atol=1e-4
    )


def test_draws_of_other_data_are_a_finding():
    x, y = NARROW
    shifted = x, y + np.float32(0.2) * x[:, 0]
    rng = np.random.default_rng(0)
    draws = {"beta": rng.multivariate_normal(LOC, COVARIANCE, 4000)}
    assert bmr.reduce_fit(draws, model=_model, data=NARROW).findings == ()
    with pytest.warns(bmr.FitWarning, match="posterior mean of '0' by the program"):
        found = bmr.reduce_fit(draws, model=_model, data=shifted)
    assert [finding.code for finding in found.findings] == ["elsewhere"]
    # By how much is known: the posterior is normal, and the shift its mean times that of the target.
    shift = 0.2 * COVARIANCE @ (np.float64(x).T @ x[:, 0]) / NOISE**2
    expected = shift[0] / np.sqrt(COVARIANCE[0, 0])
    assert f"is {expected:+.1f} standard" in str(found.findings[0])
    with pytest.warns(bmr.FitWarning, match="Do not trust this"):
        bmr.reduce_fit(draws, model=_model, data=WIDE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": {}}, r"params lacks \['auto_loc'\]; it has \[\]"),
        ({"params": {"auto_loc": np.zeros(6)}}, r"'auto_loc' of shape \(6,\), and the guide's"),
        ({"params": {"auto_loc": np.full(3, np.nan)}}, "'auto_loc' that are not finite"),
        ({"model": _with_intercept}, r"has no sites \['intercept'\], which the program has"),
    ],
)
def test_a_guide_of_something_else_is_refused(change, message):
    options = {"params": AT_MODE, "data": NARROW} | change
    with pytest.raises(ValueError, match=message):
        bmr.reduce_fit(_made_on(AutoLaplaceApproximation(_model), NARROW), **options)


def test_data_of_another_length_are_refused():
    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1.3).expand([len(y)]).to_event(1))
        numpyro.sample("y", dist.Normal(beta + x[:, 0], NOISE), obs=y)

    guide = _made_on(AutoMultivariateNormal(model), tuple(part[:5] for part in NARROW))
    params = {"auto_loc": np.zeros(5), "auto_scale_tril": np.eye(5)}
    short = tuple(part[:4] for part in NARROW)
    with pytest.raises(ValueError, match=r"'beta' has shape \(5,\) in the guide and \(4,\)"):
        bmr.reduce_fit(guide, params=params, data=short)


@pytest.mark.parametrize("dims", [("beta_dim", "sample"), ("draw", "beta_dim", "chain")])
def test_the_axes_of_a_tree_are_read_by_name(dims):
    xr = pytest.importorskip("xarray")
    draws = np.random.default_rng(0).multivariate_normal(LOC, COVARIANCE, (4, 500))
    whole = xr.DataArray(draws, dims=("chain", "draw", "beta_dim"))
    if "sample" in dims:
        whole = whole.stack(sample=("chain", "draw")).reset_index("sample", drop=True)

    class Tree:
        posterior = xr.Dataset({"beta": whole.transpose(*dims)})

    found = bmr.reduce_fit(Tree, model=_model, data=NARROW)
    plain = bmr.reduce_fit({"beta": draws}, model=_model, data=NARROW)
    np.testing.assert_allclose(found.inclusion_prob["beta"], plain.inclusion_prob["beta"])


def test_the_axes_of_a_site_are_read_by_number():
    xr = pytest.importorskip("xarray")
    loc = np.array([[2.0, 0.0], [1.0, 0.0]])
    draws = loc + 0.3 * np.random.default_rng(0).normal(size=(4, 500, 2, 2))
    dims = ("chain", "draw", "w_dim_0", "w_dim_1")
    for turned in (dims, (dims[0], dims[1], dims[3], dims[2])):

        class Tree:
            posterior = xr.Dataset({"w": xr.DataArray(draws, dims=dims).transpose(*turned)})

        found = bmr.reduce_fit(Tree, prior={"w": bmr.reduction.Normal(0.0, 1.0)})
        np.testing.assert_array_equal(found.chosen["w"], loc > 0)


def test_elements_of_a_tree_have_the_coordinates_of_all_their_axes():
    xr = pytest.importorskip("xarray")
    draws = np.random.default_rng(0).normal(size=(4, 100, 2, 2, 2))

    class Tree:
        posterior = xr.Dataset(
            {"w": (("chain", "draw", "region", "dose", "copy"), draws)},
            # Numbers that only count name nothing, and the program's order is that of the axes.
            coords={"region": ["north", "south"], "dose": [0.5, 10.0], "copy": [0, 1]},
        )

    found = bmr.reduce_fit(Tree, prior={"w": bmr.reduction.Normal(0.0, 3.0)})
    assert found.candidates[:4] == (
        "north, 0.5, 0",
        "north, 0.5, 1",
        "north, 10.0, 0",
        "north, 10.0, 1",
    )
    assert found.inclusion_prob["w"].shape == (2, 2, 2)


def _of_two_tables(one, other, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(one @ beta + other @ gamma, NOISE), obs=y)


def test_two_tables_of_one_width_name_nothing():
    x, y = NARROW
    one, other = (pd.DataFrame(x, columns=list(names)) for names in ("abc", "uvw"))
    rng = np.random.default_rng(0)
    draws = {name: rng.normal(size=(200, 3)) for name in ("beta", "gamma")}

    def candidates(*tables):
        found = bmr.reduce_fit(draws, model=_of_two_tables, data=(*tables, y), verify=False)
        return found.candidates

    with pytest.warns(bmr.FitWarning):
        assert candidates(one, other)[3:] == ("gamma[0]", "gamma[1]", "gamma[2]")
    with pytest.warns(bmr.FitWarning):
        assert candidates(one, one)[3:] == ("gamma[a]", "gamma[b]", "gamma[c]")


def test_columns_in_another_order_than_those_of_a_result_are_refused():
    x, y = NARROW
    table = pd.DataFrame(x, columns=["dose", "age", "height"])
    result = bmr.sparsify(
        _model, (table, y), key=jax.random.key(0), num_epochs=2, criterion=None, progress=False
    )
    with pytest.raises(ValueError, match="in this order"):
        bmr.reduce_fit(result, data=(table[["age", "dose", "height"]], y))


def test_an_argument_that_nothing_is_computed_from_may_have_another_shape():
    def run(rows):
        traced = jax.jit(lambda unused, z: 2 * z).trace(np.zeros(rows), np.ones(2))
        return compiled(traced)(np.zeros(rows), np.ones(2))

    np.testing.assert_array_equal(run(20), run(60))


def test_fits_of_more_rows_follow_fits_of_fewer():
    for rows in (30, 50):
        x, y = (part[:rows] for part in NARROW)
        loc, covariance = _exact(x, y)
        draws = {"beta": np.random.default_rng(0).multivariate_normal(loc, covariance, 1000)}

        def model(x, y):
            return _model(x, y)

        assert bmr.reduce_fit(draws, model=model, data=(x, y)).pareto_k < 0.7
