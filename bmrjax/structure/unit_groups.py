"""Groups of weights that a network can lose whole: neurons, filters, channels, heads, inputs."""

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from bmrjax.structure.axis_sources import axis_sources
from bmrjax.structure.dataflow import reached_by, sites
from bmrjax.structure.flat_input import flat_input
from bmrjax.structure.flatten import flatten_jaxpr
from bmrjax.structure.named_units import UnitGroups, UnitPlace, kinds_of
from bmrjax.structure.network_arrays import (
    WithArguments,
    checked_arguments,
    is_equinox,
    parts_of,
)
from bmrjax.structure.traced_once import trace_once
from bmrjax.structure.unit_rules import TAPS
from bmrjax.structure.units import OUTPUT, Units


def unit_groups(
    network: Any,
    *inputs: Any,
    name: str = "net",
    along: Literal["outputs", "inputs"] = "outputs",
    nested: Literal["outer", "inner"] = "outer",
) -> UnitGroups:
    """Return which weights of a network make one unit that `compact` can take out.

    Along the outputs, a group is all that a unit is made of: the weights into a neuron and its bias,
    a filter, the rows of an attention head in query, key and value. Along the inputs, it is all that
    reads a unit: the weights out of a neuron or an input feature, the slices of a channel. Weights of
    units that cannot go, as those of the network's outputs, are each on their own.

    Printed, the groups are a table: each kind of unit by the name of its layer, how many there are, of how
    many weights, and what else goes with one.

    Args:
        network: An Equinox module, an ``(equinox module, equinox.nn.State)`` pair, or a Flax NNX module.
        *inputs: Example inputs as the network takes them; see `bmrjax.compact`.
        name: The name of the network in the program.
        along: ``"outputs"`` or ``"inputs"``.
        nested: Where units lie within units, which are the groups: ``"outer"`` for attention heads, whole
            groups of a convolution; ``"inner"`` for the dimensions of heads (each the same one in every
            head), the channels within groups.

    Returns:
        Groups of the sites of a random module whose prior draws each array as one site
        (`priors.Flat`, `priors.NormalPrior`), for a criterion.

    Raises:
        TypeError: For anything but a network.
        ValueError: For another `along` or `nested`, or if the network does not run on the inputs.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (3,), 2, key=jax.random.key(0))
        >>> found = bmr.structure.unit_groups(network, jnp.ones(4))
        >>> found  # doctest: +ELLIPSIS
        UnitGroups: 3 units, and 8 weights on their own
          net.layers.0: 3 units of 5 weights (weight[1 of 3, :], bias[1 of 3]); with ...weight[:, 1 of 3]
        >>> found.ids["net.layers.0.weight"][:, 0], found.ids["net.layers.0.bias"]
        (Array([0, 1, 2], dtype=int32), Array([0, 1, 2], dtype=int32))
        >>> criterion = bmr.criteria.SpikeAndSlab(groups=found)
    """
    if along not in ("outputs", "inputs"):
        raise ValueError(f"unit_groups: along must be 'outputs' or 'inputs', got {along!r}.")
    if nested not in ("outer", "inner"):
        raise ValueError(f"unit_groups: nested must be 'outer' or 'inner', got {nested!r}.")
    parts = parts_of(network, caller="unit_groups")
    count = len(parts.arrays)
    arguments = checked_arguments("unit_groups", network, parts, inputs)
    arrays, features = arguments.arrays, None
    if along == "inputs" and arguments.structure is None:
        features = flat_input(parts, arrays, batch=not is_equinox(network))
    if features is not None:
        arrays = (features,)
    parts = WithArguments(parts, arguments)
    whole = arguments.traced
    if features is not None:
        whole = trace_once(parts.call, parts.arrays, arrays)
    jaxpr = flatten_jaxpr(whole.closed, *parts.arrays, *arrays).jaxpr
    units = Units(jaxpr, count, free_inputs=features is not None)
    params = jaxpr.invars[:count]
    reached = reached_by(jaxpr, jaxpr.invars[count:])
    sources = axis_sources(jaxpr, params, reached)
    summed = np.zeros(units.count, bool)
    read: set[tuple[int, int]] = set()  # axes that a contraction sums over
    for site in sites(jaxpr):
        for var, axis in zip(jaxpr.eqns[site.index].invars, (site.axis, site.other), strict=True):
            summed[units.roots(units.of(var)[axis])] = True
            if var not in reached:
                read |= sources[var][axis]
    may_go = units.gather(summed) & ~units.is_fixed & ~_of_other_kind(units, nested)
    numbers: dict[int, int] = {}
    ids: dict[str, Any] = {}
    alone: list[tuple[str, np.ndarray]] = []
    owned: dict[int, tuple[int, int]] = {}
    stays: dict[str, str] = {}
    whole = [[_units(units, x, nested) for x in units.of(v)] for v in params]
    for i, array in enumerate(parts.arrays):
        if not parts.trained[i]:
            continue
        found = np.full(array.shape, -1, np.int32)
        for axis, labels in enumerate(whole[i]):
            if ((i, axis) in read) != (along == "inputs"):
                continue
            if not may_go[labels].any():
                why = {units.reason(label) for label in labels.tolist()} - {None, OUTPUT, TAPS}
                if why and array.ndim > 1 and len(labels) > 1:
                    stays.setdefault(f"{name}.{parts.names[i]}", min(filter(None, why)))
                continue
            stays.pop(f"{name}.{parts.names[i]}", None)
            owned[i] = (i, axis)
            for k in np.flatnonzero(may_go[labels]):
                number = numbers.setdefault(int(labels[k]), len(numbers))
                found[(slice(None),) * axis + (k,)] = number
            break
        ids[f"{name}.{parts.names[i]}"] = found
        alone.append((f"{name}.{parts.names[i]}", found < 0))
    total = len(numbers)
    for site_name, mask in alone:
        ids[site_name][mask] = total + np.arange(mask.sum())
        total += int(mask.sum())
    names = [f"{name}.{x}" for x in parts.names]
    places = [
        UnitPlace(names[i], axis, a.ndim, labels, owned.get(i) == (i, axis))
        for i, a in enumerate(parts.arrays)
        for axis, labels in enumerate(whole[i])
    ]
    return UnitGroups(
        {key: jnp.asarray(value) for key, value in ids.items()},
        total,
        kinds=kinds_of(numbers, places, ids, name),
        stays=tuple(stays.items()),
    )


def _units(units: Units, labels: np.ndarray, nested: str) -> np.ndarray:
    """Return the unit of each label; of several, the outer or the inner one."""
    found = units.roots(labels)
    return np.array([units.parts(c)[0 if nested == "outer" else -1] for c in found.tolist()], int)


def _of_other_kind(units: Units, nested: str) -> np.ndarray:
    """Return, for each class, whether it is only ever the inner unit, or only ever the outer one."""
    first, other = np.zeros((2, units.count), bool)
    for c in np.unique(units.within[0]).tolist():
        parts = units.parts(c)
        mine = parts[0 if nested == "outer" else -1]
        first[mine] = True
        other[[u for u in parts if u != mine]] = True
    return other & ~first
