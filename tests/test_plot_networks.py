"""Paths and layers of a trained network that was reduced."""

import equinox as eqx
import jax
import numpy as np
import pytest
from matplotlib.colors import to_hex

import bmrjax as bmr
from bmrjax import plot

BLUE = "#0072b2"


@pytest.fixture(scope="module")
def trained():
    network = eqx.nn.MLP(3, 4, width_size=8, depth=1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (400, 3))
    noise = jax.random.gumbel(jax.random.key(2), (400, 4))
    return network, (x, (3 * jax.vmap(network)(x) + noise).argmax(1))


@pytest.fixture(scope="module")
def weights(trained):
    return bmr.reduce_network(*trained, keep=0.5)


@pytest.fixture(scope="module")
def units(trained):
    return bmr.reduce_network(*trained, keep=0.5, units=True)


def test_the_path_of_a_trained_network_begins_dense_and_has_the_measured_loss(weights):
    loss, accuracy = plot.path(weights).axes
    table = weights.table()
    left, right = loss.get_xlim()
    assert left > 100 > right
    predicted, measured = loss.lines[:2]
    np.testing.assert_allclose(predicted.get_xdata(), 100 * table["kept"], rtol=1e-12)
    np.testing.assert_allclose(predicted.get_ydata(), table["predicted"], rtol=1e-12)
    np.testing.assert_allclose(measured.get_ydata(), table["measured"], rtol=1e-12)
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), table["accuracy"], rtol=1e-12)
    assert accuracy.get_title(loc="left") == "Accuracy, held out"
    (bars,) = [c for c in loss.collections if len(c.get_paths()) == len(table) and c.get_segments()]
    half = np.diff([s[:, 1] for s in bars.get_segments()])[:, 0] / 2
    np.testing.assert_allclose(half, 1.96 * table["standard_error"], atol=1e-12)


def test_points_that_are_not_as_good_are_hollow_and_the_chosen_one_is_marked(weights):
    loss = plot.path(weights).axes[0]
    points, ring = loss.collections[-2:]
    filled = [to_hex(face) == BLUE for face in points.get_facecolors()]
    assert filled == [point.as_good for point in weights.path]
    assert 0 < sum(filled) < len(filled)
    chosen = weights.path[weights.chosen]
    assert ring.get_offsets().data.tolist() == [[100 * chosen.kept, chosen.measured]]
    assert ring.get_label() == f"this network: {100 * chosen.kept:.1f} % kept"


def test_the_axis_of_the_loss_is_that_of_what_was_measured(weights):
    low, high = plot.path(weights).axes[0].get_ylim()
    measured = [(p.measured, 1.96 * p.standard_error) for p in weights.path]
    assert low < min(m - e for m, e in measured)
    assert max(m + e for m, e in measured) < high < 1.2 * max(m + e for m, e in measured)


def test_units_have_a_path_of_parameters_and_a_metric_by_name(units):
    figure = plot.path(units, metric="accuracy")
    assert [axes.get_xlabel() for axes in figure.axes] == ["Parameters kept, %"] * 2
    with pytest.raises(ValueError, match=r"path: the path has no metric 'rmse'; it has \["):
        plot.path(units, metric="rmse")


def test_layers_of_a_trained_network_have_their_weights_or_their_units(weights, units):
    axes = plot.sparsity_per_layer(weights).axes[0]
    kept = [int(mask.sum()) for mask in weights.masks.values()]
    total = [mask.size for mask in weights.masks.values()]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(weights.masks)
    assert [t.get_text() for t in axes.texts] == [
        f"{k} of {n} kept" for k, n in zip(kept, total, strict=True)
    ]
    assert axes.patches[0].get_width() == pytest.approx(1 - kept[0] / total[0])
    axes = plot.sparsity_per_layer(units).axes[0]
    (row,) = units.layers().itertuples(index=False)
    assert axes.get_title(loc="left").endswith(f"{row.after} of {row.before} units kept")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layers.0.weight"]
