"""Whether a run that goes on has the settings, the program and the data of the one that stopped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import jax
import numpy as np

from bmrjax.infer.arguments import Batch, Data
from bmrjax.run.batches import Batches
from bmrjax.run.digests import digest, document_digest
from bmrjax.run.fingerprint import fingerprint, first_difference
from bmrjax.run.settings import Settings

# What a run is continued with may differ in these: how long, where, how often it is looked at.
_FREE = ("num_epochs", "checkpoints", "callbacks", "held_out", "options")
_FREE_OPTIONS = ("loop", "start", "mesh")


def data_digest(data: Data | Batches | None) -> str | None:
    """Return a number that tells data from others: of all rows of all arrays, and of what has no rows.

    Args:
        data: Of a run; `Batches` are read as they come and have none.
    """
    if data is None or isinstance(data, Batches):
        return None
    constants = data.constants.fingerprint(_described) if isinstance(data, Batch) else ""
    text = np.frombuffer(constants.encode(), np.uint8)
    return digest(*jax.tree.leaves(data), *([text] if constants else []))


def _described(value: Any) -> str:
    return document_digest(fingerprint(value))


def data_identity(data: Data | Batches, settings: Settings) -> dict[str, Any]:
    """Return the digests of the data of a run.

    Args:
        data: As they are fitted.
        settings: See `sparsify`.
    """
    held_out = settings.held_out
    return {
        "data (their digest)": data_digest(data),
        "held_out (their digest)": data_digest(None if held_out is None else held_out.data),
    }


def program_identity(model: Callable, guide: Callable | None, settings: Settings) -> dict[str, Any]:
    """Return what a run is made of beside its data, as JSON values.

    Args:
        model: Its program.
        guide: Its guide, as the caller gave it.
        settings: See `sparsify`.
    """
    compared = _fields(settings, _FREE) | _fields(settings.options, _FREE_OPTIONS)
    if settings.held_out is not None:
        compared |= {"held_out": _fields(settings.held_out, ("data", "final_samples"))}
    return {"objects": fingerprint({**compared, "model": model, "guide": guide})}


def _fields(options: Any, without: Sequence[str]) -> dict[str, Any]:
    return {f.name: getattr(options, f.name) for f in fields(options) if f.name not in without}


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with another run, by its numbers and its data.

    Args:
        before: Settings in the checkpoint.
        now: Settings of this run.

    Raises:
        ValueError: Naming the first that differs.
    """
    for name, value in now.items():
        if name != "objects" and before.get(name) != value:
            raise _another_run(name, before.get(name), value)


def check_same_objects(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose program, optimiser or other objects hold other values.

    Args:
        before: Settings in the checkpoint.
        now: Settings of this run.

    Raises:
        ValueError: Naming the first value that differs.
    """
    differs = first_difference(before.get("objects") or {}, now["objects"])
    if differs is not None:
        raise _another_run(*differs)


def _another_run(name: str, had: Any, has: Any) -> ValueError:
    return ValueError(
        f"sparsify: the run in the directory had {name} {_short(had)}, this one has {_short(has)}. Resume "
        "with the same arguments, or give another directory."
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
