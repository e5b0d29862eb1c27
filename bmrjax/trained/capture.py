"""A network run that records the inputs and outputs of its layers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bmrjax.backend.jaxprs import bind, evaluate
from bmrjax.trained.layers import TracedLayer, Use

# Inputs and outputs of one layer for one row: (positions, groups, inputs) and (positions, groups, outputs).
Ends = tuple[Float[Array, "positions groups inputs"], Float[Array, "positions groups outputs"]]


class Capture:
    """The operations of a network for one row, with a place for a probe behind each product.

    Args:
        traced: The operations: the network's arrays are the first arguments, then the inputs of one row.
        layers: The layers among them.
    """

    def __init__(self, traced: jec.ClosedJaxpr, layers: Sequence[TracedLayer]):
        self._jaxpr, self._consts = traced.jaxpr, traced.consts
        self._uses = {
            use.position: (k, use) for k, layer in enumerate(layers) for use in layer.uses
        }
        self.layers = list(layers)

    def size(self) -> int:
        """Return how many numbers go into the layers in one row."""
        total = 0
        for position, (k, _) in self._uses.items():
            eqn: Any = self._jaxpr.eqns[position]
            outputs = int(np.prod(self.layers[k].index.shape[:2]))
            positions = int(np.prod(eqn.outvars[0].aval.shape)) // max(outputs, 1)
            total += positions * self.layers[k].index[:, 0].size
        return total

    def run(
        self, arrays: Sequence[Array], inputs: Sequence[Array]
    ) -> tuple[Any, list[Ends], Callable[[Any], list[Array]]]:
        """Run one row.

        Returns:
            The outputs; for each layer its inputs and outputs (without a bias), positions of all uses one
            after the other; and the function that pulls a cotangent of the outputs back to those.
        """
        probes = [
            jnp.zeros(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype)
            for position, eqn in enumerate(self._jaxpr.eqns)
            if position in self._uses
        ]

        def probed(probes: list[Array]) -> tuple[Any, list[list[Ends]]]:
            return self._evaluate(arrays, inputs, iter(probes))

        outputs, pull, found = jax.vjp(probed, probes, has_aux=True)
        ends = [
            (jnp.concatenate([x for x, _ in some]), jnp.concatenate([z for _, z in some]))
            for some in found
        ]

        def back(cotangent: Any) -> list[Array]:
            gradients = iter(pull(cotangent)[0])
            by_layer: list[list[Array]] = [[] for _ in self.layers]
            for position, eqn in enumerate(self._jaxpr.eqns):
                if position in self._uses:
                    k, use = self._uses[position]
                    by_layer[k].append(_outputs(eqn, use, self.layers[k], next(gradients)))
            return [jnp.concatenate(some) for some in by_layer]

        return outputs, ends, back

    def outputs(self, arrays: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """Run one row, and return the outputs only."""
        as_it_is = lambda eqn, values: None  # noqa: E731
        return evaluate(self._jaxpr, self._consts, [*arrays, *inputs], as_it_is)[0]

    def _evaluate(
        self, arrays: Sequence[Array], inputs: Sequence[Array], probes: Any
    ) -> tuple[Any, list[list[Ends]]]:
        jaxpr = self._jaxpr
        values: dict[Any, Any] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*self._consts, *arrays, *inputs], strict=True)
        )
        ends: list[list[Ends]] = [[] for _ in self.layers]

        def read(var: Any) -> Any:
            return var.val if isinstance(var, jec.Literal) else values[var]

        for position, eqn in enumerate(jaxpr.eqns):
            operands = [read(var) for var in eqn.invars]
            results = bind(eqn, operands)
            if position in self._uses:
                k, use = self._uses[position]
                layer = self.layers[k]
                x = _inputs(eqn, use, layer, operands[1 - use.side])
                ends[k].append((x, _outputs(eqn, use, layer, results[0])))
                results = [results[0] + next(probes)]
            values.update(zip(eqn.outvars, results, strict=True))
        return read(jaxpr.outvars[0]), ends


def _inputs(eqn: Any, use: Use, layer: TracedLayer, x: Array) -> Array:
    """Return the other operand as (positions, groups, inputs)."""
    groups, _, size = layer.index.shape
    if eqn.primitive.name == "dot_general":
        contract, batch = eqn.params["dimension_numbers"]
        contract, batch = contract[1 - use.side], batch[1 - use.side]
        free = [d for d in range(x.ndim) if d not in (*batch, *contract)]
        ordered = x.transpose(*free, *batch, *contract)
        return ordered.reshape(-1, groups, size)
    params = eqn.params
    number, feature, *space = params["dimension_numbers"].lhs_spec
    kernel = eqn.invars[1].aval.shape
    patches = jax.lax.conv_general_dilated_patches(
        x.transpose(number, feature, *space),
        [kernel[d] for d in params["dimension_numbers"].rhs_spec[2:]],
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        precision=jax.lax.Precision.HIGHEST,
    )
    return _positions_first(patches, groups, size)


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
