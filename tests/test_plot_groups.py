"""Effects and subjects of a group, and true values beside them."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

import bmrjax as bmr
from bmrjax import plot

AGE = np.linspace(20, 60, 12)
BLUE, GREY = "#0072b2", "#777777"


@pytest.fixture(scope="module")
def loc():
    return np.outer(AGE - 40, [0.02, 0.0]) + np.random.default_rng(0).normal(0.5, 0.1, (12, 2))


@pytest.fixture(scope="module")
def study(loc):
    return bmr.peb(
        design={"age": AGE},
        loc=loc,
        covariance=np.stack([0.01 * np.eye(2)] * 12),
        prior=bmr.reduction.Normal(0.3, 1.0),
        names=["gain", "decay"],
    )


def colours(group):
    return [to_hex(colour) for colour in group.get_colors()]


def test_effects_have_one_panel_per_covariate_with_its_intervals(study):
    mean, age = plot.effects(study).axes
    assert [label.get_text() for label in mean.get_yticklabels()] == ["gain", "decay"]
    intervals, points = age.collections
    ends = [segment[:, 0].tolist() for segment in intervals.get_segments()]
    np.testing.assert_allclose(ends, np.stack([study.lower["age"], study.upper["age"]], 1))
    np.testing.assert_allclose(points.get_offsets()[:, 0], study.mean["age"])
    assert colours(intervals) == [BLUE, GREY]
    assert age.get_xlabel() == "Effect, 95% interval"


def test_effects_leave_out_those_that_are_small(study):
    axes = plot.effects(study, truth={"age": [0.02, 0.0]}, most=1).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["gain"]
    assert axes[0].get_legend() is None
    assert axes[1].collections[-1].get_offsets().data.tolist() == [[0.02, 0.0]]


def test_effects_refuse_true_values_that_do_not_fit(study):
    with pytest.raises(ValueError, match=r"truth has \['sex'\].* it has \['mean', 'age'\]"):
        plot.effects(study, truth={"sex": [0.0, 0.0]})
    with pytest.raises(ValueError, match="truth has 3 values for 2 parameters"):
        plot.effects(study, truth={"age": [0.0, 0.0, 0.0]})


def test_subjects_by_themselves_have_the_means_that_were_given(study, loc):
    np.testing.assert_allclose(study.subject_loc_alone, loc, rtol=1e-10)


def test_subjects_are_drawn_by_themselves_and_given_all(study, loc):
    axes = plot.subjects(study, "decay", truth=np.arange(12.0)).axes[0]
    intervals, alone, together, truth = axes.collections
    np.testing.assert_allclose(alone.get_offsets()[:, 0], loc[:, 1], rtol=1e-10)
    np.testing.assert_allclose(together.get_offsets()[:, 0], study.subject_loc[:, 1])
    half = 1.96 * np.sqrt(study.subject_covariance[:, 1, 1])
    ends = np.array([segment[:, 0] for segment in intervals.get_segments()])
    np.testing.assert_allclose(np.diff(ends)[:, 0], 2 * half)
    np.testing.assert_array_equal(truth.get_offsets()[:, 0], np.arange(12.0))
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["by itself", "given all subjects", "truth"]
    with pytest.raises(ValueError, match=r"no parameter 'x'; there are \['gain', 'decay'\]"):
        plot.subjects(study, "x")


def test_inclusion_marks_true_values_in_the_rows_that_it_shows(study):
    found = study.reduce(verify=False)
    figure = plot.inclusion(found, truth=[0.5, 0.5, 0.02, 0.0], most=2)
    rows = found.table()["inclusion_prob"].nlargest(2).index.sort_values()
    marks = figure.axes[1].collections[-1].get_offsets().data
    assert marks.tolist() == [[[0.5, 0.5, 0.02, 0.0][row], i] for i, row in enumerate(rows)]
    with pytest.raises(ValueError, match="inclusion: truth has 3 values for 4 elements"):
        plot.inclusion(found, truth=[0.0, 0.0, 0.0])


def test_what_is_no_group_is_refused(study):
    found = study.reduce(verify=False)
    with pytest.raises(TypeError, match=r"plot\.effects takes what bmrjax\.peb returns, got"):
        plot.effects(found)
    with pytest.raises(TypeError, match=r"plot\.subjects takes what bmrjax\.peb returns, got dict"):
        plot.subjects({}, "gain")
