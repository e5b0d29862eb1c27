"""CPU seconds of a run by what they are spent on, read off the functions that the run calls."""

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax._src.compiler
import jax._src.interpreters.mlir

from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.loop import Loop
from bmrjax.run import run_files
from bmrjax.run.fit import Fit
from bmrjax.run.measured import Measurer
from bmrjax.run.one_run import Run
from bmrjax.run.reducer import Reducer
from bmrjax.run.result import Result
from bmrjax.run.training import Training

PHASES = (
    "import",
    "set-up",
    "compilation",
    "training",
    "measuring",
    "evaluation",
    "reduction",
    "files",
    "other",
)  # fmt: skip
# Lowering and compiling. JAX has no public place for this; a version without these stops the benchmark.
_COMPILING = (
    (jax._src.interpreters.mlir, "lower_jaxpr_to_module"),
    (jax._src.compiler, "compile_or_get_cached"),
)
_METHODS: dict[str, tuple[tuple[Any, str], ...]] = {
    "compilation": (*_COMPILING, (Loop, "_build")),
    "set-up": ((Fit, "__init__"), (Fit, "begin")),
    "training": ((Training, "_train"),),
    "measuring": ((Measurer, "against"), (Measurer, "exactly")),
    "evaluation": ((Run, "evaluate"), (Run, "_facts"), (Evaluator, "metrics")),
    "reduction": ((Reducer, "reduce"), (Reducer, "reduce_by_evidence")),
    "files": (
        (run_files.RunFiles, "save"),
        (run_files.RunFiles, "save_if_due"),
        (run_files.RunFiles, "save_point"),
        (Result, "save"),
    ),
}


class Phases:
    """Give each CPU second of the process to the innermost phase that it falls into.

    Threads of XLA count with what the main thread waits for. Each phase waits for its own numbers, so
    what is computed in one does not end in the next.

    Attributes:
        seconds: CPU seconds by phase.
        fits: The fits that were begun.
        steps: How many training steps the epochs had.
        state_bytes: Size of the parameters and the optimiser's state of the first fit.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.fits: list[Fit] = []
        self.steps = self.state_bytes = 0
        self._stack = ["other"]
        # Loading Python, JAX and this library.
        self._at = 0.0
        self._pass("import")

    def _pass(self, phase: str) -> None:
        now = time.process_time()
        self.seconds[phase] += now - self._at
        self._at = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as a phase."""
        self._pass(self._stack[-1])
        self._stack.append(name)
        try:
            yield
        finally:
            self._pass(self._stack.pop())

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Count all runs inside."""
        before = []
        for name, methods in _METHODS.items():
            for owner, method in methods:
                before.append((owner, method, getattr(owner, method)))
                setattr(owner, method, self._counted(name, getattr(owner, method), method))
        try:
            yield
            self._pass("other")
        finally:
            for owner, method, function in before:
                setattr(owner, method, function)

    def _counted(self, name: str, function: Callable[..., Any], method: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                found = function(*args, **kwargs)
            if method == "_train":
                self.steps += args[0]._shared.steps
            if method == "begin" and not self.state_bytes:
                self.state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(found[0].svi))
            if method == "__init__" and isinstance(args[0], Fit):
                self.fits.append(args[0])
            return found

        return counted

    def shares(self) -> dict[str, float]:
        """Return the part of all CPU seconds that each phase took."""
        total = sum(self.seconds.values())
        return {phase: self.seconds[phase] / total for phase in PHASES}
