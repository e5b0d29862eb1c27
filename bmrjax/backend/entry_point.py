"""What functions that compute for a caller do first: check where they are called, and with which settings."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import jax
import numpy as np

from bmrjax.backend.forked import refuse_after_fork
from bmrjax.backend.positions import check_positions

Call = ParamSpec("Call")
Computed = TypeVar("Computed")


def not_after_fork(function: Callable[Call, Computed]) -> Callable[Call, Computed]:
    """Let a function raise the error of `refuse_after_fork` instead of waiting for ever.

    Args:
        function: One that computes with JAX.
    """

    @functools.wraps(function)
    def checked(*args: Call.args, **kwargs: Call.kwargs) -> Computed:
        refuse_after_fork(function.__name__)
        check_positions(function, args)
        with settings_for_computing():
            return function(*args, **kwargs)

    return checked


@contextlib.contextmanager
def settings_for_computing() -> Iterator[None]:
    """Compute with the settings that this package needs, whatever the caller's are for finding errors.

    Under ``numpy.seterr(all="raise")``, a probability of zero would be an error, and nothing that is
    compiled ahead of its first call runs under `jax.disable_jit`.
    """
    disabled = jax.config.values["jax_disable_jit"]
    with (
        np.errstate(under="ignore"),
        jax.disable_jit(disable=False) if disabled else contextlib.nullcontext(),
    ):
        yield
