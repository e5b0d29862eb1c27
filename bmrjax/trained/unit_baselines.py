"""Other ways to choose which units of a trained network go."""

from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bmrjax.trained.layers import layer_weights
from bmrjax.trained.moments import LayerMoments
from bmrjax.trained.path import prior_precisions, quadratics_of
from bmrjax.trained.prepare_network import Prepared
from bmrjax.trained.remove_units import remove_units
from bmrjax.trained.unit_graph import UnitGraph
from bmrjax.trained.unit_path import UnitWalk
from bmrjax.trained.weight_rows import filled, masks_of, rows_of

UnitMethod = Literal["magnitude", "l1", "obd", "posterior_damage", "obs_global", "random"]
UNIT_METHODS: tuple[UnitMethod, ...] = (
    "magnitude",
    "l1",
    "obd",
    "posterior_damage",
    "obs_global",
    "random",
)


def reduced_units(
    ready: Prepared,
    graph: UnitGraph,
    moments: Sequence[LayerMoments],
    method: UnitMethod,
    share: float,
    rng: np.random.Generator,
) -> tuple[list[Array], dict[int, Bool[np.ndarray, "..."]], Bool[np.ndarray, " units"]]:
    """Return arrays and masks without the units that a method removes, and these units.

    Args:
        ready: The network with its data.
        graph: Its units.
        moments: At the given network.
        method: See `bmrjax.trained.reduce_by`.
        share: Of the parameters that stay.
        rng: Of the random method.
    """
    layers, dense = ready.traced.layers, ready.traced.parts.arrays
    rows = rows_of(layers, dense, left=ready.left)
    gone = np.zeros(len(graph.names), bool)
    target = share * graph.parameters.total(gone)
    precisions = prior_precisions(layers, moments, dense, ready.num_data)
    if method == "obs_global":
        least = np.ones(len(graph.kinds), int)
        walk = UnitWalk(
            layers,
            graph,
            ready.left,
            dense,
            ready.calibration,
            ready.evaluate,
            graph.parameters,
            least,
            1,
            lambda _: True,
        )
        quadratics = quadratics_of(layers, moments, dense, ready.num_data, precisions, dense)
        before = walk.posteriors(quadratics, gone)
        remove_units(
            graph,
            [(k, posterior) for (k, _), posterior in before.items()],
            gone,
            graph.parameters,
            target,
            least=least,
            may_empty=lambda _: True,
        )
        walk.refit(rows, quadratics, gone, before)
    else:
        score = _scores(method, ready, graph, moments, precisions, rng)
        gone = _lowest(graph, score, target, uniform=method == "l1")
        for row in rows:
            inputs = graph.inputs(row.layer, gone)
            row.keep[: len(inputs)] &= ~inputs
            row.weights[: len(inputs)][inputs] = 0.0
    arrays = filled(layers, dense, rows)
    return [jnp.asarray(x) for x in arrays], masks_of(layers, arrays, rows), gone


def _lowest(
    graph: UnitGraph, score: Float[np.ndarray, " units"], target: float, *, uniform: bool
) -> Bool[np.ndarray, " units"]:
    """Return the units of lowest score, so that parameters are at most a target; one of a kind stays."""
    if uniform:
        rank = np.zeros(len(score))
        for kind in range(len(graph.kinds)):
            mine = np.flatnonzero(graph.kind == kind)
            rank[mine[np.argsort(score[mine], kind="stable")]] = np.arange(len(mine)) / len(mine)
        score = rank
    gone = np.zeros(len(score), bool)
    left = np.bincount(graph.kind, minlength=len(graph.kinds))
    for unit in np.argsort(score, kind="stable"):
        if graph.parameters.total(gone) <= target:
            break
        if left[graph.kind[unit]] > 1:
            gone[unit] = True
            left[graph.kind[unit]] -= 1
    return gone


def _scores(
    method: UnitMethod,
    ready: Prepared,
    graph: UnitGraph,
    moments: Sequence[LayerMoments],
    precisions: Sequence[float],
    rng: np.random.Generator,
) -> Float[np.ndarray, " units"]:
    layers, dense = ready.traced.layers, ready.traced.parts.arrays
    total = np.zeros(len(graph.names))
    if method == "random":
        return rng.random(len(total))
    for k, layer in enumerate(layers):
        weights = layer_weights(layer, dense)[..., : layer.index.shape[2]]
        size = weights.shape[2]
        norms = np.stack([np.diagonal(of)[:size] for of in moments[k].inputs])
        strengths = ready.num_data * moments[k].outputs
        curvature = strengths[:, :, None] * norms[:, None, :]
        element = {
            "magnitude": weights**2,
            "l1": np.abs(weights),
            "obd": 0.5 * weights**2 * curvature,
            "posterior_damage": weights**2 * (curvature + precisions[k]),
        }[method]
        if method in ("magnitude", "obd"):
            for units in graph.readers[k]:
                _add(total, units, element.sum((0, 1)))
        if method != "obd":
            for units in graph.outputs[k]:
                _add(total, units, element.sum(2).ravel())
    if method == "magnitude":
        # As group magnitude is compared across layers: in units of the mean of its kind.
        total = np.sqrt(total)
        for kind in range(len(graph.kinds)):
            mine = graph.kind == kind
            total[mine] /= max(float(total[mine].mean()), 1e-30)
    return total


def _add(
    total: Float[np.ndarray, " units"], units: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"]
) -> None:
    some = units >= 0
    total += np.bincount(units[some], score[some], minlength=len(total))
