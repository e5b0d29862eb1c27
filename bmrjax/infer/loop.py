"""Repeating a step: one fused program, or one compiled step dispatched many times.

XLA runs convolutions on CPU three to four times slower inside a loop body than outside it
(JAX issue 12868), while everything else gains from one program. Both drivers take the same step
and give the same numbers. On a CPU, convolutions take the form that is fastest there.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jaxtyping import Array

from bmrjax.backend.quick_compile import compiled_for
from bmrjax.backend.quick_convolutions import is_convolution, with_quick_convolutions
from bmrjax.backend.rewrite import any_operation

LoopMode = Literal["auto", "fused", "dispatch"]
Step = Callable[..., Any]

# About as many as a fit has, and a measurement.
_STEPS_OF_A_FIT = 10_000
STEPS_OF_A_MEASUREMENT = 500
# Seconds from which a watched call is split into parts, and how long a part takes. The host waits between two
# parts, for less than a millisecond.
_LONG, _PART = 2.0, 0.5


def _stays(carry: Any) -> dict[str, Any]:
    """Return the settings of a program whose carry ends where it began, if that is over several devices."""
    places = jax.tree.map(lambda x: getattr(x, "sharding", None), carry)
    parted = [isinstance(place, NamedSharding) for place in jax.tree.leaves(places)]
    return {"out_shardings": places} if parted and all(parted) else {}


class Loop:
    """Run ``carry = step(carry, i, *args)`` for i = 0 … n-1, or until it is enough, compiled once.

    Args:
        step: A pure function; `i` is a traced int32. The carry is donated.
        mode: ``"fused"`` for one XLA program, ``"dispatch"`` for asynchronous calls of a compiled
            step, ``"auto"`` for dispatch on CPU when the step has convolutions, else fused.
        until: Asked on the device before every `patience`-th step: ``carry, enough = until(carry, i)``. Where
            steps are dispatched, the host waits for each answer.
        patience: Steps between two questions.
        num_steps: How many steps are taken in all, roughly; those of a fit by default. How well the program
            is optimised depends on it.

    Attributes:
        watch: Receives how many steps of a call are done, while it runs: after each step where steps are
            dispatched, else a few times per second, for which one call becomes several of the same program.
            The result is the same, bit by bit. Only for a single process.
        mode: The mode in use, once the first call has settled it.
        compile_seconds: Time spent tracing and compiling so far.
        num_compilations: How many programs were made: one, unless shapes change. One that an earlier loop of
            this process compiled is taken from there.
    """

    def __init__(
        self,
        step: Step,
        mode: LoopMode = "auto",
        *,
        until: Callable[[Any, Array], tuple[Any, Array]] | None = None,
        patience: int = 1,
        num_steps: int | None = None,
    ):
        if mode not in ("auto", "fused", "dispatch"):
            raise ValueError(f"loop must be 'auto', 'fused' or 'dispatch', got {mode!r}.")
        self.mode: LoopMode = mode
        self.watch: Callable[[int], None] | None = None
        self.compile_seconds = 0.0
        self.num_compilations = 0
        self._step = step
        self._until, self._patience = until, patience
        self._num_steps = _STEPS_OF_A_FIT if num_steps is None else num_steps
        self._asked = None if until is None else jax.jit(until)
        self._compiled: dict[Any, Any] = {}
        # Seconds per step, once a watched call has taken some.
        self._pace: float | None = None

    def __call__(self, carry: Any, n: int, *args: Any) -> Any:
        """Run n steps from `carry` (whose buffers are consumed) and return the last carry."""
        program = self.compile(carry, *args)
        if self.mode == "fused":
            if self.watch is not None:
                return self._in_parts(program, carry, n, args)
            return program(carry, np.int32(0), np.int32(n), *args)
        for i in range(n):
            if self._asked is not None and i % self._patience == 0:
                carry, enough = self._asked(carry, np.int32(i))
                if enough:
                    break
            carry = program(carry, np.int32(i), *args)
            if self.watch is not None:
                self.watch(i + 1)
        return carry

    def one_step(self, carry: Any, i: int, *args: Any) -> Any:
        """Take step i of a loop that dispatches its steps."""
        carry = self.compile(carry, *args)(carry, np.int32(i), *args)
        if self.watch is not None:
            self.watch(i + 1)
        return carry

    def _in_parts(self, program: Any, carry: Any, n: int, args: tuple[Any, ...]) -> Any:
        """Run n steps by several calls of a fused program, and say after each how many are done."""
        assert self.watch is not None
        done = 0
        while done < n:
            end = min(done + self._part(n), n)
            begin = time.perf_counter()
            carry = jax.block_until_ready(program(carry, np.int32(done), np.int32(end), *args))
            pace = (time.perf_counter() - begin) / (end - done)
            # A part that ended because it was enough took fewer steps than it looks.
            self._pace = pace if self._pace is None else max(pace, 0.5 * self._pace)
            done = end
            self.watch(done)
        return carry

    def _part(self, n: int) -> int:
        """Return how many steps the next part has; a multiple of `patience`, where `until` is evaluated."""
        if self._pace is None:
            return self._patience
        if n * self._pace < _LONG:
            return n
        steps = max(int(_PART / self._pace), 1)
        return -(-steps // self._patience) * self._patience

    def compile(self, carry: Any, *args: Any) -> Any:
        """Compile for these shapes, without running; return the program."""
        leaves, structure = jax.tree.flatten((carry, args))
        shapes = (structure, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves))
        if shapes not in self._compiled:
            begin = time.perf_counter()
            self._compiled[shapes] = self._build(carry, args)
            self.compile_seconds += time.perf_counter() - begin
            self.num_compilations += 1
        return self._compiled[shapes]

    def _build(self, carry: Any, args: tuple[Any, ...]) -> Any:
        return compiled_for(self.traced(carry, *args), self._num_steps)

    def traced(self, carry: Any, *args: Any) -> Any:
        """Return the program for these shapes traced, which can be lowered for any device."""
        settings = {"donate_argnums": 0, **_stays(carry)}

        def of(step: Step, *, fused: bool) -> Any:
            if fused:
                program = jax.jit(functools.partial(self._whole, step), **settings)
                return program.trace(carry, np.int32(0), np.int32(1), *args)
            return jax.jit(step, **settings).trace(carry, np.int32(0), *args)

        traced = of(self._step, fused=self.mode != "dispatch")
        convolves = jax.default_backend() == "cpu" and any_operation(
            traced.jaxpr.jaxpr, is_convolution
        )
        if self.mode == "auto":
            self.mode = "dispatch" if convolves else "fused"
        if not convolves:
            return traced
        # Over several devices, blocks of images would not be the parts that each of them has.
        step = self._step if _stays(carry) else with_quick_convolutions(self._step)
        return of(step, fused=self.mode == "fused")

    def _whole(self, step: Step, carry: Any, first: Any, n: Any, *args: Any) -> Any:
        """Take the steps from `first` to n - 1, unless the condition ends them."""

        def steps(begin: Any, end: Any, carry: Any) -> Any:
            return lax.fori_loop(begin, end, lambda i, c: step(c, i, *args), carry)

        if self._until is None:
            return steps(first, n, carry)
        until = self._until

        # The condition reads what the steps write: in one loop, XLA would copy that in each.
        def window(at: Any) -> Any:
            i, carry, _ = at
            end = jnp.minimum(i + self._patience, n)
            return end, *until(steps(i, end, carry), end)

        at = (first, *until(carry, first))
        return lax.while_loop(lambda at: (at[0] < n) & ~at[2], window, at)[1]
