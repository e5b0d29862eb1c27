"""Whatever number differs in what a run is made of, its fingerprint differs, too."""

import copy
import dataclasses
import enum
import functools
import json
from collections import deque

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax.infer.check_data import check_data
from bmrjax.run.fingerprint import fingerprint, first_difference
from bmrjax.run.same_run import data_digest


def test_the_same_objects_made_again_are_the_same():
    def made(scale, rate):
        weights = np.linspace(0.0, scale, 5)

        def inner(x, y=None):
            beta = numpyro.sample("beta", dist.Normal(weights, scale))
            numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

        guide = bmr.infer.AutoMeanField(inner)
        schedule = optax.warmup_cosine_decay_schedule(0.0, rate, 10, 100)
        return fingerprint([inner, guide, optax.chain(optax.clip(1.0), optax.adam(schedule))])

    assert first_difference(made(1.0, 0.1), made(1.0, 0.1)) is None
    for other in (made(2.0, 0.1), made(1.0, 0.2)):
        assert first_difference(made(1.0, 0.1), other) is not None
    closed = jnp.ones(3)
    assert first_difference(fingerprint(closed), fingerprint(closed * (1 + 1e-7))) is None


class Private:
    def __init__(self, scale):
        self._scale = scale


class Derived:
    def __init__(self, scale):
        self.precision = 1 / scale**2


class Slotted:
    __slots__ = ("held",)

    def __init__(self, scale):
        self.held = scale


class Open:
    def __init__(self, **given):
        self.__dict__.update(given)


class Own(nnx.Module):
    def __init__(self, rate, rngs):
        self.inner = nnx.Dropout(rate, rngs=rngs)


def written(text, **names):
    """Return the program that a text defines, as a module would have it."""
    names |= {"dist": dist, "__name__": "theirs"}
    exec(text, names)
    return names["program"]


def array_with(value, size=100):
    scales = jnp.full(size, 0.1).at[size // 2].set(value)
    return lambda x: x * scales


PLACES = {
    "a private attribute": Private,
    "what an attribute is computed from": Derived,
    "a slot": Slotted,
    "any attribute": lambda scale: Open(scale=scale),
    "an attribute of the class": lambda scale: type("Program", (Private,), {"scale": scale})(1.0),
    "a layer of a layer": lambda scale: Own(scale, nnx.Rngs(0)),
    "a dictionary beside the program": lambda scale: written(
        "def program(x):\n  return dist.Normal(0, CONFIG['scale'])", CONFIG={"scale": scale}
    ),
    "a function that it calls": lambda scale: written(
        f"def prior():\n  return dist.Normal(0, {scale})\ndef program(x):\n  return prior()"
    ),
    "a function in it": lambda scale: written(
        f"def program(x):\n  def inner():\n    return {scale}\n  return inner()"
    ),
    "a tuple in it": lambda scale: written(f"def program(x):\n  return sum(({scale}, 2.0))"),
    "the method that is called": lambda scale: written(
        f"class Program:\n  def __call__(self, x):\n    return x * {scale}\nprogram = Program()"
    ),
    "a method that it calls": lambda scale: written(
        "class Program:\n  def __call__(self, x):\n    return self.body(x)\n"
        f"  @staticmethod\n  def body(x):\n    return x * {scale}\nprogram = Program()"
    ),
    "a method of a network": lambda scale: written(
        "class Program(Module):\n  def __call__(self, x):\n    return self.body(x)\n"
        f"  @jit\n  def body(self, x):\n    return x * {scale}\nprogram = Program()",
        Module=eqx.Module,
        jit=eqx.filter_jit,
    ),
    "a method that it inherits": lambda scale: written(
        f"class Base:\n  def __call__(self, x):\n    return x * {scale}\n"
        "class Program(Base):\n  pass\nprogram = Program()"
    ),
    "a method of the class above": lambda scale: written(
        f"class Base:\n  def __call__(self, x):\n    return x * {scale}\n"
        "class Program(Base):\n  def __call__(self, x):\n    return super().__call__(x)\n"
        "program = Program()"
    ),
    "a class beside the program": lambda scale: written(
        f"class H:\n  scale = {scale}\ndef program(x):\n  return dist.Normal(0, H.scale)"
    ),
    "a handler": lambda scale: numpyro.handlers.scale(lambda x: x, scale=scale),
    "a queue": lambda scale: deque([scale]),
    "a number of another kind": lambda scale: 1j * scale,
    "one of a hundred numbers": array_with,
    "one of a hundred thousand numbers": lambda scale: array_with(10 * scale, 10**5),
    "what is infinite": lambda scale: np.array([np.inf, 1.0] if scale == 0.5 else [1.0, np.inf]),
    "a sign": lambda scale: np.array([1.0, -1.0] if scale == 0.5 else [-1.0, 1.0]),
    "an index": lambda scale: np.array([10**6 + (scale == 0.5)]),
    "a random key": lambda scale: jax.random.key(int(scale == 0.5)),
    "Equinox": eqx.nn.Dropout,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_number_counts_wherever_it_stands(place):
    one, same, other = (fingerprint(PLACES[place](scale)) for scale in (0.5, 0.5, 0.501))
    json.dumps(one, allow_nan=False)
    assert first_difference(one, same) is None
    assert first_difference(one, other) is not None


def test_what_a_guide_learns_of_a_program_is_not_what_it_is():
    def program(x):
        numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))

    guide = bmr.infer.AutoMeanField(program)
    before = fingerprint(guide)
    numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace(np.ones(3))
    assert first_difference(before, fingerprint(guide)) is None


def test_a_global_is_not_what_an_attribute_with_its_name_is():
    for text in (
        "def program(x):\n  return x.result",
        "def program(x):\n  return [lambda: each.result for each in x]",
    ):
        one, other = (fingerprint(written(text, result=result)) for result in (0.5, None))
        assert first_difference(one, other) is None


class Caching:
    def __init__(self):
        self.scale = 0.5
        self.cache, self.seen, self.calls, self._weights = {}, [], 0, None

    def __call__(self, x):
        self.cache[x.shape] = self.scale * x
        return self.weighed(x)

    def weighed(self, x):
        self.seen.append(x)
        self.calls += 1
        self._weights = x
        return x


def test_what_a_program_keeps_of_its_calls_is_not_what_it_is():
    program = Caching()
    before = fingerprint(program)
    program(np.ones(3))
    assert first_difference(before, fingerprint(program)) is None
    program.scale = 0.6
    assert first_difference(before, fingerprint(program)) == ("scale", 0.5, 0.6)


def test_a_fingerprint_of_before_is_compared_where_it_can_be():
    before = {"scale": 0.1, "mask": {"shape": [2], "dtype": "float32", "sums": [float("inf")] * 2}}
    array = np.array([1.0, 2.0], np.float32)
    sums = [3.0, 1 + 2 * float(np.cos(1))]
    before |= {"array": {"shape": [2], "dtype": "float32", "sums": sums}}
    mask = np.full(2, -np.inf, np.float32)
    now = {"scale": 0.1, "mask": mask, "array": array, "step": functools.partial(max, 3)}
    assert first_difference(before, fingerprint(now)) is None
    assert first_difference(before, fingerprint({**now, "scale": 0.2})) is not None
    assert first_difference(before, fingerprint({**now, "array": array * 2})) is not None


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: float


class Link(enum.Enum):
    LOGIT = 1
    PROBIT = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float32(0.5), np.float32(2.0)),
        (Link.LOGIT, Link.PROBIT),
        (0.5, 2.0),
        ("logit", "probit"),
        (np.ones(2), np.zeros(2)),
        ((0.5, "logit"), (0.5, "probit")),
        (pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": [1.0, 3.0]})),
        (pd.DataFrame({"a": ["x", "y"]}), pd.DataFrame({"a": ["x", "z"]})),
        (pd.DataFrame({"a": [1.0]}), pd.DataFrame({"b": [1.0]})),
        (Settings(0.5), Settings(2.0)),
        (lambda x: x, lambda x: 2.0 * x),
        (functools.partial(max, 1), functools.partial(max, 2)),
    ],
)
def test_another_constant_among_the_data_is_noticed(one, other):
    def digest_of(constant):
        return data_digest(check_data((np.ones(5), constant), "data", static=[1]))

    assert digest_of(one) == digest_of(copy.copy(one)) != digest_of(other)
