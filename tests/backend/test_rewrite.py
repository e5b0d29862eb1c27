"""Operations take another form wherever they stand, and all else stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend.rewrite import any_operation, rewritten


def _cosine(eqn, names):
    del names
    return (lambda inputs: [jnp.cos(inputs[0])]) if eqn.primitive.name == "sin" else None


def _looped(x):
    return jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) + i, x)


def _scanned(x):
    return jax.lax.scan(lambda carry, a: (carry + jnp.sin(a), carry), x, jnp.stack([x, 2 * x]))


def _branched(x):
    return jax.lax.cond(x.sum() > 0, jnp.sin, lambda x: x**2, x)


@jax.custom_jvp
def _with_rule(x):
    return jnp.sin(x)


_with_rule.defjvp(lambda primals, tangents: (_with_rule(*primals), tangents[0]))

FUNCTIONS = {
    "plain": lambda x: {"a": jnp.sin(x), "b": x},
    "jit": jax.jit(jnp.sin),
    "loop": _looped,
    "scan": _scanned,
    "branch": _branched,
    "own derivative": _with_rule,
    "checkpoint": jax.checkpoint(jnp.sin),
    "vmap": jax.vmap(jax.jit(jnp.sin)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_changes_an_operation_wherever_it_stands(name, monkeypatch):
    x = jnp.linspace(0.1, 1.0, 4)
    found = rewritten(FUNCTIONS[name], _cosine)(x)
    jitted = jax.jit(rewritten(FUNCTIONS[name], _cosine))(x)
    monkeypatch.setattr(jnp, "sin", jnp.cos)
    expected = {
        "jit": jnp.cos,
        "own derivative": jnp.cos,
        "checkpoint": jnp.cos,
        "vmap": jnp.cos,
    }.get(name, FUNCTIONS[name])(x)
    for some in (found, jitted):
        assert jax.tree.structure(some) == jax.tree.structure(expected)
        for a, b in zip(jax.tree.leaves(some), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_knows_the_scopes_of_an_operation():
    def rule(eqn, names):
        return _cosine(eqn, names) if "inside" in names else None

    def function(x):
        with jax.named_scope("inside"):
            y = jax.jit(jnp.sin)(x)
        return y + jnp.sin(x)

    found = rewritten(function, rule)(1.0)
    np.testing.assert_allclose(found, np.cos(1.0) + np.sin(1.0), rtol=1e-6)


def test_finds_an_operation_in_what_others_hold():
    jaxpr = jax.make_jaxpr(_looped)(1.0).jaxpr
    assert any_operation(jaxpr, lambda eqn: eqn.primitive.name == "sin")
    assert not any_operation(jaxpr, lambda eqn: eqn.primitive.name == "cos")
