import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import cond, scan
from numpyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from numpyro.infer.util import log_density
from starting import loss_of, started

import bmrjax as bmr
from bmrjax import handlers
from bmrjax.backend import noise

X = jax.random.normal(jax.random.key(0), (12, 4))
Y = X @ jnp.array([1.0, 0.0, -2.0, 0.0]) + 0.1
KEEP = jnp.array([True, False, True, False])


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.2, 1.5).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)


def counts(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 0.5).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=None if y is None else jnp.abs(y) // 1)


def hierarchy(x, y=None):
    scale = numpyro.sample("scale", dist.Gamma(2.0, 2.0))
    with numpyro.plate("columns", x.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def fitted(model, guide_class=AutoNormal):
    guide = guide_class(model)
    return guide, started(model, guide, X, Y)


def smaller(params):
    return {n: v[KEEP] if v.shape == (4,) else v for n, v in params.items()}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("model", "guide_class"),
    [
        *((model, AutoNormal) for model in (regression, counts, hierarchy)),
        (regression, AutoDelta),
        *(pytest.param(model, AutoDelta, marks=pytest.mark.slow) for model in (counts, hierarchy)),
    ],
)
def test_the_loss_is_that_of_the_program_without_the_elements(model, guide_class):
    """With guides of zero width both programs are deterministic, so the losses must agree."""
    guide, params = fitted(model, guide_class)
    small = guide_class(model)
    started(model, small, X[:, KEEP], Y)
    params = {n: jnp.full_like(v, 1e-6) if n.endswith("_scale") else v for n, v in params.items()}
    key, loss, keep = jax.random.key(2), TraceMeanField_ELBO(), {"beta": KEEP}
    pruned = handlers.prune(model, keep), handlers.prune(guide, keep)
    masked = loss_of(loss, key, params, *pruned, X, Y)
    alone = loss_of(loss, key, smaller(params), model, small, X[:, KEEP], Y)
    # The guide's width of 1e-6 is what is left of the noise.
    np.testing.assert_allclose(masked, alone, rtol=1e-4)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("loss", [TraceMeanField_ELBO(), Trace_ELBO()], ids=["mean field", "trace"])
@pytest.mark.parametrize("model", [regression, counts, hierarchy])
def test_the_loss_at_the_same_draw_is_that_of_the_program_without_the_elements(model, loss):
    guide, params = fitted(model)
    small = AutoNormal(model)
    started(model, small, X[:, KEEP], Y)
    draw = {"beta": jnp.array([0.4, 7.0, -0.9, -7.0]), "noise": 0.6, "scale": 1.3}
    draw = {n: jnp.asarray(v) for n, v in draw.items()}

    def at(draw, guide):
        return numpyro.handlers.substitute(guide, data=draw)

    pruned = (handlers.prune(f, {"beta": KEEP}) for f in (model, at(draw, guide)))
    key = jax.random.key(2)
    masked = loss_of(loss, key, params, *pruned, X, Y)
    alone = loss_of(loss, key, smaller(params), model, at(smaller(draw), small), X[:, KEEP], Y)
    np.testing.assert_allclose(masked, alone, rtol=1e-5)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("loss", [TraceMeanField_ELBO(), Trace_ELBO()])
@pytest.mark.parametrize("model", [regression, hierarchy])
def test_removed_elements_get_no_gradient(loss, model):
    guide, params = fitted(model)
    keep = {"beta": KEEP}

    def total(params):
        programs = handlers.prune(model, keep), handlers.prune(guide, keep)
        return loss.loss(jax.random.key(3), params, *programs, X, Y)

    gradient = jax.jit(jax.grad(total))(params)
    for part in ("beta_auto_loc", "beta_auto_scale"):
        assert (gradient[part][~KEEP] == 0).all()
        assert (gradient[part][KEEP] != 0).all()


def test_divergence_of_removed_elements_is_exactly_zero():
    def program():
        numpyro.sample("w", dist.Normal(0.0, 2.0).expand([4]).to_event(1))

    guide = AutoNormal(program)
    numpyro.handlers.seed(guide, jax.random.key(0))()
    params = {"w_auto_loc": jnp.arange(4.0), "w_auto_scale": jnp.full(4, 0.5)}

    def loss(keep):
        programs = handlers.prune(program, {"w": keep}), handlers.prune(guide, {"w": keep})
        return TraceMeanField_ELBO().loss(jax.random.key(0), params, *programs)

    each = np.log(2 / 0.5) + (0.25 + np.arange(4.0) ** 2) / 8 - 0.5
    np.testing.assert_allclose(loss(KEEP), each[np.asarray(KEEP)].sum(), rtol=1e-5)
    assert loss(jnp.zeros(4, bool)) == 0.0


@pytest.mark.parametrize("prior", [dist.HalfNormal(1.0), dist.Gamma(0.5, 1.0), dist.LogNormal()])
def test_positive_sites_reduce_to_zero_with_finite_gradients(prior):
    def program():
        s = numpyro.sample("s", prior.expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(s.sum(), 1.0), obs=1.0)

    guide = AutoNormal(program)
    numpyro.handlers.seed(guide, jax.random.key(0))()
    params = {"s_auto_loc": jnp.zeros(3), "s_auto_scale": jnp.full(3, 0.1)}
    keep = {"s": jnp.array([True, False, True])}

    def total(params):
        programs = handlers.prune(program, keep), handlers.prune(guide, keep)
        return TraceMeanField_ELBO().loss(jax.random.key(0), params, *programs)

    value, gradient = jax.value_and_grad(total)(params)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() and g[1] == 0 for g in gradient.values())
    sample = Predictive(handlers.prune(guide, keep), params=params, num_samples=5)
    draws = sample(jax.random.key(1))["s"]
    assert (draws[:, 1] == 0).all()
    assert (draws[:, 0] > 0).all()


def test_a_new_mask_does_not_retrace():
    guide, params = fitted(regression)
    count = 0

    @jax.jit
    def loss(keep):
        nonlocal count
        count += 1
        programs = handlers.prune(regression, keep), handlers.prune(guide, keep)
        return TraceMeanField_ELBO().loss(jax.random.key(0), params, *programs, X, Y)

    values = {float(loss({"beta": jnp.arange(4) >= i})) for i in range(4)}
    assert count == 1
    assert len(values) == 4


RAW = {"beta": jnp.array([1.0, 9.0, -2.0, 9.0]), "noise": jnp.float32(0.5)}


def outside_substitute(model):
    return numpyro.handlers.substitute(model, data=RAW)


def outside_replay(model):
    raw = numpyro.handlers.substitute(numpyro.handlers.seed(regression, 0), data=RAW)
    return numpyro.handlers.replay(model, numpyro.handlers.trace(raw).get_trace(X))


@pytest.mark.parametrize("put_in", [outside_substitute, outside_replay])
def test_raw_values_put_in_from_outside_are_zeroed(put_in):
    """As MCMC, `log_density` and an unpruned guide do it: the value comes after the handler."""
    model = put_in(handlers.prune(regression, {"beta": KEEP}))
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace(X)
    np.testing.assert_allclose(trace["y"]["fn"].loc, X @ (RAW["beta"] * KEEP), rtol=1e-5)


def test_predictive_zeroes_raw_posterior_samples():
    def program(x):
        beta = numpyro.sample("beta", dist.Normal(0.2, 1.5).expand([4]).to_event(1))
        numpyro.deterministic("mean", x @ beta)

    samples = {"beta": jnp.stack([RAW["beta"], -RAW["beta"]])}
    predictive = Predictive(handlers.prune(program, {"beta": KEEP}), posterior_samples=samples)
    means = predictive(jax.random.key(0), X)["mean"]
    np.testing.assert_allclose(means[0], X @ (RAW["beta"] * KEEP), rtol=1e-5)
    np.testing.assert_allclose(means[1], -means[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"beta": jnp.ones(3, bool)}, r"mask of site 'beta' has shape \(3,\), the site has \(4,\)"),
        ({"beta": jnp.ones(4)}, "mask of site 'beta' has dtype float32"),
        ({"gamma": jnp.ones(4, bool)}, r"no latent sample site named \['gamma'\]"),
        ({"y": jnp.ones(12, bool)}, r"no latent sample site named \['y'\]"),
    ],
)
def test_bad_masks_are_named(keep, message):
    with pytest.raises(ValueError, match=message):
        numpyro.handlers.seed(handlers.prune(regression, keep), jax.random.key(0))(X, Y)


@pytest.mark.parametrize(
    "prior", [dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)), dist.Dirichlet(jnp.ones(3))]
)
def test_dependent_elements_are_refused(prior):
    def program():
        numpyro.sample("z", prior)

    pruned = handlers.prune(program, {"z": jnp.ones(3, bool)})
    with pytest.raises(ValueError, match="site 'z': the elements of .* depend on each other"):
        numpyro.handlers.seed(pruned, jax.random.key(0))()


def test_temper_scales_likelihood_and_divergence():
    guide, params = fitted(regression)

    def loss(model, guide):
        return TraceMeanField_ELBO().loss(jax.random.key(0), params, model, guide, X, Y)

    def tempered(**options):
        return loss(
            handlers.scale_elbo(regression, **options), handlers.scale_elbo(guide, **options)
        )

    plain, no_kl = loss(regression, guide), tempered(kl=0.0)
    np.testing.assert_allclose(tempered(likelihood=3.0), plain + 2 * no_kl, rtol=1e-5)
    np.testing.assert_allclose(tempered(kl=0.25), no_kl + 0.25 * (plain - no_kl), rtol=1e-5)


def test_temper_leaves_a_subsampled_plate_alone():
    def program(y):
        z = numpyro.sample("z", dist.Normal())
        with numpyro.plate("data", 100, subsample_size=4):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    model = handlers.scale_elbo(program, likelihood=25.0)
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(jnp.zeros(4))
    assert trace["y"]["scale"] == 25.0


def test_sites_in_nested_plates_take_masks_of_plates_and_events():
    def program():
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", 2, dim=-2), numpyro.plate("columns", 3, dim=-1):
            return numpyro.sample("z", dist.Normal(jnp.zeros(4), scale).to_event(1))

    keep = jax.random.bernoulli(jax.random.key(0), 0.5, (2, 3, 4))
    masks = {"z": keep, "scale": jnp.ones((), bool)}
    trace = numpyro.handlers.trace(
        numpyro.handlers.seed(handlers.prune(program, masks), jax.random.key(1))
    ).get_trace()
    value, scale = trace["z"]["value"], trace["scale"]["value"]
    assert (value[~keep] == 0).all()
    assert (value[keep] != 0).all()
    each = jnp.where(keep, dist.Normal(0.0, scale).log_prob(value), 0.0)
    got = trace["z"]["fn"].log_prob(value)
    assert got.shape == (2, 3)
    np.testing.assert_allclose(got, each.sum(-1), rtol=1e-5)


def test_no_mask_changes_nothing():
    plain = numpyro.handlers.seed(regression, jax.random.key(0))
    pruned = numpyro.handlers.seed(handlers.prune(regression), jax.random.key(0))
    traces = [numpyro.handlers.trace(p).get_trace(X) for p in (plain, pruned)]
    np.testing.assert_array_equal(traces[0]["y"]["value"], traces[1]["y"]["value"])


def test_a_full_mask_changes_no_loss():
    guide, params = fitted(hierarchy)
    full = {"beta": jnp.ones(4, bool)}
    programs = [(hierarchy, guide), (handlers.prune(hierarchy, full), handlers.prune(guide, full))]
    loss, key = TraceMeanField_ELBO(), jax.random.key(0)
    losses = [loss_of(loss, key, params, *p, X, Y) for p in programs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_log_density_does_not_see_removed_elements():
    """What MCMC differentiates: the joint density as a function of raw values."""

    def density(beta):
        values = {"beta": beta, "noise": jnp.array(0.5)}
        return log_density(handlers.prune(regression, {"beta": KEEP}), (X, Y), {}, values)[0]

    raw = jnp.array([1.0, 9.0, -2.0, 9.0])
    value, gradient = jax.value_and_grad(density)(raw)
    values = {"beta": raw[KEEP], "noise": jnp.array(0.5)}
    alone = log_density(regression, (X[:, KEEP], Y), {}, values)[0]
    np.testing.assert_allclose(value, alone, rtol=1e-5)
    assert (gradient[~KEEP] == 0).all()
    assert (gradient[KEEP] != 0).all()


def test_validation_does_not_mind_removed_elements_outside_the_support():
    def program():
        numpyro.sample("s", dist.Uniform(2.0, 3.0).expand([4]).to_event(1))

    with numpyro.validation_enabled():
        pruned = handlers.prune(program, {"s": KEEP})
        trace = numpyro.handlers.trace(numpyro.handlers.seed(pruned, 0)).get_trace()
        value = trace["s"]["value"]
        assert (value[~KEEP] == 0).all()
        np.testing.assert_allclose(trace["s"]["fn"].log_prob(value), 0.0, atol=1e-6)


def test_a_handler_can_be_entered_again():
    pruned = handlers.prune(regression, {"beta": KEEP})
    first = numpyro.handlers.seed(pruned, jax.random.key(0))
    traces = [numpyro.handlers.trace(first).get_trace(X) for _ in range(2)]
    np.testing.assert_array_equal(traces[0]["beta"]["value"] == 0, ~KEEP)
    np.testing.assert_array_equal(traces[1]["beta"]["value"] == 0, ~KEEP)


@pytest.mark.parametrize("loss", [TraceMeanField_ELBO(), Trace_ELBO()], ids=["mean field", "trace"])
def test_temper_is_the_same_under_any_elbo(loss):
    """The likelihood's factor and the divergence's act on their own parts of the free energy."""
    guide, params = fitted(hierarchy)

    def tempered(**options):
        programs = (handlers.scale_elbo(f, **options) for f in (hierarchy, guide))
        return loss.loss(jax.random.key(0), params, *programs, X, Y)

    likelihood, divergence = tempered(kl=0.0), tempered(likelihood=0.0)
    np.testing.assert_allclose(likelihood + divergence, tempered(), rtol=1e-5)
    both = tempered(likelihood=3.0, kl=0.5)
    np.testing.assert_allclose(both, 3 * likelihood + 0.5 * divergence, rtol=1e-5)


def test_temper_multiplies_scales_that_are_there():
    def program(y):
        with numpyro.handlers.scale(scale=2.0), numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    model = handlers.scale_elbo(program, likelihood=25.0)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace(jnp.zeros(4))
    assert trace["y"]["scale"] == 50.0


@pytest.mark.slow
def test_fast_noise_gives_the_same_expected_loss():
    guide, params = fitted(hierarchy)
    keys = jax.random.split(jax.random.key(4), 2000)
    losses = [
        jax.jit(jax.vmap(lambda k, g=g: TraceMeanField_ELBO().loss(k, params, hierarchy, g, X, Y)))(
            keys
        )
        for g in (guide, handlers.fast_noise(guide))
    ]
    error = np.sqrt(sum(np.var(values) / len(keys) for values in losses))
    assert abs(losses[0].mean() - losses[1].mean()) < 4 * error
    assert not np.array_equal(*losses)


def test_fast_noise_is_what_a_guide_draws(monkeypatch):
    draws = []
    plain = noise.normal_noise
    monkeypatch.setattr(noise, "normal_noise", lambda *a: draws.append(a[1]) or plain(*a))
    guide, _ = fitted(regression)
    numpyro.handlers.seed(handlers.fast_noise(guide), jax.random.key(0))(X, Y)
    assert (4,) in draws


def walk(*, reverse=False, network=None):
    def step(at, _):
        with numpyro.plate("columns", 3):
            e = numpyro.sample("e", dist.Normal(0.0, 1.0))
        at = at + (e if network is None else network(e))
        return at, at

    return scan(step, jnp.zeros(3), None, length=4, reverse=reverse)


def test_removed_elements_of_a_scan_are_zero_inside_it_too():
    keep = jnp.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], bool)
    pruned, values = handlers.prune(walk, {"e": keep}), {"e": X[:, :3][:4]}
    kept = jnp.where(keep, values["e"], 0.0)
    for program in (
        numpyro.handlers.substitute(pruned, values),
        handlers.prune(numpyro.handlers.substitute(walk, values), {"e": keep}),
    ):
        np.testing.assert_allclose(program()[1], jnp.cumsum(kept, axis=0), rtol=1e-6)
    with numpyro.handlers.trace() as trace:
        last, _ = numpyro.handlers.seed(pruned, 0)()
    found = trace["e"]["value"]
    np.testing.assert_allclose(last, found.sum(0), rtol=1e-6)  # drawn from the prior
    np.testing.assert_array_equal(found != 0, keep)
    with pytest.raises(ValueError, match="'e' is inside a scan with reverse=True"):
        numpyro.handlers.seed(handlers.prune(walk, {"e": keep}), 0)(reverse=True)
    with pytest.raises(ValueError, match=r"has shape \(3, 3\), the site has \(4, 3\)"):
        numpyro.handlers.seed(handlers.prune(walk, {"e": keep[:3]}), 0)()


def test_removed_elements_of_a_branch_are_zero_inside_it_too():
    def branch(_):
        return 2.0 * numpyro.sample("e", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    def program():
        return cond(jnp.ones(()) > 0, branch, branch, None)

    keep = jnp.array([True, False, True])
    found = numpyro.handlers.seed(handlers.prune(program, {"e": keep}), 0)()
    np.testing.assert_array_equal(found != 0, keep)


def test_removed_elements_of_scans_and_branches_inside_a_scan_are_zero_too():
    def normals(name):
        return numpyro.sample(name, dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    def outer(total, x):
        inner, each = scan(lambda c, y: (c + normals("e"), None), jnp.zeros(3), jnp.arange(2))
        branch = cond(x >= 0, lambda _: normals("b"), lambda _: normals("b"), None)
        return total + inner + branch, (inner, branch)

    def program():
        return scan(outer, jnp.zeros(3), jnp.arange(4))[1]

    rng = np.random.default_rng(0)
    keep = {"e": rng.random((4, 2, 3)) < 0.5, "b": rng.random((4, 3)) < 0.5}
    with numpyro.handlers.trace() as trace:
        inner, branch = numpyro.handlers.seed(handlers.prune(program, keep), 0)()
    for name in keep:
        np.testing.assert_array_equal(np.asarray(trace[name]["value"]) != 0, keep[name])
    np.testing.assert_allclose(inner, trace["e"]["value"].sum(1), rtol=1e-6)
    np.testing.assert_array_equal(branch, trace["b"]["value"])


def test_networks_inside_a_scan_are_in_inference_mode_too():
    linear = eqx.nn.Linear(3, 3, use_bias=False, key=jax.random.key(0))
    linear = eqx.tree_at(lambda layer: layer.weight, linear, jnp.eye(3))

    def program():
        network = bmr.random_module("net", eqx.nn.Sequential([linear, eqx.nn.Dropout(0.5)]), None)
        return walk(network=lambda e: network(e[None])[0])[0]

    run = handlers.inference(numpyro.handlers.substitute(program, {"e": jnp.ones((4, 3))}))
    np.testing.assert_allclose(numpyro.handlers.seed(run, 0)(), 4.0)
