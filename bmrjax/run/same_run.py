"""Whether a run that goes on has the settings, the program and the data of the one that stopped."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from bmrjax.infer.arguments import Batch, Data
from bmrjax.run.batches import Batches
from bmrjax.run.fingerprint import digest, fingerprint, first_difference
from bmrjax.run.settings import Settings

# What a run is continued with may differ in these: how long, where, how often it is looked at.
_FREE = (
    "num_epochs", "final_samples", "loop", "checkpoint_interval", "start", "mesh", "callbacks", "held_out",
)  # fmt: skip


def data_digest(data: Data | Batches | None) -> str | None:
    """Return a number that tells data from others: of all rows of all arrays, and of what has no rows.

    Args:
        data: Of a run; `Batches` are read as they come and have none.
    """
    if data is None or isinstance(data, Batches):
        return None
    constants = data.constants.fingerprint() if isinstance(data, Batch) else ""
    return digest(*jax.tree.leaves(data)) + constants


def identity(
    model: Callable, guide: Callable | None, data: Any, settings: Settings
) -> dict[str, Any]:
    """Return what a run is made of, as JSON values.

    Args:
        model: Its program.
        guide: Its guide, as the caller gave it.
        data: As they are fitted.
        settings: See `sparsify`.
    """
    compared = {
        name: getattr(settings, name) for name in settings.__dataclass_fields__ if name not in _FREE
    }
    return {
        "data (their digest)": data_digest(data),
        "held_out (their digest)": data_digest(settings.held_out),
        "objects": fingerprint({**compared, "model": model, "guide": guide}),
    }


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
