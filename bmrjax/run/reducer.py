"""What a fit is reduced with: a criterion on the posterior of the moment, compiled once."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bmrjax.criteria import Criterion
from bmrjax.criteria.last_pass import LARGEST_SINGLE, LeastEvidence, for_last_pass
from bmrjax.criteria.order import Order
from bmrjax.criteria.reduce_once import Round, jit_reduce
from bmrjax.infer.arguments import Data
from bmrjax.infer.engine import Engine
from bmrjax.run.fit_state import FitState
from bmrjax.run.point import kept_counts


@dataclass
class Reducer:
    """Reduce the fits of an engine.

    Args:
        engine: That fits.
        criterion: That decides.
        order: Which elements are removed first, where not all may be.
        sites: Names of the sites that are judged.
        layers: Site name to the name of its layer.
        example: One batch of data.
    """

    engine: Engine
    criterion: Criterion
    order: Order
    sites: list[str]
    layers: dict[str, str]
    example: Data
    _run: Callable = field(init=False)
    _last: Criterion | None = field(init=False)
    _run_last: Callable | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._run = jit_reduce(self.criterion, self.order)
        self._last = for_last_pass(self.criterion)
        if self._last is not None:
            self._run_last = jit_reduce(self._last, LeastEvidence(self._last.groups))

    def reduce(
        self, state: FitState, fraction: float, *, beyond: bool = False
    ) -> tuple[FitState, Round]:
        """Return where a round leads to; see `bmrjax.limit` for the arguments."""
        found = self.engine.site_posteriors(state.svi, self.example, state.keep)
        round_ = self._run(
            found.only(self.sites), state.keep, state.memory, np.float32(fraction), beyond
        )
        keep, memory = self.engine.placement.parted((round_.keep, round_.decision.memory))
        svi = self.engine.condition(state.svi, state.keep, keep)
        return FitState(svi, keep, memory), round_

    def reduce_by_evidence(
        self, state: FitState, fraction: float, *, single: bool
    ) -> tuple[FitState, int]:
        """Return where a round of the last pass leads to, and how many elements it removes.

        Args:
            state: The fit.
            fraction: Of what is kept, that may be removed at once.
            single: Whether one element is removed, the one with the least evidence, even if that is for it.
        """
        kept = kept_counts(state.keep)[0]
        if self._run_last is None or not kept or (single and kept > LARGEST_SINGLE):
            return state, 0
        found = self.engine.site_posteriors(state.svi, self.example, state.keep)
        # Half an element, since the number is rounded up.
        part = np.float32(0.5 / kept if single else fraction)
        round_ = self._run_last(found.only(self.sites), state.keep, None, part, single)
        if not int(round_.removed):
            return state, 0
        keep = self.engine.placement.parted(round_.keep)
        svi = self.engine.condition(state.svi, state.keep, keep)
        return FitState(svi, keep, state.memory), int(round_.removed)
