"""Structure learning of categorical models, against enumeration, and in agents."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from bmrjax import reduction
from bmrjax.active_inference import reduce_agent, reduce_factors
from bmrjax.reduction import Dirichlet

sparse_dirichlet = jax.jit(reduction.sparse_dirichlet)

REMOVED = 1e-3


def _log_evidence(counts, concentration):
    """Return ln of the probability of counts under a Dirichlet prior, up to the same constant."""
    total = counts + concentration
    found = gammaln(total).sum(-1) - gammaln(total.sum(-1))
    return found - gammaln(concentration).sum(-1) + gammaln(concentration.sum(-1))


def _enumerated(counts, prior):
    """Return all submodels with an outcome in them, and ln of their evidence over the full model's."""
    masks = np.array(list(itertools.product([True, False], repeat=len(counts))))[:-1]
    evidence = _log_evidence(counts, np.where(masks, prior, REMOVED))
    return masks, evidence - evidence[0]


@pytest.mark.parametrize("prior", [0.5, 1.7])
def test_the_chosen_outcomes_are_those_of_enumeration(prior):
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.choice([0.0, 0.0, 1.0, 12.0], (40, 5))) * rng.choice(
        [1.0, 0.3], (40, 1)
    )
    found = sparse_dirichlet(Dirichlet(jnp.asarray(counts + prior)), Dirichlet(jnp.full(5, prior)))
    for i, n in enumerate(counts):
        masks, delta_f = _enumerated(n, prior)
        assert found.delta_f[i] == pytest.approx(delta_f.max(), abs=1e-4)
        if np.sort(delta_f)[-2] < delta_f.max() - 1e-3:  # counts that are equal can be exchanged
            np.testing.assert_array_equal(found.keep[i], masks[np.argmax(delta_f)])
        np.testing.assert_allclose(
            found.reduced.concentration[i], n + np.where(found.keep[i], prior, REMOVED), rtol=1e-5
        )


def test_averages_are_those_of_the_submodels_in_the_window():
    n, prior = np.array([6.0, 0.2, 3.0, 0.0]), np.full(4, 1.3)
    found = sparse_dirichlet(
        Dirichlet(jnp.asarray(n + prior)), Dirichlet(jnp.asarray(prior)), window=2.0
    )
    order = np.argsort(n)
    masks = np.array([[k not in order[:size] for k in range(4)] for size in range(4)])
    delta_f = _log_evidence(n, np.where(masks, prior, REMOVED)) - _log_evidence(n, prior)
    delta_f[delta_f < delta_f.max() - 2.0] = -np.inf
    assert np.isfinite(delta_f).sum() > 1
    weight = np.exp(delta_f - logsumexp(delta_f))
    mean = n + np.where(masks, prior, REMOVED)
    np.testing.assert_allclose(found.inclusion_prob, weight @ masks, rtol=1e-4)
    np.testing.assert_allclose(found.mean, weight @ (mean / mean.sum(1, keepdims=True)), rtol=1e-4)


def test_less_gain_than_is_asked_for_leaves_the_model_as_it_is():
    posterior, prior = Dirichlet(jnp.array([3.0, 1.0, 2.0])), Dirichlet(jnp.ones(3))
    gain = float(sparse_dirichlet(posterior, prior).delta_f)
    assert gain > 0
    for least, kept in ((gain - 0.01, 2), (gain + 0.01, 3)):
        found = sparse_dirichlet(posterior, prior, least=least)
        assert int(found.keep.sum()) == kept
    assert float(found.delta_f) == 0
    np.testing.assert_array_equal(found.reduced.concentration, posterior.concentration)


def test_large_counts_stay_exact_in_single_precision():
    n, prior = np.array([1e6, 0.0, 3e5, 0.0]), np.full(4, 1.3)
    found = sparse_dirichlet(
        Dirichlet(jnp.asarray(n + prior, jnp.float32)), Dirichlet(jnp.asarray(prior, jnp.float32))
    )
    exact = _enumerated(n, prior)[1].max()
    assert float(found.delta_f) == pytest.approx(exact, rel=1e-5)
    assert found.keep.tolist() == [True, False, True, False]


# --- agents -------------------------------------------------------------------------------


def _world(key, steps):
    """Return one-hot outcomes and states of a walk, and which of 6 outcomes each of 4 states shows."""
    shows = np.zeros((6, 4))
    shows[[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 2, 3]] = [0.7, 0.3, 1, 0.5, 0.5, 1]
    state_key, outcome_key = jax.random.split(key)
    states = jax.random.randint(state_key, (steps,), 0, 4)
    logits = jnp.log(jnp.asarray(shows))
    outcomes = jax.random.categorical(outcome_key, logits[:, states].T)
    return jax.nn.one_hot(outcomes, 6), jax.nn.one_hot(states, 4), shows > 0


def test_a_model_is_reduced_while_it_is_learned_inside_scan():
    outcomes, states, shows = _world(jax.random.key(0), 240)
    prior = [jnp.full((6, 4), 0.8), jnp.full((4, 4), 0.8)]

    @jax.jit
    def learn(outcomes, states):
        def step(posterior, now):
            outcome, state, following = now
            posterior = [
                posterior[0] + jnp.outer(outcome, state),
                posterior[1] + jnp.outer(following, state),
            ]
            found = reduce_factors(posterior, prior)
            return posterior, (found[0].keep, found[1].keep, found[0].mean)

        following = jnp.roll(states, -1, 0)
        return jax.lax.scan(step, prior, (outcomes, states, following))[1]

    likelihood, transitions, mean = learn(outcomes, states)
    kept = likelihood.sum((1, 2))
    assert kept[0] == 24  # one observation removes nothing
    np.testing.assert_array_equal(likelihood[-1], shows)
    assert transitions[-1].all()  # every state follows every other
    np.testing.assert_allclose(mean.sum(1), 1.0, atol=1e-5)
    # What is never seen is expected less than under the full model, whose mean is 0.8 / (60 + 4.8).
    assert float(jnp.where(shows, 0, mean[-1]).max()) < 0.002


def test_agents_are_reduced_side_by_side():
    keys = jax.random.split(jax.random.key(1), 3)

    def one(key):
        outcomes, states, _ = _world(key, 200)
        prior = jnp.ones((6, 4))
        return reduce_factors([prior + outcomes.T @ states], [prior])[0]

    together = jax.jit(jax.vmap(one))(keys)
    for i, key in enumerate(keys):
        alone = jax.jit(one)(key)
        np.testing.assert_array_equal(together.keep[i], alone.keep)
        np.testing.assert_allclose(together.delta_f[i], alone.delta_f, rtol=1e-5)


def test_priors_that_do_not_fit_are_refused():
    a = jnp.ones((3, 2))
    with pytest.raises(ValueError, match="1 posteriors and 2 priors"):
        reduce_factors([a], [a, a])
    with pytest.raises(ValueError, match=r"factor 0 has shape \(4, 2\).*\(3, 2\)"):
        reduce_factors([a], [jnp.ones((4, 2))])
    with pytest.raises(ValueError, match="prior of factor 0 is None"):
        reduce_factors([a], [None])
    assert reduce_factors([None], [None]) == [None]
    with pytest.raises(ValueError, match="give prior_A=, prior_B= or both"):
        reduce_agent(object())
    with pytest.raises(ValueError, match="the agent has no pA"):
        reduce_agent(object(), prior_A=[a])


@pytest.mark.filterwarnings("ignore")
def test_an_agent_of_pymdp_learns_the_structure_of_its_world():
    pytest.importorskip("pymdp")
    import equinox as eqx
    from pymdp.agent import Agent

    rng = np.random.default_rng(0)
    shows = np.array([[0.6, 0, 0], [0.4, 0, 0], [0, 1, 0], [0, 0, 1]])
    leads = np.stack([np.roll(np.eye(3), shift, axis=0) for shift in (1, 2)], -1)
    prior_A = [jnp.full((1, 4, 3), 0.5)]
    prior_B = [jnp.full((1, 3, 3, 2), 0.5)]
    agent = Agent(
        A=[prior_A[0] / prior_A[0].sum(1, keepdims=True)],
        B=[prior_B[0] / prior_B[0].sum(1, keepdims=True)],
        pA=prior_A,
        pB=prior_B,
        learn_A=True,
        learn_B=True,
        batch_size=1,
        num_controls=[2],
    )
    states, actions = [0], rng.integers(0, 2, 149)
    for action in actions:
        states.append(int(rng.choice(3, p=leads[:, states[-1], action])))
    outcomes = [int(rng.choice(4, p=shows[:, state])) for state in states]
    beliefs = [jax.nn.one_hot(jnp.array(states), 3)[None]]
    learned = agent.infer_parameters(
        beliefs,
        [jnp.array(outcomes)[None]],
        jnp.asarray(actions)[None, :, None],
        beliefs_B=beliefs,
    )
    assert float(learned.pA[0].sum() - prior_A[0].sum()) == pytest.approx(150)
    reduced, found = eqx.filter_jit(
        lambda agent: reduce_agent(agent, prior_A=prior_A, prior_B=prior_B)
    )(learned)
    np.testing.assert_array_equal(found["A"][0].keep[0], shows > 0)
    np.testing.assert_array_equal(found["B"][0].keep[0], leads > 0)
    assert isinstance(reduced, Agent)
    np.testing.assert_allclose(reduced.A[0].sum(1), 1.0, rtol=1e-5)
    assert float(jnp.where(shows > 0, 0, reduced.A[0][0]).max()) < 1e-3
    np.testing.assert_array_equal(agent.pA[0], prior_A[0])


@pytest.mark.parametrize(
    ("prior", "removed", "message"),
    [(1e-4, 1e-3, "give a smaller `removed`"), (1.0, 0.0, "removed must be positive")],
)
def test_a_prior_below_what_is_removed_is_refused(prior, removed, message):
    before = Dirichlet(jnp.full(3, prior))
    with pytest.raises(ValueError, match=message):
        reduction.sparse_dirichlet(Dirichlet(before.concentration + 1.0), before, removed=removed)
