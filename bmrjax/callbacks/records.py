"""The read-only records that callbacks receive."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all records have in common.

    Records hold numbers, strings and read-only mappings of them, and no arrays. An attempt to change one
    raises `dataclasses.FrozenInstanceError`, or TypeError inside a mapping.

    Attributes:
        epoch: Epochs done so far, including those that were taken back.
        num_epochs: Epochs of the whole run, at most.
        member: Position of the member in its ensemble; None for a single run.
    """

    epoch: int
    num_epochs: int
    member: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Mapping):
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, with mappings as new dicts.

        Example:
            >>> from bmrjax.callbacks import RunStart
            >>> RunStart(epoch=0, num_epochs=10, total=6).to_dict()["total"]
            6
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}


@dataclass(frozen=True, kw_only=True)
class RunStart(Record):
    """A run starts, or goes on from a checkpoint.

    Attributes:
        total: Elements of all reducible sites.
        resumed: Whether the run was called with ``Checkpoints(..., resume=True)``; `epoch` is 0 if there was
            no checkpoint.
        over: Whether a resumed run has no epoch left to do.
        num_points: Points that are on the path already.
    """

    total: int
    resumed: bool = False
    over: bool = False
    num_points: int = 0

    def supersedes(self, name: str, earlier: Mapping[str, Any]) -> bool:
        """Return whether an earlier record will be reported again, or belongs to what is repeated.

        Args:
            name: Name of its class, such as ``"EpochEnd"``.
            earlier: Its fields, from `to_dict`.

        Example:
            >>> from bmrjax.callbacks import RunStart
            >>> start = RunStart(epoch=5, num_epochs=10, total=6, resumed=True)
            >>> [start.supersedes("EpochEnd", {"epoch": n, "member": None}) for n in (5, 6)]
            [False, True]
        """
        if not self.resumed or earlier["member"] != self.member:
            return False
        if name == "PointAdded":
            return earlier["index"] >= self.num_points
        # Rounds at the epoch of a checkpoint come after it, unless they were the last ones.
        again = name == "RoundEnd" and not self.over and earlier["epoch"] == self.epoch
        return again or earlier["epoch"] > self.epoch


@dataclass(frozen=True, kw_only=True)
class EpochEnd(Record):
    """An epoch is over; the numbers are those of its row in `Result.history`.

    Attributes:
        vfe: Mean of the loss over the steps of the epoch, in nats for the whole data set; NaN if all steps
            were skipped.
        kept: Elements kept, of `total`.
        total: Elements of all reducible sites.
        rate: Factor of the schedule on the learning rate.
        steps: Optimiser steps.
        skipped_steps: Steps that were skipped because the loss or the gradient was not finite.
        seconds: Wall time, without compiling. For an ensemble, the time of all members divided by the number
            of members in this epoch.
        compile_seconds: Time spent on compiling.
        sparsity_per_layer: Fraction of the elements that is removed, by layer.
        metrics: Held-out metrics, if they were measured after this epoch; else empty.

    Example:
        Seconds per step, without the compiler's:

        >>> from bmrjax.callbacks import EpochEnd
        >>> record = EpochEnd(
        ...     epoch=1, num_epochs=9, vfe=1.5, kept=2, total=4, rate=1.0, steps=10,
        ...     skipped_steps=0, seconds=2.5, compile_seconds=2.0,
        ... )
        >>> (record.seconds - record.compile_seconds) / record.steps
        0.05
    """

    vfe: float
    kept: int
    total: int
    rate: float
    steps: int
    skipped_steps: int
    seconds: float
    compile_seconds: float
    sparsity_per_layer: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundEnd(Record):
    """A round is over: elements were removed, or came back. Rounds that change nothing have no record.

    Attributes:
        kind: ``"reduced"``; ``"restored"`` if a reduction or a regrowth was taken back; ``"regrown"`` if
            the schedule let all elements come back; or ``"exchanged"`` if the run goes on from a state that
            the schedule had kept (`schedules.Reduce`), and keeps the current one.
        kept_before: Elements kept before the round.
        kept: Elements kept after it, of `total`.
        total: Elements of all reducible sites.
        removed: ``kept_before - kept``; negative where elements came back.
        vfe_before: VFE with the elements kept before, in nats, if it was measured to decide about this
            round. For a round taken back, it is the VFE that was too high.
        back_to: Where a round was taken back, or states were exchanged, the epoch whose state the run
            returned to. `Result.history` marks the epochs since then as taken back; those before an exchange
            count again if the run returns to the state that it left.

    Example:
        >>> from bmrjax.callbacks import RoundEnd
        >>> record = RoundEnd(epoch=5, num_epochs=10, kind="reduced", kept_before=8, kept=3, total=8)
        >>> f"epoch {record.epoch}: {record.kept_before - record.kept} of {record.total} {record.kind}"
        'epoch 5: 5 of 8 reduced'
    """

    kind: Literal["reduced", "restored", "regrown", "exchanged"]
    kept_before: int
    kept: int
    total: int
    removed: int = field(init=False)
    vfe_before: float | None = None
    back_to: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "removed", self.kept_before - self.kept)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class PointAdded(Record):
    """A state was measured and put on the path; the numbers are those of its `Point` in `Result.path`.

    Attributes:
        index: Position on the path.
        vfe: VFE of the state on the training data, in nats for the whole data set. On much data it is
            measured in part, and that in `Result.path` again at the end (`Point.vfe_error`).
        kept: Elements kept, of `total`.
        total: Elements of all reducible sites.
        mask_cost: Minus the log prior probability of the masks, in nats, if the schedule counts it; else 0.
        metrics: Held-out metrics of the state; empty without held-out data.
        judged: What the schedule's `judge` measured, in nats for all data; None where it is the VFE.

    Example:
        >>> from bmrjax.callbacks import PointAdded
        >>> points = [
        ...     PointAdded(epoch=3 * i, num_epochs=9, index=i, vfe=vfe, kept=4 - i, total=4)
        ...     for i, vfe in enumerate([3.5, 1.5, 2.5])
        ... ]
        >>> min(points, key=lambda point: point.vfe).index
        1
    """

    index: int
    vfe: float
    kept: int
    total: int
    mask_cost: float = 0.0
    judged: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunEnd(Record):
    """A run is over, or has stopped; no record follows.

    Attributes:
        reason: ``"finished"``; ``"interrupted"`` by Ctrl-C; ``"diverged"``, with a `NonFiniteError`; or
            ``"failed"``, with any other exception.
        kept: Elements kept by the result, of `total`; unless the run finished, by its last state.
        total: Elements of all reducible sites.
        vfe: VFE of the result, in nats, if the run finished and the VFE was measured.
        metrics: Held-out metrics of the result; empty unless the run finished.

    Example:
        >>> from bmrjax.callbacks import RunEnd
        >>> def ring(record):
        ...     if isinstance(record, RunEnd):
        ...         print(f"{record.reason} after {record.epoch} epochs, {record.kept} elements kept")
        >>> ring(RunEnd(epoch=9, num_epochs=9, vfe=1.5, kept=2, total=4, reason="finished"))
        finished after 9 epochs, 2 elements kept
    """

    reason: Literal["finished", "interrupted", "diverged", "failed"]
    kept: int
    total: int
    vfe: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
