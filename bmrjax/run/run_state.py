"""Where a run is: everything that decides how it goes on."""

from dataclasses import dataclass, field, replace
from typing import Any

from bmrjax.backend.on_device import copied
from bmrjax.infer.kl_growth import KLGrowth
from bmrjax.run.fit_state import FitState
from bmrjax.run.measured import Measured
from bmrjax.run.point import Point
from bmrjax.schedules import Memory

_PLAIN = (
    "epoch", "removed", "memory", "history", "evaluated_at", "snapshot_row", "snapshot_point",
    "exchanged", "stopped",
)  # fmt: skip

_POINT = (
    "epoch", "vfe", "kept", "total", "metrics", "mask_cost", "taken_back", "judged", "vfe_error",
)  # fmt: skip


@dataclass
class RunState:
    """Where a run is. A checkpoint holds exactly this.

    Attributes:
        now: State of the fit.
        memory: Memory of the schedule.
        history: As in `Result`.
        path: As in `Result`.
        epoch: Epochs done, those that were taken back included.
        removed: How many elements the last reduction removed; None before the first.
        evaluated_at: Epoch of the last metrics on held-out data.
        kl_growth: How the divergence comes in; a longer run that goes on from a checkpoint keeps it.
        stopped: Whether the schedule has ended the run.
        snapshot: State before the last reduction, if it is kept to go back to; or one that a schedule keeps.
        snapshot_row: Length of `history` at the snapshot.
        snapshot_point: Length of `path` at the snapshot.
        exchanged: Where the rows of `history` and the points of `path` of the snapshot begin, once it has
            changed places with the current state; None before.
        measured: The state that was measured last, with what was measured.
        snapshot_measured: What was measured of the snapshot, if it was.
    """

    now: FitState
    memory: Memory
    history: list[dict[str, Any]] = field(default_factory=list)
    path: list[Point] = field(default_factory=list)
    epoch: int = 0
    removed: int | None = None
    evaluated_at: int = 0
    kl_growth: KLGrowth = ()
    stopped: bool = False
    snapshot: FitState | None = None
    snapshot_row: int = 0
    snapshot_point: int = 0
    exchanged: list[int] | None = None
    measured: tuple[FitState, Measured] | None = None
    snapshot_measured: Measured | None = None

    @property
    def measured_now(self) -> Measured | None:
        """What was measured of the current state, if it was."""
        if self.measured is None or self.measured[0] is not self.now:
            return None
        return self.measured[1]

    def known(self, vfe: float) -> tuple[float, float]:
        """Return what is known of the VFE of the current state, with its standard error.

        Args:
            vfe: What the schedule takes it for.
        """
        found = self.measured_now
        if found is None or found.vfe != vfe:
            return vfe, 0.0
        return (found.vfe, found.error) if found.exact is None else (found.exact, 0.0)

    @property
    def reference(self) -> tuple[FitState, Measured] | None:
        """The state before the last reduction, with what was measured of it."""
        if self.snapshot is None or self.snapshot_measured is None:
            return None
        return self.snapshot, self.snapshot_measured

    def take_snapshot(self) -> None:
        """Keep the state to go back to it."""
        self.snapshot_measured = self.measured_now
        # The engine consumes the state it is given, so what may be needed again is copied.
        self.snapshot = replace(self.now, svi=copied(self.now.svi))
        self.snapshot_row, self.snapshot_point = len(self.history), len(self.path)
        self.exchanged = None

    def exchange(self) -> None:
        """Let the current state and the snapshot change places."""
        assert self.snapshot is not None
        of_current, of_snapshot = self.measured_now, self.snapshot_measured
        self.now, self.snapshot = self.snapshot, self.now
        self.snapshot_measured = of_current
        if of_snapshot is not None:
            self.measured = self.now, of_snapshot
        self.exchanged = [self.snapshot_row, self.snapshot_point]
        self.snapshot_row, self.snapshot_point = len(self.history), len(self.path)
        self._mark(self.exchanged, taken_back=True)

    def go_back(self) -> None:
        """Go back to the snapshot, and mark what came after it as taken back."""
        assert self.snapshot is not None
        self.now, self.snapshot = self.snapshot, None
        if self.snapshot_measured is not None:
            self.measured = self.now, self.snapshot_measured
        if self.exchanged is not None:
            self._mark(self.exchanged, taken_back=False)
            self.exchanged = None
        self._mark([self.snapshot_row, self.snapshot_point], taken_back=True)

    def _mark(self, since: list[int], *, taken_back: bool) -> None:
        row, point = since
        for entry in self.history[row:]:
            entry["taken_back"] = taken_back
        self.path[point:] = [replace(one, taken_back=taken_back) for one in self.path[point:]]

    def arrays(self) -> Any:
        """Return the arrays of a checkpoint."""
        snapshot = self.now if self.snapshot is None else self.snapshot
        return [(m.svi, m.keep, m.memory) for m in (self.now, snapshot)]

    def document(self) -> dict[str, Any]:
        """Return the JSON values of a checkpoint."""
        measured = self.snapshot_measured
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "kl_growth": self.kl_growth,
            "has_snapshot": self.snapshot is not None,
            "snapshot_measured": None if measured is None else [measured.vfe, measured.error],
            "path": [{k: getattr(p, k) for k in _POINT} for p in self.path],
        }

    def take_over(self, arrays: Any, document: dict[str, Any]) -> None:
        """Take over what a checkpoint holds, all but the arrays of the points of the path."""
        now, snapshot = arrays
        self.now = FitState(*now)
        self.snapshot = FitState(*snapshot) if document["has_snapshot"] else None
        # What was measured by batch comes out the same again.
        measured = document.get("snapshot_measured")
        self.snapshot_measured = None if measured is None else Measured(*measured)
        for name in _PLAIN:
            setattr(self, name, document.get(name, getattr(self, name)))
        self.kl_growth = tuple(map(tuple, document.get("kl_growth", self.kl_growth)))
