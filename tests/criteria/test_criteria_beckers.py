"""The criteria of Beckers et al. (2024): shrinkage, and the baselines it is compared with."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from bmrjax import criteria
from bmrjax.criteria import SitePosteriors
from bmrjax.reduction import Normal


def exact(q, p, variance):
    """Return equation 19 in fifty digits, its sign turned to ours."""
    with mpmath.workdps(50):
        (mu_q, s_q), (mu_p, s_p) = ([mpmath.mpf(float(x)) for x in pair] for pair in (q, p))
        v_q, v_p, v_r = s_q**2, s_p**2, mpmath.mpf(variance)
        v = 1 / (1 / v_q + 1 / v_r - 1 / v_p)
        mu = v * (mu_q / v_q - mu_p / v_p)
        quadratic = mu_q**2 / v_q - mu_p**2 / v_p - mu**2 / v
        return float(mpmath.log(v * v_p / (v_r * v_q)) / 2 - quadratic / 2)


@pytest.mark.parametrize("variance", [1e-16, 1e-8, 1e-2])
def test_shrinkage_is_equation_19_in_float32(variance):
    rng = np.random.default_rng(0)
    loc = np.r_[0.0, 1e-3, rng.normal(size=20), 30.0].astype(np.float32)
    scale = np.exp(rng.uniform(-7, 0.5, loc.size)).astype(np.float32)
    prior = (np.float32(0.2), np.float32(1.5))
    q = {"w": Normal(jnp.asarray(loc), jnp.asarray(scale))}
    p = {"w": Normal(jnp.full(loc.shape, prior[0]), jnp.full(loc.shape, prior[1]))}
    criterion = criteria.Shrinkage(variance)
    decision = jax.jit(criterion)(SitePosteriors(q, p))
    expected = [exact(pair, prior, variance) for pair in zip(loc, scale, strict=True)]
    np.testing.assert_allclose(decision.delta_f["w"], expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(decision.keep["w"], np.asarray(expected) < 0)


def test_what_the_data_say_nothing_of_goes():
    p = {"w": Normal(jnp.zeros(3), jnp.ones(3))}
    criterion = criteria.Shrinkage(0.0)
    decision = criterion(SitePosteriors(p, p))
    np.testing.assert_array_equal(decision.delta_f["w"], 0.0)
    assert not decision.keep["w"].any()


UNITS = jnp.arange(3)
GROUPS = criteria.Groups({"weight": jnp.tile(UNITS[:, None], (1, 4)), "bias": UNITS}, 3)


def jit_criterion(criterion):
    return jax.jit(lambda found: criterion(found))


def rows():
    """Return a layer in which single weights of a strong row are weak, and the other way round."""
    weight = jnp.zeros((3, 4)).at[0].set(jnp.array([4.0, 0.0, 0.0, 3.0])).at[2, 1].set(0.4)
    q = {
        "weight": Normal(weight, jnp.full((3, 4), 0.3)),
        "bias": Normal(jnp.array([0.0, 0.0, 0.9]), jnp.full(3, 0.3)),
    }
    return q, {name: Normal(jnp.zeros_like(x.loc), jnp.ones_like(x.loc)) for name, x in q.items()}


def test_a_group_goes_by_the_sum_of_its_members():
    q, p = rows()
    single, grouped = criteria.Shrinkage(), criteria.Shrinkage(groups=GROUPS)
    alone, together = (jit_criterion(c)(SitePosteriors(q, p)) for c in (single, grouped))
    assert together.keep["weight"].all(1).tolist() == [True, False, False]
    assert together.keep["bias"].tolist() == [True, False, False]
    # On its own the third unit's bias stays, and weights of the first unit are removed.
    assert alone.keep["bias"].tolist() == [False, False, True]
    assert not alone.keep["weight"][0].all()
    total = sum(alone.delta_f["weight"][i].sum() + alone.delta_f["bias"][i] for i in (1,))
    assert GROUPS.sum(alone.delta_f)[1] == pytest.approx(float(total), rel=1e-5)


def test_what_a_group_lost_before_says_nothing_more():
    q, p = rows()
    criterion = criteria.Shrinkage(groups=GROUPS)
    keep = {"weight": jnp.ones((3, 4), bool).at[0].set(False), "bias": jnp.ones(3, bool)}
    # Without its weights, nothing speaks for the first unit.
    assert not criterion(SitePosteriors(q, p), keep).keep["bias"][0]


def test_bad_groups_are_named():
    with pytest.raises(ValueError, match="'w' are numbered 0 to 3"):
        criteria.Groups({"w": jnp.arange(4)}, 3)
    q, p = rows()
    for ids, message in (
        ({"bias": UNITS}, "'weight'"),
        (GROUPS.ids | {"bias": UNITS[:1]}, "shape"),
    ):
        criterion = criteria.Shrinkage(groups=criteria.Groups(ids, 3))
        with pytest.raises(ValueError, match=message):
            criterion(SitePosteriors(q, p))
    with pytest.raises(ValueError, match="variance must be at least 0"):
        criteria.Shrinkage(-1.0)


SCORES = {
    criteria.SignalToNoise: lambda q: np.abs(q.loc) / q.scale,
    criteria.SignalPlusRobustness: lambda q: np.abs(q.loc) + q.scale,
    criteria.Magnitude: lambda q: np.abs(q.loc),
}


@pytest.mark.parametrize("kind", SCORES)
def test_baselines_rank_by_their_scores(kind):
    shapes = {"a": (5, 4), "b": (7,)}
    rng = np.random.default_rng(0)
    q = {
        n: Normal(jnp.asarray(rng.normal(size=s)), jnp.asarray(np.exp(rng.normal(size=s))))
        for n, s in shapes.items()
    }
    p = {n: Normal(jnp.zeros(s), jnp.ones(s)) for n, s in shapes.items()}
    scores = {n: np.asarray(SCORES[kind](x)) for n, x in q.items()}
    ordered = np.sort(np.concatenate([s.ravel() for s in scores.values()]))
    between = float(ordered[8] + ordered[9]) / 2
    criterion = kind(threshold=between)
    kept = criterion(SitePosteriors(q, p)).keep
    for name, s in scores.items():
        np.testing.assert_array_equal(kept[name], s >= between)
    # A third of 27 elements, in two rounds: what is gone counts.
    criterion = kind(fraction=1 / 3)
    first = jax.jit(criterion)(SitePosteriors(q, p))
    for name, s in scores.items():
        np.testing.assert_array_equal(first.keep[name], s >= between)
    again = criterion(SitePosteriors(q, p), first.keep)
    for name in scores:
        np.testing.assert_array_equal(again.keep[name], first.keep[name])


def test_baselines_want_one_of_threshold_and_fraction():
    for arguments in ({}, {"threshold": 1.0, "fraction": 0.5}):
        with pytest.raises(ValueError, match="a threshold or a fraction"):
            criteria.Magnitude(**arguments)
    with pytest.raises(ValueError, match="fraction must be in"):
        criteria.SignalToNoise(fraction=2.0)
