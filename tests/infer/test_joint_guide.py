import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import TraceMeanField_ELBO
from starting import started

import bmrjax as bmr
from bmrjax import handlers, infer, reduction, schedules, sparsify
from bmrjax.distributions import pruned_joint

ROWS, SIZE, NOISE = 60, 6, 0.5
TRUE = jnp.array([1.0, 0.0, 0.0, -0.7, 0.0, 0.0])


def make():
    """Two pairs of strongly correlated columns, which can stand in for each other."""
    x = jax.random.normal(jax.random.key(0), (ROWS, SIZE))
    x = x.at[:, 1].set(0.95 * x[:, 0] + 0.3 * x[:, 1])
    x = x.at[:, 4].set(0.95 * x[:, 3] + 0.3 * x[:, 4])
    return x, x @ TRUE + NOISE * jax.random.normal(jax.random.key(1), (ROWS,))


def linear(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def exact(keep):
    """Return the exact posterior mean and covariance of the kept, and -ln p(y)."""
    x, y = (np.asarray(a, np.float64) for a in make())
    x = x[:, np.asarray(keep)]
    covariance = np.linalg.inv(np.eye(x.shape[1]) + x.T @ x / NOISE**2)
    marginal = NOISE**2 * np.eye(ROWS) + x @ x.T
    evidence = 0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    return covariance @ x.T @ y / NOISE**2, covariance, evidence


GUIDES = [infer.AutoMultivariate, lambda m: infer.AutoLowRank(m, rank=4)]
IDS = ["full", "low rank"]


def fit(make_guide, epochs=20, **options):
    settings = {"batch_size": None, "steps_per_epoch": 100, "num_epochs": epochs}
    return sparsify(
        linear,
        make(),
        key=jax.random.key(0),
        guide=make_guide(linear),
        options=bmr.FitOptions(loss=TraceMeanField_ELBO(num_particles=8)),
        progress=False,
        **{**settings, **options},
    )


def test_sites_are_sampled_in_the_order_of_the_program():
    """NumPyro's alphabetical order makes `TraceMeanField_ELBO` warn of a guide for another program."""

    def program(x, y=None):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)

    for kind in (infer.AutoMultivariate, infer.AutoLowRank):
        guide = kind(program)
        seeded = numpyro.handlers.seed(guide, jax.random.key(0))
        trace = numpyro.handlers.trace(seeded).get_trace(*make())
        names = [name for name, site in trace.items() if site["type"] == "sample"]
        assert names == ["_auto_latent", "scale", "beta"]
        params = {n: s["value"] for n, s in trace.items() if s["type"] == "param"}
        assert guide.median(params)["beta"].shape == (SIZE,)


@pytest.mark.parametrize(
    ("make_guide", "within"),
    [(GUIDES[0], 0.05), pytest.param(GUIDES[1], 1.0, marks=pytest.mark.slow)],
    ids=IDS,
)
def test_ends_at_the_model_with_the_best_evidence_and_its_exact_posterior(make_guide, within):
    schedule = schedules.Verified(wait=10, refit=4, cooldown=6)
    result = fit(make_guide, epochs=40, schedule=schedule)
    keep = np.asarray(result.keep["beta"])
    subsets = [np.array(s, bool) for s in itertools.product([0, 1], repeat=SIZE) if any(s)]
    assert exact(keep)[2] < min(exact(s)[2] for s in subsets) + within
    mean, covariance, evidence = exact(keep)
    posterior = result.posterior()["beta"]
    np.testing.assert_allclose(posterior.loc[keep], mean, atol=0.03)
    np.testing.assert_allclose(posterior.scale[keep], np.sqrt(np.diag(covariance)), rtol=0.2)
    assert (posterior.loc[~keep] == 0).all()
    vfe = result.free_energy(jax.random.key(3), make(), num_samples=2000, batch_size=ROWS)
    assert -0.1 < vfe - evidence < within
    drawn = result.sample(jax.random.key(1), 50)["beta"]
    assert (drawn[:, ~keep] == 0).all()
    assert (drawn[:, keep] != 0).all()


@pytest.mark.slow
def test_a_joint_posterior_knows_what_a_factorised_one_cannot():
    """The evidence of the whole model: tight with the full covariance, loose without."""
    x, y = make()
    none = np.ones(SIZE, bool)
    evidence = exact(none)[2]
    gaps = {}
    for name, make_guide in {"joint": infer.AutoMultivariate, "mean": infer.AutoMeanField}.items():
        result = fit(make_guide, epochs=30, criterion=None)
        gaps[name] = result.free_energy(jax.random.key(1), (x, y), num_samples=2000) - evidence
    assert gaps["joint"] < 0.4
    assert gaps["mean"] > gaps["joint"] + 0.5


def trained(make_guide):
    guide = make_guide(linear)
    args = make()
    started(linear, guide, *args)
    rng = np.random.default_rng(0)
    factor = jnp.asarray(0.2 * rng.standard_normal((SIZE, SIZE)), jnp.float32)
    params = {"auto_loc": jnp.asarray(rng.standard_normal(SIZE), jnp.float32)}
    if isinstance(guide, infer.AutoMultivariate):
        params["auto_scale_tril"] = jnp.linalg.cholesky(factor @ factor.T + 0.1 * jnp.eye(SIZE))
        covariance = factor @ factor.T + 0.1 * jnp.eye(SIZE)
    else:
        scale = jnp.linspace(0.1, 0.5, SIZE)
        params |= {"auto_cov_factor": factor[:, :4], "auto_scale": scale}
        scaled = factor[:, :4] * scale[:, None]
        covariance = scaled @ scaled.T + jnp.diag(scale**2)
    return guide, params, covariance


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make_guide", GUIDES, ids=IDS)
def test_conditioning_is_that_of_the_joint_normal(make_guide):
    guide, params, covariance = trained(make_guide)
    keep = jnp.array([True, False, True, True, False, True])
    moved = guide.condition(params, {}, {"beta": keep})
    inside, out = np.flatnonzero(keep), np.flatnonzero(~keep)
    solve = np.linalg.solve(covariance[np.ix_(out, out)], covariance[np.ix_(out, inside)])
    loc = params["auto_loc"][inside] - solve.T @ params["auto_loc"][out]
    schur = covariance[np.ix_(inside, inside)] - covariance[np.ix_(inside, out)] @ solve
    found = guide.marginals(moved, {"beta": keep})["beta"]
    np.testing.assert_allclose(found.loc[inside], loc, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.scale[inside], np.sqrt(np.diag(schur)), rtol=1e-4)
    # Once more with the same masks: nothing moves.
    again = guide.marginals(guide.condition(moved, {"beta": keep}, {"beta": keep}), {"beta": keep})
    np.testing.assert_allclose(again["beta"].loc, found.loc, atol=1e-5)
    np.testing.assert_allclose(again["beta"].scale[inside], found.scale[inside], rtol=1e-4)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make_guide", GUIDES, ids=IDS)
def test_removed_elements_cost_nothing(make_guide):
    """The ELBO of a pruned program equals that of the program written without the elements."""
    guide, params, _ = trained(make_guide)
    keep = {"beta": jnp.array([True, False, True, True, False, True])}
    moved = guide.condition(params, {}, keep)
    x, y = make()
    vfe = infer.FreeEnergy(linear, guide, loss=TraceMeanField_ELBO(), batch_size=ROWS)(
        moved, keep, (x, y), jax.random.key(0), num_passes=4000
    )
    inside = np.flatnonzero(keep["beta"])
    posterior = guide.marginals(moved, keep)["beta"]
    joint = guide._joint(moved, keep["beta"])
    if isinstance(joint, reduction.MultivariateNormal):
        covariance = joint.scale_tril @ joint.scale_tril.T
    else:
        covariance = joint.cov_factor @ joint.cov_factor.T + jnp.diag(joint.cov_diag)
    small = covariance[np.ix_(inside, inside)]
    mean, xs = posterior.loc[inside], x[:, inside]
    kl = 0.5 * (jnp.trace(small) + mean @ mean - len(inside) - jnp.linalg.slogdet(small)[1])
    fit = jnp.sum((y - xs @ mean) ** 2) + jnp.trace(xs @ small @ xs.T)
    exact_vfe = kl + 0.5 * fit / NOISE**2 + 0.5 * ROWS * jnp.log(2 * jnp.pi * NOISE**2)
    np.testing.assert_allclose(vfe, exact_vfe, rtol=0.01)

    def loss(params):
        pruned = handlers.prune(guide, keep)
        model = handlers.prune(linear, keep)
        return TraceMeanField_ELBO().loss(jax.random.key(0), params, model, pruned, x, y)

    grads = jax.grad(loss)(moved)
    assert all(np.isfinite(g).all() for g in grads.values())
    gone = np.flatnonzero(~keep["beta"])
    assert (grads["auto_loc"][gone] == 0).all()


def test_saves_and_loads(tmp_path):
    result = fit(infer.AutoMultivariate, epochs=8, schedule=schedules.Every(wait=4))
    result.save(tmp_path / "run")
    loaded = bmr.load(tmp_path / "run", model=linear, guide=infer.AutoMultivariate(linear))
    one, other = (r.predict(jax.random.key(0), make()[0]).mean for r in (result, loaded))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(loaded.posterior()["beta"].loc, result.posterior()["beta"].loc)


def test_constrained_sites_cannot_be_removed():
    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, noise[0]), obs=y)

    guide = infer.AutoMultivariate(model)
    x, y = make()
    started(model, guide, x, y)
    assert guide.real_sites() == ["beta"]
    program = handlers.prune(guide, {"noise": jnp.array([True, False])})
    with pytest.raises(ValueError, match=r"\['noise'\] are constrained"):
        numpyro.handlers.seed(program, jax.random.key(0))(x, y)
    centre = guide.centre({"auto_loc": jnp.zeros(SIZE + 2)})
    np.testing.assert_allclose(centre["noise"], 1.0)


def test_only_joint_normals_are_reduced():
    with pytest.raises(TypeError, match="no reduction for a Normal"):
        pruned_joint(dist.Normal(jnp.zeros(2), 1.0), jnp.array([True, False]))
