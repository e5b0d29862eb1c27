"""Compile quickly what computes little, and well what computes much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import get_opaque_trace_state

from bmrjax.backend import quick_compile
from bmrjax.backend.quick_compile import has_options, options_for, quick_jit, quick_options
from bmrjax.infer.loop import Loop

QUICK = {"xla_backend_optimization_level": 0}


@pytest.fixture
def chosen(monkeypatch):
    """Record the options that programs are compiled with."""
    found = []

    def spy(*args, **kwargs):
        found.append(bool(options_for(*args, **kwargs).items() >= QUICK.items()))
        return options_for(*args, **kwargs)

    monkeypatch.setattr(quick_compile, "options_for", spy)
    return found


def repeated(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=1000)[0]


def either(x):
    return jax.lax.cond(x[0] > 0, repeated, jnp.cos, x)


@pytest.mark.parametrize(
    ("function", "size", "num_calls", "quick"),
    [
        (jnp.sin, 100, 100, True),
        (jnp.sin, 100, 1_000_000, False),
        (jnp.sin, 10_000_000, 1, False),
        (repeated, 100, 1, True),
        (repeated, 100, 100, False),
        (jax.jit(repeated), 100, 100, False),
        (either, 100, 100, False),
    ],
)
def test_it_depends_on_how_much_is_computed(function, size, num_calls, quick):
    jaxpr = jax.make_jaxpr(function)(jnp.ones(size))
    assert (options_for(jaxpr.jaxpr, num_calls).items() >= QUICK.items()) == quick


def test_what_multiplies_most_of_the_time_is_not_compiled_for_long():
    jaxpr = jax.make_jaxpr(jnp.sin)(jnp.ones(10_000_000)).jaxpr
    assert options_for(jaxpr, 10**6).get("xla_backend_optimization_level") != 1
    found = options_for(jaxpr, 10**6, mostly_products=True)
    assert found["xla_backend_optimization_level"] == 1
    little = jax.make_jaxpr(jnp.sin)(jnp.ones(10)).jaxpr
    assert options_for(little, 1, mostly_products=True).items() >= QUICK.items()


def test_other_shapes_are_another_choice(chosen):
    function = quick_jit(lambda x, n: jnp.sin(x) ** n, static_argnums=1)
    for size in (10, 10, 2_000_000, 10):
        found = function(jnp.full(size, 0.5), 2)
        np.testing.assert_allclose(found, np.sin(0.5) ** 2, rtol=1e-6)
    assert chosen == [True, False]


def test_it_can_be_called_in_other_programs():
    function = quick_jit(lambda x, *, y: x @ y)
    x, y = jnp.ones((4, 3)), jnp.arange(3.0)
    np.testing.assert_array_equal(jax.jit(function)(x, y=y), [3.0] * 4)
    np.testing.assert_array_equal(jax.vmap(function, axis_size=4)(x, y=jnp.ones((4, 3))), [3.0] * 4)
    gradient = jax.grad(lambda x: function(x, y=y).sum())(x)
    np.testing.assert_array_equal(gradient, jnp.tile(y, (4, 1)))


def test_it_can_be_called_with_constants_in_other_programs():
    function = quick_jit(lambda x: 2.0 * x)
    np.testing.assert_array_equal(jax.jit(lambda x: x + function(jnp.ones(3)))(1.0), [3.0] * 3)
    np.testing.assert_array_equal(jax.grad(lambda x: x * function(jnp.ones(())))(1.0), 2.0)
    np.testing.assert_array_equal(jax.vmap(lambda x: x + function(1.0))(jnp.ones(2)), [3.0] * 2)


def test_it_may_be_imported_while_a_program_is_traced():
    found = []

    def program(x):
        found.append(quick_compile._outside_of_any_program())
        return quick_jit(jnp.sin)(x)

    jax.jit(program)(1.0)
    assert found == [get_opaque_trace_state()]


def test_a_compiler_without_the_options_gets_none(monkeypatch):
    monkeypatch.setattr(quick_compile, "_QUICK", {"xla_no_such_option": 1})
    assert not has_options.__wrapped__()
    # Nor those that these tests set.
    monkeypatch.setattr(quick_compile, "has_options", lambda: False)
    assert quick_compile._DEFAULT
    assert options_for(jax.make_jaxpr(jnp.sin)(1.0).jaxpr, 100) == {}


def test_many_steps_of_a_small_program_are_worth_some_optimisation():
    jaxpr = jax.make_jaxpr(lambda x: jnp.tanh(jnp.sin(x)) ** 2)(jnp.ones(400)).jaxpr
    costs = (quick_compile._QUICK, quick_compile._MIDDLE, quick_compile._DEFAULT)
    for num_calls, options in zip((1, 4000, 10**6), costs, strict=True):
        assert options_for(jaxpr, num_calls) is options


def test_both_ways_give_the_same_numbers(monkeypatch):
    def step(x, i, y):
        return jnp.tanh(x @ y + i) * jnp.exp(-(x**2)) + jax.random.normal(
            jax.random.key(i), x.shape
        )

    x, y = jnp.linspace(-1, 1, 12).reshape(3, 4), jnp.eye(4)
    found = []
    for options in ({}, quick_options(), quick_compile._MIDDLE):
        monkeypatch.setattr(quick_compile, "options_for", lambda *_, o=options, **__: o)
        found.append(Loop(step, "fused")(jnp.array(x), 5, y))
    for quicker in found[1:]:
        np.testing.assert_allclose(found[0], quicker, rtol=1e-5, atol=1e-6)
