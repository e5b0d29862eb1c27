"""A network run that records the inputs and outputs of its layers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax.backend.jaxprs import closed, evaluate, scan_parts
from bmrjax.backend.quick_convolutions import bind_quickly, reads_all_at_once
from bmrjax.trained.layers import TracedLayer, Use, equation_at, operand_of, turns_at

# Inputs and outputs of one layer for one row: (positions, groups, inputs) and (positions, groups, outputs).
Ends = tuple[Float[Array, "positions groups inputs"], Float[Array, "positions groups outputs"]]


# Takes the place of a layer's product, its operation, operands and result, and what was given for this place.
# Returns what stands for the result, and what is to be recorded; None for nothing.
_AtLayer = Callable[[tuple[int, ...], Any, Sequence[Any], Any, Any], tuple[Any, Any]]
# By place: what was recorded there. Within loops, each array has one more axis in front for each of them.
_Records = dict[tuple[int, ...], Any]


class Capture:
    """The operations of a network for one row, with a place for a probe behind each product.

    Args:
        traced: The operations: the network's arrays are the first arguments, then the inputs of one row.
        layers: The layers among them.
    """

    def __init__(self, traced: jec.ClosedJaxpr, layers: Sequence[TracedLayer]):
        self.jaxpr: Any = traced.jaxpr
        self._consts = traced.consts
        # By place, in order: the layers that share the product, and the use, which is the same of all.
        uses: dict[tuple[int, ...], tuple[list[int], Use]] = {}
        for k, layer in enumerate(layers):
            for use in layer.uses:
                uses.setdefault(use.place, ([], use))[0].append(k)
        self._uses = {place: uses[place] for place in sorted(uses)}
        self._loops = {place[:depth] for place in uses for depth in range(1, len(place))}
        self.layers: list[TracedLayer] = list(layers)

    def size(self) -> int:
        """Return how many numbers go into the layers in one row."""
        return sum(
            count * layer.index[:, 0].size
            for count, layer in zip(self.positions(), self.layers, strict=True)
        )

    def positions(self) -> list[int]:
        """Return how often each layer is used in one row, at all its positions and in all turns of loops."""
        found = [0] * len(self.layers)
        for place, (layers, _) in self._uses.items():
            shape = equation_at(self.jaxpr, place).outvars[0].aval.shape
            size = int(np.prod([*turns_at(self.jaxpr, place), *shape], dtype=int))
            outputs = int(np.prod(self.layers[layers[0]].index.shape[:2]))
            for k in layers:
                found[k] += size // max(outputs, 1)
        return found

    def run(
        self,
        arrays: Sequence[Array],
        inputs: Sequence[Array],
        some: Sequence[Int[Array, " positions"]] | None = None,
    ) -> tuple[Any, list[Ends]]:
        """Run one row.

        Args:
            arrays: Arrays of the network.
            inputs: The row.
            some: Positions of each layer whose inputs and outputs are wanted, one at least of each; all by
                default. Layers that share a product have the same.

        Returns:
            The outputs, and for each layer its inputs and outputs (without a bias), positions of all uses one
            after the other.
        """

        def record(place: tuple[int, ...], eqn: Any, operands: Any, result: Any, _: Any) -> Any:
            layers, use = self._uses[place]
            layer = self.layers[layers[0]]
            here = None if some is None or _is_late(layer) else some[layers[0]]
            x = _inputs(eqn, use, layer.index.shape[0], operands[1 - use.side], here)
            z = _outputs(eqn, use, layer, result)
            return result, (x, z if here is None else z[here])

        outputs, found = self._evaluate(arrays, inputs, record)
        ends = []
        for k, layer in enumerate(self.layers):
            x, z = zip(*(found[use.place] for use in layer.uses), strict=True)
            x, z = _all_positions(x), _all_positions(z)
            if some is not None and _is_late(layer):
                x, z = x[some[k]], z[some[k]]
            ends.append((_part(x, layer), z))
        return outputs, ends

    def responses(
        self,
        arrays: Sequence[Array],
        inputs: Sequence[Array],
        changes: Mapping[int, Float[Array, "groups outputs inputs"]],
        some: Sequence[Int[Array, " positions"]] | None = None,
    ) -> dict[int, Float[Array, "positions groups outputs"]]:
        """Return what changes of weights add to the outputs of their layers, for one row.

        Args:
            arrays: Arrays of the network, which gives the inputs of the layers.
            inputs: The row.
            changes: By number of the layer, all of its inputs; of layers that share a product, the first.
            some: See `run`.
        """

        def record(place: tuple[int, ...], eqn: Any, operands: Any, result: Any, _: Any) -> Any:
            layers, use = self._uses[place]
            k = layers[0]
            if k not in changes:
                return result, None
            layer = self.layers[k]
            z = _outputs(eqn, use, layer, _product(eqn, use, operands, changes[k]))
            return result, z if some is None or _is_late(layer) else z[some[k]]

        _, found = self._evaluate(arrays, inputs, record)
        responses: dict[int, Array] = {}
        for k in changes:
            z = _all_positions([found[use.place] for use in self.layers[k].uses])
            if some is not None and _is_late(self.layers[k]):
                z = z[some[k]]
            responses[k] = z
        return responses

    def gradients(
        self, arrays: Sequence[Array], inputs: Sequence[Array]
    ) -> tuple[Any, Callable[[Any], list[Array]]]:
        """Run one row, and return the outputs, and the function that pulls a cotangent of these back.

        It returns, for each layer, (positions, groups, outputs), positions of all uses one after the other.
        """
        probes: _Records = {}
        for place in self._uses:
            result = equation_at(self.jaxpr, place).outvars[0].aval
            shape = (*turns_at(self.jaxpr, place), *result.shape)
            probes[place] = jnp.zeros(shape, result.dtype)

        def probed(probes: _Records) -> Any:
            return self._evaluate(
                arrays, inputs, lambda *parts: (parts[-2] + parts[-1], None), probes
            )[0]

        outputs, pull = jax.vjp(probed, probes)

        def back(cotangent: Any) -> list[Array]:
            gradients = pull(jnp.asarray(cotangent, outputs.dtype))[0]
            found: dict[tuple[int, ...], Array] = {}
            for place, (layers, use) in self._uses.items():
                of = partial(_outputs, equation_at(self.jaxpr, place), use, self.layers[layers[0]])
                for _ in use.place[1:]:
                    of = jax.vmap(of)
                found[place] = of(gradients[place])
            return [_all_positions([found[use.place] for use in of.uses]) for of in self.layers]

        return outputs, back

    def outputs(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """Run one row, and return the outputs only."""
        return evaluate(self.jaxpr, self._consts, [*arrays, *inputs], bind_quickly)[0]

    def _evaluate(
        self,
        arrays: Sequence[Array],
        inputs: Sequence[Array],
        at_layer: _AtLayer,
        given: _Records | None = None,
    ) -> tuple[Any, _Records]:
        """Run one row, and return its outputs and what `at_layer` has recorded.

        Args:
            arrays: Arrays of the network.
            inputs: The row.
            at_layer: See `_AtLayer`.
            given: By place, what `at_layer` is given there. Within loops, each array has one more axis in
                front for each of them.
        """
        values = [*arrays, *inputs]
        (outputs, *_), found = self._run(
            (self.jaxpr, self._consts), values, (), at_layer, given or {}
        )
        return outputs, found

    def _run(
        self,
        program: tuple[Any, Sequence[Any]],
        args: Sequence[Any],
        place: tuple[int, ...],
        at_layer: _AtLayer,
        given: _Records,
    ) -> tuple[list[Any], _Records]:
        """Run the operations of the network, or of one turn of the loop at a place."""
        jaxpr, consts = program
        values: dict[Any, Any] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True)
        )
        found: _Records = {}

        def read(var: Any) -> Any:
            return var.val if isinstance(var, jec.Literal) else values[var]

        for number, eqn in enumerate(jaxpr.eqns):
            here = (*place, number)
            operands = [read(var) for var in eqn.invars]
            if here in self._loops:
                results, inside = self._loop(eqn, operands, here, at_layer, given)
                found |= inside
            else:
                results = bind_quickly(eqn, operands)
            if here in self._uses:
                result, record = at_layer(here, eqn, operands, results[0], given.get(here))
                results = [result]
                if record is not None:
                    found[here] = record
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.outvars], found

    def _loop(
        self,
        eqn: Any,
        operands: Sequence[Any],
        place: tuple[int, ...],
        at_layer: _AtLayer,
        given: _Records,
    ) -> tuple[list[Any], _Records]:
        """Run a `scan` with layers in it."""
        consts, carry, xs = scan_parts(eqn, operands)
        program = closed(eqn.params["jaxpr"])
        mine = {at: of for at, of in given.items() if at[: len(place)] == place}

        def turn(carry: list[Any], x: tuple[list[Any], _Records]) -> tuple[Any, Any]:
            of_turn, given = x
            results, found = self._run(program, [*consts, *carry, *of_turn], place, at_layer, given)
            return results[: len(carry)], (results[len(carry) :], found)

        settings = {name: eqn.params[name] for name in ("length", "reverse")}
        carry, (ys, found) = jax.lax.scan(turn, carry, (xs, mine), **settings)
        return [*carry, *ys], found


def _is_late(layer: TracedLayer) -> bool:
    """Return whether some positions of a layer can be chosen only when all of its uses are there."""
    return len(layer.uses) > 1 or any(use.loops for use in layer.uses)


def _all_positions(uses: Sequence[Array]) -> Float[Array, "positions groups size"]:
    """Return what was recorded at each use of a layer as positions one after the other."""
    flat = [of.reshape(-1, *of.shape[-2:]) for of in uses]
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat)


def _product(eqn: Any, use: Use, operands: Sequence[Any], weights: Array) -> Array:
    """Return what an operation gives with other weights, in the precision of these."""
    x = operands[1 - use.side].astype(weights.dtype)
    w = operand_of(eqn, use.side, weights)
    highest = (jax.lax.Precision.HIGHEST,) * 2
    params = eqn.params | {"precision": highest, "preferred_element_type": weights.dtype}
    return eqn.primitive.bind(*((w, x) if use.side == 0 else (x, w)), **params)


def _part(x: Array, layer: TracedLayer) -> Array:
    """Return those of a product's inputs that a layer has."""
    if layer.part is None:
        return x
    return x[..., layer.part.start : layer.part.start + layer.index.shape[2]]


def _inputs(eqn: Any, use: Use, groups: int, x: Array, some: Any) -> Array:
    """Return the other operand as (positions, groups, inputs), at some positions or, for None, at all."""
    if eqn.primitive.name == "dot_general":
        contract, batch = eqn.params["dimension_numbers"]
        contract, batch = contract[1 - use.side], batch[1 - use.side]
        free = [d for d in range(x.ndim) if d not in (*batch, *contract)]
        size = int(np.prod([x.shape[d] for d in contract], dtype=int))
        ordered = x.transpose(*free, *batch, *contract).reshape(-1, groups, size)
        return ordered if some is None else ordered[some]
    number, feature, *space = eqn.params["dimension_numbers"].lhs_spec
    patches = _patches(eqn, x.transpose(feature, number, *space), some)
    return patches.reshape(len(patches), groups, -1)


def _patches(eqn: Any, x: Array, some: Any) -> Array:
    """Return what positions of a convolution read, as (positions, channels, places of the kernel)."""
    params = eqn.params
    if reads_all_at_once(eqn):
        found = x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0], -1)
        return found if some is None else found[some]
    numbers = params["dimension_numbers"]
    kernel = [eqn.invars[1].aval.shape[d] for d in numbers.rhs_spec[2:]]
    counts = [eqn.outvars[0].aval.shape[d] for d in numbers.out_spec[2:]]
    padding = [
        (low, high, step - 1)
        for (low, high), step in zip(params["padding"], params["lhs_dilation"], strict=True)
    ]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *padding])
    rows, *sizes = x.shape[1:]
    steps = [int(np.prod(sizes[i + 1 :], dtype=int)) for i in range(len(sizes))]
    whole = steps[0] * sizes[0]
    starts = [s * n for s, n in zip(params["window_strides"], steps, strict=True)]
    first = _flat([rows, *counts], [whole, *starts])
    offset = _flat(kernel, [d * n for d, n in zip(params["rhs_dilation"], steps, strict=True)])
    first = jnp.asarray(first) if some is None else jnp.asarray(first)[some]
    found = x.reshape(x.shape[0], -1)[:, first[:, None] + offset[None]]
    return found.transpose(1, 0, 2)


def _flat(counts: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """Return the flat place of each index of a grid."""
    grid = np.indices(tuple(counts)).reshape(len(counts), -1)
    return np.asarray(steps, int) @ grid


def _outputs(eqn: Any, use: Use, layer: TracedLayer, z: Array) -> Array:
    """Return the result, or its cotangent, as (positions, groups, outputs)."""
    groups, size, _ = layer.index.shape
    if eqn.primitive.name == "dot_general":
        contract, batch = eqn.params["dimension_numbers"]
        lead = len(batch[use.side])
        free = len(eqn.invars[use.side].aval.shape) - lead - len(contract[use.side])
        others = z.ndim - lead - free
        first, second = (free, others) if use.side == 0 else (others, free)
        a = range(lead, lead + first)
        b = range(lead + first, lead + first + second)
        weights, rest = (a, b) if use.side == 0 else (b, a)
        return z.transpose(*rest, *range(lead), *weights).reshape(-1, groups, size)
    number, feature, *space = eqn.params["dimension_numbers"].out_spec
    return _positions_first(z.transpose(number, feature, *space), groups, size)


def _positions_first(x: Array, groups: int, size: int) -> Array:
    """Return (rows, groups * size, *space) as (positions, groups, size)."""
    places = int(np.prod(x.shape[2:], dtype=int))
    return jnp.moveaxis(x.reshape(x.shape[0], groups, size, places), 3, 1).reshape(-1, groups, size)
