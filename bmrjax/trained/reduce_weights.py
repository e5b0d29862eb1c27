"""Reduction of a trained network by single weights."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from bmrjax.trained.choice import PathPoint, chosen_point, path_temperature
from bmrjax.trained.eliminate import WeightRow, fit
from bmrjax.trained.findings import few_rows, temperature_at_bound
from bmrjax.trained.fine_tune import TuneArrays
from bmrjax.trained.last_fit import fit_once_more
from bmrjax.trained.lookups import unseen_reasons, unseen_rows
from bmrjax.trained.network_reduction import NetworkReduction
from bmrjax.trained.no_gradient import WHY, no_gradient, why_left, without_gradient
from bmrjax.trained.path import RATIO, PathRound, counts, pack_arrays, precision_by_layer, walk
from bmrjax.trained.path_progress import PathProgress, loss_text
from bmrjax.trained.points import SMALLEST, dense_point, is_over, measured_point
from bmrjax.trained.prepare_network import Prepared
from bmrjax.trained.quadratic import Quadratic
from bmrjax.trained.weight_rows import Pattern, outside_blocks, rows_of
from bmrjax.trained.weight_scales import weight_scales

# Share of the weights that each round of the first pass keeps, and at which it ends.
PILOT = (0.6, 0.216)


def reduce_weights(
    ready: Prepared,
    *,
    keep: float | None,
    lose_at_most: float | None,
    pattern: Pattern | None,
    smallest: float | None,
    tune: TuneArrays | None,
    shown: PathProgress,
) -> NetworkReduction:
    """See `bmrjax.reduce_network`, without ``units=True``."""
    found, left, dense, count = ready.traced, ready.left, ready.traced.parts.arrays, ready.num_data
    names, moments, evaluate = found.parts.names, ready.calibration, ready.evaluate
    shown.doing("calibrating")
    scores, first = evaluate(dense), moments.moments(dense)
    unknown = without_gradient(found.layers, dense, first, evaluate, scores["loss"])
    left = left | unknown
    if len(left) == len(found.layers):
        raise ValueError(f"reduce_network: there is nothing to judge: {WHY}.")
    unseen = unseen_rows(found.layers, first)
    walked = rows_of(found.layers, dense, left=left, fixed=unseen, pattern=pattern)
    wanted = keep if pattern is None else _after(walked)
    total = sum(row.free() for row in walked)
    shown.begin("first pass,", len(counts(total, PILOT[-1], PILOT[0])), PILOT[-1])
    pilot, _ = walk(
        found.layers,
        rows_of(found.layers, dense, left=left, fixed=unseen),
        dense,
        moments,
        evaluate,
        scale=count,
        last=PILOT[-1],
        ratio=PILOT[0],
        first=first,
        ends=lambda step: shown.round(step.kept),
    )
    tempered = path_temperature(
        [step.loss / count for step in pilot],
        [scores["loss"], *(step.scores["loss"] for step in pilot)],
    )
    points = [dense_point(scores)]

    def ends(step: PathRound) -> bool:
        gain = float(np.sum(step.removed.log_occam - step.removed.saliency))
        point = PathPoint(
            step.kept, step.loss / count, 0.0, 0.0, points[-1].delta_f + gain, {}, as_good=False
        )
        points.append(measured_point(scores, step.scores, point))
        shown.round(step.kept)
        return wanted is None and smallest is None and is_over(points, lose_at_most)

    last_share = (smallest or SMALLEST) if wanted is None else wanted
    shown.begin("round", len(counts(total, last_share, RATIO)), last_share)
    steps, precisions = walk(
        found.layers,
        walked,
        dense,
        moments,
        evaluate,
        scale=count / tempered,
        last=last_share,
        first=first,
        tune=tune,
        ends=ends,
    )
    last = wanted if lose_at_most is None else None
    taken = chosen_point(points, lose_at_most=lose_at_most, keep=last)
    packed = [pack_arrays(dense, {}), *(step.packed for step in steps)]
    if taken and tune is None:
        shown.doing("fitting what stays once more")
        rows = rows_of(found.layers, dense, left=left, fixed=unseen)
        for row in rows:
            layer = found.layers[row.layer]
            places = layer.index[row.group, row.output]
            row.keep[: len(places)] = packed[taken].mask(layer.array).ravel()[places]

        def refit(rows: list[WeightRow], quadratics: Sequence[Sequence[Quadratic]]) -> None:
            fit([row for row in rows if found.layers[row.layer].part is None], quadratics)

        packed[taken], points[taken] = fit_once_more(
            ready,
            packed[taken],
            rows,
            refit,
            scores,
            (points[0], points[taken]),
            scale=count / tempered,
            precisions=precisions,
            lose_at_most=lose_at_most,
            choose=last is None,
        )
    judged = sorted({layer.array for k, layer in enumerate(found.layers) if k not in left})
    refused = found.refused | unseen_reasons(found.layers, unseen)
    refused |= why_left(found.layers, left, unknown)
    if pattern is not None:
        refused |= outside_blocks(found.layers, left, pattern)
    findings = few_rows(len(ready.held_out), points[taken]) + temperature_at_bound(tempered)
    findings += no_gradient(found.layers, unknown)
    shown.finish(f"{points[taken].kept:.1%} of {total:,} weights kept, {loss_text(points[taken])}")
    return NetworkReduction(
        network=found.parts.build([jnp.asarray(x) for x in packed[taken].arrays()]),
        masks={names[i]: packed[taken].mask(i) for i in judged},
        path=tuple(points),
        chosen=taken,
        temperature=tempered,
        prior_precision=precision_by_layer(found.layers, precisions, left),
        not_judged=refused,
        findings=tuple(findings),
        _layers=tuple(found.layers),
        _removed=tuple(step.removed for step in steps),
        _packed=tuple(packed),
        _parts=found.parts,
        _scales=weight_scales(
            found.layers, dense, first, precisions, scale=count / tempered, left=left
        ),
    )


def _after(rows: Sequence[WeightRow]) -> float:
    """Return the share of weights that stay where a pattern is reached."""
    total = sum(row.free() for row in rows)
    gone = sum(row.removable() for row in rows)
    if not gone:
        raise ValueError("reduce_network: no layer has as many inputs as a block of the pattern.")
    return 1 - gone / total
