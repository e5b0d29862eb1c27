"""Compiled programs, shared by the calls of a process."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jax

# The programs of some dozen runs, of which each has about ten.
_MOST = 256
_programs: OrderedDict[Any, Any] = OrderedDict()


def compiled(
    lowered: Any, options: Mapping[str, Any] | None = None, *, text: str | None = None
) -> Any:
    """Return a lowered program compiled, or the same one of an earlier run.

    Programs are known by their text, which holds everything that they compute with, constants included.
    So a second run of the same program on data of the same shapes compiles nothing, and a program that
    closes over an array is compiled anew once that array has changed.

    Args:
        lowered: From ``jax.jit(f).trace(...).lower()`` or ``jax.jit(f).lower(...)``.
        options: Compiler options.
        text: That of the program, if it is at hand.
    """
    options = dict(options or {})
    if jax.device_count() > 1 or getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        # On which devices, and which hidden arguments: that is not in the text.
        return lowered.compile(options)
    text = lowered.as_text() if text is None else text
    if "callback" in text:
        return lowered.compile(options)
    digest = hashlib.sha256(text.encode()).hexdigest()
    chosen = tuple(sorted(options.items()))
    # An argument that nothing is computed from is not in the text, and its shape is checked all the same.
    shapes = str(lowered.in_avals)
    key = digest, shapes, lowered.in_tree, lowered.out_tree, jax.default_backend(), chosen
    if key not in _programs:
        _programs[key] = lowered.compile(options)
    _programs.move_to_end(key)
    if len(_programs) > _MOST:
        _programs.popitem(last=False)
    return _programs[key]
