"""The settings of a run, and what kinds of things they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpyro

from bmrjax.callbacks import Callback
from bmrjax.criteria import Criterion, SpikeAndSlab
from bmrjax.infer.arguments import Data
from bmrjax.infer.natural_gradient import Optimizer
from bmrjax.infer.within_handlers import within_handlers
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint_options import Checkpoints, as_checkpoints
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.held_out import HeldOut, as_held_out
from bmrjax.schedules import Schedule
from bmrjax.structure.network_arrays import is_equinox, is_nnx


@dataclass(frozen=True)
class Settings:
    """The settings of a run; `sparsify` says what each of them means."""

    num_epochs: int = 100
    criterion: Criterion | None = SpikeAndSlab()  # noqa: RUF009 - frozen, and holds no array
    schedule: Schedule | None = None
    optimizer: Optimizer | None = None
    batch_size: int | None = 128
    steps_per_epoch: int | None = None
    sites: Sequence[str] | None = None
    held_out: HeldOut | None = None
    checkpoints: Checkpoints | None = None
    callbacks: Sequence[Callback] = ()
    options: FitOptions = FitOptions()  # noqa: RUF009 - frozen, and holds no array

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out", as_held_out(self.held_out))
        object.__setattr__(self, "checkpoints", as_checkpoints(self.checkpoints))


def check_program_kind(model: Any, guide: Any = None) -> None:
    """Raise TypeError for a network, anything else that is not a program, and what has a key of its own."""
    method = getattr(model, "__func__", None)
    if is_equinox(model) and method is not None and method.__name__ != "__call__":
        raise TypeError(
            f"sparsify: the first argument is {method.__qualname__}, a method of an Equinox module, which is "
            "a tree of arrays itself; give a function that calls it, such as lambda *args, **kwargs: "
            f"module.{method.__name__}(*args, **kwargs)."
        )
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
    _check_not_seeded(model, "program")
    _check_not_seeded(guide, "guide")


def _check_not_seeded(function: Any, name: str) -> None:
    """Raise TypeError where all draws would be made with one key: the same noise in every step and sample."""
    if any(isinstance(each, numpyro.handlers.seed) for each in within_handlers(function)):
        raise TypeError(
            f"sparsify: the {name} is within numpyro.handlers.seed, so that what it draws would be the same "
            f"in each step and in each sample of a prediction. Give the {name} itself; `key` says how it is "
            "seeded."
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
        ("options", FitOptions, 'FitOptions(estimator="local")'),
    ):
        value = getattr(settings, name)
        optional = name != "options"
        if not (optional and value is None) and not isinstance(value, kind):
            raise TypeError(f"sparsify: {name} must be an object like {example}, got {value!r}.")
    for name in ("num_epochs", "steps_per_epoch", "batch_size"):
        value = getattr(settings, name)
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"sparsify: {name} must be a whole number, got {value!r}.")
    sites = settings.sites
    if isinstance(sites, str):
        raise TypeError(f"sparsify: sites must be a list of names; write sites=[{sites!r}].")
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


def check_schedule(
    schedule: Schedule, criterion: Criterion | None, source: Data | Batches, steps: int
) -> None:
    """Refuse a schedule that cannot work with the criterion or the data.

    Args:
        schedule: Of the run.
        criterion: Of the run, or of a member.
        source: The data.
        steps: Steps of an epoch.
    """
    if criterion is None:
        return
    until = schedule.until
    if until is not None and steps < 2 * until.window:
        raise ValueError(
            f"sparsify: {type(schedule).__name__} ends an epoch when the VFE has settled, which it asks "
            f"after {2 * until.window} steps at the earliest (two windows of {until.window}), and an epoch "
            f"has {steps}. Give steps_per_epoch={20 * until.window}, say, or "
            "until=infer.Settled(window=...) with a shorter window."
        )
    measures = schedule.verifies or schedule.measures
    if isinstance(source, Batches) and (measures or until is not None):
        raise ValueError(
            "sparsify: a schedule that measures the VFE needs arrays, and the data are Batches. Use "
            "schedules.Every(...) or schedules.WhenConverged(...)."
        )
    if isinstance(source, Batches) and schedule.judge != "vfe":
        raise ValueError(
            f"sparsify: the schedule judges by {schedule.judge!r}, which needs arrays, and the data are "
            "Batches. Use judge='vfe'."
        )
    if schedule.mask_prior and not criterion.has_mask_prior:
        raise ValueError(
            f"sparsify: mask_prior needs a criterion with a prior over masks, and "
            f"{type(criterion).__name__} has none. Use criteria.SpikeAndSlab, or leave mask_prior out."
        )
