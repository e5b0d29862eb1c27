"""Other ways to choose which weights of a trained network go, on the same terms as `reduce_network`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.structure.compact import compact
from bmrjax.trained.eliminate import WeightRow, remove_elements
from bmrjax.trained.lookups import unseen_rows
from bmrjax.trained.losses import Loss
from bmrjax.trained.moments import LayerMoments
from bmrjax.trained.path import prior_precisions, quadratics_of
from bmrjax.trained.prepare_network import Prepared, prepare
from bmrjax.trained.unit_baselines import UNIT_METHODS, UnitMethod, reduced_units
from bmrjax.trained.unit_graph import UnitGraph, unit_graph
from bmrjax.trained.weight_rows import Pattern, check_pattern, filled, masks_of, rows_of

RankedBy = Literal[
    "magnitude", "wanda", "obd", "posterior_damage", "obs_uniform", "obs_global", "l1", "random"
]
METHODS: tuple[RankedBy, ...] = (
    "magnitude", "wanda", "obd", "posterior_damage", "obs_uniform", "obs_global", "random"
)  # fmt: skip

# Removals from the same factors go in parts, which changes nothing but what they cost.
_PART = 0.8


@dataclass(frozen=True)
class Baseline:
    """A network reduced by a baseline.

    Attributes:
        network: The network, of the class of the one that was given; smaller if units were removed.
        masks: Which weights stay, by the path of the array. If units were removed, those that read
            them do not.
        kept: Share of the judged weights that stay; of all parameters if units were removed.
        flops: Share of the operations in matrix products and convolutions that stay, if units were removed.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> both = bmr.trained.reduce_by(network, (x, y), "obs_global", keep=[0.75, 0.5])
        >>> [sum(int(mask.sum()) for mask in found.masks.values()) for found in both]
        [24, 16]
    """

    network: Any
    masks: dict[str, Bool[np.ndarray, "..."]]
    kept: float
    flops: float = 1.0


def reduce_by(
    network: Any,
    data: Any,
    method: RankedBy,
    *,
    keep: Sequence[float] = (),
    pattern: Pattern | None = None,
    units: bool = False,
    loss: Loss | Callable[[Any, Any], Any] | None = None,
    held_out: Any = None,
    leave: Sequence[str] = (),
    num_data: int | None = None,
    seed: int = 0,
) -> list[Baseline]:
    """Remove weights from a trained network by a score of the literature, without training.

    All take their factors once, at the dense network, from the calibration rows that `reduce_network`
    takes.

    Args:
        network: See `bmrjax.reduce_network`.
        data: See `bmrjax.reduce_network`.
        method: ``"magnitude"``: the absolute weight, over all layers. ``"wanda"``: the absolute weight
            times the norm of its input, the same share of each row, or of each part of it where a layer is
            split. ``"obd"``: half the squared weight
            times the diagonal of the curvature, over all layers. ``"obs_uniform"``: Optimal Brain
            Surgeon with compensation, one weight at a time, the same shares.
            ``"obs_global"``: the same over all layers. ``"posterior_damage"``: the squared weight times the
            diagonal of its posterior precision, prior included. ``"random"``. For units: ``"magnitude"`` is
            the norm of all weights that make or read a unit, over the mean of its layer; ``"l1"`` is the sum
            of the absolute weights that make it, the same share of each layer; ``"obd"`` sums over the
            weights that read it, ``"posterior_damage"`` over those that make it; ``"obs_global"`` takes
            units as `reduce_network` does, with compensation, in one round.
        keep: Shares of the judged weights that stay, each between 0 and 1; of all parameters for units.
        pattern: In place of `keep`: ``(n, m)``, of each m consecutive inputs of an output (channels of a
            convolution) n stay, as ``(2, 4)``. Each method chooses within these blocks.
        units: Whether whole units are removed.
        loss: See `bmrjax.reduce_network`.
        held_out: See `bmrjax.reduce_network`.
        leave: See `bmrjax.reduce_network`.
        num_data: See `bmrjax.reduce_network`.
        seed: See `bmrjax.reduce_network`.

    Returns:
        One network for each share, in the order of `keep`; one for a pattern.

    Raises:
        ValueError: For another method, a share that is none, a pattern that is none or that comes with
            shares or units, and what `bmrjax.reduce_network` raises.
        TypeError: For one number in place of a list as `keep`.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> (found,) = bmr.trained.reduce_by(network, (x, y), "magnitude", keep=[0.5])
        >>> found.kept
        0.5

    References:
        LeCun, Denker and Solla (1989), NeurIPS 2; Hassibi and Stork (1993), NeurIPS 5; Frantar and Alistarh
        (2023), ICML, uniform shares; Kurtic et al. (2022), EMNLP, one scale for all layers; Sun et al.
        (2024), ICLR, the norm of the inputs; Dhahri et al. (2024), NeurIPS, posterior damage; Li et al.
        (2017), ICLR, the L1 norm of filters; Fang et al. (2023), CVPR, the norm of a group.
    """
    known: Sequence[str] = UNIT_METHODS if units else METHODS
    if method not in known:
        what = "units" if units else "single weights"
        raise ValueError(f"reduce_by: methods for {what} are {', '.join(known)}; got {method!r}.")
    if not isinstance(keep, Sequence | np.ndarray):
        raise TypeError(f"reduce_by: keep is a list of shares, such as [{keep}]; got {keep!r}.")
    if (pattern is None) == (len(keep) == 0):
        raise ValueError("reduce_by: give keep or a pattern, one of them.")
    for share in keep:
        if not 0 < share < 1:
            raise ValueError(f"reduce_by: keep has shares between 0 and 1, got {share}.")
    if pattern is not None:
        check_pattern(pattern, "reduce_by", units=units)
    ready = prepare(
        network,
        data,
        loss=loss,
        held_out=held_out,
        leave=leave,
        num_data=num_data,
        seed=seed,
        units=units,
        block=1 if pattern is None else pattern[1],
    )
    dense = ready.traced.parts.arrays
    moments = ready.calibration.moments(dense)
    unseen = unseen_rows(ready.traced.layers, moments)
    if pattern is not None:
        rows = rows_of(ready.traced.layers, dense, left=ready.left, fixed=unseen, pattern=pattern)
        return [_in_blocks(ready, moments, rows, method, seed)]
    found = {}
    if units:
        graph = unit_graph(ready.traced, ready.left)
        for share in set(keep):
            found[share] = _by_units(ready, graph, moments, cast(UnitMethod, method), share, seed)
    elif method.startswith("obs"):
        rows = rows_of(ready.traced.layers, dense, left=ready.left, fixed=unseen)
        for share in sorted(set(keep), reverse=True):
            _surgeon(ready, moments, rows, share, uniform=method == "obs_uniform")
            found[share] = _baseline(ready, rows)
    else:
        precisions = prior_precisions(ready.traced.layers, moments, dense, ready.num_data)
        for share in set(keep):
            rows = rows_of(ready.traced.layers, dense, left=ready.left, fixed=unseen)
            rng = np.random.default_rng(seed)
            _by_score(method, moments, rows, share, rng, ready.num_data, precisions)
            found[share] = _baseline(ready, rows)
    return [found[share] for share in keep]


def _in_blocks(
    ready: Prepared,
    moments: Sequence[LayerMoments],
    rows: list[WeightRow],
    method: RankedBy,
    seed: int,
) -> Baseline:
    """Remove from each block of a pattern what it may lose."""
    layers, dense, count = ready.traced.layers, ready.traced.parts.arrays, ready.num_data
    precisions = prior_precisions(layers, moments, dense, count)
    if method.startswith("obs"):
        # Blocks lose the same whichever row is first, and rows do not depend on each other.
        quadratics = quadratics_of(layers, moments, dense, count, precisions, dense)
        remove_elements(rows, quadratics, sum(row.removable() for row in rows))
        return _baseline(ready, rows)
    rng = np.random.default_rng(seed)
    for row in rows:
        score = _score(method, moments, row, rng, count, precisions)
        while (loose := row.loose()).any() and row.block is not None and row.room is not None:
            blocks, inputs = row.block[loose], np.flatnonzero(loose)
            # The least of each block, since the first of equal blocks is what `unique` returns.
            order = np.lexsort((score[inputs], blocks))
            _, first = np.unique(blocks[order], return_index=True)
            _drop(row, inputs[order[first]])
            row.room[np.unique(blocks)] -= 1
    return _baseline(ready, rows)


def _surgeon(
    ready: Prepared,
    moments: Sequence[LayerMoments],
    rows: list[WeightRow],
    share: float,
    *,
    uniform: bool,
) -> None:
    layers, dense = ready.traced.layers, ready.traced.parts.arrays
    precisions = prior_precisions(layers, moments, dense, ready.num_data)
    quadratics = quadratics_of(layers, moments, dense, ready.num_data, precisions, dense)
    if uniform:
        for row in rows:
            size = int(np.sum(~row.fixed))
            remove_elements([row], quadratics, row.free() - round(share * size))
        return
    total = sum(int(np.sum(~row.fixed)) for row in rows)
    left = sum(row.free() for row in rows)
    while left > round(share * total):
        aim = max(round(share * total), int(_PART * left))
        remove_elements(rows, quadratics, left - aim)
        left = sum(row.free() for row in rows)


def _by_score(
    method: RankedBy,
    moments: Sequence[LayerMoments],
    rows: list[WeightRow],
    share: float,
    rng: np.random.Generator,
    count: int,
    precisions: Sequence[float],
) -> None:
    scores = [
        np.where(row.fixed, np.inf, _score(method, moments, row, rng, count, precisions))
        for row in rows
    ]
    if method == "wanda":
        for row, score in zip(rows, scores, strict=True):
            size = int(np.sum(~row.fixed))
            _drop(row, np.argsort(score, kind="stable")[: size - round(share * size)])
        return
    flat = np.concatenate(scores)
    total = int(np.sum(np.isfinite(flat)))
    gone = np.zeros(len(flat), bool)
    gone[np.argsort(flat, kind="stable")[: total - round(share * total)]] = True
    start = 0
    for row in rows:
        _drop(row, np.flatnonzero(gone[start : start + len(row.keep)]))
        start += len(row.keep)


def _score(
    method: RankedBy,
    moments: Sequence[LayerMoments],
    row: WeightRow,
    rng: np.random.Generator,
    count: int,
    precisions: Sequence[float],
) -> Float[np.ndarray, " inputs"]:
    of = moments[row.layer]
    norms = np.diagonal(of.inputs[row.group])
    if method == "magnitude":
        return np.abs(row.weights)
    if method == "wanda":
        return np.abs(row.weights) * np.sqrt(norms)
    if method == "obd":
        return 0.5 * row.weights**2 * norms * of.outputs[row.group, row.output]
    if method == "posterior_damage":
        curvature = count * norms * of.outputs[row.group, row.output]
        return row.weights**2 * (curvature + precisions[row.layer])
    return rng.random(len(row.weights))


def _drop(row: WeightRow, gone: np.ndarray) -> None:
    row.keep[gone] = False
    row.weights[gone] = 0.0


def _baseline(ready: Prepared, rows: list[WeightRow]) -> Baseline:
    layers, parts = ready.traced.layers, ready.traced.parts
    masks = masks_of(layers, parts.arrays, rows)
    kept = sum(row.free() for row in rows) / sum(int(np.sum(~row.fixed)) for row in rows)
    network = parts.build(filled(layers, parts.arrays, rows))
    return Baseline(network, {parts.names[i]: mask for i, mask in sorted(masks.items())}, kept)


def _by_units(
    ready: Prepared,
    graph: UnitGraph,
    moments: Sequence[LayerMoments],
    method: UnitMethod,
    share: float,
    seed: int,
) -> Baseline:
    rng, parts = np.random.default_rng(seed), ready.traced.parts
    arrays, masks, gone = reduced_units(ready, graph, moments, method, share, rng)
    none = np.zeros_like(gone)
    return Baseline(
        compact(parts.build(arrays), *ready.example, drop_inputs=False).network,
        {parts.names[i]: mask for i, mask in sorted(masks.items())},
        graph.parameters.total(gone) / graph.parameters.total(none),
        graph.flops.total(gone) / graph.flops.total(none),
    )
