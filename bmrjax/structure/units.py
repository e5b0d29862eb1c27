"""Which indices of which arrays can only go together: the dependency graph of a network.

Every index of every axis of every array belongs to a *unit*. An operation joins units: the columns of a
weight with the features that they multiply, the summands of a skip connection with each other, the
channels of a convolution with the blocks of columns behind a flattening. Removing a unit means
taking all its indices out of all arrays. Units that a network's code could not lose are *fixed*, with
a reason.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jec
import numpy as np

from bmrjax.structure.dataflow import ELEMENTWISE, stretches

Labels = list[np.ndarray]

INPUT = "the input has them"
OUTPUT = "they are outputs"


class Units:
    """The units of a flat jaxpr.

    Args:
        jaxpr: Without calls.
        num_params: How many of its arguments are parameters; the rest are inputs.
        free_inputs: Whether indices of the last axis of an input may go.
    """

    def __init__(self, jaxpr: Any, num_params: int, *, free_inputs: bool = False):
        self._parent: list[int] = []
        self._reason: dict[int, str] = {}
        self._labels: dict[Any, Labels] = {}
        for i, var in enumerate([*jaxpr.constvars, *jaxpr.invars]):
            self._labels[var] = [self._fresh(n) for n in var.aval.shape]
            argument = i - len(jaxpr.constvars)
            if argument < 0:
                self._fix(self._labels[var], "a constant of the code has them")
            elif argument >= num_params:
                self._fix(self._labels[var][: -1 if free_inputs else None], INPUT)
        for eqn in jaxpr.eqns:
            self._visit(eqn)
        for var in jaxpr.outvars:
            self._fix(self.of(var), OUTPUT)

    def of(self, var: Any) -> Labels:
        """Return the labels of each axis of a variable; `root` says which are one unit."""
        if isinstance(var, jec.Literal):
            return [self._fresh(n) for n in np.shape(var.val)]
        return self._labels[var]

    def root(self, label: int) -> int:
        """Return the unit of a label."""
        parent = self._parent
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    def roots(self, labels: np.ndarray) -> np.ndarray:
        """Return the unit of each label."""
        return np.array([self.root(int(i)) for i in labels], int)

    def reason(self, unit: int) -> str | None:
        """Return why a unit has to stay, None if it may go."""
        return self._reason.get(self.root(unit))

    def _fresh(self, size: int) -> np.ndarray:
        start = len(self._parent)
        self._parent.extend(range(start, start + size))
        return np.arange(start, start + size)

    def _fixed(self, size: int, reason: str) -> np.ndarray:
        found = self._fresh(size)
        self._fix([found], reason)
        return found

    def _fix(self, labels: Sequence[np.ndarray], reason: str) -> None:
        for axis in labels:
            for label in axis:
                self._reason.setdefault(self.root(int(label)), reason)

    def _join(self, first: np.ndarray, second: np.ndarray) -> None:
        for a, b in zip(first, second, strict=True):
            root_a, root_b = self.root(int(a)), self.root(int(b))
            if root_a == root_b:
                continue
            self._parent[root_b] = root_a
            if root_b in self._reason:
                self._reason.setdefault(root_a, self._reason.pop(root_b))

    def _visit(self, eqn: Any) -> None:
        name = eqn.primitive.name
        rule = _RULES.get(name, _elementwise if name in ELEMENTWISE else None)
        inputs = [self.of(v) for v in eqn.invars]
        found = rule(self, eqn, inputs) if rule else None
        if found is None:
            for labels in inputs:
                self._fix(labels, f"'{name}' reads them")
            found = [
                [self._fixed(n, f"'{name}' makes them") for n in v.aval.shape] for v in eqn.outvars
            ]
        self._labels.update(zip(eqn.outvars, found, strict=True))


def _elementwise(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels] | None:
    shape = eqn.outvars[0].aval.shape
    whole = [labels for labels in inputs if labels]
    if not all(stretches(v.aval.shape, shape) for v in eqn.invars) or not (whole or shape == ()):
        return None
    found: Labels = []
    for axis, size in enumerate(shape):
        # Those of one index are stretched to the rest.
        units._fix([x[axis] for x in whole if len(x[axis]) != size], "they are stretched")
        first, *others = [x[axis] for x in whole if len(x[axis]) == size]
        for other in others:
            units._join(first, other)
        found.append(first)
    return [found]


def _dot(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    a, b = inputs
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    for i, j in zip((*contract_a, *batch_a), (*contract_b, *batch_b), strict=True):
        units._join(a[i], b[j])
    free_a = [x for i, x in enumerate(a) if i not in (*contract_a, *batch_a)]
    free_b = [x for i, x in enumerate(b) if i not in (*contract_b, *batch_b)]
    return [[*(a[i] for i in batch_a), *free_a, *free_b]]


def _conv(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels] | None:
    image, kernel = inputs
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    if eqn.params["batch_group_count"] != 1:
        return None
    batch, channels, *space = (image[i] for i in numbers.lhs_spec)
    out, ins, *taps = (kernel[i] for i in numbers.rhs_spec)
    units._fix(space, "a convolution slides over them")
    units._fix(taps, "they are the taps of a filter")
    if groups == 1:
        units._join(channels, ins)
    elif groups == len(channels):
        # Filters of one channel each: they go with it.
        units._fix([ins], "a filter has one channel")
        units._join(out, np.repeat(channels, len(out) // groups))
    else:
        units._fix([channels, out, ins], "a convolution in groups reads them")
    found: Labels = [np.zeros(0, int)] * len(numbers.out_spec)
    shape = eqn.outvars[0].aval.shape
    for axis, labels in zip(numbers.out_spec, [batch, out, *([None] * len(space))], strict=True):
        fixed = "a convolution slides over them"
        found[axis] = units._fixed(shape[axis], fixed) if labels is None else labels
    return [found]


def _transpose(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del units
    return [[inputs[0][i] for i in eqn.params["permutation"]]]


def _broadcast(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    shape, where = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    found = [units._fresh(n) for n in shape]
    for axis, labels in zip(where, inputs[0], strict=True):
        if len(labels) == shape[axis]:
            found[axis] = labels
        else:
            units._fix([labels], "they are stretched")
    return [found]


def _squeeze(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    gone = eqn.params["dimensions"]
    units._fix([inputs[0][i] for i in gone], "one of them is read by its place")
    return [[x for i, x in enumerate(inputs[0]) if i not in gone]]


def _expand(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    new, rest = eqn.params["dimensions"], iter(inputs[0])
    rank = len(eqn.outvars[0].aval.shape)
    return [[units._fixed(1, "it was added") if i in new else next(rest) for i in range(rank)]]


def _reshape(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels] | None:
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None or 0 in old:
        return None
    found: Labels = []
    for ins, outs in _blocks(old, new):
        axes, sizes = [inputs[0][i] for i in ins], [new[i] for i in outs]
        if len(axes) == 1 and len(sizes) == 1:
            found.append(axes[0])
        elif len(sizes) == 1:
            found.append(_merged(units, axes))
        elif len(axes) == 1:
            found += _split(units, axes[0], sizes)
        else:
            units._fix(axes, "a reshape mixes them with others")
            found += [units._fixed(n, "a reshape makes them") for n in sizes]
    return [found]


def _blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return runs of axes, old and new, with the same number of elements."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ins, outs = [i][: len(old) - i], [j][: len(new) - j]
        size_in, size_out = (old[i] if ins else 1), (new[j] if outs else 1)
        i, j = i + len(ins), j + len(outs)
        while size_in != size_out:
            if size_in < size_out:
                ins.append(i)
                size_in, i = size_in * old[i], i + 1
            else:
                outs.append(j)
                size_out, j = size_out * new[j], j + 1
        found.append((ins, outs))
    return found


def _merged(units: Units, axes: Labels) -> np.ndarray:
    """Return labels for several axes in one: those of the first that may lose indices."""
    if not axes:
        return units._fixed(1, "it was added")
    sizes = [len(labels) for labels in axes]
    wide = [i for i, size in enumerate(sizes) if size > 1] or [0]
    free = [i for i in wide if any(units.reason(int(x)) is None for x in axes[i])]
    carrier = (free or wide)[0]
    units._fix(
        [axes[i] for i in range(len(axes)) if i != carrier], "they are flattened with others"
    )
    index = np.indices(sizes)[carrier].ravel()
    return axes[carrier][index]


def _split(units: Units, labels: np.ndarray, sizes: Sequence[int]) -> Labels:
    """Return labels for one axis in several: the first of more than one index has the units."""
    found = [units._fixed(n, "they are parts of others") for n in sizes]
    carrier = next((i for i, n in enumerate(sizes) if n > 1), 0)
    if not sizes:
        units._fix([labels], "a reshape drops them")
        return found
    index = np.indices(sizes)[carrier].ravel()
    found[carrier] = units._fresh(sizes[carrier])
    units._join(found[carrier][index], labels)
    return found


def _concatenate(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    along = eqn.params["dimension"]
    found = list(inputs[0])
    for other in inputs[1:]:
        for axis, labels in enumerate(other):
            if axis != along:
                units._join(found[axis], labels)
    found[along] = np.concatenate([labels[along] for labels in inputs])
    return [found]


def _slice(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del units
    p = eqn.params
    strides = p["strides"] or (1,) * len(inputs[0])
    bounds = zip(inputs[0], p["start_indices"], p["limit_indices"], strides, strict=True)
    return [[labels[a:b:s] for labels, a, b, s in bounds]]


def _split_evenly(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return the parts that an axis is split into; equal parts stay equal."""
    axis, sizes = eqn.params["axis"], [int(n) for n in eqn.params["sizes"]]
    ends = np.cumsum(sizes)
    parts = [inputs[0][axis][end - n : end] for n, end in zip(sizes, ends, strict=True)]
    if len(set(sizes)) == 1:
        for other in parts[1:]:
            units._join(parts[0], other)
    else:
        units._fix([inputs[0][axis]], "they are split at fixed places")
    return [[*inputs[0][:axis], part, *inputs[0][axis + 1 :]] for part in parts]


def _reverse(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del units
    turned = eqn.params["dimensions"]
    return [[x[::-1] if i in turned else x for i, x in enumerate(inputs[0])]]


def _reduce(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    axes = eqn.params["axes"]
    gone = [inputs[0][i] for i in axes]
    units._fix(gone, "a sum or mean over all of them is taken, as in a normalisation layer")
    return [[x for i, x in enumerate(inputs[0]) if i not in axes] for _ in eqn.outvars]


def _window(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    window, shape = eqn.params["window_dimensions"], eqn.outvars[0].aval.shape
    found = []
    for labels, width, size in zip(inputs[0], window, shape, strict=True):
        if width == 1 and size == len(labels):
            found.append(labels)
        else:
            units._fix([labels], "a window slides over them")
            found.append(units._fixed(size, "a window slides over them"))
    return [found]


def _pad(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    found = []
    for labels, bounds in zip(inputs[0], eqn.params["padding_config"], strict=True):
        if tuple(bounds) == (0, 0, 0):
            found.append(labels)
        else:
            units._fix([labels], "they are padded")
            found.append(units._fixed(_padded(len(labels), bounds), "they are padded"))
    return [found]


def _padded(size: int, bounds: Sequence[int]) -> int:
    low, high, inside = bounds
    return low + high + size + max(size - 1, 0) * inside


def _gather(units: Units, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return the labels of rows that are looked up in a table."""
    table, where = inputs
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape = eqn.outvars[0].aval.shape
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(len(table)) if i not in dropped]
    found = [units._fixed(n, "they are looked up") for n in shape]
    units._fix(where, "they are indices")
    units._fix([table[i] for i in dropped], "they are looked up")
    for axis, i in zip(numbers.offset_dims, kept, strict=True):
        if sizes[i] == len(table[i]):
            found[axis] = table[i]
        else:
            units._fix([table[i]], "they are looked up")
    return [found]


_REDUCTIONS = (
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin",
)  # fmt: skip
_RULES: dict[str, Any] = {
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "expand_dims": _expand,
    "reshape": _reshape,
    "concatenate": _concatenate,
    "slice": _slice,
    "split": _split_evenly,
    "rev": _reverse,
    "pad": _pad,
    "gather": _gather,
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max"), _window),
}
