"""The order in which the elements of a joint posterior are removed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from bmrjax import criteria, infer, reduction, site_posteriors
from bmrjax.criteria.in_turn import LARGEST_IN_TURN, has_turns, in_turn
from bmrjax.reduction import MultivariateNormal, Normal

SHAPES = {"a": (2, 3), "b": (4,)}


@pytest.fixture(scope="module")
def joint():
    """A posterior of ten strongly correlated elements."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((10, 4)) @ rng.standard_normal((4, 10)) + 0.3 * rng.standard_normal(
        (10, 10)
    )
    tril = np.linalg.cholesky(0.02 * root @ root.T)
    return MultivariateNormal(jnp.asarray(rng.standard_normal(10) * 0.4), jnp.asarray(tril))


def parted(flat):
    return {"a": flat[:6].reshape(2, 3, *flat.shape[1:]), "b": flat[6:]}


def found_of(joint):
    loc, scale = parted(joint.loc), parted(jnp.linalg.norm(joint.scale_tril, axis=1))
    return criteria.SitePosteriors(
        {name: Normal(loc[name], scale[name]) for name in SHAPES},
        {name: Normal(0.0, 1.0) for name in SHAPES},
        factors=parted(joint.scale_tril),
    )


def by_hand(joint, early):
    """Return the turns by removing, each time, the set that has the most evidence."""
    turns, gone = np.zeros(10), []
    while len(gone) < 10:
        left = [i for i in range(10) if i not in gone]
        left = [i for i in left if early[i]] or left
        keeps = np.ones((len(left), 10), bool)
        for row, i in enumerate(left):
            keeps[row, [*gone, i]] = False
        prior = Normal(jnp.zeros(10), jnp.ones(10))
        gains = [float(reduction.remove(joint, prior, jnp.asarray(keep)).delta_f) for keep in keeps]
        turns[left[int(np.argmax(gains))]] = len(gone)
        gone.append(left[int(np.argmax(gains))])
    return turns


@pytest.mark.parametrize(
    "early", [np.zeros(10, bool), np.arange(10) % 3 == 0], ids=["all", "some first"]
)
def test_turns_are_those_of_a_search_by_exact_evidence(joint, early):
    turns = jax.jit(in_turn)(found_of(joint), parted(jnp.asarray(early)))
    assert {name: turn.shape for name, turn in turns.items()} == SHAPES
    np.testing.assert_array_equal(
        np.concatenate([turns["a"].ravel(), turns["b"]]), by_hand(joint, early)
    )


def test_a_round_removes_what_a_greedy_path_does(joint):
    found = found_of(joint)
    keep = {name: jnp.ones(shape, bool) for name, shape in SHAPES.items()}
    decision = criteria.Decision({n: ~k for n, k in keep.items()}, dict.fromkeys(SHAPES))
    after = criteria.limit(found, decision, keep, 0.4, order=criteria.default_order)
    path = reduction.prune_greedily(joint, Normal(0.0, 1.0), limit=4)
    assert int(jnp.sum(~path.keep)) == 4
    np.testing.assert_array_equal(np.concatenate([after["a"].ravel(), after["b"]]), path.keep)
    marginal = criteria.limit(found, decision, keep, 0.4, order=criteria.smallest_magnitude_first)
    assert any((marginal[name] != after[name]).any() for name in SHAPES)


def test_factorised_grouped_and_large_posteriors_go_by_magnitude(joint):
    found = found_of(joint)
    decision = criteria.Shrinkage()(found)
    apart = dataclasses.replace(found, factors=None)
    assert has_turns(found)
    assert not has_turns(apart)
    for name, score in criteria.default_order(apart, decision).items():
        np.testing.assert_array_equal(score, jnp.abs(found.posterior[name].loc))
    size = LARGEST_IN_TURN + 1
    many = criteria.SitePosteriors(
        {"w": Normal(jnp.zeros(size), jnp.ones(size))}, {}, factors={"w": jnp.ones((size, 1))}
    )
    assert not has_turns(many)

    groups = criteria.Groups({"a": np.zeros((2, 3), int), "b": np.full(4, 1)}, 2)
    keep = {name: jnp.ones(shape, bool) for name, shape in SHAPES.items()}
    both = [
        criteria.limit(f, decision._replace(keep={n: ~k for n, k in keep.items()}), keep, 0.3,
                       order=criteria.default_order, groups=groups)
        for f in (found, apart)
    ]  # fmt: skip
    for name in SHAPES:
        np.testing.assert_array_equal(both[0][name], both[1][name])


def test_the_factors_of_a_guide_give_its_covariance_and_follow_the_masks():
    def program():
        numpyro.sample("s", dist.HalfNormal(1.0))
        numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("b", dist.Normal(0, 1))

    guide = infer.AutoMultivariate(program)
    numpyro.handlers.seed(guide, 0)()
    tril = np.tril(np.random.default_rng(0).standard_normal((5, 5))) + 3 * np.eye(5)
    params = {"auto_loc": jnp.ones(5), "auto_scale_tril": jnp.asarray(tril, jnp.float32)}
    found = site_posteriors(program, guide, params)
    assert found.factors is not None
    assert {name: rows.shape for name, rows in found.factors.items()} == {"w": (3, 5), "b": (5,)}
    rows = jnp.concatenate([found.factors["b"][None], found.factors["w"]])
    where = guide.constrained(jnp.arange(5.0))
    chosen = tril[[int(where["b"]), *where["w"].astype(int)]]
    np.testing.assert_allclose(rows @ rows.T, chosen @ chosen.T, rtol=1e-5)
    assert set(found.only(["w"]).factors or {}) == {"w"}
    leaves, tree = jax.tree.flatten(found)
    assert set(jax.tree.unflatten(tree, leaves).factors) == {"w", "b"}

    masked = guide.covariance_factors(params, {"w": jnp.array([True, False, True])})
    assert float(jnp.linalg.norm(masked["w"][1] @ masked["w"][::2].T)) == 0.0
    assert infer.AutoMeanField(program).covariance_factors({}, {}) is None
