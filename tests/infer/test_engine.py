"""The compiled SVI engine: any optimiser, guide and ELBO, one compilation, nothing lost."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.optim
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from bmrjax.handlers import prune
from bmrjax.infer.engine import Engine
from bmrjax.infer.free_energy import FreeEnergy

ROWS, SIZE = 32, 3
NOISE = 0.5


def make_data(seed=0, rows=ROWS):
    x = jax.random.normal(jax.random.key(seed), (rows, SIZE))
    noise = NOISE * jax.random.normal(jax.random.key(seed + 100), (rows,))
    return x, x @ jnp.array([1.0, -2.0, 0.0]) + noise


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def hand_written_guide(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(SIZE))
    scale = numpyro.param("scale", jnp.full(SIZE, 0.1), constraint=dist.constraints.positive)
    numpyro.sample("beta", dist.Normal(loc, scale).to_event(1))


def exact_posterior(x, y):
    precision = jnp.eye(SIZE) + x.T @ x / NOISE**2
    return jnp.linalg.solve(precision, x.T @ y) / NOISE**2, jnp.linalg.inv(precision)


def make_engine(model=program, guide=None, *, batch_size=ROWS, **options):
    options = {"optimizer": optax.adabelief(1e-2), "loss": TraceMeanField_ELBO(), **options}
    guide = AutoNormal(model) if guide is None else guide
    return Engine(model, guide, num_data=ROWS, batch_size=batch_size, **options)


def all_kept():
    return {"beta": jnp.ones(SIZE, bool)}


def fresh(state):
    return jax.tree.map(jnp.copy, state)


# --- any optimiser, any guide, any ELBO ---------------------------------------------------

OPTIMISERS = {
    "adabelief": lambda: optax.adabelief(1e-2),
    "sgd": lambda: optax.sgd(1e-3, momentum=0.9),
    "adam with a schedule": lambda: optax.adam(optax.cosine_decay_schedule(5e-2, 20)),
    "clip then adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[pytest.mark.slow] if name in ("sgd", "adabelief") else []
        )
        for name, make in OPTIMISERS.items()
    ],
)
def test_steps_are_those_of_numpyro(make):
    # AutoDelta draws nothing, so full batches have the loss of SVI's own loop to rounding.
    data, key = make_data(), jax.random.key(0)
    engine = make_engine(guide=AutoDelta(program), optimizer=make(), loss=Trace_ELBO())
    state = engine.init(key, data)
    start = fresh(state.params)
    state, info = engine.epoch(state, {}, data, key, num_steps=20)

    svi = SVI(program, AutoDelta(program), make(), Trace_ELBO())
    reference = svi.init(key, *data, init_params=start)
    losses = []
    for _ in range(20):
        reference, loss = svi.update(reference, *data)
        losses.append(loss)
    np.testing.assert_allclose(info.losses, jnp.stack(losses), rtol=1e-5)
    np.testing.assert_allclose(
        engine.constrain(state)["beta_auto_loc"],
        svi.get_params(reference)["beta_auto_loc"],
        rtol=1e-4,  # 20 steps of rounding
    )


GUIDES = {
    "AutoNormal": lambda: AutoNormal(program),
    "AutoDelta": lambda: AutoDelta(program),
    "hand-written": lambda: hand_written_guide,
    "AutoMultivariateNormal": lambda: AutoMultivariateNormal(program),
    "AutoLowRank": lambda: AutoLowRankMultivariateNormal(program),
    "AutoLaplace": lambda: AutoLaplaceApproximation(program),
}
ELBOS = {
    "Trace_ELBO": Trace_ELBO(),
    "TraceMeanField_ELBO": TraceMeanField_ELBO(),
    "4 particles": TraceMeanField_ELBO(num_particles=4),
}


# One guide of each kind; NumPyro's other ones are left to `make all-checks`.
OTHERS = ("AutoLowRank", "AutoLaplace")
PAIRS = [
    pytest.param(guide, "Trace_ELBO", marks=[pytest.mark.slow] if guide in OTHERS else [])
    for guide in GUIDES
]
PAIRS += [("AutoNormal", "TraceMeanField_ELBO"), ("hand-written", "4 particles")]


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(("guide", "elbo"), PAIRS)
def test_guides_and_elbos_find_the_conjugate_posterior(guide, elbo):
    data, key = make_data(), jax.random.key(1)
    guide, elbo = GUIDES[guide](), ELBOS[elbo]
    schedule = optax.linear_schedule(5e-2, 0.0, 500)
    engine = make_engine(guide=guide, optimizer=optax.adam(schedule), loss=elbo)
    state = engine.init(key, data)
    state, _ = engine.epoch(state, {}, data, key, num_steps=500)
    params = engine.constrain(state)
    mean, covariance = exact_posterior(*data)
    if hasattr(guide, "sample_posterior") and not isinstance(guide, AutoDelta):
        draws = guide.sample_posterior(jax.random.key(2), params, sample_shape=(500,))["beta"]
        found = draws.mean(0)
        # The draws' own standard error is 0.045 sd; SVI with one particle adds its last noise.
        np.testing.assert_allclose(draws.std(0), jnp.sqrt(jnp.diag(covariance)), rtol=0.35)
    else:
        found = params.get("beta_auto_loc", params.get("loc"))
    error = jnp.abs(found - mean) / jnp.sqrt(jnp.diag(covariance))
    assert float(error.max()) < 0.4


def test_a_list_of_guides():
    def two(x, y=None):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(alpha + x[:, 0], scale), obs=y)

    guide = AutoGuideList(two)
    guide.append(AutoNormal(numpyro.handlers.block(two, hide=["scale"])))
    guide.append(AutoDelta(numpyro.handlers.block(two, expose=["scale"])))
    x, _ = make_data()
    data = (x, x[:, 0] + 3.0)
    engine = make_engine(two, guide, optimizer=optax.adam(5e-2), loss=Trace_ELBO())
    state = engine.init(jax.random.key(0), data)
    state, _ = engine.epoch(state, {}, data, jax.random.key(1), num_steps=400)
    params = engine.constrain(state)
    # The prior N(0, 1) pulls the mean 3 towards zero by far less than 0.1 at 32 data.
    assert abs(float(params["alpha_auto_loc"]) - 3.0) < 0.1
    assert guide.sample_posterior(jax.random.key(0), params)["scale"] > 0


def test_numpyro_optimisers_are_refused():
    with pytest.raises(TypeError, match="give an optax optimiser"):
        make_engine(optimizer=numpyro.optim.Adam(1e-2))


# --- one compilation ----------------------------------------------------------------------


class Counted:
    def __init__(self):
        self.traces = 0

    def __call__(self, x, y=None):
        self.traces += 1
        program(x, y)


@pytest.mark.parametrize("loop", ["fused", "dispatch", "auto"])
def test_one_compilation_for_any_number_of_epochs_and_masks(loop):
    traces = []
    for num_epochs in (2, 9):
        counted, data = Counted(), make_data()
        engine = make_engine(counted, AutoNormal(counted), batch_size=8, loop=loop)
        state = engine.init(jax.random.key(0), data)
        for epoch in range(num_epochs):
            keep = {"beta": jnp.arange(SIZE) >= epoch % SIZE}
            key = jax.random.key(epoch)
            state, _ = engine.epoch(state, keep, data, key, num_steps=4, rate=1 / (epoch + 1))
            engine.vfe(state, keep, data, key)
            engine.site_posteriors(state, data)
        assert engine.num_compilations == 1
        traces.append(counted.traces)
    assert traces[0] == traces[1]


def test_data_and_masks_are_arguments():
    key, keep = jax.random.key(0), all_kept()
    pruned = {"beta": jnp.array([False, True, True])}
    cases = [(make_data(0), keep), (make_data(7), keep), (make_data(7), pruned)]
    shared = make_engine(batch_size=8)
    start = shared.init(key, cases[0][0])
    found = []
    for data, mask in cases:
        _, info = shared.epoch(fresh(start), mask, data, key, num_steps=4)
        own = make_engine(batch_size=8)
        own.init(key, cases[0][0])
        _, expected = own.epoch(fresh(start), mask, data, key, num_steps=4)
        np.testing.assert_allclose(info.losses, expected.losses, rtol=1e-6)
        found.append(np.asarray(info.losses))
    assert shared.num_compilations == 1
    assert not np.allclose(found[0], found[1])
    assert not np.allclose(found[1], found[2])


def test_the_compiled_step_holds_no_data():
    rows, columns = ROWS, SIZE
    data, key = make_data(), jax.random.key(0)
    engine = make_engine(batch_size=8)
    state = engine.init(key, data)
    carry = (state, jnp.zeros(4))
    order = jnp.arange(ROWS)
    program_ = engine._epoch.compile(carry, data, order, all_kept(), key, jnp.asarray(1.0))
    constants = [line for line in program_.as_text().splitlines() if " constant(" in line]
    assert constants
    assert not [c for c in constants if f"[{rows},{columns}]" in c or f"[{rows}]" in c]


@pytest.mark.parametrize("loop", ["fused", "dispatch"])
def test_the_state_is_donated_and_nothing_else(loop):
    data, key, keep = make_data(), jax.random.key(0), all_kept()
    engine = make_engine(batch_size=8, loop=loop)
    old = engine.init(key, data)
    new, _ = engine.epoch(old, keep, data, key, num_steps=4)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((new, data, keep, key)))
    engine.vfe(new, keep, data, key)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))


def test_fused_and_dispatched_steps_agree():
    data, key = make_data(), jax.random.key(0)
    found = []
    for loop in ("fused", "dispatch"):
        engine = make_engine(batch_size=8, loop=loop)
        state = engine.init(key, data)
        state, info = engine.epoch(state, all_kept(), data, key, num_steps=12)
        assert engine.loop_mode == loop
        found.append((engine.constrain(state), info.losses))
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# --- batches ------------------------------------------------------------------------------


def test_an_epoch_sees_every_datum_once_and_scales_to_all_of_them():
    data, key = make_data(), jax.random.key(3)
    mean = []
    for batch_size in (ROWS, 8):
        engine = make_engine(guide=AutoDelta(program), loss=Trace_ELBO(), batch_size=batch_size)
        state = engine.init(jax.random.key(0), data)
        steps = ROWS // batch_size
        _, info = engine.epoch(state, {}, data, key, num_steps=steps, rate=0.0)
        mean.append(float(info.losses.mean()))
        if batch_size == 8:
            assert float(info.losses.std()) > 1.0  # batches differ, so it was no one batch
    assert mean[0] == pytest.approx(mean[1], rel=1e-5)


def test_epochs_are_shuffled_by_their_key():
    data = make_data()
    engine = make_engine(guide=AutoDelta(program), loss=Trace_ELBO(), batch_size=8)
    state = engine.init(jax.random.key(0), data)
    found = []
    for seed in (1, 1, 2):
        state, info = engine.epoch(state, {}, data, jax.random.key(seed), num_steps=4, rate=0.0)
        found.append(np.asarray(info.losses))
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


def test_an_iterator_of_the_same_batches_gives_the_same_steps():
    x, y = make_data()
    key = jax.random.key(5)
    engine = make_engine(batch_size=8)
    state = engine.init(jax.random.key(0), (x, y))
    order = engine._order(jax.random.split(key)[0], 6 * 8)
    rows = np.asarray(order).reshape(6, 8)
    assert sorted(rows[:4].ravel()) == list(range(ROWS))
    batches = ((np.asarray(x)[r], np.asarray(y)[r]) for r in rows)
    whole, info = engine.epoch(fresh(state), all_kept(), (x, y), key, num_steps=6)
    parts, given = engine.epoch_from(fresh(state), all_kept(), batches, key, num_steps=6)
    np.testing.assert_allclose(info.losses, given.losses, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_iterator_that_ends_early_is_an_error():
    data = make_data()
    engine = make_engine()
    state = engine.init(jax.random.key(0), data)
    with pytest.raises(ValueError, match="ended after 2 of 3 steps"):
        engine.epoch_from(state, {}, iter([data, data]), jax.random.key(0), num_steps=3)


def test_dicts_are_keyword_arguments():
    x, y = make_data()
    found = []
    for data in ((x, y), {"y": y, "x": x}):
        engine = make_engine(batch_size=8)
        state = engine.init(jax.random.key(0), data)
        _, info = engine.epoch(state, {}, data, jax.random.key(1), num_steps=4)
        found.append(np.asarray(info.losses))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


# --- the KL term --------------------------------------------------------------------------


def kl_by_hand(params):
    loc, scale = params["beta_auto_loc"], params["beta_auto_scale"]
    return float(jnp.sum(-jnp.log(scale) + 0.5 * (scale**2 + loc**2 - 1.0)))


def losses_at_the_start(num_steps, **options):
    data = make_data()
    engine = make_engine(**options)
    state = engine.init(jax.random.key(0), data)
    kl = kl_by_hand(engine.constrain(state))
    _, info = engine.epoch(state, {}, data, jax.random.key(1), num_steps=num_steps, rate=0.0)
    return np.asarray(info.losses), kl


@pytest.mark.parametrize("weight", [0.25, 3.0])
def test_kl_weight(weight):
    without, kl = losses_at_the_start(3, kl_weight=0.0)
    losses, _ = losses_at_the_start(3, kl_weight=weight)
    np.testing.assert_allclose(losses - without, weight * kl, rtol=1e-4)


def test_kl_warmup_grows_linearly_and_stays():
    without, kl = losses_at_the_start(6, kl_weight=0.0)
    losses, _ = losses_at_the_start(6, kl_weight=2.0, kl_warmup=4)
    expected = 2.0 * kl * np.array([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(losses - without, expected, rtol=1e-4)


# --- steps that are not finite ------------------------------------------------------------


def fragile(x, y, bad):
    """NaN loss where a data point has bad = 1; finite loss with a NaN gradient where it has 2."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    zero = jnp.where(jnp.any(bad == 1), 0.0, 1.0)
    root = jnp.sqrt(jnp.where(jnp.any(bad == 2), 0.0, 1.0) * jnp.sum(beta**2))
    loc = x @ beta * (zero / zero) + 0.0 * root
    numpyro.sample("y", dist.Normal(loc, NOISE), obs=y)


def fragile_run(kinds, **options):
    x, y = make_data()
    batches = [(x, y, jnp.full(ROWS, kind)) for kind in kinds]
    engine = make_engine(fragile, AutoDelta(fragile), loss=Trace_ELBO(), **options)
    state = engine.init(jax.random.key(0), batches[0])
    key = jax.random.key(1)
    state, info = engine.epoch_from(state, {}, iter(batches), key, num_steps=len(batches))
    return state, np.asarray(info.losses)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("clip", [False, True])
def test_a_step_that_is_not_finite_leaves_no_trace(kind, clip):
    adam = optax.adam(1e-2)
    optimizer = optax.chain(optax.clip(1.0), adam) if clip else adam
    good, good_losses = fragile_run([0, 0, 0], optimizer=optimizer)
    state, losses = fragile_run([0, kind, 0, kind, kind, 0], optimizer=optimizer)
    for a, b in zip(
        jax.tree.leaves((good.params, good.opt_state)),
        jax.tree.leaves((state.params, state.opt_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(losses[[0, 2, 5]], good_losses)
    counts = [state.num_steps, state.num_skipped, state.bad_in_row, state.worst_in_row]
    assert [int(c) for c in counts] == [6, 3, 0, 2]
    assert np.array_equal(np.isfinite(losses), [True, False, True, False, False, True])


# --- looking at the state -----------------------------------------------------------------


def test_vfe_is_the_negative_elbo_of_all_data():
    data, key = make_data(), jax.random.key(2)
    for batch_size in (ROWS, 8):
        engine = make_engine(guide=AutoDelta(program), batch_size=batch_size, kl_weight=0.1)
        state = engine.init(jax.random.key(0), data)
        value = {"beta": engine.constrain(state)["beta_auto_loc"]}
        log_joint, _ = numpyro.infer.util.log_density(program, data, {}, value)
        found = engine.vfe(state, all_kept(), data, key)
        assert found == pytest.approx(-float(log_joint), rel=1e-5)
        assert found == engine.vfe(state, all_kept(), data, key)


def test_the_vfe_of_small_data_is_steadier_than_one_pass():
    # One pass over this data is one posterior sample.
    data, engine = make_data(), make_engine()
    state = engine.init(jax.random.key(0), data)
    keys = jax.random.split(jax.random.key(1), 30)
    one_pass = FreeEnergy(program, engine.guide, loss=engine.loss, batch_size=ROWS)
    params = engine.constrain(state)
    single = np.std([one_pass(params, all_kept(), data, key) for key in keys])
    measured = np.std([engine.vfe(state, all_kept(), data, key) for key in keys])
    assert 0 < measured < single / 5  # ten times less, by a hundred samples


def test_vfe_of_a_pruned_state_is_that_of_the_smaller_program():
    x, y = make_data()
    keep = {"beta": jnp.array([True, False, True])}
    engine = make_engine(guide=AutoDelta(program))
    state = engine.init(jax.random.key(0), (x, y))
    value = {"beta": jnp.where(keep["beta"], engine.constrain(state)["beta_auto_loc"], 0.0)}
    log_joint, _ = numpyro.infer.util.log_density(prune(program, keep), (x, y), {}, value)
    found = engine.vfe(state, keep, (x, y), jax.random.key(2))
    assert found == pytest.approx(-float(log_joint), rel=1e-5)


def test_site_posteriors_are_those_of_the_guide():
    def scaled(x, y=None):
        with numpyro.plate("columns", SIZE):
            beta = numpyro.sample("beta", dist.Normal(0.5, 2.0), infer={"layer": "all"})
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

    data = make_data()
    engine = make_engine(scaled)
    state = engine.init(jax.random.key(0), data)
    found, params = engine.site_posteriors(state, data), engine.constrain(state)
    assert list(found.posterior) == ["beta"]  # the noise is not normal
    np.testing.assert_array_equal(found.posterior["beta"].loc, params["beta_auto_loc"])
    np.testing.assert_array_equal(found.posterior["beta"].scale, params["beta_auto_scale"])
    np.testing.assert_array_equal(found.prior["beta"].loc, jnp.full(SIZE, 0.5))
    np.testing.assert_array_equal(found.prior["beta"].scale, jnp.full(SIZE, 2.0))
    assert found.layers == {"beta": "all"}


def test_constrain_needs_init():
    with pytest.raises(RuntimeError, match="init must come first"):
        make_engine().constrain(None)
