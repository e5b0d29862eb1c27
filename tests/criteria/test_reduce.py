import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bmrjax import criteria
from bmrjax.criteria import Decision
from bmrjax.criteria.reduce_once import jit_reduce, reduce_once
from bmrjax.criteria.smallest import smallest
from bmrjax.reduction import Normal

pytestmark = pytest.mark.usefixtures("strict_promotion")

scores = hnp.arrays(
    np.float32,
    (3, 4),
    # Few distinct values, so that ties are common; infinity and not-a-number among them.
    elements=st.sampled_from([0.0, 1e-40, 1e-3, 1.0, 2.0, 3e38, np.inf, np.nan]),
)
smallest_jit = jax.jit(smallest)


@given(scores, scores, hnp.arrays(bool, (2, 3, 4)), st.integers(0, 26))
def test_smallest_agrees_with_sorting(first, second, candidates, count):
    marked = smallest_jit([first, second.ravel()], [candidates[0], candidates[1].ravel()], count)
    assert [m.shape for m in marked] == [(3, 4), (12,)]
    flat = np.concatenate([first.ravel(), second.ravel()])
    order = np.argsort(flat, kind="stable")
    chosen = [i for i in order if candidates.ravel()[i]][:count]
    expected = np.isin(np.arange(24), chosen)
    np.testing.assert_array_equal(np.concatenate([m.ravel() for m in marked]), expected)


def test_smallest_does_not_stall_on_ties():
    """Weights that never met data all have a signal-to-noise ratio of zero."""
    (marked,) = smallest([jnp.zeros(8)], [jnp.ones(8, bool)], jnp.int32(3))
    assert marked.tolist() == [True] * 3 + [False] * 5


@pytest.mark.parametrize("run", [smallest, smallest_jit])
def test_smallest_knows_signs(run):
    scores = jnp.array([-0.0, 5.0, 0.0, jnp.inf, jnp.nan, -2.0, -jnp.inf, -1e-30])
    order = [6, 5, 7, 0, 2, 1, 3, 4]
    for count in range(9):
        (marked,) = run([scores], [jnp.ones(8, bool)], jnp.int32(count))
        assert np.flatnonzero(marked).tolist() == sorted(order[:count])


Q = {
    "a": Normal(jnp.array([[0.2, 0.01], [5.0, -0.02]]), jnp.array([[0.1, 0.2], [0.1, 0.1]])),
    "b": Normal(jnp.array([0.1, -9.0]), jnp.array([0.2, 0.3])),
}
P = {name: Normal(jnp.zeros_like(q.loc), jnp.full_like(q.scale, 3.0)) for name, q in Q.items()}
LAYERS = {"a": "layer", "b": "layer"}
# What is proposed has signal-to-noise ratios of 2, 0.05 and 0.2 in "a", of 0.5 in "b".
ALL = {"a": [[False, False], [True, False]], "b": [False, True]}
ONE = {"a": [[True, False], [True, True]], "b": [True, True]}
TWO = {"a": [[True, False], [True, False]], "b": [True, True]}


def lists(keep):
    return {name: mask.tolist() for name, mask in keep.items()}


FOUND = criteria.SitePosteriors(Q, P, LAYERS)


def everything(*, value=True):
    return {name: jnp.full(q.loc.shape, value) for name, q in Q.items()}


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("fraction", "removed", "expected"),
    # The cap is rounded up: a round with candidates removes at least one.
    [(1.0, 4, ALL), (0.99, 4, ALL), (0.01, 1, ONE), (1 / 6, 1, ONE), (0.2, 2, TWO)],
)
def test_a_round_removes_at_most_its_fraction(compiled, fraction, removed, expected):
    criterion, order = criteria.SpikeAndSlab(), criteria.smallest_snr_first
    cap = jnp.float32(fraction)
    if compiled:
        done = jit_reduce(criterion, order)(FOUND, everything(), None, cap)
    else:
        done = reduce_once(criterion, order, FOUND, everything(), None, cap)
    assert lists(done.keep) == expected
    assert (done.removed, done.proposed) == (removed, 4)
    assert lists(done.decision.keep) == ALL


def test_beyond_the_proposal_goes_only_what_is_asked_for():
    criterion, order = criteria.SpikeAndSlab(), criteria.smallest_snr_first
    reduce_ = jit_reduce(criterion, order)
    args = (FOUND, everything(), None)
    total = sum(mask.size for mask in everything().values())
    for count in (1, 2, total):
        done = reduce_(*args, jnp.float32((count - 0.5) / total), True)  # noqa: FBT003 - traced
        assert done.removed == count
        assert done.proposed == 4
    # In the order of the scores, whatever the criterion would keep.
    one = reduce_(*args, jnp.float32(0.5 / total), True)  # noqa: FBT003
    assert lists(one.keep) == ONE


def test_only_what_is_kept_is_removed_again():
    criterion, order = criteria.SpikeAndSlab(), criteria.smallest_snr_first
    keep = {name: jnp.array(mask) for name, mask in TWO.items()}
    done = reduce_once(criterion, order, FOUND, keep, None, jnp.float32(0.25))
    # A quarter of the four that are kept: the first of "b", with an SNR of 0.5.
    assert lists(done.keep) == {"a": TWO["a"], "b": [False, True]}
    assert (done.removed, done.proposed) == (1, 2)


def test_a_returning_element_is_not_counted_as_removed():
    criterion, order = criteria.SpikeAndSlab(regrow=True), criteria.smallest_snr_first
    nothing = everything(value=False)
    done = reduce_once(criterion, order, FOUND, nothing, None, jnp.float32(1))
    assert lists(done.keep) == ALL
    assert (done.removed, done.proposed) == (0, 0)


def test_a_new_cap_and_new_masks_do_not_retrace():
    traces = 0

    def counting(found, decision):
        nonlocal traces
        traces += 1
        return criteria.smallest_snr_first(found, decision)

    criterion = criteria.SpikeAndSlab()
    reduce_ = jit_reduce(criterion, counting)
    keep = everything()
    counts = []
    for fraction in (0.01, 0.2, 0.5):
        done = reduce_(FOUND, keep, None, jnp.float32(fraction))
        keep = done.keep
        counts.append(int(done.removed))
    assert counts == [1, 1, 2]
    assert traces == 1


ORDERS = [
    criteria.smallest_snr_first,
    criteria.smallest_magnitude_first,
    criteria.largest_delta_f_first,
]


def expected_rank(order, posterior, decision):
    """The elements that are removed first, by the definition of an order."""
    loc, scale = np.asarray(posterior["w"].loc), np.asarray(posterior["w"].scale)
    key = {
        "smallest_snr_first": np.abs(loc) / scale,
        "smallest_magnitude_first": np.abs(loc),
        "largest_delta_f_first": -np.asarray(decision.delta_f["w"]),
    }[order.__name__]
    return np.argsort(key, kind="stable")


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.__name__)
def test_orders_are_what_their_names_say(order):
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=30), rng.uniform(0.05, 1.0, 30)
    q = {"w": Normal(jnp.float32(loc), jnp.float32(scale))}
    decision = Decision({}, {"w": jnp.float32(rng.uniform(-5, 40, 30))})
    score = order(criteria.SitePosteriors(q, {}), decision)["w"]
    np.testing.assert_array_equal(
        np.argsort(score, kind="stable"), expected_rank(order, q, decision)
    )
    assert (score >= 0).all()


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.__name__)
def test_orders_give_usable_scores_at_extremes(order):
    q = {"w": Normal(jnp.array([0.0, -1e6, 1e6, 1e-30]), jnp.array([1e-18, 1e-18, 1e3, 1.0]))}
    delta_f = jnp.array([43.0, -jnp.finfo(jnp.float32).max, -jnp.inf, 0.0])
    score = order(criteria.SitePosteriors(q, {}), Decision({}, {"w": delta_f}))["w"]
    assert (score >= 0).all()
    assert not np.signbit(score).any()
