"""What is known of a layer while its weights stream by."""

import threading
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from bmrjax.criteria import SpikeAndSlab
from bmrjax.streaming.folder import Pair
from bmrjax.streaming.layer_report import LayerReport
from bmrjax.streaming.masks import MaskFile
from bmrjax.streaming.pilot import Guess
from bmrjax.streaming.solve import Interval, solve
from bmrjax.streaming.sums import MARGIN, relative_rounding

# Bounds memory, at sixteen bytes each; a layer with more of them is read again.
MOST_UNDECIDED = 2**22
# In nats: nearer than Taylor's remainder may put ζ off, and a weight in between has it read again.
ZETA_TOLERANCE = 1e-5


class Piece(NamedTuple):
    """What a pass found in a piece of a tensor.

    Attributes:
        kept: How many certainly stay.
        moments: Σq, Σq², Σq³ an iteration.
        delta_f: Sum of ΔF over what certainly goes.
        index: Of what is undecided, in the tensor.
        evidence: ΔF of what is undecided.
        seconds: It took.
    """

    kept: int
    moments: list[Float[np.ndarray, " power"]]
    delta_f: float
    index: Int[np.ndarray, " n"]
    evidence: Float[np.ndarray, " n"]
    seconds: float


class StreamedLayer:
    """One layer: its tensors, sums over them, and the weights that the sums have to decide.

    Args:
        members: Tensors, each with its prior scale.
        criterion: With a fixed point, or None where ΔF alone decides.
        chunk: Weights in a piece, at most.
    """

    def __init__(
        self, members: list[tuple[Pair, float]], criterion: SpikeAndSlab | None, chunk: int
    ):
        self.members = members
        self.total: int = sum(pair.size for pair, _ in members)
        self.reads = 0
        self.seconds = 0.0
        self.sampled = 0
        self._criterion = criterion
        self._rounding = relative_rounding(chunk)
        self._lock = threading.Lock()
        self._known = Interval(-np.inf, np.inf)
        self._final = Interval(0.0, 0.0)
        self._included = Interval(0.0, 0.0)
        # Without a fixed point, what is undecided lies at zero, which is known.
        self.judge(np.zeros(0), (-MARGIN, MARGIN))

    def start(self, found: Guess) -> None:
        """Take a guess from a sample."""
        self.sampled: int = found.sampled
        self.judge(found.centers, found.window)

    def judge(self, centers: Float[np.ndarray, " steps"], window: tuple[float, float]) -> None:
        """Begin a read: ζ to sum at, and the ΔF between which nothing is decided yet."""
        self.centers = centers
        self.window = window
        self.kept = 0
        self.delta_f = 0.0
        self.unproven = 0
        self._overflow = False
        self._moments: list[Float[np.ndarray, " power"]] = []
        self._undecided: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._waiting = 0

    def add(self, name: str, piece: Piece) -> bool:
        """Add what a piece has. Returns whether its undecided weights wait, or are to be judged at once."""
        with self._lock:
            self.kept += piece.kept
            self.delta_f += piece.delta_f
            self.seconds += piece.seconds
            if self._moments:
                pairs = zip(self._moments, piece.moments, strict=True)
                self._moments = [a + b for a, b in pairs]
            else:
                self._moments = list(piece.moments)
            if self._criterion is None:
                return False
            if self._waiting + len(piece.index) > MOST_UNDECIDED:
                if self.reads > 0:
                    return False
                # The second read has a narrower window.
                self._overflow = True
                self._undecided.clear()
            elif not self._overflow:
                self._waiting += len(piece.index)
                self._undecided.setdefault(name, []).append((piece.index, piece.evidence))
            return True

    def judge_at_once(self, evidence: Float[np.ndarray, " n"]) -> np.ndarray:
        """Judge what does not wait: by the last guess, and then as unproven, where ζ is not known."""
        keep = self._stays(evidence, float(self.centers[-1]) if self._criterion else 0.0)
        with self._lock:
            self.kept += int(np.count_nonzero(keep))
            self.delta_f += float(evidence[~keep].sum())
            self.unproven += len(evidence) if self._criterion else 0
        return keep

    def solved(self) -> bool:
        """Solve the fixed point. Returns False if the layer has to be read again, and prepares it."""
        self.reads += 1
        zetas: list[Interval] = []
        truncation = 0.0
        if self._criterion is not None:
            alpha, beta = float(self._criterion.alpha), float(self._criterion.beta)
            found = solve(
                self.centers,
                self._moments,
                float(self.total),
                alpha=alpha,
                beta=beta,
                rounding=self._rounding,
            )
            zetas, self._included, truncation = found.zeta, found.included, found.truncation
            # Both reads enclose the same number.
            low = max(zetas[-1].low, self._known.low)
            self._final = self._known = Interval(
                low, max(low, min(zetas[-1].high, self._known.high))
            )
        if self._criterion is None or self.reads > 1 or not self.total:
            return True
        inside = self._final.low >= self.window[0] and self._final.high <= self.window[1]
        near = truncation > ZETA_TOLERANCE and self._count_near() > 0
        if inside and not near and not self._overflow:
            return True
        centers = np.array([zeta.middle for zeta in zetas])
        self.judge(centers, (self._final.low - MARGIN, self._final.high + MARGIN))
        return False

    def settle(self, files: dict[str, MaskFile]) -> None:
        """Judge what waited for the fixed point, and put it into the masks."""
        if self._criterion is not None:
            self.unproven += self._count_near()
        for name, found in self._undecided.items():
            index, evidence = (np.concatenate(part) for part in zip(*found, strict=True))
            keep = self._stays(evidence, self._final.middle)
            files[name].patch(name, index, keep)
            self.kept += int(np.count_nonzero(keep))
            self.delta_f += float(evidence[~keep].sum())
        self._undecided.clear()

    def report(self) -> LayerReport:
        """Return what became of the layer."""
        inclusion_prob = None
        if self._criterion is not None:
            alpha, beta = float(self._criterion.alpha), float(self._criterion.beta)
            inclusion_prob = (alpha + self._included.middle) / (alpha + beta + self.total)
        num_bytes = self.reads * sum(pair.num_bytes for pair, _ in self.members)
        return LayerReport(
            tensors=[pair.name for pair, _ in self.members],
            total=self.total,
            kept=self.kept,
            inclusion_prob=inclusion_prob,
            delta_f=self.delta_f,
            iterations=0 if self._criterion is None else self._criterion.num_steps,
            zeta=self._final.middle,
            error_bound=self._final.radius,
            unproven=self.unproven,
            sampled=self.sampled,
            reads=self.reads,
            seconds=self.seconds,
            bytes_per_second=num_bytes / max(self.seconds, 1e-9),
        )

    def _stays(self, evidence: np.ndarray, zeta: float) -> np.ndarray:
        # A weight of which the data say nothing is removed under shrinkage, and stays with q = 1/2.
        return evidence < 0 if self._criterion is None else evidence <= zeta

    def _count_near(self) -> int:
        return sum(
            int(np.count_nonzero((e >= self._final.low) & (e <= self._final.high)))
            for found in self._undecided.values()
            for _, e in found
        )
