"""Criteria of multiplicative noise: evidence by quadrature, published rules, and the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from bmrjax import criteria
from bmrjax.criteria import SitePosteriors, smallest_magnitude_first, smallest_snr_first
from bmrjax.reduction import LogNormal, LogUniform, delta_f_each

pytestmark = pytest.mark.usefixtures("strict_promotion")

CRITERIA = {
    "BMRS-N": criteria.BMRSNormal(),
    "BMRS-N, margin": criteria.BMRSNormal(margin=0.92),
    "BMRS-U": criteria.BMRSUniform(8),
    "snr": criteria.SignalToNoise(threshold=1.0, family=LogNormal),
    "mean": criteria.Magnitude(fraction=0.4, family=LogNormal),
    "mean + sd": criteria.SignalPlusRobustness(threshold=0.1, family=LogNormal),
    "given": criteria.GivenScores(
        fraction=0.4, family=LogNormal, scores={"a": jnp.arange(6.0), "b": jnp.ones(())}
    ),
}
SHAPES = {"a": (6,), "b": ()}
LOCS = np.array([-0.1, -2.0, -9.0, -14.0, -19.0, -30.0])
SCALES = np.array([0.01, 0.5, 1.0, 2.0, 3.0, 4.0])


def make(seed, dtype=jnp.float32):
    q, p = {}, {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        key = jax.random.fold_in(jax.random.key(seed), i)
        loc = jax.random.uniform(key, shape, dtype, -20.0, 2.0)
        low, high = jnp.full(shape, -20.0, dtype), jnp.zeros(shape, dtype)
        q[name] = LogNormal(loc, 1.0 - 0.2 * loc, low, high)
        p[name] = LogUniform(low, high)
    return q, p


def site():
    low, high = jnp.full(6, -20.0), jnp.zeros(6)
    q = LogNormal(jnp.asarray(LOCS, jnp.float32), jnp.asarray(SCALES, jnp.float32), low, high)
    return {"θ": q}, {"θ": LogUniform(low, high)}


@pytest.fixture(params=CRITERIA.values(), ids=CRITERIA)
def criterion(request):
    return request.param


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5), a, b)


class TestContract:
    @pytest.mark.first_cases(3)
    def test_keeps_structure_and_dtype(self, criterion, x64):
        for dtype in (jnp.float32, jnp.float64):
            q, p = make(0, dtype)
            decision = criterion(SitePosteriors(q, p))
            for values, wanted in ((decision.keep, jnp.bool_), (decision.delta_f, dtype)):
                assert {n: v.shape for n, v in values.items()} == SHAPES
                assert all(v.dtype == wanted for v in values.values())

    @pytest.mark.first_cases(3)
    def test_jit_equals_eager_and_vmap_equals_loop_in_one_trace(self, criterion):
        count = 0

        def run(q, p):
            nonlocal count
            count += 1
            return criterion(SitePosteriors(q, p))

        both = [make(seed) for seed in range(3)]
        rows = [run(*one) for one in both]
        count, compiled = 0, jax.jit(run)
        for one, row in zip(both, rows, strict=True):
            assert_close(compiled(*one), row)
        assert count == 1
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *both)
        assert_close(jax.vmap(run)(*stacked), jax.tree.map(lambda *x: jnp.stack(x), *rows))

    def test_what_went_stays_away(self, criterion):
        q, p = make(0)
        gone = {"a": jnp.arange(6) != 0, "b": jnp.ones((), bool)}
        decision = criterion(SitePosteriors(q, p), gone)
        assert not decision.keep["a"][0]


def log_ratio(reduced, low, high):
    """Return ln E_q[p̃/p] in double precision, p̃ and q densities of ln θ."""
    found = []
    for loc, scale in zip(LOCS, SCALES, strict=True):
        a, b = (-20 - loc) / scale, -loc / scale
        q = stats.truncnorm(a, b, loc=loc, scale=scale)
        value, _ = integrate.quad(lambda z, q=q: q.pdf(z) * reduced(z), low, high, epsabs=0)
        with np.errstate(divide="ignore"):
            found.append(np.log(value * 20))
    return np.array(found)


def test_evidence_under_uniform_is_the_integral():
    q, p = site()
    low, high = -23 * np.log(2), -8 * np.log(2)
    wanted = log_ratio(lambda z: 1 / (high - low), low, high)
    decision = criteria.BMRSUniform(8)(SitePosteriors(q, p))
    found = decision.delta_f["θ"]
    seen = wanted > -300  # what double precision holds
    np.testing.assert_allclose(found[seen], wanted[seen], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(decision.keep["θ"], wanted < 0)
    assert 0 < decision.keep["θ"].sum() < 6


def test_evidence_under_a_narrow_normal_is_the_density_at_the_bound():
    # The reduced prior is half a normal on [low, low + 1e-5]: there q is all but constant.
    q, p = site()
    a, b = (-20 - LOCS) / SCALES, -LOCS / SCALES
    density = stats.truncnorm(a, b, loc=LOCS, scale=SCALES).logpdf(-20.0)
    wanted = density + np.log(20.0)
    decision = criteria.BMRSNormal()(SitePosteriors(q, p))
    found = decision.delta_f["θ"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(decision.keep["θ"], wanted < 0)
    np.testing.assert_allclose(delta_f_each(q["θ"], p["θ"]), found)
    assert 0 < decision.keep["θ"].sum() < 6


def test_a_margin_removes_what_costs_fewer_nats():
    low, high = jnp.full(3, -20.0), jnp.zeros(3)
    # Nearly the prior, where ΔF is just below zero; a tenth of a nat lower; far from it.
    q = {"θ": LogNormal(jnp.array([-9.9, -9.0, -0.1]), jnp.array([60.0, 15.0, 0.1]), low, high)}
    p = {"θ": LogUniform(low, high)}
    plain, wide = criteria.BMRSNormal(), criteria.BMRSNormal(margin=0.5 * np.log(2 * np.pi))
    decision = plain(SitePosteriors(q, p))
    assert -0.1 < decision.delta_f["θ"][0] < 0
    assert -0.9 < decision.delta_f["θ"][1] < -0.05
    assert decision.delta_f["θ"][2] < -100
    np.testing.assert_array_equal(decision.keep["θ"], [True, True, True])
    np.testing.assert_array_equal(wide(SitePosteriors(q, p)).keep["θ"], [False, False, True])


def test_fewer_digits_that_count_remove_more():
    low, high = jnp.full(6, -20.0), jnp.zeros(6)
    q = {"θ": LogNormal(-2.0 * jnp.arange(6.0), jnp.full(6, 0.3), low, high)}
    p = {"θ": LogUniform(low, high)}
    counts = []
    for p1 in (14, 10, 8, 5, 1):
        criterion = criteria.BMRSUniform(p1)
        counts.append(int(criterion(SitePosteriors(q, p)).keep["θ"].sum()))
    # θ = 2^-p1 is exp(-9.7), exp(-6.9), exp(-5.5), exp(-3.5), exp(-0.7).
    assert counts == [5, 4, 3, 2, 1]


def test_published_rules_and_orders_read_the_noise():
    q, p = site()
    samples = np.exp(
        stats.truncnorm.rvs(
            ((-20 - LOCS) / SCALES)[:, None],
            (-LOCS / SCALES)[:, None],
            loc=LOCS[:, None],
            scale=SCALES[:, None],
            size=(6, 200_000),
            random_state=0,
        )
    )
    mean, snr = samples.mean(1), samples.mean(1) / samples.std(1)
    rule = criteria.SignalToNoise(threshold=1.0, family=LogNormal)
    found = SitePosteriors(q, p)
    decision = rule(found)
    np.testing.assert_array_equal(decision.keep["θ"], snr >= 1)
    rule = criteria.Magnitude(threshold=0.1, family=LogNormal)
    np.testing.assert_array_equal(rule(SitePosteriors(q, p)).keep["θ"], mean >= 0.1)
    # Means of the widest are of few large draws.
    np.testing.assert_allclose(
        smallest_magnitude_first(found, decision)["θ"][:3], mean[:3], rtol=0.02
    )
    np.testing.assert_allclose(smallest_snr_first(found, decision)["θ"][:3], snr[:3], rtol=0.02)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="p1 < p2"):
        criteria.BMRSUniform(8, 4)
    with pytest.raises(ValueError, match="variance must be positive"):
        criteria.BMRSNormal(0.0)
    with pytest.raises(ValueError, match="not negative, got -1"):
        criteria.BMRSNormal(margin=-1.0)
    criterion = criteria.GivenScores(fraction=0.5, scores={"a": jnp.ones(3)}, family=LogNormal)
    q, p = make(0)
    with pytest.raises(ValueError, match=r"site 'a' needs scores of shape \(6,\)"):
        criterion(SitePosteriors(q, p))
