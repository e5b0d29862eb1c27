"""Compiled programs, shared by the calls of a process."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bmrjax.backend.program_key import program_key

# The programs of some dozen runs, of which each has about ten.
_MOST = 256
_programs: OrderedDict[Any, Any] = OrderedDict()
# The number of lines of each, lowered.
_lengths: OrderedDict[Any, int] = OrderedDict()


def compiled(
    traced: Any, options: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None
) -> Any:
    """Return a traced program compiled, or the same one of an earlier run.

    Programs are known by their equations and by everything that they compute with, constants included.
    So a second run of the same program on data of the same shapes lowers and compiles nothing, and a program
    that closes over an array is compiled anew once that array has changed.

    Args:
        traced: From ``jax.jit(f).trace(...)``.
        options: Compiler options, or a function of the number of lines of the lowered program that returns
            them.
    """

    def chosen(num_lines: int) -> dict[str, Any]:
        return dict(options(num_lines) if callable(options) else options or {})

    known_by = _known_by(traced)
    lowered, num_lines = None, _lengths.get(known_by)
    if known_by is None or num_lines is None:
        lowered = traced.lower()
        text = lowered.as_text()
        num_lines = text.count("\n")
        if known_by is None or "callback" in text:
            return lowered.compile(chosen(num_lines))
    _remember(_lengths, known_by, num_lines)
    options_here = chosen(num_lines)
    key = known_by, tuple(sorted(options_here.items()))
    program = _programs.get(key)
    if program is None:
        program = (traced.lower() if lowered is None else lowered).compile(options_here)
    _remember(_programs, key, program)
    return program


def _known_by(traced: Any) -> Any:
    """Return what a program is known by in this process; None where it is not shared."""
    # On which devices, and which hidden arguments: that is not in the equations.
    if jax.device_count() > 1 or getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        return None
    key = program_key(traced)
    return None if key is None else (key, jax.default_backend())


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Hold what was used last."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _MOST:
        known.popitem(last=False)
