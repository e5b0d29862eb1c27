"""Reduction of a trained network by whole units: neurons, channels, heads."""

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.structure.compact import compact
from bmrjax.trained.choice import PathPoint, chosen_point, path_temperature
from bmrjax.trained.findings import few_rows, not_cut, not_reached, temperature_at_bound
from bmrjax.trained.fine_tune import TuneArrays
from bmrjax.trained.last_fit import fit_once_more
from bmrjax.trained.no_gradient import WHY, no_gradient, why_left, without_gradient
from bmrjax.trained.path import RATIO, pack_arrays, precision_by_layer
from bmrjax.trained.path_progress import PathProgress, loss_text
from bmrjax.trained.points import SMALLEST, dense_point, is_over, measured_point
from bmrjax.trained.prepare_network import Prepared
from bmrjax.trained.unit_graph import UnitGraph, unit_graph
from bmrjax.trained.unit_options import UnitOptions
from bmrjax.trained.unit_path import UnitRound, UnitWalk
from bmrjax.trained.unit_reduction import UnitReduction
from bmrjax.trained.weight_rows import rows_of
from bmrjax.trained.weight_scales import weight_scales

# Share of what is released that each round of the first pass keeps, and at which it ends.
UNIT_PILOT = (0.7, 0.4)

# Where held-out rows choose, the shares that are kept after the first rounds. A round that also removes
# units in use would hide that some are not.
FIRST_SHARES = (0.97, 0.92)

# Rows by which it is seen whether a network still depends on its inputs.
PROBES = 16


def reduce_units(
    ready: Prepared,
    units: UnitOptions,
    *,
    keep: float | None,
    flops: float | None,
    lose_at_most: float | None,
    smallest: float | None,
    tune: TuneArrays | None,
    shown: PathProgress,
) -> UnitReduction:
    """See `bmrjax.reduce_network`, with ``units=True``."""
    found, dense = ready.traced, ready.traced.parts.arrays
    evaluate, moments = ready.evaluate, ready.calibration
    shown.doing("calibrating")
    scores, first = evaluate(dense), moments.moments(dense)
    unknown = without_gradient(found.layers, dense, first, evaluate, scores["loss"])
    ready = replace(ready, left=ready.left | unknown)
    if len(ready.left) == len(found.layers):
        raise ValueError(f"reduce_network: there is nothing to judge: {WHY}.")
    graph = unit_graph(found, ready.left)
    least = _least(graph, found.parts.names, units)
    by_flops = flops is not None
    last = flops if by_flops else keep

    def walk(multiple: int) -> UnitWalk:
        return UnitWalk(
            found.layers,
            graph,
            ready.left,
            dense,
            moments,
            evaluate,
            graph.flops if by_flops else graph.parameters,
            least,
            multiple,
            lambda gone: depends_on_inputs(ready, graph, gone),
        )

    none = np.zeros(len(graph.names), bool)
    whole = graph.parameters.total(none), graph.flops.total(none)

    def kept(step: UnitRound) -> tuple[float, float]:
        """Return the shares of the parameters and of the operations that stay after a round."""
        left = graph.parameters.total(step.gone), graph.flops.total(step.gone)
        return left[0] / whole[0], left[1] / whole[1]

    shown.begin("first pass,", len(UNIT_PILOT), UNIT_PILOT[-1])
    pilot, _ = walk(1)(
        UNIT_PILOT,
        ready.num_data,
        first=first,
        ends=lambda step: shown.round(kept(step)[by_flops]),
    )
    if not pilot:
        others = "; ".join(f"{name}: {why}" for name, why in graph.refused.items())
        raise ValueError(
            f"reduce_network: no unit can be removed. Of {len(graph.names)} that can be judged, each is the "
            "last of its layer, or limits, round_to or leave keep it."
            + (f" The others cannot be taken out: {others}." if others else "")
        )
    tempered = path_temperature(
        [step.loss / ready.num_data for step in pilot],
        [scores["loss"], *(step.scores["loss"] for step in pilot)],
    )
    scale = ready.num_data / tempered
    walked = walk(units.round_to)
    shares = _shares((smallest or SMALLEST) if last is None else last)
    if last is None:
        shares = [*(share for share in FIRST_SHARES if share > shares[0]), *shares]
    points = [dense_point(scores)]

    def ends(step: UnitRound) -> bool:
        gain = float(np.sum(step.removed.log_occam - step.removed.saliency))
        parameters, flops = kept(step)
        point = PathPoint(
            parameters,
            step.loss / ready.num_data,
            0.0,
            0.0,
            points[-1].delta_f + gain,
            {},
            as_good=False,
            flops=flops,
        )
        points.append(measured_point(scores, step.scores, point))
        shown.round(flops if by_flops else parameters)
        return last is None and smallest is None and is_over(points, lose_at_most)

    shown.begin("round", len(shares), shares[-1])
    steps, precisions = walked(shares, scale, first=first, tune=tune, ends=ends)
    taken = chosen_point(
        points, lose_at_most=lose_at_most, keep=last if lose_at_most is None else None
    )
    packed = [pack_arrays(dense, {}), *(step.packed for step in steps)]
    if taken and tune is None:
        shown.doing("fitting what stays once more")
        gone = steps[taken - 1].gone
        packed[taken], points[taken] = fit_once_more(
            ready,
            packed[taken],
            rows_of(found.layers, dense, left=ready.left),
            lambda rows, quadratics: walked.refit(rows, quadratics, gone),
            scores,
            (points[0], points[taken]),
            scale=scale,
            precisions=precisions,
            lose_at_most=lose_at_most,
            choose=last is None,
        )
    findings = few_rows(len(ready.held_out), points[taken]) + temperature_at_bound(tempered)
    findings += no_gradient(found.layers, unknown)
    reached = points[-1].flops if by_flops else points[-1].kept
    if last is not None and reached > last + 1e-9:
        findings.append(not_reached("flops" if by_flops else "keep", last, reached))
    network = found.parts.build([jnp.asarray(x) for x in packed[taken].arrays()])
    shown.doing("cutting out what was removed")
    small = compact(network, *ready.example, drop_inputs=False)
    findings += not_cut(small.before.parameters, small.after.parameters, points[taken].kept)
    shown.finish(
        f"{points[taken].kept:.1%} of {whole[0]:,.0f} parameters kept, {loss_text(points[taken])}"
    )
    return UnitReduction(
        compact=small,
        path=tuple(points),
        chosen=taken,
        temperature=tempered,
        prior_precision=precision_by_layer(found.layers, precisions, ready.left),
        not_judged=graph.refused | why_left(found.layers, ready.left, unknown),
        findings=tuple(findings),
        _graph=graph,
        _rounds=tuple(step.removed for step in steps),
        _packed=tuple(packed),
        _parts=found.parts,
        _scales=weight_scales(found.layers, dense, first, precisions, scale=scale, left=ready.left),
        _example=ready.example,
    )


def _least(graph: UnitGraph, names: Sequence[str], units: UnitOptions) -> np.ndarray:
    """Return how many units of each kind stay at least."""
    sizes = np.bincount(graph.kind, minlength=len(graph.kinds))
    rounded = units.round_to > 1
    least = np.minimum(sizes, units.round_to) if rounded else np.zeros(len(sizes), int)
    for pattern, share in units.limits.items():
        hit = [
            any(fnmatch.fnmatchcase(names[i], pattern) for i in arrays) for arrays in graph.arrays
        ]
        if not any(hit):
            known = ", ".join(dict.fromkeys(graph.kinds))
            raise ValueError(
                f"reduce_network: no units are on an array called {pattern!r}; there are {known}."
            )
        least = np.maximum(least, np.where(hit, np.ceil(share * sizes - 1e-9), 0).astype(int))
    return least


def _shares(last: float) -> list[float]:
    """Return the shares that stay after each round."""
    found, share = [], RATIO
    while share > last * 1.02:
        found.append(share)
        share *= RATIO
    return [*found, last]


def depends_on_inputs(ready: Prepared, graph: UnitGraph, gone: np.ndarray) -> bool:
    """Say whether the outputs vary from row to row without some units."""
    found = ready.traced
    arrays = [np.array(x) for x in found.parts.arrays]
    for k, layer in enumerate(found.layers):
        inputs = graph.inputs(k, gone)
        arrays[layer.array].reshape(-1)[layer.index[:, :, inputs]] = 0.0
    run = jax.vmap(lambda *x: found.capture.outputs([jnp.asarray(a) for a in arrays], x))
    outputs = np.asarray(run(*(jnp.asarray(x[:PROBES]) for x in ready.held_out.inputs)))
    return bool(np.ptp(outputs, axis=0).max() > 1e-6 * max(float(np.abs(outputs).max()), 1e-30))
