"""What each operation says of units: which indices of its arguments and results go together."""

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from bmrjax.structure.dataflow import ELEMENTWISE, stretches
from bmrjax.structure.windows import SCATTERS, windows

Labels = list[np.ndarray]

TAPS = "they are the taps of a filter"


class Collector(Protocol):
    """Takes down what operations say; see `bmrjax.structure.units.Units`."""

    def fresh(self, size: int) -> np.ndarray:
        """Return new labels."""
        ...

    def fixed(self, size: int, reason: str) -> np.ndarray:
        """Return new labels of indices that have to stay."""
        ...

    def fix(self, labels: Sequence[np.ndarray], reason: str) -> None:
        """Note that indices have to stay."""
        ...

    def join(self, first: np.ndarray, second: np.ndarray) -> None:
        """Note that indices go together."""
        ...

    def product(self, flat: np.ndarray, axes: Sequence[np.ndarray]) -> None:
        """Note that an index of one axis goes where an index of several axes, of which it is made, goes."""
        ...


def rule_of(name: str) -> Any:
    """Return the rule of an operation; None if nothing is known of it."""
    return _RULES.get(name, _elementwise if name in ELEMENTWISE else None)


def _elementwise(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels] | None:
    shape = eqn.outvars[0].aval.shape
    whole = [labels for labels in inputs if labels]
    if not all(stretches(v.aval.shape, shape) for v in eqn.invars) or not (whole or shape == ()):
        return None
    found: Labels = []
    for axis, size in enumerate(shape):
        # Those of one index are stretched to the rest.
        units.fix([x[axis] for x in whole if len(x[axis]) != size], "they are stretched")
        first, *others = [x[axis] for x in whole if len(x[axis]) == size]
        for other in others:
            units.join(first, other)
        found.append(first)
    return [found]


def _dot(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    a, b = inputs
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    for i, j in zip((*contract_a, *batch_a), (*contract_b, *batch_b), strict=True):
        units.join(a[i], b[j])
    free_a = [x for i, x in enumerate(a) if i not in (*contract_a, *batch_a)]
    free_b = [x for i, x in enumerate(b) if i not in (*contract_b, *batch_b)]
    return [[*(a[i] for i in batch_a), *free_a, *free_b]]


def _conv(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels] | None:
    image, kernel = inputs
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    if eqn.params["batch_group_count"] != 1:
        return None
    batch, channels, *space = (image[i] for i in numbers.lhs_spec)
    out, ins, *taps = (kernel[i] for i in numbers.rhs_spec)
    units.fix(space, "a convolution slides over them")
    units.fix(taps, TAPS)
    if groups == 1:
        units.join(channels, ins)
    else:
        # A group goes whole, or each loses the same of its channels.
        which = units.fresh(groups)
        units.product(channels, [which, ins])
        units.product(out, [which, units.fresh(len(out) // groups)])
    found: Labels = [np.zeros(0, int)] * len(numbers.out_spec)
    shape = eqn.outvars[0].aval.shape
    for axis, labels in zip(numbers.out_spec, [batch, out, *([None] * len(space))], strict=True):
        fixed = "a convolution slides over them"
        found[axis] = units.fixed(shape[axis], fixed) if labels is None else labels
    return [found]


def _transpose(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del units
    return [[inputs[0][i] for i in eqn.params["permutation"]]]


def _broadcast(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    shape, where = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    found = [units.fresh(n) for n in shape]
    for axis, labels in zip(where, inputs[0], strict=True):
        if len(labels) == shape[axis]:
            found[axis] = labels
        else:
            units.fix([labels], "they are stretched")
    return [found]


def _squeeze(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    gone = eqn.params["dimensions"]
    units.fix([inputs[0][i] for i in gone], "one of them is read by its place")
    return [[x for i, x in enumerate(inputs[0]) if i not in gone]]


def _expand(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    new, rest = eqn.params["dimensions"], iter(inputs[0])
    rank = len(eqn.outvars[0].aval.shape)
    return [[units.fixed(1, "it was added") if i in new else next(rest) for i in range(rank)]]


def _reshape(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels] | None:
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None or 0 in old:
        return None
    found: Labels = []
    for ins, outs in blocks(old, new):
        axes = [inputs[0][i] for i in ins]
        if len(ins) == len(outs) == 1:
            found.append(axes[0])
            continue
        flat = axes[0] if len(axes) == 1 else units.fresh(prod(new[i] for i in outs))
        if len(axes) != 1:
            units.product(flat, axes)
        made = [flat] if len(outs) == 1 else [units.fresh(new[i]) for i in outs]
        if len(outs) != 1:
            units.product(flat, made)
        found += made
    return [found]


def blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
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


def _concatenate(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    along = eqn.params["dimension"]
    found = list(inputs[0])
    for other in inputs[1:]:
        for axis, labels in enumerate(other):
            if axis != along:
                units.join(found[axis], labels)
    found[along] = np.concatenate([labels[along] for labels in inputs])
    return [found]


def _slice(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del units
    p = eqn.params
    strides = p["strides"] or (1,) * len(inputs[0])
    bounds = zip(inputs[0], p["start_indices"], p["limit_indices"], strides, strict=True)
    return [[labels[a:b:s] for labels, a, b, s in bounds]]


def _split_evenly(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return the parts that an axis is split into; equal parts stay equal, as code asks for so many."""
    axis, sizes = eqn.params["axis"], [int(n) for n in eqn.params["sizes"]]
    ends = np.cumsum(sizes)
    parts = [inputs[0][axis][end - n : end] for n, end in zip(sizes, ends, strict=True)]
    if len(set(sizes)) == 1:
        for other in parts[1:]:
            units.join(parts[0], other)
    return [[*inputs[0][:axis], part, *inputs[0][axis + 1 :]] for part in parts]


def _reverse(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del units
    turned = eqn.params["dimensions"]
    return [[x[::-1] if i in turned else x for i, x in enumerate(inputs[0])]]


def _reduce(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    gone = [inputs[0][i] for i in eqn.params["axes"]]
    units.fix(gone, "a sum or mean over all of them is taken, as in a normalisation layer")
    return reduced(units, eqn, inputs)


def reduced(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return labels for a sum over axes whose indices may go where they add nothing."""
    del units
    axes = eqn.params["axes"]
    return [[x for i, x in enumerate(inputs[0]) if i not in axes] for _ in eqn.outvars]


def _window(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    window, shape = eqn.params["window_dimensions"], eqn.outvars[0].aval.shape
    found = []
    for labels, width, size in zip(inputs[0], window, shape, strict=True):
        if width == 1 and size == len(labels):
            found.append(labels)
        else:
            units.fix([labels], "a window slides over them")
            found.append(units.fixed(size, "a window slides over them"))
    return [found]


def _pad(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    found = []
    for labels, bounds in zip(inputs[0], eqn.params["padding_config"], strict=True):
        if tuple(bounds) == (0, 0, 0):
            found.append(labels)
        else:
            units.fix([labels], "they are padded")
            found.append(units.fixed(_padded(len(labels), bounds), "they are padded"))
    return [found]


def _padded(size: int, bounds: Sequence[int]) -> int:
    low, high, inside = bounds
    return low + high + size + max(size - 1, 0) * inside


def _gather(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return the labels of rows that are looked up in a table."""
    table, where = inputs
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape = eqn.outvars[0].aval.shape
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(len(table)) if i not in dropped]
    found = [units.fixed(n, "they are looked up") for n in shape]
    units.fix(where, "they are indices")
    units.fix([table[i] for i in dropped], "they are looked up")
    for axis, i in zip(numbers.offset_dims, kept, strict=True):
        if sizes[i] == len(table[i]):
            found[axis] = table[i]
        else:
            units.fix([table[i]], "they are looked up")
    return [found]


def _dynamic_slice(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    found = []
    for labels, size in zip(inputs[0], eqn.params["slice_sizes"], strict=True):
        if size == len(labels):
            found.append(labels)
        else:
            units.fix([labels], "one of them is looked up")
            found.append(units.fixed(size, "one of them is looked up"))
    return [found]


def _update_slice(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    del eqn
    for whole, part in zip(inputs[0], inputs[1], strict=True):
        if len(whole) == len(part):
            units.join(whole, part)
        else:
            units.fix([whole, part], "some of them are overwritten")
    return [inputs[0]]


def _along_an_axis(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return labels for an operation whose results depend on all that lies along one axis."""
    axis = eqn.params["axis"] if "axis" in eqn.params else eqn.params["dimension"]
    for labels in inputs:
        units.fix([labels[axis]], f"'{eqn.primitive.name}' goes along them")
        for mine, first in zip(labels, inputs[0], strict=True):
            units.join(mine, first)
    return [list(inputs[0]) for _ in eqn.outvars]


def _scatter(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    whole, where, updates = inputs
    pairs = windows(eqn)
    for i, j in pairs:
        units.join(whole[i], updates[j])
    units.fix(where, "they are indices")
    reason = "they are written to by their place"
    units.fix([x for i, x in enumerate(whole) if i not in [p for p, _ in pairs]], reason)
    units.fix([x for j, x in enumerate(updates) if j not in [q for _, q in pairs]], reason)
    return [whole]


def _repeated(units: Collector, eqn: Any, inputs: list[Labels]) -> list[Labels]:
    """Return labels for what a loop carries: those before and after a turn are the same."""
    count = len(eqn.outvars)
    for first, second in zip(inputs[:count], inputs[count : 2 * count], strict=True):
        for a, b in zip(first, second, strict=True):
            units.join(a, b)
    return inputs[:count]


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
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _update_slice,
    "repeated": _repeated,
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(
        ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort"), _along_an_axis
    ),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max"), _window),
}
