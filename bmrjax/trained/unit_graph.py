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


class Resource:
    """What a network costs as a sum of products of sizes, each size less by the units that are gone.

    Args:
        terms: A factor and the units on each axis; −1 where an index belongs to none.
        count: Number of units.
    """

    def __init__(self, terms: Sequence[tuple[float, list[Int[np.ndarray, " size"]]]], count: int):
        self._terms = []
        for factor, axes in terms:
            some = [axis for axis in axes if (axis >= 0).any()]
            fixed = factor * np.prod([len(axis) for axis in axes if (axis < 0).all()], dtype=float)
            sizes = [np.bincount(axis[axis >= 0], minlength=count) for axis in some]
            self._terms.append((float(fixed), [len(axis) for axis in some], sizes))

    def total(self, gone: Bool[np.ndarray, " units"]) -> float:
        """Return the cost without some units."""
        return sum(
            fixed
            * float(np.prod([n - size[gone].sum() for n, size in zip(ns, sizes, strict=True)]))
            for fixed, ns, sizes in self._terms
        )

    def released(self, gone: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " units"]:
        """Return what the cost falls by for each unit that is removed next."""
        found = np.zeros(len(gone))
        for fixed, ns, sizes in self._terms:
            left = [n - size[gone].sum() for n, size in zip(ns, sizes, strict=True)]
            before, after = fixed, np.full(len(gone), fixed)
            for n, size in zip(left, sizes, strict=True):
                before, after = before * n, after * (n - size)
            found += before - after
        return found


@dataclass(frozen=True)
class UnitGraph:
    """Units that can be judged, numbered.

    Attributes:
        names: Of each: the array that makes it and the indices there, as ``layers.0.weight[17]``.
        kind: Number of the kind of each. Units of one kind have their indices on the same axes of the same
            arrays, as the neurons of a layer, or the channels of a residual stream.
        kinds: Names of the kinds: the array, or arrays, that make them.
        arrays: Numbers of the arrays that make each kind: weights, biases, scales.
        readers: For each layer, the units of its inputs, once for each axis that it sums over; −1 for an
            input that is of none.
        outputs: For each layer, the unit of each of its outputs, groups one after the other; −1 for none.
        parameters: Number of parameters.
        flops: Operations in matrix products and convolutions per row: two for each multiply-add.
        refused: Other axes that layers sum over, and why their units are not judged.
    """

    names: list[str]
    kind: Int[np.ndarray, " units"]
    kinds: list[str]
    arrays: list[frozenset[int]]
    readers: list[list[Int[np.ndarray, " inputs"]]]
    outputs: list[Int[np.ndarray, " outputs"]]
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
    where: dict[int, list[tuple[int, int]]] = defaultdict(list)  # axes that each label is on
    for i, var in enumerate(params):
        for axis, labels in enumerate(units.of(var)):
            for label in np.unique(units.roots(labels)).tolist():
                where[label].append((i, axis))
    unread, readers_left = _summed_elsewhere(units, jaxpr, layers)
    alone = {layers[k].array for k in left}
    refused: dict[str, str] = {}
    numbers: dict[int, int] = {}
    for layer, axes in zip(layers, summed, strict=True):
        for label in dict.fromkeys(label for axis in axes for label in axis.tolist()):
            why = units.reason(label)
            if why is None and label in unread:
                why = _NOT_READ if unread[label] else "a product of two activations sums over them"
            if why is None and any(i in alone for i, _ in where[label]):
                why = "a layer that has them is left alone"
            if why is None and not where[label]:
                why = "no array makes them"
            if why is None:
                numbers.setdefault(label, len(numbers))
            else:
                refused.setdefault(layer.name, why)
    for i, label in readers_left.items():
        if i < len(names):
            refused.setdefault(names[i], units.reason(label) or _NOT_READ)
    if not numbers:
        why = "; ".join(f"inputs of {name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"reduce_network: no unit of the network can be judged. {why}.")

    def numbered(labels: np.ndarray) -> np.ndarray:
        return np.array([numbers.get(int(x), -1) for x in units.roots(labels)], int)

    on = [[numbered(labels) for labels in units.of(var)] for var in params]
    readers = [
        [np.array([numbers.get(int(x), -1) for x in axis], int) for axis in axes] for axes in summed
    ]
    read = _reading_axes(layers, readers, on)
    signatures: dict[tuple[tuple[int, int], ...], int] = {}
    kind = np.array(
        [signatures.setdefault(tuple(where[label]), len(signatures)) for label in numbers], int
    )
    makers = [
        [place for place in places if place not in read] or list(places) for places in signatures
    ]
    arrays = [frozenset(i for i, _ in places) for places in makers]
    weights = {layer.array for layer in layers}
    makers = [[place for place in m if place[0] in weights] or m for m in makers]
    made_by = [" + ".join(dict.fromkeys(names[i] for i, _ in m)) for m in makers]
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
        flops=Resource(_products(jaxpr, units, numbered), count),
        refused={f"inputs of {name}": why for name, why in refused.items()},
    )


def _summed(units: Units, jaxpr: Any, layer: TracedLayer) -> list[np.ndarray]:
    """Return the unit of each input of a layer, once for each axis that it sums over."""
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
        into = units.roots(labels[eqn.params["dimension_numbers"].rhs_spec[1]])
        return [np.repeat(into, kernel_places(eqn))]
    contract = eqn.params["dimension_numbers"][0][side]
    grid = np.indices([len(labels[axis]) for axis in contract])
    return [
        units.roots(labels[axis])[index.ravel()] for axis, index in zip(contract, grid, strict=True)
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
            for label in units.roots(units.of(eqn.invars[side])[axis]).tolist():
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
                mine = np.flatnonzero(on[layer.array][axis] == unit)
                if len(mine) and len(mine) < size and set(index.tolist()) == set(mine.tolist()):
                    found.add((layer.array, axis))
    return found


def _outputs(
    layer: TracedLayer, read: set[tuple[int, int]], on: list[np.ndarray]
) -> Int[np.ndarray, " outputs"]:
    """Return the unit of each output of a layer; of several, that of the first axis."""
    first = layer.index[:, :, 0].ravel()
    found = np.full(first.shape, -1)
    places = np.unravel_index(first, tuple(len(axis) for axis in on))
    for axis in reversed(range(len(on))):
        if (layer.array, axis) not in read:
            units = on[axis][places[axis]]
            found = np.where(units >= 0, units, found)
    return found


def _name(
    names: Sequence[str], on: list[list[np.ndarray]], place: tuple[int, int], unit: int
) -> str:
    i, axis = place
    index = np.flatnonzero(on[i][axis] == unit)
    first, last = int(index[0]), int(index[-1])
    text = str(first)
    if len(index) > 1:
        text = ",".join(map(str, index.tolist()))
        step = int(index[1] - index[0])
        if (np.diff(index) == step).all():
            text = f"{first}:{last + 1}" + (f":{step}" if step > 1 else "")
    return f"{names[i]}[{':, ' * axis}{text}]"


def _products(jaxpr: Any, units: Units, numbered: Any) -> list[tuple[float, list[np.ndarray]]]:
    found = []
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            (contract, _), (batch, batch_other) = eqn.params["dimension_numbers"]
            first, second = (units.of(v) for v in eqn.invars)
            other = (*eqn.params["dimension_numbers"][0][1], *batch_other)
            axes = list(first) + [x for d, x in enumerate(second) if d not in other]
            found.append((2.0, [numbered(x) for x in axes]))
        elif name == "conv_general_dilated":
            numbers = eqn.params["dimension_numbers"]
            shape, kernel = eqn.outvars[0].aval.shape, units.of(eqn.invars[1])
            out, into, *taps = numbers.rhs_spec
            batch, _, *space = numbers.out_spec
            sizes = [shape[d] for d in (batch, *space)] + [len(kernel[d]) for d in taps]
            channels = [numbered(kernel[out]), numbered(kernel[into])]
            found.append((2.0 * float(np.prod(sizes)), channels))
    return found
