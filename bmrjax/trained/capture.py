"""A network run that records the inputs and outputs of its layers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax.backend.jaxprs import evaluate
from bmrjax.backend.quick_convolutions import bind_quickly, reads_all_at_once
from bmrjax.trained.layers import TracedLayer, Use, operand_of

# Inputs and outputs of one layer for one row: (positions, groups, inputs) and (positions, groups, outputs).
Ends = tuple[Float[Array, "positions groups inputs"], Float[Array, "positions groups outputs"]]


class Capture:
    """The operations of a network for one row, with a place for a probe behind each product.

    Args:
        traced: The operations: the network's arrays are the first arguments, then the inputs of one row.
        layers: The layers among them.
    """

    def __init__(self, traced: jec.ClosedJaxpr, layers: Sequence[TracedLayer]):
        self.jaxpr: Any = traced.jaxpr
        self._consts = traced.consts
        # By position: the layers that share the product, and the use, which is the same of all.
        self._uses: dict[int, tuple[list[int], Use]] = {}
        for k, layer in enumerate(layers):
            for use in layer.uses:
                self._uses.setdefault(use.position, ([], use))[0].append(k)
        self.layers: list[TracedLayer] = list(layers)

    def size(self) -> int:
        """Return how many numbers go into the layers in one row."""
        return sum(
            count * layer.index[:, 0].size
            for count, layer in zip(self.positions(), self.layers, strict=True)
        )

    def positions(self) -> list[int]:
        """Return how often each layer is used in one row, at all its positions."""
        found = [0] * len(self.layers)
        for position, (layers, _) in self._uses.items():
            eqn: Any = self.jaxpr.eqns[position]
            outputs = int(np.prod(self.layers[layers[0]].index.shape[:2]))
            for k in layers:
                found[k] += int(np.prod(eqn.outvars[0].aval.shape)) // max(outputs, 1)
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
        found: list[list[Ends]] = [[] for _ in self.layers]

        def record(position: int, eqn: Any, operands: Sequence[Any], result: Any) -> Any:
            layers, use = self._uses[position]
            layer = self.layers[layers[0]]
            here = None if some is None or len(layer.uses) > 1 else some[layers[0]]
            x = _inputs(eqn, use, layer.index.shape[0], operands[1 - use.side], here)
            z = _outputs(eqn, use, layer, result)
            for k in layers:
                found[k].append((_part(x, self.layers[k]), z if here is None else z[here]))
            return result

        outputs = self._evaluate(arrays, inputs, record)
        ends = []
        for k, uses in enumerate(found):
            x, z = (jnp.concatenate(parts) for parts in zip(*uses, strict=True))
            if some is not None and len(uses) > 1:
                x, z = x[some[k]], z[some[k]]
            ends.append((x, z))
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
        found: dict[int, list[Array]] = {k: [] for k in changes}

        def record(position: int, eqn: Any, operands: Sequence[Any], result: Any) -> Any:
            layers, use = self._uses[position]
            k = layers[0]
            if k in changes:
                layer = self.layers[k]
                z = _outputs(eqn, use, layer, _product(eqn, use, operands, changes[k]))
                found[k].append(z if some is None or len(layer.uses) > 1 else z[some[k]])
            return result

        self._evaluate(arrays, inputs, record)
        z = {k: jnp.concatenate(parts) for k, parts in found.items()}
        if some is None:
            return z
        return {k: of[some[k]] if len(self.layers[k].uses) > 1 else of for k, of in z.items()}

    def gradients(
        self, arrays: Sequence[Array], inputs: Sequence[Array]
    ) -> tuple[Any, Callable[[Any], list[Array]]]:
        """Run one row, and return the outputs, and the function that pulls a cotangent of these back.

        It returns, for each layer, (positions, groups, outputs), positions of all uses one after the other.
        """
        probes = [
            jnp.zeros(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype)
            for position, eqn in enumerate(self.jaxpr.eqns)
            if position in self._uses
        ]

        def probed(probes: list[Array]) -> Any:
            rest = iter(probes)
            return self._evaluate(arrays, inputs, lambda *parts: parts[-1] + next(rest))

        outputs, pull = jax.vjp(probed, probes)

        def back(cotangent: Any) -> list[Array]:
            gradients = iter(pull(jnp.asarray(cotangent, outputs.dtype))[0])
            by_layer: list[list[Array]] = [[] for _ in self.layers]
            for position, eqn in enumerate(self.jaxpr.eqns):
                if position in self._uses:
                    layers, use = self._uses[position]
                    of = _outputs(eqn, use, self.layers[layers[0]], next(gradients))
                    for k in layers:
                        by_layer[k].append(of)
            return [jnp.concatenate(some) for some in by_layer]

        return outputs, back

    def outputs(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """Run one row, and return the outputs only."""
        return evaluate(self.jaxpr, self._consts, [*arrays, *inputs], bind_quickly)[0]

    def _evaluate(
        self, arrays: Sequence[Array], inputs: Sequence[Array], at_layer: Callable[..., Any]
    ) -> Any:
        """Run one row and return its outputs.

        At each layer, `at_layer` takes its place among the equations, the equation, operands and result, and
        returns what stands for the result.
        """
        jaxpr = self.jaxpr
        values: dict[Any, Any] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*self._consts, *arrays, *inputs], strict=True)
        )

        def read(var: Any) -> Any:
            return var.val if isinstance(var, jec.Literal) else values[var]

        for position, eqn in enumerate(jaxpr.eqns):
            operands = [read(var) for var in eqn.invars]
            results = bind_quickly(eqn, operands)
            if position in self._uses:
                results = [at_layer(position, eqn, operands, results[0])]
            values.update(zip(eqn.outvars, results, strict=True))
        return read(jaxpr.outvars[0])


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
