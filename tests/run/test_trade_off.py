"""The curve of a metric over sparsity, and its knee."""

import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.run.trade_off import TradeOff


def result(rows, **metrics):
    keep = {"w": np.arange(10) < rows[-1][0]}
    history = [
        {"epoch": i + 1, "kept": kept, "taken_back": back, "accuracy": value}
        for i, (kept, value, back) in enumerate(rows)
    ]
    return bmr.Result({}, keep, {}, 100, history=history, metrics=metrics)


def test_takes_the_last_epoch_at_each_sparsity_and_leaves_out_what_was_taken_back():
    rows = [(10, 0.5, False), (10, 0.9, False), (6, 0.1, True), (8, 0.7, False), (4, 0.6, False)]
    curve = bmr.trade_off(result(rows, accuracy=0.65))
    np.testing.assert_allclose(curve.sparsity, [0, 0.2, 0.6])
    np.testing.assert_allclose(curve.value, [0.9, 0.7, 0.65])
    np.testing.assert_array_equal(curve.epoch, [2, 4, 5])


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_the_knee_is_the_corner(metric):
    sparsity = np.linspace(0, 1, 101)
    value = np.where(sparsity < 0.8, 0.9 - 0.01 * sparsity, 0.892 - 3 * (sparsity - 0.8))
    curve = TradeOff(metric, sparsity, value if metric == "accuracy" else -value, sparsity)
    assert curve.knee == 80
    assert "80.0%" in str(curve)
    assert str(curve).count("<- knee") == 1


def test_a_flat_curve_ends_at_its_sparsest():
    assert TradeOff("accuracy", np.array([0, 0.5]), np.array([0.9, 0.9]), np.arange(2)).knee == 1


def test_a_curve_needs_two_points():
    with pytest.raises(ValueError, match="at 1 sparsities"):
        bmr.trade_off(result([(10, 0.5, False), (10, 0.6, False)]))
    with pytest.raises(ValueError, match="'nll' at 0 sparsities"):
        bmr.trade_off(result([(10, 0.5, False)]), "nll")


def test_the_plot_marks_the_knee():
    curve = TradeOff("accuracy", np.array([0, 0.5, 1]), np.array([0.9, 0.9, 0.1]), np.arange(3))
    ax = bmr.plot.trade_off_curve(curve).axes[0]
    assert "knee: 50.0 % removed" in ax.get_legend().get_texts()[0].get_text()
