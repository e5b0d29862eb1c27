"""The units of a traced network: which inputs of which layers read each, and what goes with it."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jec
import numpy as np
from jaxtyping import Bool, Float, Int

from bmrjax.structure.units import Units
from bmrjax.trained.layers import TracedLayer, equation_at, kernel_places, layer_parts
from bmrjax.trained.traced import Traced

_NOT_READ = "no layer that can be judged sums over them"


# The units of an axis: one row for each index, one column for each unit that it goes with; −1 for none.
AxisUnits = Int[np.ndarray, "size several"]


class Resource:
    """What a network costs as a sum of products of sizes, each size less by the units that are gone.

    Args:
        terms: A factor and the units on each axis. An index is gone with any of its units.
        count: Number of units.
    """

    def __init__(self, terms: Sequence[tuple[float, list[AxisUnits]]], count: int):
        self._count = count
        self._terms: list[tuple[float, list[int]]] = []
        self._axes: list[np.ndarray] = []
        known: dict[bytes, int] = {}  # many arrays share an axis
        for factor, axes in terms:
            some = [axis for axis in axes if (axis >= 0).any()]
            fixed = factor * np.prod([len(axis) for axis in axes if (axis < 0).all()], dtype=float)
            numbers = []
            for axis in some:
                key = np.array(axis.shape).tobytes() + axis.tobytes()
                if key not in known:
                    known[key] = len(self._axes)
                    self._axes.append(axis)
                numbers.append(known[key])
            self._terms.append((float(fixed), numbers))

    def total(self, gone: Bool[np.ndarray, " units"]) -> float:
        """Return the cost without some units."""
        sizes = [float((~_gone(axis, gone)).sum()) for axis in self._axes]
        return sum(fixed * float(np.prod([sizes[a] for a in axes])) for fixed, axes in self._terms)

    def released(self, gone: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " units"]:
        """Return what the cost falls by for each unit that is removed next."""
        sizes, lost = [], []
        for axis in self._axes:
            left = axis[~_gone(axis, gone)]
            sizes.append(len(left))
            lost.append(np.bincount(left[left >= 0], minlength=self._count))
        found = np.zeros(len(gone))
        for fixed, axes in self._terms:
            before, after = fixed, np.full(len(gone), fixed)
            for a in axes:
                before, after = before * sizes[a], after * (sizes[a] - lost[a])
            found += before - after
        return found


def _gone(axis: AxisUnits, gone: Bool[np.ndarray, " units"]) -> Bool[np.ndarray, " size"]:
    return np.asarray(((axis >= 0) & gone[axis]).any(1))


@dataclass(frozen=True)
class UnitGraph:
    """Units that can be judged, numbered.

    Attributes:
        names: Of each: the array that makes it and the indices there, as ``layers.0.weight[17]``.
        kind: Number of the kind of each. Units of one kind have their indices on the same axes of the same
            arrays, as the neurons of a layer, or the channels of a residual stream. Where an axis is
            several in one, as heads times the dimensions of a head, each of these is a kind.
        kinds: Names of the kinds: the array, or arrays, that make them.
        arrays: Numbers of the arrays that make each kind: weights, biases, scales.
        readers: For each layer, the units of its inputs, as often as an input goes with several; −1 for an
            input that is of none.
        outputs: For each layer, the units of each of its outputs, groups one after the other, as often as an
            output goes with several; −1 for none.
        parameters: Number of parameters.
        flops: Operations in matrix products and convolutions per row: two for each multiply-add.
        refused: Other axes that layers sum over, and why their units are not judged.
    """

    names: list[str]
    kind: Int[np.ndarray, " units"]
    kinds: list[str]
    arrays: list[frozenset[int]]
    readers: list[list[Int[np.ndarray, " inputs"]]]
    outputs: list[list[Int[np.ndarray, " outputs"]]]
    parameters: Resource
    flops: Resource
    refused: dict[str, str]

    def inputs(self, layer: int, gone: Bool[np.ndarray, " units"]) -> Bool[np.ndarray, " inputs"]:
        """Return which inputs of a layer are gone with some units."""
        found = np.zeros(len(self.readers[layer][0]), bool)
        for units in self.readers[layer]:
            found |= (units >= 0) & gone[units]
        return found


def unit_graph(traced: Traced, left: Collection[int] = ()) -> UnitGraph:
    """Find the units of a network that can be judged by the weights that read them.

    Args:
        traced: The network.
        left: Numbers of layers that are left alone; units that have indices on their arrays stay.

    Raises:
        ValueError: If there is none.
    """
    jaxpr, layers = traced.capture.jaxpr, traced.layers
    names, trained = traced.parts.names, traced.parts.trained
    arguments: list[Any] = list(jaxpr.invars)
    params = arguments[: len(names)]
    units = Units(jaxpr, len(names))
    summed = [_summed(units, jaxpr, layer) for layer in layers]
    whole = [[_split(units, labels) for labels in units.of(var)] for var in params]
    where: dict[int, list[tuple[int, int, int]]] = defaultdict(
        list
    )  # array, axis, column of a label
    for i, axes in enumerate(whole):
        for axis, columns in enumerate(axes):
            for column, labels in enumerate(columns.T):
                for label in np.unique(labels[labels >= 0]).tolist():
                    where[label].append((i, axis, column))
    unread, readers_left = _summed_elsewhere(units, jaxpr, layers)
    alone = {layers[k].array for k in left}
    refused: dict[str, str] = {}
    numbers: dict[int, int] = {}
    for layer, axes in zip(layers, summed, strict=True):
        of_layer = dict.fromkeys(x for axis in axes for x in axis[axis >= 0].tolist())
        for label in of_layer:
            why = units.reason(label)
            if why is None and label in unread:
                why = _NOT_READ if unread[label] else "a product of two activations sums over them"
            if why is None and any(i in alone for i, _, _ in where[label]):
                why = "a layer that has them is left alone"
            if why is None and not where[label]:
                why = "no array makes them"
            if why is None:
                numbers.setdefault(label, len(numbers))
            else:
                refused.setdefault(layer.name, why)
        if layer.name in refused and any(label in numbers for label in of_layer):
            refused[layer.name] = f"some of these: {refused[layer.name]}"
    for i, label in readers_left.items():
        if i < len(names):
            refused.setdefault(names[i], units.reason(label) or _NOT_READ)
    if not numbers:
        why = "; ".join(f"inputs of {name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"reduce_network: no unit of the network can be judged. {why}.")

    def numbered(labels: np.ndarray) -> np.ndarray:
        found = [numbers.get(x, -1) for x in labels.ravel().tolist()]
        return np.array(found, int).reshape(labels.shape)

    on = [[numbered(columns) for columns in axes] for axes in whole]
    readers = [[column for axis in axes for column in numbered(axis).T] for axes in summed]
    read = _reading_axes(layers, readers, on)
    signatures: dict[tuple[tuple[int, int, int], ...], int] = {}
    kind = np.array(
        [signatures.setdefault(tuple(where[label]), len(signatures)) for label in numbers], int
    )
    places = [[(i, axis) for i, axis, _ in of] for of in signatures]
    makers = [[place for place in of if place not in read] or of for of in places]
    arrays = [frozenset(i for i, _ in of) for of in makers]
    weights = {layer.array for layer in layers}
    makers = [[place for place in m if place[0] in weights] or m for m in makers]
    made_by = [" + ".join(dict.fromkeys(names[i] for i, _ in m)) for m in makers]
    made_by = _told_apart(made_by, [of[0][2] for of in signatures])
    own = [_name(names, on, makers[kind[u]][0], u) for u in range(len(numbers))]
    count = len(numbers)
    return UnitGraph(
        names=own,
        kind=kind,
        kinds=made_by,
        arrays=arrays,
        readers=readers,
        outputs=[_outputs(layer, read, on[layer.array]) for layer in layers],
        parameters=Resource([(1.0, axes) for axes, t in zip(on, trained, strict=True) if t], count),
        flops=Resource(
            [
                (factor, [numbered(_split(units, labels)) for labels in axes])
                for factor, axes in _products(jaxpr, units)
            ],
            count,
        ),
        refused={f"inputs of {name}": why for name, why in refused.items()},
    )


def _split(units: Units, labels: np.ndarray) -> np.ndarray:
    """Return the units that each label goes with, the outermost in the first column; −1 for no more."""
    classes = units.roots(labels)
    parts = {c: units.parts(c) for c in np.unique(classes).tolist()}
    found = np.full((len(classes), max(map(len, parts.values()), default=1)), -1)
    for row, c in zip(found, classes.tolist(), strict=True):
        row[: len(parts[c])] = parts[c]
    return found


def _told_apart(kinds: list[str], columns: list[int]) -> list[str]:
    """Return names of kinds; of those that are made by the same arrays, with which is within which."""
    found = []
    for name, column in zip(kinds, columns, strict=True):
        same = sorted({c for other, c in zip(kinds, columns, strict=True) if other == name})
        inner = "inner" if column == same[-1] else "middle"
        found.append(
            f"{name} ({'outer' if column == same[0] else inner})" if len(same) > 1 else name
        )
    return found


def _summed(units: Units, jaxpr: Any, layer: TracedLayer) -> list[np.ndarray]:
    """Return the units of each input of a layer, once for each axis that it sums over."""
    found = _summed_by_product(units, jaxpr, layer)
    if layer.part is None:
        return found
    mine = slice(layer.part.start, layer.part.start + layer.index.shape[2])
    return [axis[mine] for axis in found]


def _summed_by_product(units: Units, jaxpr: Any, layer: TracedLayer) -> list[np.ndarray]:
    eqn = equation_at(jaxpr, layer.uses[0].place)
    side = layer.uses[0].side
    labels = units.of(eqn.invars[side])
    if eqn.primitive.name == "conv_general_dilated":
        into = _split(units, labels[eqn.params["dimension_numbers"].rhs_spec[1]])
        return [np.repeat(into, kernel_places(eqn), axis=0)]
    contract = eqn.params["dimension_numbers"][0][side]
    grid = np.indices([len(labels[axis]) for axis in contract])
    return [
        _split(units, labels[axis])[index.ravel()]
        for axis, index in zip(contract, grid, strict=True)
    ]


def _summed_elsewhere(
    units: Units, jaxpr: Any, layers: Sequence[TracedLayer]
) -> tuple[dict[int, bool], dict[int, int]]:
    """Return units that other products sum over, and whether one side of those is a weight.

    With them, one unit that each array of the network sums over in these products.
    """
    uses = {use.place for layer in layers for use in layer.uses}
    given = set(jaxpr.invars) | set(jaxpr.constvars)
    number = {var: i for i, var in enumerate(jaxpr.invars)}
    found: dict[int, bool] = {}
    readers: dict[int, int] = {}
    for position, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        if (position,) in uses or name not in ("dot_general", "conv_general_dilated"):
            continue
        weights = any(isinstance(v, jec.Literal) or v in given for v in eqn.invars)
        if name == "conv_general_dilated":
            axes = [(1, eqn.params["dimension_numbers"].rhs_spec[1])]
        else:
            contract = eqn.params["dimension_numbers"][0]
            axes = [(side, axis) for side in (0, 1) for axis in contract[side]]
        for side, axis in axes:
            of = _split(units, units.of(eqn.invars[side])[axis])
            for label in of[of >= 0].tolist():
                found[label] = found.get(label, False) or weights
                var = eqn.invars[side]
                if not isinstance(var, jec.Literal) and var in number:
                    readers.setdefault(number[var], label)
    return found, readers


def _reading_axes(
    layers: Sequence[TracedLayer], readers: list[list[np.ndarray]], on: list[list[np.ndarray]]
) -> set[tuple[int, int]]:
    """Return the axes of arrays, as (array, axis), that layers sum over."""
    found = set()
    for parts in layer_parts(layers):
        layer = layers[parts[0]]
        inputs = np.concatenate([layers[k].index for k in parts], 2)
        shape = tuple(len(axis) for axis in on[layer.array])
        for number in range(len(readers[parts[0]])):
            units = np.concatenate([readers[k][number] for k in parts])
            if not (units >= 0).any():
                continue
            unit = int(units[units >= 0][0])
            places = np.unravel_index(inputs[:, :, units == unit].ravel(), shape)
            for axis, (index, size) in enumerate(zip(places, shape, strict=True)):
                mine = np.flatnonzero((on[layer.array][axis] == unit).any(1))
                if len(mine) and len(mine) < size and set(index.tolist()) == set(mine.tolist()):
                    found.add((layer.array, axis))
    return found


def _outputs(
    layer: TracedLayer, read: set[tuple[int, int]], on: list[np.ndarray]
) -> list[Int[np.ndarray, " outputs"]]:
    """Return the units of each output of a layer; of several axes, those of the first that has any."""
    first = layer.index[:, :, 0].ravel()
    places = np.unravel_index(first, tuple(len(axis) for axis in on))
    for axis, columns in enumerate(on):
        if (layer.array, axis) not in read and (columns >= 0).any():
            return list(columns[places[axis]].T)
    return [np.full(first.shape, -1)]


def _name(
    names: Sequence[str], on: list[list[np.ndarray]], place: tuple[int, int], unit: int
) -> str:
    i, axis = place
    index = np.flatnonzero((on[i][axis] == unit).any(1))
    first, last = int(index[0]), int(index[-1])
    text = str(first)
    if len(index) > 1:
        runs = np.split(index, np.flatnonzero(np.diff(index) > 1) + 1)
        text = ",".join(f"{run[0]}:{run[-1] + 1}" if len(run) > 1 else str(run[0]) for run in runs)
        step = int(index[1] - index[0])
        if (np.diff(index) == step).all():
            text = f"{first}:{last + 1}" + (f":{step}" if step > 1 else "")
    return f"{names[i]}[{':, ' * axis}{text}]"


def _products(jaxpr: Any, units: Units) -> list[tuple[float, list[np.ndarray]]]:
    """Return the operations of each product of the network: a factor, and the labels of each axis."""
    found = []
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            (contract, _), (batch, batch_other) = eqn.params["dimension_numbers"]
            first, second = (units.of(v) for v in eqn.invars)
            other = (*eqn.params["dimension_numbers"][0][1], *batch_other)
            axes = list(first) + [x for d, x in enumerate(second) if d not in other]
            found.append((2.0, axes))
        elif name == "conv_general_dilated":
            numbers = eqn.params["dimension_numbers"]
            shape, kernel = eqn.outvars[0].aval.shape, units.of(eqn.invars[1])
            out, into, *taps = numbers.rhs_spec
            batch, _, *space = numbers.out_spec
            sizes = [shape[d] for d in (batch, *space)] + [len(kernel[d]) for d in taps]
            found.append((2.0 * float(np.prod(sizes)), [kernel[out], kernel[into]]))
    return found
