"""Lists of candidates of which few are expected to be false."""

import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax import reduction
from bmrjax.fitted.false_discoveries import within_false_discoveries


def test_the_share_of_false_ones_is_at_most_the_rate():
    prob = np.array([0.3, 0.99, 0.85, 0.9])
    assert within_false_discoveries(prob, 0.05).tolist() == [False, True, False, False]
    assert within_false_discoveries(prob, 0.1).tolist() == [False, True, True, True]
    assert within_false_discoveries(prob, 0.5).all()
    assert not within_false_discoveries(prob, 0.005).any()


def copies(**options):
    """Return the reduction of four columns: two copies with one effect, a certain effect, and none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    x[:, 1] = x[:, 0]
    y = 1.0 * x[:, 0] + 1.5 * x[:, 2] + rng.normal(size=60)
    covariance = np.linalg.inv(x.T @ x + np.eye(4))
    return bmr.reduce_fit(
        loc=covariance @ x.T @ y,
        covariance=covariance,
        prior=reduction.Normal(jnp.zeros(4), jnp.ones(4)),
        names=["dose", "dose_again", "age", "height"],
        **options,
    )


def test_copies_are_selected_where_the_rate_allows_for_one_of_them():
    found = copies()
    prob = found.inclusion_prob["z"]
    assert found.select()["z"].tolist() == [False, False, True, False]
    both = found.select(false_discovery_rate=float(1 - prob[:3].mean()) + 1e-6)["z"]
    assert both.tolist() == [True, True, True, False]


def test_the_elements_of_a_group_go_together_and_forced_ones_are_in():
    found = copies(groups={"doses": ["dose", "dose_again"]}, forced=["height"])
    assert found.select(false_discovery_rate=0.05)["z"].tolist() == [True, True, True, True]


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match="above 0 and below 1"):
        copies().select(false_discovery_rate=rate)


@pytest.mark.parametrize("rate", ["0.1", None, True, [0.1], 1j])
def test_a_rate_that_is_not_a_number_is_refused(rate):
    with pytest.raises(TypeError, match=r"select: false_discovery_rate is a number above 0 and"):
        copies().select(false_discovery_rate=rate)
    with pytest.raises(TypeError, match=r"credible_sets: coverage is a number above 0 and"):
        copies().credible_sets(rate)
    with pytest.raises(TypeError, match=r"least_correlation is a number between 0 and 1"):
        copies().credible_sets(least_correlation=rate)


def test_a_rate_may_come_as_an_array_without_axes():
    assert copies().select(false_discovery_rate=jnp.asarray(0.1))["z"].tolist()[2]
