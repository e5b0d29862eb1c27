"""The temperature that predicted and measured losses tell."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax import FitWarning
from bmrjax.trained.choice import TEMPERATURE_SCALE, path_temperature, temperature


class TestTheEstimate:
    @pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 2.0, 20.0])
    def test_is_the_ratio_where_measurements_are_exact(self, factor):
        predicted = np.array([0.005, 0.01, 0.02, 0.03])
        found = temperature(predicted, predicted / factor, [1e-6] * 4)
        # What the prior takes: its precision over that of the data, of the logarithm.
        shrunk = 1 / (1 + 0.3**2 * 1.2 / 4 / TEMPERATURE_SCALE**2)
        assert np.log(found) == pytest.approx(shrunk * np.log(factor), abs=0.06)

    def test_counts_points_by_their_errors(self):
        clear = temperature([0.01, 0.05], [0.005, 0.5], [1e-4, 2.0])
        assert clear == pytest.approx(2, rel=0.05)
        # A point far from where the loss is quadratic counts little beside one near it.
        both = temperature([0.01, 0.05, 3.0], [0.005, 0.025, 40.0], [1e-4, 1e-4, 0.1])
        assert 1.2 < both < 2

    @pytest.mark.parametrize(
        ("predicted", "measured", "errors"),
        [
            ([0.001], [0.02], [0.02]),
            ([0.01, 0.02], [-0.1, -0.2], [0.001, 0.001]),
            ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
            ([0.01, 0.1], [np.nan, np.inf], [np.nan, np.nan]),
            ([], [], []),
        ],
        ids=["noise", "a fall of the loss", "nothing removed", "not finite", "no point"],
    )
    def test_is_near_one_where_they_say_little(self, predicted, measured, errors):
        assert 0.7 < temperature(predicted, measured, errors) < 1.3

    @pytest.mark.parametrize(
        ("predicted", "measured", "errors"),
        [
            ([0.0256, 0.113, 0.2686], [-0.0027, 0.0843, 0.1929], [0.0153, 0.035, 0.044]),
            ([0.01, 0.1007, 0.2814], [-0.0177, -0.0065, 0.3506], [0.0248, 0.026, 0.06]),
            ([0.0007, 0.8783, 6.2316], [-0.0037, 1.3036, 5.854], [0.0026, 0.2617, 0.76]),
            ([0.0013, 0.4271, 4.6048], [-0.002, 0.1956, 3.4325], [0.0013, 0.0466, 0.19]),
        ],
    )
    def test_does_not_rest_on_one_noisy_point(self, predicted, measured, errors):
        # First passes of two mixtures of experts and two Fourier operators: least squares over predictions
        # below 0.1 gave 100 for each.
        assert 0.7 < temperature(predicted, measured, errors) < 2.5

    def test_is_right_on_average_where_measurements_are_noisy(self):
        rng = np.random.default_rng(0)
        predicted, errors = np.array([0.002, 0.01, 0.03]), np.array([0.004, 0.006, 0.008])
        for true, most in ((0.25, 0.15), (1.0, 0.4), (3.0, 0.6)):
            drawn = predicted / true + errors * rng.normal(size=(300, 3))
            found = np.array([np.log(temperature(predicted, m, errors)) for m in drawn])
            assert np.sqrt(np.mean((found - np.log(true)) ** 2)) < most

    def test_stays_within_bounds(self):
        assert temperature([0.01, 0.02], [1e-7, 2e-7], [1e-9, 1e-9]) == 100
        assert temperature([1e-7, 2e-7], [0.1, 0.2], [1e-9, 1e-9]) == 0.01


def test_a_path_tells_it_by_the_rises_between_its_points():
    rng = np.random.default_rng(0)
    dense = rng.normal(size=5000)
    losses = [dense]
    for rise in (0.01, 0.02, 0.03):
        losses.append(losses[-1] + rise + 0.05 * rng.normal(size=5000))
    predicted = 2 * np.cumsum([0.01, 0.02, 0.03])
    found = path_temperature(predicted, losses)
    assert found == pytest.approx(2, rel=0.1)
    rises = [np.diff([0, *predicted]), [0.01, 0.02, 0.03], 3 * [0.05 / np.sqrt(5000)]]
    assert found == pytest.approx(temperature(*rises), rel=0.1)


class Wrong(bmr.trained.Loss):
    """A squared error whose curvature is given as a thousand times what it is."""

    def value(self, outputs: Any, targets: Any) -> Any:
        return 50 * jnp.sum((outputs - targets) ** 2)

    def root(self, key: Any, outputs: Any, targets: Any) -> Any:
        return np.sqrt(1e5) * jax.random.normal(key, outputs.shape)


@pytest.mark.parametrize("units", [False, True])
def test_a_temperature_at_its_bound_is_a_finding(units):
    network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2000, 3))
    y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (2000, 1))
    with pytest.warns(FitWarning, match="temperature ended at its bound of 100: .* a hundredth"):
        found = bmr.reduce_network(network, (x, y), loss=Wrong(), keep=0.5, units=units)
    assert found.temperature == 100
    assert [finding.code for finding in found.findings] == ["temperature-bound"]


def test_no_finding_where_the_curvature_is_right():
    network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2000, 3))
    y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (2000, 1))
    found = bmr.reduce_network(network, (x, y), keep=0.5)
    assert found.findings == ()
    assert 0.3 < found.temperature < 3
