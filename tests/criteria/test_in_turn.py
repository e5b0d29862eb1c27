"""The order in which the elements of a joint posterior are removed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from bmrjax import criteria, infer, reduction, schedules, site_posteriors, sparsify
from bmrjax.criteria.in_turn import LARGEST_IN_TURN, has_turns, in_turn
from bmrjax.criteria.last_pass import LeastEvidence
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


@pytest.mark.parametrize("unit", [1e-15, 1e15])
def test_turns_do_not_depend_on_the_unit(joint, unit):
    plain = jax.jit(in_turn)(found_of(joint), parted(jnp.zeros(10, bool)))
    found = found_of(MultivariateNormal(joint.loc * unit, joint.scale_tril * unit))
    found = dataclasses.replace(found, prior={name: Normal(0.0, unit) for name in SHAPES})
    for name, turns in jax.jit(in_turn)(found, parted(jnp.zeros(10, bool))).items():
        np.testing.assert_array_equal(turns, plain[name])


def test_two_elements_that_are_one_leave_the_others_as_they_are():
    rows = jnp.array([[0.5, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.05, 0.0], [0.0, 0.0, 0.4]])
    q = {"w": Normal(jnp.array([0.3, 0.3, 2.0, 1.2]), jnp.linalg.norm(rows, axis=1))}
    found = criteria.SitePosteriors(q, {"w": Normal(0.0, 1.0)}, factors={"w": rows})
    # Once one of the two is removed, the other is zero, without any variance.
    assert in_turn(found, {"w": jnp.zeros(4, bool)})["w"].tolist() == [0, 1, 3, 2]


def test_the_last_pass_takes_the_first_of_the_turns(joint):
    found = found_of(joint)
    keep = {name: jnp.ones(shape, bool) for name, shape in SHAPES.items()}
    decision = criteria.Shrinkage()(found, keep)
    # Marginals of which the largest element seems to be worth least.
    wrong = decision._replace(delta_f={n: jnp.abs(q.loc) for n, q in found.posterior.items()})
    order = LeastEvidence()
    after = criteria.limit(found, wrong, keep, 0.05, order=order, beyond=True)
    turns = in_turn(found, {name: ~mask for name, mask in decision.keep.items()})
    gone = {name: ~mask for name, mask in after.items()}
    assert sum(int(mask.sum()) for mask in gone.values()) == 1
    assert all(bool((turns[name][mask] == 0).all()) for name, mask in gone.items())
    apart = dataclasses.replace(found, factors=None)
    other = criteria.limit(apart, wrong, keep, 0.05, order=order, beyond=True)
    assert any((other[name] != after[name]).any() for name in SHAPES)


def test_an_order_of_the_posteriors_alone_is_refused(joint):
    found = found_of(joint)
    keep = {name: jnp.ones(shape, bool) for name, shape in SHAPES.items()}

    def old(posterior, decision):
        return {name: q.scale for name, q in posterior.items()}

    with pytest.raises(TypeError, match=r"found\.posterior\.items"):
        criteria.limit(found, criteria.Shrinkage()(found, keep), keep, 0.5, order=old)


def test_a_program_without_elements_runs():
    def program(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([0]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    data = jnp.zeros((20, 0)), jnp.ones(20)
    options = {"num_epochs": 5, "steps_per_epoch": 5, "batch_size": None, "progress": False}
    guide = infer.AutoMultivariate(program)
    schedule = schedules.Verified(wait=1, refit=1)
    key = jax.random.key(0)
    result = sparsify(program, data, key=key, guide=guide, schedule=schedule, **options)
    assert result.num_kept == 0


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
