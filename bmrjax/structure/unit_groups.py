"""Groups of weights that a network can lose whole: neurons, filters, channels, heads, inputs."""

from typing import Any, Literal

import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.criteria.groups import Groups
from bmrjax.structure.dataflow import ELEMENTWISE, sites
from bmrjax.structure.flat_input import flat_input
from bmrjax.structure.flatten import flatten
from bmrjax.structure.network_arrays import checked_inputs, is_equinox, parts_of
from bmrjax.structure.units import Units


def unit_groups(
    network: Any,
    *inputs: Array,
    name: str = "net",
    along: Literal["outputs", "inputs"] = "outputs",
) -> Groups:
    """Return which weights of a network make one unit that `compact` can take out.

    Along the outputs, a group is all that a unit is made of: the weights into a neuron and its bias,
    a filter, the rows of an attention head in query, key and value. Along the inputs, it is all that
    reads a unit: the weights out of a neuron or an input feature, the slices of a channel. Weights of
    units that cannot go, as those of the network's outputs, are each on their own.

    Args:
        network: An Equinox module, an ``(equinox module, equinox.nn.State)`` pair, or a Flax NNX module.
        *inputs: Example inputs as the network takes them; see `bmrjax.compact`.
        name: The name of the network in the program.
        along: ``"outputs"`` or ``"inputs"``.

    Returns:
        Groups of the sites of a random module whose prior draws each array as one site
        (`priors.Flat`, `priors.NormalPrior`), for a criterion.

    Raises:
        TypeError: For anything but a network.
        ValueError: For another `along`, or if the network does not run on the inputs.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (3,), 2, key=jax.random.key(0))
        >>> found = bmr.structure.unit_groups(network, jnp.ones(4))
        >>> found.ids["net.layers.0.weight"][:, 0], found.ids["net.layers.0.bias"]
        (Array([0, 1, 2], dtype=int32), Array([0, 1, 2], dtype=int32))
        >>> criterion = bmr.criteria.SpikeAndSlab(groups=found)
    """
    if along not in ("outputs", "inputs"):
        raise ValueError(f"unit_groups: along must be 'outputs' or 'inputs', got {along!r}.")
    parts = parts_of(network)
    count = len(parts.arrays)
    inputs = checked_inputs("unit_groups", network, parts, inputs)
    features = None
    if along == "inputs":
        features = flat_input(parts, inputs, batch=not is_equinox(network))
    if features is not None:
        inputs = (features,)
    traced = flatten(lambda *v: parts.call(v[:count], v[count:]), *parts.arrays, *inputs)
    jaxpr = traced.jaxpr
    units = Units(jaxpr, count, free_inputs=features is not None)
    params = jaxpr.invars[:count]
    owner = {
        int(label): (i, k)
        for i, var in enumerate(params)
        for k, labels in enumerate(units.of(var))
        for label in labels
    }
    reached = set(jaxpr.invars[count:])
    for eqn in jaxpr.eqns:
        if any(v in reached for v in eqn.invars if not isinstance(v, jec.Literal)):
            reached.update(eqn.outvars)
    same = _same_places(jaxpr, units, reached)
    summed: set[int] = set()
    read: set[tuple[int, int]] = set()  # axes that a contraction sums over
    for site in sites(jaxpr):
        for var, axis in zip(jaxpr.eqns[site.index].invars, (site.axis, site.other), strict=True):
            labels = units.of(var)[axis]
            summed |= set(units.roots(labels).tolist())
            if var not in reached:
                read |= {owner[x] for x in _all(same, labels.tolist()) if x in owner}
    numbers: dict[int, int] = {}
    ids: dict[str, Any] = {}
    alone: list[tuple[str, np.ndarray]] = []
    for i, (var, array) in enumerate(zip(params, parts.arrays, strict=True)):
        if not parts.trained[i]:
            continue
        found = np.full(array.shape, -1, np.int32)
        for axis, labels in enumerate(units.of(var)):
            if ((i, axis) in read) != (along == "inputs"):
                continue
            whole = units.roots(labels)
            free = [int(u) in summed and units.reason(int(u)) is None for u in whole]
            if not any(free):
                continue
            for k in np.flatnonzero(free):
                number = numbers.setdefault(int(whole[k]), len(numbers))
                found[(slice(None),) * axis + (k,)] = number
            break
        ids[f"{name}.{parts.names[i]}"] = found
        alone.append((f"{name}.{parts.names[i]}", found < 0))
    total = len(numbers)
    for site_name, mask in alone:
        ids[site_name][mask] = total + np.arange(mask.sum())
        total += int(mask.sum())
    return Groups({key: jnp.asarray(value) for key, value in ids.items()}, total)


def _same_places(jaxpr: Any, units: Units, reached: set[Any]) -> dict[int, set[int]]:
    """Return, for a label that an operation on weights passes on, those of its other arguments there.

    The result of ``w1 * w2`` has the labels of ``w1``; who reads it along an axis reads both.
    """
    found: dict[int, set[int]] = {}
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name not in (*ELEMENTWISE, "concatenate") or set(eqn.outvars) & reached:
            continue
        for axis, labels in enumerate(units.of(eqn.outvars[0])):
            if name == "concatenate" and axis == eqn.params["dimension"]:
                continue
            for var in eqn.invars:
                others = [] if isinstance(var, jec.Literal) else units.of(var)
                if axis < len(others) and len(others[axis]) == len(labels):
                    for a, b in zip(labels.tolist(), others[axis].tolist(), strict=True):
                        found.setdefault(a, set()).add(b)
    return found


def _all(same: dict[int, set[int]], labels: list[int]) -> set[int]:
    """Return labels with all that are at the same places."""
    found: set[int] = set()
    waiting = list(labels)
    while waiting:
        label = waiting.pop()
        if label not in found:
            found.add(label)
            waiting += same.get(label, ())
    return found
