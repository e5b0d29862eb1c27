"""The settings of a run, and what kinds of things they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from bmrjax.callbacks import Callback
from bmrjax.criteria import Criterion, SpikeAndSlab
from bmrjax.infer.arguments import Data
from bmrjax.infer.estimate import Estimator
from bmrjax.infer.loop import LoopMode
from bmrjax.infer.mixed_precision import MatmulDtype
from bmrjax.run.result import Result
from bmrjax.schedules import Schedule
from bmrjax.structure.network_arrays import is_equinox, is_nnx


@dataclass(frozen=True)
class Settings:
    """The settings of a run; `sparsify` says what each of them means."""

    num_epochs: int = 100
    criterion: Criterion | None = SpikeAndSlab()  # noqa: RUF009 - frozen, and holds no array
    schedule: Schedule | None = None
    optimizer: optax.GradientTransformation | None = None
    loss: Any = None
    estimator: Estimator = "global"
    batch_size: int | None = 128
    steps_per_epoch: int | None = None
    sites: Sequence[str] | None = None
    static: Sequence[str | int] = ()
    held_out: Data | None = None
    eval_samples: int = 5
    eval_every: int | None = None
    final_samples: int = 100
    kl_weight: float = 1.0
    kl_warmup: int = 0
    max_bad_steps: int = 20
    loop: LoopMode = "auto"
    checkpoint_interval: float = 10.0
    start: Result | None = None
    mesh: jax.sharding.Mesh | None = None
    matmul_dtype: MatmulDtype | None = None
    callbacks: Sequence[Callback] = ()


def check_program_kind(model: Any) -> None:
    """Raise TypeError for a network, or anything else that is no program."""
    if is_equinox(model) or is_nnx(model):
        raise TypeError(
            f"sparsify: the first argument is a network, {type(model).__name__}; give a NumPyro program "
            "around it, such as bmr.programs.classifier(network, bmr.priors.Flat()) or "
            "bmr.programs.regression(network, bmr.priors.Flat())."
        )
    if not callable(model):
        raise TypeError(
            f"sparsify: the first argument is a {type(model).__name__}; give a NumPyro program, a function "
            "with numpyro.sample statements."
        )


def check_kinds(settings: Settings, guide: Callable | None) -> None:
    """Refuse names and classes where objects are expected, and other than numbers where numbers are.

    Args:
        settings: Of the run.
        guide: Its guide.

    Raises:
        TypeError: Saying what to write.
    """
    for name, kind, example in (
        ("criterion", Criterion, "criteria.SpikeAndSlab()"),
        ("schedule", Schedule, "schedules.Verified()"),
    ):
        value = getattr(settings, name)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"sparsify: {name} must be an object like {example}, got {value!r}.")
    for name in ("num_epochs", "steps_per_epoch", "batch_size"):
        value = getattr(settings, name)
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"sparsify: {name} must be a whole number, got {value!r}.")
    if settings.start is not None and not isinstance(settings.start, Result):
        raise TypeError(
            f"sparsify: start is a {type(settings.start).__name__}; give a Result, of an earlier run or "
            "read by bmr.load(directory)."
        )
    sites = settings.sites
    if isinstance(sites, str):
        raise TypeError(f"sparsify: sites must be a list of names; write sites=[{sites!r}].")
    if isinstance(settings.static, str):
        raise TypeError(
            f"sparsify: static must be a list of arguments; write static=[{settings.static!r}]."
        )
    callbacks = settings.callbacks
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise TypeError(
            f"sparsify: callbacks is {callbacks!r}; give a list, as in "
            "callbacks=[callbacks.JSONLines('run.jsonl')]."
        )
    for callback in callbacks:
        if isinstance(callback, type) or not callable(callback):
            raise TypeError(
                f"sparsify: callbacks has {callback!r}; each must be a function of a record, or an object "
                "like callbacks.JSONLines('run.jsonl')."
            )
    if isinstance(guide, type):
        raise TypeError(
            f"sparsify: the guide is the class {guide.__name__}; give an object, as in "
            f"{guide.__name__}(model)."
        )
