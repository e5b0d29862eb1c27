"""The free-energy report: exact where a posterior factorises, and a warning where it does not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal
from starting import started

import bmrjax as bmr
from bmrjax.infer import AutoMeanField, AutoMultivariate

ROWS, NOISE = 64, 0.5


def program(x, y=None):
    """A linear regression."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def orthogonal():
    """Return data whose posterior factorises, with its exact parameters."""
    x, _ = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (ROWS, 4)))
    x = x * jnp.sqrt(ROWS)
    y = x @ jnp.array([1.5, 0.05, 0.0, -0.3]) + NOISE * jax.random.normal(
        jax.random.key(1), (ROWS,)
    )
    variance = 1 / (1 + ROWS / NOISE**2)
    params = {
        "beta_auto_loc": variance * (x.T @ y) / NOISE**2,
        "beta_auto_scale": jnp.full(4, jnp.sqrt(variance)),
    }
    return (x, y), params


def report(params, data, guide=None, **options):
    guide = AutoMeanField(program) if guide is None else guide
    options = {"batch_size": ROWS, "num_samples": 400, **options}
    return bmr.free_energy_report(program, guide, params, data, key=jax.random.key(2), **options)


@pytest.fixture(scope="module")
def factorised():
    data, params = orthogonal()
    return report(params, data)


def test_where_the_posterior_is_exact_so_is_the_prediction(factorised):
    for curve in factorised.curves.values():
        assert curve.removed.tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(curve.predicted, curve.actual, atol=1.0)
    assert not factorised.overshoots()
    assert "does not overshoot" in factorised.summary()


def test_the_criterion_stops_where_the_free_energy_is_lowest(factorised):
    assert factorised.proposed == 2
    assert factorised.best() == (0.5, pytest.approx(factorised.proposed_vfe))
    assert factorised.rate == 0.5


def test_the_free_energy_is_divergence_and_expected_likelihood(factorised):
    (_, params), curve = orthogonal(), factorised.curves["bmr"]
    loc, scale = params["beta_auto_loc"], params["beta_auto_scale"]
    divergence = jnp.sum(0.5 * (loc**2 + scale**2 - 1) - jnp.log(scale))
    np.testing.assert_allclose(curve.actual[0] - curve.expected_nll[0], divergence, rtol=1e-4)
    # With everything gone there is no divergence left.
    np.testing.assert_allclose(curve.actual[-1], curve.expected_nll[-1], rtol=1e-6)


def test_the_orders_are_by_their_scores():
    data, params = orthogonal()
    params["beta_auto_scale"] = params["beta_auto_scale"] * jnp.array([1.0, 1.0, 4.0, 0.2])
    told = report(params, data, orders=["snr", "magnitude"], num_samples=1)
    loc, scale = (np.asarray(params[f"beta_auto_{part}"]) for part in ("loc", "scale"))
    prior = bmr.reduction.Normal(jnp.zeros(4), jnp.ones(4))
    gains = np.asarray(
        bmr.reduction.delta_f_each(bmr.reduction.Normal(*map(jnp.asarray, (loc, scale))), prior)
    )
    for order, score in (("snr", np.abs(loc) / scale), ("magnitude", np.abs(loc))):
        curve = told.curves[order]
        expected = np.cumsum(gains[np.argsort(score)])
        np.testing.assert_allclose(curve.predicted[0] - curve.predicted[1:], expected, rtol=1e-4)


def test_two_inputs_with_one_signal_overshoot():
    x = jax.random.normal(jax.random.key(0), (ROWS, 1))
    x = jnp.concatenate([x, x + 0.01, 2 * x[::-1]], 1)
    y = 0.16 * (x[:, 0] + x[:, 1])
    guide = AutoMeanField(program)
    # Each half of the signal looks dispensable alone; both together are not.
    params = {
        "beta_auto_loc": jnp.array([0.16, 0.16, 0.0]),
        "beta_auto_scale": jnp.array([0.07, 0.07, 0.04]),
    }
    told = report(params, (x, y), guide)
    assert told.proposed == 3
    assert told.overshoot > 5.0
    assert told.overshoots()
    assert "overshoots by" in told.summary()
    assert "schedules.Verified()" in told.summary()


def test_any_fit_of_numpyro_and_masks_of_before():
    data, _ = orthogonal()
    guide = AutoNormal(program)
    svi = SVI(program, guide, numpyro.optim.Adam(0.02), TraceMeanField_ELBO())
    params = svi.run(jax.random.key(0), 1500, *data, progress_bar=False).params
    keep = {"beta": jnp.array([True, True, False, True])}
    told = report(params, data, guide, keep=keep, orders=["bmr"], points=3)
    assert told.num_kept == 3
    assert told.curves["bmr"].removed.tolist() == [0, 2, 3]
    assert told.proposed == 1


def test_a_criterion_of_ones_own_is_looked_at(factorised):
    data, params = orthogonal()
    criterion = bmr.criteria.Magnitude(fraction=0.75)
    told = report(params, data, criterion=criterion, orders=["bmr"])
    assert told.proposed == 3
    assert told.proposed_vfe > factorised.proposed_vfe


def test_what_cannot_be_reported_is_refused():
    data, params = orthogonal()
    with pytest.raises(ValueError, match=r"unknown orders \['best'\]; give some of bmr, snr"):
        report(params, data, orders=["best"])
    with pytest.raises(ValueError, match="points must be at least 2"):
        report(params, data, points=1)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        report(params, data, batch_size=0)
    with pytest.raises(ValueError, match="Inclusion reads no normal posteriors"):
        report(params, data, criterion=bmr.criteria.Inclusion())
    with pytest.raises(ValueError, match="free_energy_report: data"):
        report(params, (data[0], data[1][:3]))
    guide = AutoMultivariate(program)
    params = started(program, guide, *data)
    with pytest.raises(
        ValueError, match="needs latent sites whose prior and posterior are independent"
    ):
        report(params, data, guide)


def test_the_figure_shows_both_and_where_the_criterion_stops(factorised, tmp_path):
    figure = bmr.plot.free_energy(factorised)
    left, right = figure.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == [
        "predicted by ΔF", "measured", "criterion stops: 50.0%",
    ]  # fmt: skip
    np.testing.assert_allclose(left.lines[1].get_ydata(), factorised.curves["bmr"].actual)
    assert left.lines[2].get_xdata()[0] == 0.5
    assert len(right.lines) == 8
    figure.savefig(tmp_path / "figure.png")
    without = replace(factorised, curves={"snr": factorised.curves["snr"]})
    with pytest.raises(ValueError, match="no curve 'bmr'"):
        bmr.plot.free_energy(without)


def test_a_number_that_is_not_one_is_no_good_news(factorised):
    assert replace(factorised, proposed_vfe=float("nan")).overshoots()
    data, params = orthogonal()
    guide = AutoMeanField(program)
    started(program, guide, *data)
    data = data[0].at[0, 0].set(1e30), data[1]
    with pytest.raises(ValueError, match="the VFE of this program .* is not finite"):
        report(params, data, guide, num_samples=1)


def test_static_arguments_are_not_traced_and_criteria_may_hold_arrays():
    """Both ended in an error once the posteriors were read by a compiled program."""
    (x, y), params = orthogonal()

    def grouped(x, index, y=None):
        assert np.unique(index).size == 2  # fails for an array that is traced
        program(x, y)

    groups = bmr.criteria.Groups({"beta": np.array([0, 0, 1, 1])}, 2)
    found = bmr.free_energy_report(
        grouped,
        AutoMeanField(grouped),
        params,
        {"x": x, "index": np.array([0, 1, 1]), "y": y},
        key=jax.random.key(2),
        criterion=bmr.criteria.Shrinkage(groups=groups, variance=jnp.asarray(1e-8)),
        options=bmr.FitOptions(static=["index"]),
        orders=["bmr"],
        points=2,
        batch_size=ROWS,
    )
    assert found.curves["bmr"].removed.tolist() == [0, 4]
