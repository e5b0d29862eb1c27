"""From the dense network to one of fewer units, in rounds: curvature, removal, compensation, measurement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bmrjax.trained.eliminate import WeightRow
from bmrjax.trained.evaluation import Evaluation
from bmrjax.trained.fine_tune import TuneArrays
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.moments import Calibration, LayerMoments
from bmrjax.trained.path import Packed, after_round, prior_precisions, quadratics_of
from bmrjax.trained.quadratic import Quadratic
from bmrjax.trained.remove_units import RemovedUnits, remove_units
from bmrjax.trained.shared_posterior import SharedPosterior
from bmrjax.trained.unit_graph import Resource, UnitGraph
from bmrjax.trained.weight_rows import rows_of


@dataclass(frozen=True)
class UnitRound:
    """What one round came to.

    Attributes:
        loss: Predicted increase of the loss over all data since the dense network, in nats, at the
            temperature.
        removed: What was removed in the round.
        gone: All units that are gone.
        scores: Loss and metrics of each row that was kept out.
        packed: The arrays, without the weights that read what is gone.
    """

    loss: float
    removed: RemovedUnits
    gone: Bool[np.ndarray, " units"]
    scores: dict[str, Float[np.ndarray, " rows"]]
    packed: Packed


@dataclass
class UnitWalk:
    """What all rounds of one reduction by units share.

    Attributes:
        layers: The layers.
        graph: Their units.
        left: Numbers of layers that are left alone.
        dense: Arrays of the given network.
        calibration: Gives the moments.
        evaluation: Measures each round.
        resource: What is released.
        least: How many units of each kind stay at least.
        multiple: Of which the number of units of each kind is one.
        may_empty: Says whether the network depends on its inputs without some units.
    """

    layers: Sequence[TracedLayer]
    graph: UnitGraph
    left: set[int]
    dense: list[Array]
    calibration: Calibration
    evaluation: Evaluation
    resource: Resource
    least: Int[np.ndarray, " kinds"]
    multiple: int
    may_empty: Callable[[Bool[np.ndarray, " units"]], bool]

    def __call__(
        self,
        shares: Sequence[float],
        scale: float,
        *,
        first: list[LayerMoments],
        tune: TuneArrays | None = None,
        ends: Callable[[UnitRound], bool | None] | None = None,
    ) -> tuple[list[UnitRound], list[float]]:
        """Go from the dense network to a smaller one.

        Args:
            shares: Of the resource that stay after each round.
            scale: Number of data points over the temperature.
            first: Moments at the dense network.
            tune: Trains between rounds.
            ends: Is called after each round, and returns True after the last.

        Returns:
            The rounds, and the prior precision of each layer.
        """
        layers, graph = self.layers, self.graph
        rows = rows_of(layers, self.dense, left=self.left)
        arrays: list[Any] = list(self.dense)
        reference: list[Any] = list(self.dense)
        gone = np.zeros(len(graph.names), bool)
        precisions = prior_precisions(layers, first, self.dense, scale)
        whole, loss, steps, moments = self.resource.total(gone), 0.0, [], first
        for share in shares:
            if steps:
                moments = self.calibration.moments(arrays, reference)
            quadratics = quadratics_of(layers, moments, reference, scale, precisions, arrays)
            before = self.posteriors(quadratics, gone)
            removed = remove_units(
                graph,
                [(k, posterior) for (k, _), posterior in before.items()],
                gone,
                self.resource,
                share * whole,
                least=self.least,
                may_empty=self.may_empty,
                multiple=self.multiple,
            )
            if len(removed.unit) == 0:
                continue
            loss += self.refit(rows, quadratics, gone, before)
            arrays, reference, packed = after_round(layers, rows, reference, tune)
            steps.append(UnitRound(loss, removed, gone.copy(), self.evaluation(arrays), packed))
            if ends is not None and ends(steps[-1]):
                break
        return steps, precisions

    def posteriors(
        self, quadratics: Sequence[Sequence[Quadratic]], gone: np.ndarray
    ) -> dict[tuple[int, int], SharedPosterior]:
        """Return the posterior of each judged layer and group without some units."""
        found = {}
        for k, groups in enumerate(quadratics):
            if k in self.left:
                continue
            keep = ~self.graph.inputs(k, gone)
            for group, quadratic in enumerate(groups):
                whole = np.append(keep, True) if quadratic.has_bias else keep
                found[k, group] = SharedPosterior(quadratic, whole)
        return found

    def refit(
        self,
        rows: Sequence[WeightRow],
        quadratics: Sequence[Sequence[Quadratic]],
        gone: Bool[np.ndarray, " units"],
        before: dict[tuple[int, int], SharedPosterior] | None = None,
    ) -> float:
        """Set the weights of all rows to their posterior mean without some units.

        Args:
            rows: Changed in place.
            quadratics: By layer and group.
            gone: The units that are gone.
            before: Posteriors with the units that were removed last.

        Returns:
            What the likelihood loses by these, in nats.
        """
        after, loss = {}, 0.0
        for (k, group), posterior in self.posteriors(quadratics, gone).items():
            old = None if before is None else before[k, group]
            if old is not None:
                if len(old.where) == len(posterior.where):
                    posterior = old
                else:
                    full = np.zeros_like(old.mean)
                    full[:, np.searchsorted(old.where, posterior.where)] = posterior.mean
                    loss += old.loss(full - old.mean)
            after[k, group] = posterior
        for row in rows:
            posterior = after[row.layer, row.group]
            row.keep[:] = False
            row.keep[posterior.where] = True
            row.weights[:] = 0.0
            row.weights[posterior.where] = posterior.mean[row.output]
        return loss
