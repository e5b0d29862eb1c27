"""What the last pass of a run removes, and what masks cost there."""

import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax import criteria, reduction
from bmrjax.criteria.last_pass import LeastEvidence, for_last_pass
from bmrjax.criteria.reduce_once import reduce_once

# ΔF falls from left to right; the first two elements are better removed.
POSTERIOR = {"w": reduction.Normal(jnp.array([0.0, 0.05, 0.4, 3.0]), jnp.full(4, 0.1))}
PRIOR = {"w": reduction.Normal(jnp.zeros(4), jnp.ones(4))}
ALL = {"w": jnp.ones(4, bool)}


def keep_after(criterion, fraction, *, beyond, posterior=POSTERIOR):
    last = for_last_pass(criterion)
    order = LeastEvidence(last.groups)
    found = criteria.SitePosteriors(posterior, PRIOR)
    round_ = reduce_once(last, order, found, ALL, None, jnp.float32(fraction), beyond)
    return round_.keep["w"].tolist()


def test_it_goes_by_the_evidence_of_each_element():
    criterion = criteria.SpikeAndSlab()
    assert keep_after(criterion, 1.0, beyond=False) == [False, False, True, True]
    assert keep_after(criterion, 0.1, beyond=False) == [False, True, True, True]
    assert keep_after(criterion, 0.5 / 4, beyond=True) == [False, True, True, True]


def test_single_elements_go_though_the_evidence_is_against_it():
    needed = {"w": reduction.Normal(jnp.array([3.0, 0.6, 2.0, 30.0]), jnp.full(4, 0.1))}
    criterion = criteria.RegularizedHorseshoe()
    assert keep_after(criterion, 0.5, beyond=False, posterior=needed) == [True] * 4
    assert keep_after(criterion, 0.5 / 4, beyond=True, posterior=needed) == [
        True,
        False,
        True,
        True,
    ]


def test_groups_stay_whole_and_are_ordered_by_their_sum():
    groups = criteria.Groups({"w": jnp.array([0, 1, 1, 0])}, 2)
    criterion = criteria.SpikeAndSlab(groups=groups)
    # One element of group 0 is the first of all, but the other one is needed most.
    assert keep_after(criterion, 0.5 / 4, beyond=True) == [True, False, False, True]


def test_it_is_left_out_where_it_does_not_apply():
    assert for_last_pass(criteria.SignalToNoise(fraction=0.5)) is None
    assert for_last_pass(criteria.Inclusion()) is None
    assert for_last_pass(criteria.BMRSUniform()) is None
    own = criteria.Shrinkage(variance=1e-4)
    assert for_last_pass(own) is own


def test_masks_never_cost_less_for_including_more():
    criterion = criteria.SpikeAndSlab()
    masks = [{"w": jnp.arange(20) < included} for included in range(21)]
    costs = np.array([criterion.mask_cost(keep) for keep in masks])
    exact = np.array([-criterion.mask_log_prob(keep) for keep in masks])
    np.testing.assert_allclose(costs[:11], exact[:11])
    np.testing.assert_allclose(costs[11:], exact[10])
    assert exact[20] == pytest.approx(
        exact[0]
    )  # what would make the full model as good as the empty one
    assert criteria.Shrinkage().mask_cost(masks[3]) == 0.0
