"""One capped reduction, against a sort in numpy."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bmrjax import schedules
from bmrjax.criteria import Criterion, Decision, SpikeAndSlab
from bmrjax.reduce import jit_reduce, reduce_once, smallest
from bmrjax.reduction import Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")

SHAPES = ((3, 2), (5,), ())
SIZE = 12
# Few distinct values make ties; the rest are where the bit patterns are extreme.
SCORES = st.sampled_from([0.0, 1e-45, 1e-38, 0.5, 1.0, 3e38, float("inf")]) | st.floats(
    0, 2.0**100, width=32
)


def split(flat):
    parts, start = [], 0
    for shape in SHAPES:
        stop = start + int(np.prod(shape))
        parts.append(jnp.asarray(flat[start:stop].reshape(shape)))
        start = stop
    return parts


def join(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def smallest_by_sort(scores, candidates, count):
    """The candidates below the first score that does not fit; ties with it stay out."""
    order = np.sort(scores[candidates])
    if len(order) <= count:
        return candidates
    return candidates & (scores < order[count])


smallest_jit = jax.jit(smallest)


@given(
    hnp.arrays(np.float32, SIZE, elements=SCORES),
    hnp.arrays(np.bool_, SIZE),
    st.integers(0, SIZE + 1),
)
def test_smallest_is_a_sort(scores, candidates, count):
    got = join(smallest_jit(split(scores), split(candidates), jnp.int32(count)))
    np.testing.assert_array_equal(got, smallest_by_sort(scores, candidates, count))
    assert got.sum() <= count


@dataclass(frozen=True)
class Chosen(Criterion[Any]):
    """Removes what it was told to."""

    goes: tuple[int, ...]
    delta_f: tuple[float, ...] = (1.0,) * 6

    def init(self, posterior):
        return None

    def __call__(self, posterior, prior, state, *, layers=None):
        stays = jnp.asarray([i not in self.goes for i in range(6)])
        return Decision({"w": stays}, {"w": jnp.asarray(self.delta_f, jnp.float32)}, state)


POSTERIOR = {
    "w": Normal(
        jnp.array([0.1, -0.2, 0.3, 4.0, -0.5, 0.6]), jnp.array([0.01, 0.4, 0.1, 1.0, 0.5, 3.0])
    )
}
PRIOR = {"w": Normal(jnp.zeros(6), jnp.ones(6))}
ALL = {"w": jnp.ones(6, bool)}


def reduce_chosen(criterion, order, keep, fraction):
    return reduce_once(
        criterion, order, POSTERIOR, PRIOR, {"w": "w"}, None, keep, jnp.float32(fraction)
    )


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (schedules.smallest_snr_first, 5),  # |loc| / scale: 10, 0.5, 3, 4, 1, 0.2
        (schedules.smallest_magnitude_first, 0),
        (schedules.largest_delta_f_first, 2),
    ],
)
def test_the_order_decides_who_goes_first(order, first):
    criterion = Chosen((0, 1, 2, 5), delta_f=(0.1, 0.2, 9.0, -5.0, -5.0, 3.0))
    done = reduce_chosen(criterion, order, ALL, 0.1)  # a tenth of six, rounded up, is one
    assert np.flatnonzero(~done.keep["w"]).tolist() == [first]
    assert (int(done.removed), int(done.proposed)) == (1, 4)


@pytest.mark.parametrize(("fraction", "removed"), [(0.3, 2), (0.5, 3), (0.6, 4), (1.0, 4)])
def test_a_round_removes_at_most_the_fraction_of_what_is_kept(fraction, removed):
    done = reduce_chosen(Chosen((0, 1, 2, 5)), schedules.smallest_magnitude_first, ALL, fraction)
    assert int(done.removed) == removed == int((~done.keep["w"]).sum())
    np.testing.assert_array_equal(done.keep["w"][3:5], [True, True])


def test_the_cap_counts_what_is_kept_not_what_there_is():
    keep = {"w": jnp.array([True, True, True, True, False, False])}
    done = reduce_chosen(Chosen((0, 1, 2, 4, 5)), schedules.smallest_magnitude_first, keep, 0.5)
    assert (int(done.removed), int(done.proposed)) == (2, 3)
    assert done.keep["w"].tolist() == [False, False, True, True, False, False]


def test_what_the_criterion_lets_return_returns():
    keep = {"w": jnp.array([True, False, True, False, True, True])}
    done = reduce_chosen(Chosen((0, 3)), schedules.smallest_magnitude_first, keep, 1.0)
    assert done.keep["w"].tolist() == [False, True, True, False, True, True]
    assert (int(done.removed), int(done.proposed)) == (1, 1)


@given(st.lists(st.floats(-1e30, 2.0**100, width=32), min_size=6, max_size=6))
def test_orders_give_finite_non_negative_scores(delta_f):
    """Bit patterns sort like the numbers only where no sign bit is set."""
    decision = Decision(ALL, {"w": jnp.asarray(delta_f, jnp.float32)}, None)
    for order in (
        schedules.smallest_snr_first,
        schedules.smallest_magnitude_first,
        schedules.largest_delta_f_first,
    ):
        scores = order(POSTERIOR, decision)["w"]
        assert scores.dtype == jnp.float32
        assert np.isfinite(scores).all()
        assert not np.signbit(scores).any()


def test_new_masks_and_fractions_do_not_retrace():
    count = 0

    def counting(posterior, decision):
        nonlocal count
        count += 1
        return schedules.smallest_snr_first(posterior, decision)

    criterion = SpikeAndSlab()
    null = {"w": Normal(jnp.arange(6.0) / 100, jnp.full(6, 0.05))}
    run = jit_reduce(criterion, counting, {"w": "w"})
    state, keep, removed = criterion.init(null), ALL, []
    for fraction in (0.2, 0.5, 1.0):
        done = run(null, PRIOR, state, keep, jnp.float32(fraction))
        keep, state = done.keep, criterion.with_keep(done.decision.state, done.keep)
        removed.append(int(done.removed))
    assert count == 1
    assert removed == [2, 2, 2]  # a fifth of six and half of four, rounded up, and the rest
