"""Whether data fit the signature of a program."""

import functools

import numpy as np
import numpyro
import pytest

from bmrjax.infer.arguments import Batch
from bmrjax.infer.check_call import check_call
from bmrjax.infer.check_data import check_data

X, Y = np.ones((6, 2)), np.zeros(6)


def program(x, y=None): ...


def of_one_dict(data): ...


def with_required(x, *, scale): ...


@pytest.mark.parametrize(
    ("called", "data", "message"),
    [
        (program, (X, Y, Y), r"takes x, y, and gets 3 by position from a tuple .*\(\(x, y\),\)"),
        (program, [X, Y, Y], "takes x, y, and gets 3 by position from a list"),
        (
            program,
            {"X": X, "y": Y},
            "takes x, y, and gets X, y by name from a dict .*Rename the entries",
        ),
        (of_one_dict, {"x": X, "y": Y}, r"takes data, and gets x, y .*in a tuple: \(\{...\},\)"),
        (
            with_required,
            {"x": X},
            "takes x, scale, .*missing a required .*'scale'.*Give what is",
        ),
        (functools.partial(program, X), (X, Y), "takes y, and gets 2 by position"),
        (numpyro.handlers.seed(program, 0), (X, Y, Y), "takes x, y, and gets 3"),
    ],
)
def test_other_arguments_than_a_program_takes_are_an_error_that_says_both(called, data, message):
    with pytest.raises(TypeError, match=f"inputs: the program {message}"):
        check_call(called, data, "inputs")


def test_a_batch_is_checked_too():
    batch = check_data((X, Y, 3.0), "data")
    assert isinstance(batch, Batch)
    with pytest.raises(TypeError, match="gets 3 by position"):
        check_call(program, batch, "data")
    check_call(lambda x, y, scale: None, batch, "data")


def other_arguments(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(args)

    return wrapped


class Handler(numpyro.handlers.seed):
    def __call__(self, x, y, z):
        return self.fn({"x": x})


@pytest.mark.parametrize(
    ("called", "data"),
    [
        (program, (X, Y)),
        (program, {"x": X}),
        (of_one_dict, ({"x": X, "y": Y},)),
        (other_arguments(of_one_dict), (X, Y, Y)),  # its own signature, not the one it wraps
        (Handler(of_one_dict, 0), (X, Y, Y)),
        (dict, (X, Y, Y)),  # no signature is known
    ],
)
def test_what_can_be_called_passes(called, data):
    check_call(called, data, "data")
