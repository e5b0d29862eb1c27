"""What `quick_eager` computes is what XLA computes, to the bit, but for the sign of NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick_eager
from jax import lax

TINY = float(np.finfo(np.float32).tiny)
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, TINY, 1 / 3, 2**24 + 1]
CASES = {
    "arithmetic": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / y,
    "root": lambda x, y: jnp.sqrt(x),
    "square": lambda x, y: x**2,
    "where": lambda x, y: jnp.where(x > y, x, 0.0),
    "less": lambda x, y: x <= y,
    "signs": lambda x, y: jnp.abs(-x),
    "largest": lambda x, y: jnp.max(x),
    "shapes": lambda x, y: jnp.concatenate([x[::2], y[1:]])[::-1].reshape(-1, 1).T,
    "integers": lambda x, y: jnp.sum((x > 0).astype(int) * 3 - 7),
    "any": lambda x, y: jnp.isfinite(x).any() | ~jnp.all(y == 0),
    "stack": lambda x, y: jnp.stack([x, jnp.broadcast_to(y[:, None], (len(y), 2))[:, 1]]),
}


@pytest.mark.parametrize("name", CASES)
def test_gives_the_bits_of_a_compiled_program(name):
    random = np.random.default_rng(0).normal(size=(2, 500)).astype(np.float32)
    grid = np.array(np.meshgrid(SPECIAL, SPECIAL), np.float32).reshape(2, -1)
    subnormal = np.append(SPECIAL, 1e-39).astype(np.float32)
    for x, y in (random, grid, (subnormal, subnormal[::-1])):
        outside = CASES[name](jnp.asarray(x), jnp.asarray(y))
        # A program that is compiled ahead of time does not come here.
        compiled = jax.jit(CASES[name]).lower(x, y).compile()(x, y)
        assert outside.dtype == compiled.dtype
        assert outside.weak_type == compiled.weak_type
        np.testing.assert_array_equal(outside, compiled)
        zero = np.asarray(outside) == 0
        np.testing.assert_array_equal(np.signbit(outside)[zero], np.signbit(compiled)[zero])


LEFT = {
    "two roundings, which may be fused": jax.jit(lambda x: x * x + x),
    "a sum": jnp.sum,
    "exp": jnp.exp,
    "a quotient by a constant": jax.jit(lambda x: x / 3),
    "float to integer": lambda x: x.astype(int),
    "a cube": lambda x: lax.integer_pow(x, 3),
    "16 bits": lambda x: x.astype(jnp.bfloat16),
    "8 bits": lambda x: jax.jit(lambda y: y)(jnp.zeros(3, jnp.float8_e5m2)),
}


@pytest.mark.parametrize("name", LEFT)
def test_leaves_to_the_compiler_what_numpy_may_round_otherwise(name, monkeypatch):
    compiled = []

    def compile_and_note(*args, **settings):
        compiled.append(settings["name"])
        return run(*args, **settings)

    run = quick_eager._compile
    monkeypatch.setattr(quick_eager, "_compile", compile_and_note)
    x = jnp.asarray(np.arange(1.0, 39.0, dtype=np.float32))
    _ = x * 2 + x[::-1]
    assert not compiled
    LEFT[name](x)
    assert compiled


@pytest.mark.usefixtures("all_compiled")
def test_a_test_that_counts_compilations_sees_all(caplog):
    x = jnp.asarray(np.arange(41, dtype=np.float32))
    with jax.log_compiles():
        _ = x - x
    assert caplog.records
