import sys

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bmrjax import Point, Result, metrics, plot
from bmrjax.infer import Prediction
from bmrjax.run.page_words import short_names

NUM_DATA = 10
VFES = [80.0, 40.0, 30.0, 35.0, 20.0]


@pytest.fixture
def result():
    keep = {"net.a.weight": np.arange(6).reshape(2, 3) < 3, "net.b.weight": np.arange(4) < 4}
    history = [
        {
            "epoch": epoch,
            "vfe": vfe,
            "kept": 7 if epoch > 2 else 10,
            "taken_back": epoch == 4,
            "accuracy": 0.5 + 0.1 * epoch,
        }
        for epoch, vfe in enumerate(VFES, 1)
    ]
    path = [
        Point(epoch, VFES[epoch - 1], kept, 10, {"accuracy": 0.5 + 0.1 * epoch}, {}, keep)
        for epoch, kept in ((2, 10), (5, 7))
    ]
    layers = {"net.a.weight": "net.a", "net.b.weight": "net.b"}
    return Result({}, keep, layers, NUM_DATA, history=history, path=path, vfe=20.0)


def panel(figure, word):
    found = [axes for axes in figure.axes if word in axes.get_title(loc="left").lower()]
    assert len(found) == 1, [axes.get_title(loc="left") for axes in figure.axes]
    return found[0]


def test_learning_curves_show_the_epochs_that_stayed_and_the_others_light(result):
    axes = panel(plot.learning_curves(result), "vfe")
    stayed, back = axes.lines
    assert list(stayed.get_xdata()) == [1, 2, 3, 5]
    np.testing.assert_allclose(stayed.get_ydata(), [8.0, 4.0, 3.0, 2.0], rtol=1e-12)
    assert back.get_xdata()[-1] == 4
    assert back.get_alpha() < 1
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["taken back"]


def test_learning_curves_have_a_panel_for_each_metric_of_the_history(result):
    figure = plot.learning_curves(result)
    assert len(figure.axes) == 3
    accuracy = panel(figure, "accuracy").lines[0]
    np.testing.assert_allclose(accuracy.get_ydata(), [0.6, 0.7, 0.8, 1.0], rtol=1e-12)
    assert panel(figure, "kept").get_yscale() == "log"


def test_learning_curves_of_a_run_without_masks_show_no_kept_panel(result):
    result.keep = {}
    titles = [axes.get_title(loc="left").lower() for axes in plot.learning_curves(result).axes]
    assert len(titles) == 2
    assert not any("kept" in title for title in titles)


def test_sparsity_per_layer_names_every_layer(result):
    axes = plot.sparsity_per_layer(result).axes[0]
    assert {label.get_text() for label in axes.get_yticklabels()} == {"net.a", "net.b"}
    # Half of net.a and nothing of net.b is gone: their bars differ by half of the full length.
    widths = {}
    for patch in axes.patches:
        widths.setdefault(round(patch.get_y(), 6), patch.get_width())
    assert len(widths) == 2
    low, high = sorted(widths.values())
    assert high - low in (pytest.approx(0.5), pytest.approx(50.0))


def test_path_puts_vfe_and_accuracy_against_what_is_kept(result):
    figure = plot.path(result)
    vfe, accuracy = figure.axes
    assert vfe.get_xscale() == accuracy.get_xscale() == "log"
    assert list(vfe.lines[0].get_xdata()) == [10, 7]
    np.testing.assert_allclose(vfe.lines[0].get_ydata(), [4.0, 2.0], rtol=1e-12)
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), [0.7, 1.0], rtol=1e-12)


def test_path_without_held_out_metrics_has_one_panel(result):
    for point in result.path:
        point.metrics.clear()
    assert len(plot.path(result).axes) == 1


@pytest.mark.parametrize("draw", [plot.learning_curves, plot.sparsity_per_layer, plot.path])
def test_figures_are_written_without_a_display(result, draw, tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    draw(result).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("draw", [plot.learning_curves, plot.sparsity_per_layer, plot.path])
def test_a_missing_matplotlib_is_explained(result, draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'bmrjax\[plots\]'"):
        draw(result)


def test_a_negative_vfe_gets_a_linear_axis(result):
    assert panel(plot.learning_curves(result), "vfe").get_yscale() == "log"
    result.history[-1]["vfe"] = -10.0
    axes = panel(plot.learning_curves(result), "vfe")
    assert axes.get_yscale() == "linear"
    assert axes.lines[0].get_ydata()[-1] == -1.0


def _line(axes):
    return axes.lines[0].get_xdata()


def _hollow(axes):
    (group,) = (g for g in axes.collections if g.get_label() == "taken back")
    assert "taken back" in [text.get_text() for text in axes.get_legend().get_texts()]
    return group.get_offsets().data.tolist()


def test_path_marks_the_result_and_shows_plain_numbers(result, tmp_path):
    result.path = [
        Point(i, 20.0 + i, 7 if i == 0 else 2000 * 5**i, 10**6, {}, {}, {}) for i in (0, 1, 2)
    ]
    axes = plot.path(result).axes[0]
    points, _, ring = (group.get_offsets().data.tolist() for group in axes.collections)
    assert ring == [points[0]] == [[7.0, 2.0]]
    result.path.append(Point(3, 30.0, 3, 10**6, {}, {}, {}, taken_back=True))
    line, hollow = (group(plot.path(result).axes[0]) for group in (_line, _hollow))
    assert len(line) == 3
    assert hollow == [[3.0, 3.0]]
    figure = plot.path(result)
    figure.savefig(tmp_path / "path.png")
    shown = {label.get_text() for label in figure.axes[0].get_xticklabels()}
    assert {"10", "1,000", "50,000"} <= shown


def test_path_reaches_nothing_kept(result):
    result.path.append(Point(6, 50.0, 0, 10, {}, {}, {}))
    assert plot.path(result).axes[0].get_xscale() == "symlog"


def test_nothing_to_plot_is_an_error(result):
    result.keep, result.path = {}, []
    with pytest.raises(ValueError, match=r"sparsity_per_layer: .* no masks"):
        plot.sparsity_per_layer(result)
    with pytest.raises(ValueError, match="path: this result has no path"):
        plot.path(result)
    result.history.clear()
    with pytest.raises(ValueError, match="learning_curves: this result has no history"):
        plot.learning_curves(result)


def overlaps(renderer, labels):
    """Return pairs of labels of a drawn figure that lie over each other."""
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in labels if t.get_text()]
    return [
        (a, b)
        for i, (a, one) in enumerate(boxes)
        for b, other in boxes[i + 1 :]
        if one.overlaps(other)
    ]


@pytest.mark.parametrize("least", [1, 40, 900, 49_000])
def test_ticks_of_a_path_do_not_collide_and_nothing_is_cut(result, least):
    result.path = [
        Point(i, 20.0 + i, kept, 50_000, {"accuracy": 0.9 + 1e-5 * i}, {}, {})
        for i, kept in enumerate((50_000, (50_000 + least) // 2, least))
    ]
    canvas = FigureCanvasAgg(plot.path(result))
    canvas.draw()
    figure, renderer = canvas.figure, canvas.get_renderer()
    for axes in figure.axes:
        low, high = sorted(axes.get_xlim())
        inside = [t for t in axes.get_xticklabels() if low <= t.get_position()[0] <= high]
        assert len(inside) >= 2
        assert overlaps(renderer, inside) == []
        assert overlaps(renderer, axes.get_yticklabels()) == []
    width, height = canvas.get_width_height()
    for axes in figure.axes:
        box = axes.get_tightbbox(renderer)
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1


def test_path_shows_the_metric_that_was_asked_for(result):
    for i, point in enumerate(result.path):
        point.metrics["nll"] = 0.25 * (i + 1)
    vfe, nll = plot.path(result, metric="nll").axes
    np.testing.assert_allclose(nll.lines[0].get_ydata(), [0.25, 0.5], rtol=1e-12)
    assert "NLL" in nll.get_ylabel()
    assert vfe.get_ylabel().startswith("VFE")
    with pytest.raises(ValueError, match=r"no metric 'ece'; it has \['accuracy', 'nll'\]"):
        plot.path(result, metric="ece")


def test_calibration_has_the_bins_of_the_error(tmp_path):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(3, 0.5), 400).astype(np.float32)
    labels = rng.integers(0, 3, 400)
    figure = plot.calibration(Prediction(probs, np.zeros(400), labels, is_probability=True))
    figure.savefig(tmp_path / "calibration.png")
    error = float(metrics.expected_calibration_error(probs, labels))
    assert figure.axes[0].get_title(loc="left") == f"ECE {error:.3f} on 400 rows"
    assert sum(bar.get_height() for bar in figure.axes[1].patches) == pytest.approx(1.0)


def test_calibration_of_numbers_needs_draws_and_has_their_coverage():
    rng = np.random.default_rng(0)
    value, draws = rng.normal(size=3000), rng.normal(size=(30, 3000))
    given = Prediction(value, value, value, is_probability=False)
    with pytest.raises(ValueError, match="return_samples=True"):
        plot.calibration(given)
    (axes,) = plot.calibration(given._replace(samples=draws)).axes
    expected, observed = axes.collections[-1].get_offsets().data.T
    np.testing.assert_allclose(observed, expected, atol=0.04)
    several = Prediction(np.ones((4, 2, 3)) / 3, value, value, is_probability=True)
    with pytest.raises(ValueError, match=r"shape \(4, 2, 3\)"):
        plot.calibration(several)


def layer(shape, name="net.layers.0.weight"):
    """Return a result whose weights are their own positions, those below 3 removed."""
    weights = jnp.arange(float(np.prod(shape))).reshape(shape)

    def program():
        numpyro.sample(name, dist.Normal(jnp.zeros(shape), 1.0).to_event(len(shape)))

    def guide():
        numpyro.sample(name, dist.Normal(weights, 0.1).to_event(len(shape)))

    keep = {name: weights >= 3}
    return Result({}, keep, {}, 10, unpruned_model=program, unpruned_guide=guide)


def test_first_layer_draws_the_kept_weights_of_each_unit():
    figure = plot.first_layer(layer((3, 4)))
    counts, *units = figure.axes
    # Unit 0 keeps one weight, the others all four.
    assert [axes.get_title(loc="left") for axes in units] == [
        "unit 1, 4 weights",
        "unit 2, 4 weights",
        "unit 0, 1 weight",
    ]
    np.testing.assert_array_equal(counts.images[0].get_array(), [[2, 2], [2, 3]])
    np.testing.assert_array_equal(units[0].images[0].get_array(), [[4, 5], [6, 7]])
    np.testing.assert_array_equal(
        units[2].images[0].get_array().mask, [[True, True], [True, False]]
    )


def test_first_layer_reads_kernels_of_flax_and_of_convolutions():
    flax = plot.first_layer(layer((4, 3), "net.kernel")).axes[1:]
    assert [axes.images[0].get_array().compressed().tolist() for axes in flax] == [
        [3, 6, 9],
        [4, 7, 10],
        [5, 8, 11],
    ]
    conv = plot.first_layer(layer((2, 1, 2, 3), "net.weight"))
    np.testing.assert_array_equal(conv.axes[1].images[0].get_array(), [[6, 7, 8], [9, 10, 11]])
    wide = plot.first_layer(layer((2, 6)), shape=(2, 3))
    assert wide.axes[1].images[0].get_array().shape == (2, 3)
    with pytest.raises(ValueError, match=r"read 6 inputs.*give shape=\(height, width\)"):
        plot.first_layer(layer((2, 6)))
    with pytest.raises(ValueError, match=r"no weights 'w'; there are \['net.layers.0.weight'\]"):
        plot.first_layer(layer((2, 6)), site="w")


def test_long_names_are_shortened_and_stay_apart():
    names = ["age", "x" * 60 + "a" + "y" * 60, "x" * 60 + "b" + "y" * 60, "q" * 50]
    short = short_names(names)
    assert short[0] == "age"
    assert len(set(short)) == 4
    assert len(short[3]) <= 36


def test_predictions_draw_mean_band_and_values_in_the_order_of_x():
    mean = np.array([3.0, 1.0, 2.0])
    found = Prediction(
        mean,
        np.zeros(3),
        mean,
        is_probability=False,
        levels=(0.1, 0.9),
        at_levels=np.stack([mean - 0.5, mean + 0.5]),
    )
    figure = plot.predictions(found, [3.4, 1.0, 9.0], x=[30, 10, 20], prob=0.8)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "2 of 3 values within the 80% interval"
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[10, 1], [20, 2], [30, 3]])
    band, points = axes.collections
    corners = band.get_paths()[0].vertices
    assert {(10.0, 0.5), (10.0, 1.5), (30.0, 2.5), (30.0, 3.5)} <= set(map(tuple, corners))
    np.testing.assert_array_equal(points.get_offsets(), [[30, 3.4], [10, 1], [20, 9]])
    alone = plot.predictions(found, prob=0.8).axes[0]
    assert (alone.get_title(loc="left"), alone.get_xlabel()) == ("", "Row")
    assert list(alone.lines[0].get_ydata()) == [3, 1, 2]


def test_predictions_refuse_what_they_cannot_draw():
    mean = np.ones((3, 2))
    found = Prediction(mean, np.zeros(3), mean, is_probability=True)
    with pytest.raises(ValueError, match=r"probabilities; see plot\.calibration"):
        plot.predictions(found)
    with pytest.raises(ValueError, match=r"shape \(3, 2\); it draws one number per row"):
        plot.predictions(found._replace(is_probability=False))
    one = Prediction(mean[:, 0], np.zeros(3), mean[:, 0], is_probability=False, samples=mean.T)
    with pytest.raises(ValueError, match=r"observed has shape \(4,\); the prediction has 3 rows"):
        plot.predictions(one, np.ones(4))
    with pytest.raises(ValueError, match=r"levels \[\], not \[0\.05"):
        plot.predictions(one._replace(samples=None))


def test_learning_curves_of_several_runs_have_a_colour_each(result):
    other = Result({}, {}, {}, NUM_DATA, history=[{**row, "vfe": 5.0} for row in result.history])
    figure = plot.learning_curves({"one": result, "two": other})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert len({line.get_color() for line in panel(figure, "accuracy").lines}) == 2
    # Nothing could be removed in the second.
    assert [line.get_label() for line in panel(figure, "kept").lines][:1] == ["one"]
    assert "two" not in [line.get_label() for line in panel(figure, "kept").lines]


def test_learning_curves_have_the_panels_that_are_named(result):
    figure = plot.learning_curves(result, panels=["kept", "accuracy"])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Fraction kept, of 10", "Accuracy, held out"]
    with pytest.raises(ValueError, match=r"no panels \['rmse'\]; there are \['vfe', 'accuracy'"):
        plot.learning_curves(result, panels=["rmse"])
    empty = Result({}, {}, {}, NUM_DATA)
    with pytest.raises(ValueError, match="learning_curves: 'two' has no history"):
        plot.learning_curves({"one": result, "two": empty})


def test_a_path_begins_dense(result):
    left, right = plot.path(result).axes[0].get_xlim()
    assert left > right
    result.path.append(Point(6, 50.0, 0, 10, {}, {}, {}))
    left, right = plot.path(result).axes[0].get_xlim()
    assert left > right


def test_calibration_of_several_predictions():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(3, 0.5), 400).astype(np.float32)
    one = Prediction(probs, np.zeros(400), rng.integers(0, 3, 400), is_probability=True)
    sure = np.full((400, 3), 0.005)
    sure[:, 0] = 0.99
    sure[0] = [0.4, 0.3, 0.3]  # one row of 400 in its bin
    other = one._replace(mean=sure)
    figure = plot.calibration({"one": one, "other": other})
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert [label.split(":")[0] for label in labels] == ["one", "other"]
    assert all("ECE" in label and "400 rows" in label for label in labels)
    diagonal, _, right = figure.axes[0].lines
    assert right.get_xdata() == [pytest.approx(0.99)]
    assert figure.axes[0].get_ylabel() == "Fraction right"
    numbers = Prediction(probs[:, 0], probs[:, 0], probs[:, 0], is_probability=False)
    with pytest.raises(ValueError, match="classes, or of numbers"):
        plot.calibration({"one": one, "numbers": numbers})
