"""Evidence differences do not depend on the units of the data, in float32 neither."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax import reduction
from bmrjax.reduction.power_of_two import norm, power_of_two

# Squares of scales are zero or infinite from 2^±64 on, their fourth powers at 2^±32.
POWERS = [-110, -80, -40, 40, 80, 110]
LOC = jnp.array([0.02, 1.0, -0.8, 0.05])
TRIL = jnp.array([
    [0.1, 0.0, 0.0, 0.0], [-0.05, 0.2, 0.0, 0.0], [0.01, 0.02, 0.1, 0.0], [0.03, 0.1, 0.0, 0.04],
])  # fmt: skip


def _normal(unit):
    q = reduction.Normal(LOC * unit, jnp.linalg.norm(TRIL, axis=1) * unit)
    p = reduction.Normal(jnp.full(4, 0.3) * unit, jnp.ones(4) * unit)
    tilde = reduction.Normal(
        jnp.array([0.0, 0.1, 0.0, -0.2]) * unit, jnp.array([0, 0.5, 1, 2]) * unit
    )
    delta_f, reduced = reduction.normal(q, p, tilde)
    return [delta_f, reduction.delta_f_each(q, p)], [reduced.loc, reduced.scale], []


def _joint(unit):
    q = reduction.MultivariateNormal(LOC * unit, TRIL * unit)
    p = reduction.Normal(jnp.full(4, 0.3) * unit, jnp.ones(4) * unit)
    tilde = reduction.Normal(
        jnp.array([0.0, 0.1, 0.0, -0.2]) * unit, jnp.array([0, 0.5, 1, 1]) * unit
    )
    by_prior = reduction.multivariate_normal(q, p, tilde)
    removed = reduction.remove(q, p, jnp.array([True, False, True, False]))
    path = reduction.prune_greedily(q, p)
    free = [
        by_prior.delta_f,
        removed.delta_f,
        path.delta_f,
        reduction.delta_f_each(q, p),
        path.keep,
    ]
    scaled = []
    for found in (by_prior.reduced, removed.reduced, path.reduced):
        scaled += [found.loc, found.scale_tril]
    return free, scaled, []


def _low_rank(unit):
    # The diagonal holds variances, which float32 has down to 2^-126 only.
    q = reduction.LowRankNormal(LOC * unit, TRIL[:, :2] * unit, jnp.full(4, 0.01) * unit * unit)
    p = reduction.Normal(jnp.full(4, 0.3) * unit, jnp.ones(4) * unit)
    found = reduction.remove(q, p, jnp.array([True, False, True, False]))
    free = [found.delta_f, reduction.delta_f_each(q, p)]
    return free, [found.reduced.loc, found.reduced.cov_factor], [found.reduced.cov_diag]


def _matrix(unit):
    q = reduction.MatrixNormal(jnp.stack([LOC, 2 * LOC], 1) * unit, TRIL * unit, jnp.eye(2))
    p = reduction.Normal(jnp.asarray(0.0), jnp.asarray(unit))
    delta_f, reduced = reduction.matrix_normal(
        q, p, reduction.Normal(jnp.zeros(4), jnp.array([0, 0.5, 1, 1]) * unit)
    )
    each = [
        f(q, p) for f in (reduction.delta_f_each, reduction.delta_f_rows, reduction.delta_f_columns)
    ]
    return [delta_f, *each], [reduced.loc, reduced.scale], []


def _agree(case, power, rtol):
    unit = np.float32(2.0**power)
    one, other = case(np.float32(1)), case(unit)
    for factor, first, second in zip((1.0, 2.0**power, 4.0**power), one, other, strict=True):
        for x, y in zip(first, second, strict=True):
            np.testing.assert_allclose(np.asarray(y, float) / factor, x, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("case", [_normal, _joint, _matrix])
def test_units_do_not_matter(case, power):
    _agree(case, power, rtol=1e-5 if case is _matrix else 2e-6)


@pytest.mark.parametrize("power", [-58, -40, 40, 58])
def test_units_do_not_matter_where_variances_are_numbers(power):
    _agree(_low_rank, power, rtol=2e-6)


def test_a_variance_that_is_no_number_is_not_taken_for_zero():
    """It gave evidence differences that were too large by half, without a word."""
    free, _, _ = _low_rank(np.float32(2.0**-80))
    assert all(np.isnan(x).all() for x in free)
    removed = reduction.LowRankNormal(
        LOC.at[0].set(0.0), TRIL[:, :2].at[0].set(0.0), jnp.full(4, 0.01).at[0].set(0.0)
    )
    found = reduction.remove(
        removed, reduction.Normal(0.0, 1.0), jnp.array([False, True, True, True])
    )
    assert np.isfinite(found.reduced.loc).all()  # nothing but zeros: gone


@pytest.mark.parametrize("case", [_normal, _joint, _low_rank, _matrix])
def test_gradients_know_nothing_of_units(case):
    def delta_f(unit):
        return jnp.sum(case(unit)[0][0])

    # What all is divided by does not matter, so the derivative is zero.
    assert abs(float(jax.grad(delta_f)(jnp.float32(1.5)))) < 2e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_power_of_two(dtype):
    with jax.enable_x64(new_val=True):
        about = jnp.finfo(dtype)
        given = [1.0, 1.5, 2.0, 0.75, 3e-3, float(about.tiny), float(about.max)]
        found = np.asarray(power_of_two(jnp.array(given, dtype)), float)
        fractions, exponents = np.frexp(found)
        assert (fractions == 0.5).all()
        given = np.asarray(jnp.array(given, dtype), float)
        assert (found <= given).all()
        assert (found[:-1] > given[:-1] / 2).all()
        # Its reciprocal is a number too, for the largest.
        assert np.isfinite(1 / np.asarray(power_of_two(jnp.array(given, dtype)))).all()
        others = power_of_two(jnp.array([0.0, jnp.inf, jnp.nan], dtype))
        np.testing.assert_array_equal(np.asarray(others, float), 1.0)
        assert others.dtype == dtype


def test_norm_of_small_and_of_large():
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    x[1] = 0
    for power in (-120, -70, 0, 70, 120):
        unit = np.float32(2.0**power)
        found = np.asarray(norm(jnp.asarray(x * unit))) / unit
        np.testing.assert_allclose(found, np.linalg.norm(x.astype(float), axis=1), rtol=1e-6)


def test_scales_may_be_whole_numbers():
    loc = jnp.array([0.5, 2.0])
    prior, without = reduction.Normal(0, 4), reduction.Normal(0, 0)
    whole = reduction.normal(reduction.Normal(loc, 1), prior, without).delta_f
    same = reduction.normal(
        reduction.Normal(loc, 1.0), reduction.Normal(0.0, 4.0), reduction.Normal(0.0, 0.0)
    ).delta_f
    np.testing.assert_array_equal(whole, same)
