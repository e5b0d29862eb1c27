"""Programs have the same key only where they are the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from bmrjax.backend import shared_programs
from bmrjax.backend.program_key import constants_key, program_key
from bmrjax.backend.quick_compile import quick_jit

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.ones((2, 3), np.float32)


@jax.custom_vjp
def halved_in_reverse(x):
    return jnp.tanh(x)


halved_in_reverse.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g * x,))


@jax.custom_jvp
def as_one(x):
    return x


as_one.defjvp(lambda primals, tangents: (primals[0], jnp.ones_like(tangents[0])))


def scanned(reverse, times=4):
    return lambda x, y: lax.scan(
        lambda c, i: (c + i * x, c.sum()), y, jnp.arange(times), reverse=reverse
    )


def of_branches(first, second):
    return lambda x, y: lax.cond(x.sum() > 0, first, second, x)


def closing_over(constant):
    return lambda x, y: x + constant


PROGRAMS = {
    "minus": lambda x, y: x - y,
    "the other way round": lambda x, y: y - x,
    "of one": lambda x, y: x - x,
    "of the other": lambda x, y: y - y,
    "zero": lambda x, y: x + 0.0,
    "negative zero": lambda x, y: x + -0.0,
    "a whole zero": lambda x, y: x + 0,
    "nan": lambda x, y: x * jnp.nan,
    "infinity": lambda x, y: x * jnp.inf,
    "true": lambda x, y: jnp.where(np.True_, x, y),
    "one": lambda x, y: jnp.where(1.0, x, y),
    "two results": lambda x, y: (x, y),
    "two results by name": lambda x, y: {"a": x, "b": y},
    "two results the other way round": lambda x, y: (y, x),
    "an array": closing_over(np.arange(3, dtype=np.float32)),
    "another array": closing_over(np.array([0, 1, 3], np.float32)),
    "an array of another shape": closing_over(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "an array of another type": closing_over(np.arange(3, dtype=np.int32)),
    "half precision": closing_over(jnp.arange(3, dtype=jnp.bfloat16)),
    "a large array": closing_over(np.arange(60_000, dtype=np.float32).reshape(20_000, 1, 3)),
    "forwards": scanned(reverse=False),
    "backwards": scanned(reverse=True),
    "longer": scanned(reverse=False, times=5),
    "a branch": of_branches(jnp.sin, jnp.cos),
    "the other branch": of_branches(jnp.cos, jnp.sin),
    "a loop": lambda x, y: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
    "a loop that ends later": lambda x, y: lax.while_loop(
        lambda c: c.sum() < 10, lambda c: c + 1, x
    ),
    "inside": lambda x, y: jax.jit(jnp.exp)(x),
    "another inside": lambda x, y: jax.jit(jnp.log)(x),
    "relu": lambda x, y: jax.nn.relu(x),
    "relu6": lambda x, y: jax.nn.relu6(x),
    "its own derivative": lambda x, y: halved_in_reverse(x),
    "derivative": jax.grad(lambda x, y: halved_in_reverse(x).sum()),
    "another derivative": jax.grad(lambda x, y: jnp.tanh(x).sum()),
    "as one": lambda x, y: as_one(x),
    "recomputed": jax.grad(lambda x, y: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()),
    "product": lambda x, y: x @ y.T,
    "exact product": lambda x, y: jnp.matmul(x, y.T, precision="highest"),
    "clipped": lambda x, y: x.at[5].get(mode="clip"),
    "filled": lambda x, y: x.at[5].get(mode="fill"),
    "sorted": lambda x, y: jnp.sort(x),
    "sorted along the other axis": lambda x, y: jnp.sort(x, axis=0),
    "noise": lambda x, y: jax.random.normal(jax.random.key(0), (3,)),
    "other noise": lambda x, y: jax.random.normal(jax.random.key(1), (3,)),
    "noise of another kind": lambda x, y: jax.random.normal(jax.random.key(0, impl="rbg"), (3,)),
    "solved": lambda x, y: jax.scipy.linalg.solve(x @ x.T + jnp.eye(2), y),
    "a typed key": lambda x, y: jax.random.normal(KEY, (3,)),
}
KEY = jax.random.key(5)


def key_and_text(function, *args, **settings):
    key = program_key(jax.jit(function, **settings).trace(*args))
    assert key is not None
    lowered = jax.jit(function, keep_unused=True, **settings).trace(*args).lower()
    return key, (lowered.as_text(), str(lowered.in_avals), lowered.in_tree, lowered.out_tree)


def test_programs_of_another_text_have_another_key():
    found = {name: key_and_text(program, X, Y) for name, program in PROGRAMS.items()}
    for one, other in itertools.combinations(found, 2):
        same_key, same_text = (a == b for a, b in zip(found[one], found[other], strict=True))
        assert same_key == same_text, (one, other)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_traced_again_has_its_key(name):
    def again(*args):
        return PROGRAMS[name](*args)

    assert key_and_text(PROGRAMS[name], X, Y)[0] == key_and_text(again, X, Y)[0]


LITERALS = st.sampled_from([0.0, -0.0, 1.0, 1, 2, True, float("nan"), float("inf"), 1e-8])


def written(draws):
    """Return a program of random operations, and what it is made of."""
    operations = {
        "add": lambda a, b: a + b,
        "multiply": lambda a, b: a * b,
        "larger": jnp.maximum,
        "chosen": lambda a, b: jnp.where(a > b, a, b),
        "inside": jax.jit(lambda a, b: a - 2 * b),
        "looped": lambda a, b: lax.fori_loop(0, 3, lambda i, c: c * b + i, a),
    }

    def program(x, y):
        values = [x, y]
        for name, at, literal in draws:
            other = literal if literal is not None else values[at // 2 % len(values)]
            values.append(operations[name](values[at % len(values)], jnp.asarray(other, x.dtype)))
        return values[-1]

    return program


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "multiply", "larger", "chosen", "inside", "looped"]),
        st.integers(0, 5),
        st.none() | LITERALS,
    ),
    min_size=1,
    max_size=3,
)


@given(first=STEPS, second=STEPS, data=st.data())
def test_random_programs(first, second, data):
    # Another program, or this one with another number in it.
    if data.draw(st.booleans()):
        name, at, _ = first[0]
        second = [(name, at, data.draw(LITERALS)), *first[1:]]
    one, other = (key_and_text(written(steps), X[0, 0], Y[0, 0]) for steps in (first, second))
    assert (one[0] == other[0]) == (one[1] == other[1])


def test_donated_arguments_and_those_that_nothing_is_computed_from_count():
    plain = key_and_text(PROGRAMS["zero"], X, Y)
    assert key_and_text(PROGRAMS["zero"], X, Y[0])[0] != plain[0]
    assert key_and_text(PROGRAMS["zero"], X, Y, donate_argnums=0)[0] != plain[0]
    assert key_and_text(PROGRAMS["minus"], X, 1.0)[0] != key_and_text(PROGRAMS["minus"], X, Y)[0]
    weak, strong = (key_and_text(PROGRAMS["minus"], X, one) for one in (1.0, np.float32(1.0)))
    assert weak[0] != strong[0]


def test_the_settings_of_jax_count(x64):
    twice = [key_and_text(PROGRAMS["minus"], X, Y)[0]]
    with jax.enable_x64(new_val=False):
        twice.append(key_and_text(PROGRAMS["minus"], X, Y)[0])
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        twice.append(key_and_text(PROGRAMS["minus"], X, Y)[0])
    assert len(set(twice)) == 3


def test_an_array_of_objects_has_no_key():
    class Traced:
        """A traced program with a constant that has no value of its own."""

        def __init__(self):
            self.args_info, self.in_avals, self.in_tree, self.out_tree = (), (), None, None
            self.jaxpr = jax.make_jaxpr(closing_over(X))(X, Y)
            self.jaxpr.consts[:] = [np.array([object()])]

    assert program_key(Traced()) is None


def lowered_programs(monkeypatch):
    """Collect the programs that are lowered."""
    found = []
    kept = jax.stages.Traced.lower

    def lower(traced, *args, **settings):
        found.append(traced)
        return kept(traced, *args, **settings)

    monkeypatch.setattr(jax.stages.Traced, "lower", lower)
    return found


def test_a_program_is_lowered_once(monkeypatch):
    found = lowered_programs(monkeypatch)
    constant = np.ones(7, np.float32)

    def doubled():
        return jax.jit(lambda x: x * constant).trace(constant)

    for times in (1, 1, 2):
        constant *= times
        one = shared_programs.compiled(doubled())
        np.testing.assert_array_equal(one(np.ones(7, np.float32)), times * np.ones(7))
    assert len(found) == 2


def test_of_two_functions_each_reads_its_own_argument():
    one, other = (quick_jit(function) for function in (lambda x, y: 2 * x, lambda x, y: 2 * y))
    np.testing.assert_array_equal(one(X, Y), 2 * X)
    np.testing.assert_array_equal(other(X, Y), 2 * Y)


def test_a_program_that_calls_python_is_its_own(monkeypatch):
    found = lowered_programs(monkeypatch)
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def adds(number):
        return jax.jit(lambda x: jax.pure_callback(lambda x: np.float32(x + number), shape, x))

    for number in (1, 2):
        assert shared_programs.compiled(adds(number).trace(1.0))(1.0) == 1 + number
    assert len(found) == 2


def test_options_may_depend_on_the_length_of_a_program_that_is_not_lowered_again():
    lengths = []

    def options(num_lines):
        lengths.append(num_lines)
        return {}

    for _ in range(2):
        shared_programs.compiled(jax.jit(lambda x: jnp.sin(x) + 0.1234).trace(X), options)
    assert lengths[0] == lengths[1] > 3


def _of_arrays(used, unused, inside, *, both=False):
    def function(x):
        jax.jit(lambda a, b: b if both else a)(x, inside)
        return x * used, (unused * 2)[:0], jax.jit(lambda a, b: a + b if both else a)(x, inside)

    return constants_key(jax.jit(lambda x: function(x)[::2]).trace(X))


def test_of_the_arrays_closed_over_those_count_that_something_is_computed_from():
    one, two, three = X + 1, X + 2, X + 3
    base = _of_arrays(one, two, three)
    assert base is not None
    assert base == _of_arrays(one, X + 4, X + 5)
    assert base != _of_arrays(X + 4, two, three)
    both = _of_arrays(one, two, three, both=True)
    assert both == _of_arrays(one, X + 4, three, both=True)
    assert both != _of_arrays(one, two, X + 4, both=True)
