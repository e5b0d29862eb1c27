"""The page that explains a result, and its numbers."""

import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from browser import opened
from scipy import stats

import bmrjax as bmr
from bmrjax import infer, metrics, schedules
from bmrjax.infer import Prediction
from bmrjax.run.calibration import interval_coverage, reliability_bins
from bmrjax.run.page_path import present_point
from bmrjax.run.path_rounds import path_rounds, removal_of_each
from bmrjax.run.result_page import result_page

NAMES = ["dose", "age", "height <cm>", "weight", "pulse", "noise"]
TRUTH = np.array([2.0, 0.0, -1.0, 0.0, 0.1, 0.0])


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 0.7).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 6)).astype(np.float32)
    y = (x @ TRUTH + 0.5 * rng.normal(size=240)).astype(np.float32)
    table = pd.DataFrame(x, columns=NAMES)
    return (table[:120], y[:120]), (table[120:], y[120:])


def fit(train, guide=None):
    return bmr.sparsify(
        program,
        train,
        guide=guide,
        key=jax.random.key(1),
        num_epochs=24,
        steps_per_epoch=100,
        batch_size=None,
        schedule=schedules.Verified(wait=6, refit=2, fraction=0.5),
        progress=False,
    )


@pytest.fixture(scope="module")
def result(data):
    return fit(data[0])


@pytest.fixture(scope="module")
def page(result, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert result.report(path, data[1], key=jax.random.key(2), num_samples=50) == path
    return path


def inside(path, name):
    """Return the JSON of a script of a page."""
    pattern = rf'<script type="application/json" id="{name}">(.*?)</script>'
    return json.loads(re.search(pattern, path.read_text(), re.DOTALL)[1])


def expected(result, before, gone):
    """Return the log Savage-Dickey ratio of a set at a point, by SciPy."""
    guide, kept = result.unpruned_guide, before.keep["beta"]
    prior = stats.norm.logpdf(np.zeros(gone.sum()), 0, 0.7).sum()
    if isinstance(guide, infer.AutoMeanField):
        q = guide.posterior(before.params, before.keep)["beta"]
        return stats.norm.logpdf(0, q.loc, q.scale)[gone].sum() - prior
    # What is not kept is zero already: its rows of the factor stand for nothing.
    scale_tril = np.asarray(before.params["auto_scale_tril"])[np.ix_(kept, kept)]
    loc = np.asarray(before.params["auto_loc"])[kept]
    covariance = (scale_tril @ scale_tril.T)[np.ix_(gone[kept], gone[kept])]
    joint = stats.multivariate_normal(loc[gone[kept]], covariance)
    return joint.logpdf(np.zeros(gone.sum())) - prior


@pytest.mark.parametrize("guide", [None, pytest.param(infer.AutoMeanField, marks=pytest.mark.slow)])
def test_rounds_have_the_evidence_of_what_they_removed(result, data, guide):
    if guide is not None:
        result = fit(data[0], guide=guide(program))
    rounds = path_rounds(result, tuple(map(jnp.asarray, (data[0][0].to_numpy(), data[0][1]))))
    assert rounds
    for one in rounds:
        before, after = result.path[one.before], result.path[one.after]
        gone = before.keep["beta"] & ~after.keep["beta"]
        assert one.predicted == pytest.approx(expected(result, before, gone), abs=5e-3)
        assert one.measured == pytest.approx(before.vfe - after.vfe)
        assert one.count == gone.sum() == before.kept - after.kept
    at, delta_f = removal_of_each(result, rounds)["beta"]
    removed = ~np.asarray(result.keep["beta"])
    np.testing.assert_array_equal(at >= 0, removed)
    np.testing.assert_array_equal(np.isfinite(delta_f), removed)


def test_a_round_that_was_taken_back_is_compared_with_the_point_before_it():
    keeps = [np.ones(3, bool), np.array([True, False, True]), np.array([True, True, False])]
    path = [
        bmr.Point(i, vfe, int(keep.sum()), 3, {}, {}, {"w": keep}, taken_back=back)
        for i, (vfe, keep, back) in enumerate(
            zip([9.0, 12.0, 8.0], keeps, [False, True, False], strict=True)
        )
    ]
    result = bmr.Result({}, {"w": jnp.asarray(keeps[2])}, {}, 10, path=path, vfe=8.0)
    back, stayed = path_rounds(result, None)
    assert (back.before, back.after, back.measured, back.taken_back) == (0, 1, -3.0, True)
    assert (stayed.before, stayed.after, stayed.measured, stayed.taken_back) == (0, 2, 1.0, False)
    assert back.predicted is None  # without a program
    assert removal_of_each(result, [back, stayed])["w"][0].tolist() == [-1, -1, 2]


def test_the_slider_has_the_metrics_of_each_point(result, page, data):
    points, here = inside(page, "points"), present_point(result)
    order = sorted(range(len(result.path)), key=lambda i: -result.path[i].kept)
    assert [p["title"].split(",")[0] for p in points] == [f"Point {i}" for i in order]
    for place in (0, order.index(here)):
        at = result.at(order[place])
        found = at.evaluate(jax.random.key(2), data[1], num_samples=50)
        assert points[place]["shown"]["nll"] == f"{found['nll']:.4g}"
        assert points[place]["shown"]["rmse"] == f"{found['rmse']:.4g}"
        assert points[place]["shown"]["kept"] == f"{at.num_kept}"
        assert points[place]["shown"]["vfe"] == f"{at.vfe_per_datum:.4g}"
    assert points[order.index(here)]["mark"] == "this result"
    # The figures at the top are those of the slider.
    assert f"<dd>{points[order.index(here)]['shown']['nll']}</dd>" in page.read_text()


def test_the_page_names_what_was_removed_and_what_is_left(result, page):
    text = page.read_text()
    kept = np.asarray(result.keep["beta"])
    assert kept[0]
    assert kept[2]
    assert not kept[[1, 3, 5]].any()
    for name, stays in zip(NAMES, kept, strict=True):
        row = re.search(
            rf'<th scope="row">{re.escape(name.replace("<", "&lt;").replace(">", "&gt;"))}</th>(.*?)</tr>',
            text,
            re.DOTALL,
        )
        assert ("kept" if stays else "removed") in row[1]
        assert ("point" in row[1]) == (not stays)
    assert "height <cm>" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "Coverage of intervals" in text
    assert type(result.unpruned_guide).__name__ in text
    assert len(text.encode()) < 1_000_000
    assert not re.search(r'(src|href)="(?!#|data:,)', text)
    assert "@import" not in text


def test_without_data_the_page_says_what_is_missing(result, tmp_path):
    bare = bmr.Result(
        result.params,
        result.keep,
        result.layers,
        result.num_data,
        result.history,
        result.path,
        vfe=result.vfe,
    )
    text = bare.report(tmp_path / "a.html").read_text()
    assert "loaded without its program" in text
    assert "this needs held-out data" in text
    text = result.report(tmp_path / "b.html").read_text()
    assert "ΔF and costs are not known without data" in text
    text = result.report(tmp_path / "c.html", inputs=(np.zeros((2, 6), np.float32),)).read_text()
    assert "not known without data" not in text
    assert "Kept coefficients" in text


def test_data_without_targets_or_key_are_refused(result, data, tmp_path):
    x, _ = data[1]
    with pytest.raises(ValueError, match=r"the held-out data have no targets.*inputs=\(x,\)"):
        result.report(tmp_path / "a.html", (x,), key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"Result\.report: key"):
        result.report(tmp_path / "a.html", data[1])
    with pytest.raises(TypeError, match=r"a tuple such as \(x\[:2\],\) or a dict; got DataFrame"):
        result.report(tmp_path / "a.html", inputs=x)
    with pytest.raises(ValueError, match=r"ends in \.html"):
        result.report(tmp_path / "a.htm1", inputs=(x,))
    with pytest.raises(ValueError, match=r"ends in \.html or \.htm"):
        result.report(tmp_path / "a.txt", (x,))  # before anything is computed
    assert list(tmp_path.iterdir()) == []


def test_an_accuracy_is_shown_with_its_rows_and_its_error(tmp_path):
    def classes(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=90) > 0).astype(np.int32)
    settings = {"num_epochs": 2, "steps_per_epoch": 50, "batch_size": None, "progress": False}
    result = bmr.sparsify(classes, (x[:60], y[:60]), key=jax.random.key(0), **settings)
    said, key = [], jax.random.key(1)
    page = result_page(result, data=(x[60:], y[60:]), key=key, num_samples=20, doing=said.append)
    (figure,) = [each for each in page.figures if each[0].startswith("Accuracy")]
    share = float(figure[1].rstrip("%")) / 100
    assert 0.5 < share < 1
    error = 100 * np.sqrt(share * (1 - share) / 30)
    assert figure[2] == f"of 30 rows, ± {error:.1f} points"
    assert f"Held-out accuracy is {figure[1]} ({figure[2]}); it was" in page.lead
    assert said[0] == "measuring each point of the path"
    assert said[-1] == "predicting held-out rows"


def test_the_head_in_a_notebook_is_small_and_runs_nothing(result):
    head = result._repr_html_()
    assert len(head) < 4000
    assert f"{result.num_kept} of 6 elements kept" in head
    assert "<script" not in head
    bad = bmr.Result(
        {}, {"<w>": jnp.zeros(3, bool)}, {}, 10, vfe=5.0, metrics={"nll": float("nan")}
    )
    head = bad._repr_html_()
    assert "&lt;w&gt;" in head
    assert "<w>" not in head
    assert "not finite" in head


def test_reliability_bins_are_those_of_the_calibration_error():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(4, 0.4), 500).astype(np.float32)
    labels = rng.integers(0, 4, 500)
    bins = reliability_bins(probs, labels)
    gap = np.sum(np.abs(bins["observed"] - bins["expected"]) * bins["count"]) / 500
    assert gap == pytest.approx(float(metrics.expected_calibration_error(probs, labels)), abs=1e-5)
    assert bins["count"].sum() == 500
    with pytest.raises(ValueError, match="one row of class probabilities per label"):
        reliability_bins(probs, labels[:-1])


@pytest.mark.parametrize("num_samples", [1, 5, 20, 100])
@pytest.mark.parametrize("draw", ["normal", "poisson"])
def test_coverage_is_exact_for_any_number_of_draws_and_for_counts(num_samples, draw):
    rng = np.random.default_rng(1)
    rows = 20_000
    sample = rng.normal if draw == "normal" else lambda size: rng.poisson(1.5, size)
    draws, value = sample(size=(num_samples, rows)), sample(size=rows)
    found = interval_coverage(Prediction(value, value, value, False, samples=draws))  # noqa: FBT003
    error = np.sqrt(found["expected"] * (1 - found["expected"]) / rows)
    assert (np.abs(found["observed"] - found["expected"]) < 4.5 * error).all()
    too_sure = interval_coverage(Prediction(value, value, 2 * value, False, samples=draws))  # noqa: FBT003
    assert num_samples < 20 or too_sure["observed"][-2] < 0.88
    with pytest.raises(ValueError, match="return_samples=True"):
        interval_coverage(Prediction(value, value, value, False))  # noqa: FBT003


SHOWN = "return [...document.querySelectorAll('[data-measure]')].map(e => e.textContent)"
# Where the line stands in each chart of the path.
LINES = (
    "return [...document.querySelectorAll('.explorer line[stroke=\"var(--orange)\"]')]"
    ".map(e => e.getAttribute('transform'))"
)
UNDRAWN = "return document.querySelectorAll('[data-chart]:not(:has(svg))').length"
UNNAMED = "return document.querySelectorAll('input:not([id]), [role=img]:not([aria-label])').length"
MOVE = "const s = document.getElementById('at'); s.value = 0; s.dispatchEvent(new Event('input'))"


def until(test):
    """Wait for what a page does in its own time."""
    end = time.monotonic() + 120
    while not test():
        assert time.monotonic() < end, "the page did not follow in time"
        time.sleep(0.05)


def test_the_slider_moves_in_a_browser(page, tmp_path):
    points = inside(page, "points")
    with opened(page, tmp_path) as browser:
        run = browser.execute_script
        until(lambda: run(UNDRAWN) == 0 and run(LINES))
        before, lines = run(SHOWN), run(LINES)
        here = int(run("return document.getElementById('at').value"))
        assert before == list(points[here]["shown"].values())
        run(MOVE)
        assert run(SHOWN) == list(points[0]["shown"].values()) != before
        assert run("return document.getElementById('where').textContent").startswith("Point 0")
        until(lambda: all(now != then for now, then in zip(run(LINES), lines, strict=True)))
        run("document.getElementById('home').click()")
        assert run(SHOWN) == before
        assert browser.get_log("browser") == []
        assert run("return performance.getEntriesByType('resource').length") == 0
        assert run(UNNAMED) == 0
        levels = run("return [...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
        assert levels[0] == 1
        assert max(np.diff(levels)) <= 1


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_page_without_scrolling_sideways(page, tmp_path, dark):
    with opened(page, tmp_path, width=390, dark=dark) as browser:
        width = "return document.documentElement.scrollWidth"
        assert browser.execute_script(width) <= 390
        colour = "return getComputedStyle(document.body).backgroundColor"
        red = int(re.search(r"\d+", browser.execute_script(colour))[0])
        assert (red < 80) if dark else (red > 200)
