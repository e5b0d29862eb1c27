"""Which numbers of a network vary with its input, and which of those reach its outputs.

Both are facts of single elements, found by running each operation on masks of zeros and ones. An
operation that is not known is taken to let everything through.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from bmrjax.backend.jaxprs import bind, bind_one
from bmrjax.structure.repeated import REPEATED
from bmrjax.structure.windows import (
    SCATTERS,
    looked_up,
    read_anywhere,
    read_from_windows,
    spread_over_windows,
    spread_to_axes,
)

PRODUCTS = ("dot_general", "conv_general_dilated")
# Operations whose results are sums of elements of the first argument, or copies of them.
SUMS = (
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "rev", "concatenate",
    "split", "pad", "reduce_sum", "cumsum", "cumprod", "cummax", "cummin",
    "reduce_window_sum", "gather", "dynamic_slice",
    "reduce_max", "reduce_min", "reduce_prod", "reduce_window_max",
)  # fmt: skip
# Those of them whose results are elements of an argument, each at most once: so are those of their transpose.
MOVES_ELEMENTS = frozenset((
    "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev", "concatenate", "split", "pad",
))  # fmt: skip
# Operations whose result has, element by element, what its arguments have there; some may be scalars.
ELEMENTWISE = frozenset((
    "add", "add_any", "sub", "mul", "div", "rem", "neg", "exp", "exp2", "log", "log1p", "expm1", "tanh",
    "logistic", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh",
    "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma", "sqrt", "rsqrt", "cbrt", "abs", "sign",
    "square", "integer_pow", "pow", "max", "min", "clamp", "select_n", "convert_element_type",
    "reduce_precision", "stop_gradient", "floor", "ceil", "round", "is_finite", "nextafter", "eq", "ne",
    "gt", "ge", "lt", "le", "and", "or", "not", "xor", "copy", "copy_p",
))  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A product that sums over an axis: a dense layer, a convolution, attention.

    Attributes:
        index: Position of the operation.
        axis: The contracted axis of its first argument.
        other: That of its second.
    """

    index: int
    axis: int
    other: int


def sites(jaxpr: Any) -> list[Site]:
    """Return the contractions of a flat jaxpr; a product over several axes is several."""
    found = []
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "dot_general":
            (first, second), _ = eqn.params["dimension_numbers"]
            found += [Site(i, a, b) for a, b in zip(first, second, strict=True)]
        elif eqn.primitive.name == "conv_general_dilated" and eqn.params["batch_group_count"] == 1:
            numbers = eqn.params["dimension_numbers"]
            found.append(Site(i, numbers.lhs_spec[1], numbers.rhs_spec[1]))
    return found


def reached_by(jaxpr: Any, inputs: Iterable[Any]) -> set[Any]:
    """Return the variables that depend on some of the arguments, these among them."""
    found = set(inputs)
    for eqn in jaxpr.eqns:
        if any(v in found for v in eqn.invars if not isinstance(v, jec.Literal)):
            found.update(eqn.outvars)
    return found


def _mask(condition: Any) -> Float[Array, "..."]:
    return jnp.asarray(condition).astype(jnp.float32)


def product(eqn: Any, masks: list[Any]) -> Array:
    """Run an operation in `PRODUCTS` on masks in float32, whatever the precision of its own numbers."""
    return bind_one(
        eqn.replace(params={**eqn.params, "preferred_element_type": jnp.dtype(jnp.float32)}), masks
    )


def _sum_like(eqn: Any, mask: Array) -> Array:
    """Run an operation in `SUMS` on the mask of its first argument, adding up where it takes the largest."""
    name = eqn.primitive.name
    if name == "reduce_window_max":
        p = eqn.params
        return lax.reduce_window(
            mask, 0.0, lax.add, p["window_dimensions"], p["window_strides"], p["padding"],
            p["base_dilation"], p["window_dilation"],
        )  # fmt: skip
    if name.startswith("reduce_") and name != "reduce_window_sum":
        return jnp.sum(mask, axis=tuple(eqn.params["axes"]))
    raise AssertionError(name)


def _through(eqn: Any, masks: list[Array], rest: list[Any]) -> list[Array]:
    """Run an operation in `SUMS` on masks."""
    name = eqn.primitive.name
    if name in ("concatenate", "pad"):
        return bind(eqn, masks)
    if name in ("cumprod", "cummax", "cummin"):
        return [lax.cumsum(masks[0], axis=eqn.params["axis"], reverse=eqn.params["reverse"])]
    if name in ("reduce_max", "reduce_min", "reduce_prod", "reduce_window_max", "reduce_sum"):
        return [_sum_like(eqn, masks[0])]
    return bind(eqn, [masks[0], *rest])


class Dataflow:
    """Runs a flat jaxpr on numbers and masks; use inside one traced function.

    Args:
        jaxpr: Without calls.
        consts: Values of its constants.
        args: Parameters, then inputs.
        varies: For each argument, whether it is an input; or which of its elements vary.
    """

    def __init__(self, jaxpr: Any, consts: Any, args: Any, varies: Sequence[bool | Array]):
        self.jaxpr = jaxpr
        self.values: dict[Any, Any] = {}
        self.depends: dict[Any, Array] = {}
        self.live: dict[Any, Array] = {}
        # Of products whose first operand varies: which of its elements reach an output.
        self._pulled: dict[int, Array] = {}
        # What inputs reach. All else is constant, without a mask that says so.
        inputs = [v for v, flag in zip(jaxpr.invars, varies, strict=True) if flag is not False]
        self._reached = reached_by(jaxpr, inputs)
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            self._write(var, value, jnp.zeros(jnp.shape(value), jnp.float32))
        for var, value, flag in zip(jaxpr.invars, args, varies, strict=True):
            self._write(var, value, jnp.broadcast_to(_mask(flag), jnp.shape(value)))
        for eqn in jaxpr.eqns:
            self._forward(eqn)
        for var in jaxpr.outvars:
            if not isinstance(var, jec.Literal):
                self.live[var] = jnp.ones(var.aval.shape, jnp.float32)
        for eqn in reversed(jaxpr.eqns):
            self._backward(eqn)

    def _varies(self, var: Any) -> bool:
        return not isinstance(var, jec.Literal) and var in self._reached

    def _write(self, var: Any, value: Any, depends: Array) -> None:
        self.values[var], self.depends[var] = value, depends

    def value(self, var: Any) -> Any:
        """Return the number that a variable has for these arguments."""
        return var.val if isinstance(var, jec.Literal) else self.values[var]

    def varying(self, var: Any) -> Array:
        """Return 1 where an element varies with the input, 0 where it is constant."""
        if isinstance(var, jec.Literal):
            return jnp.zeros(jnp.shape(var.val), jnp.float32)
        return self.depends[var]

    def nonzero(self, var: Any) -> Array:
        """Return 0 where an element is zero for every input, else 1."""
        nonzero = _mask(self.value(var) != 0)
        return jnp.maximum(self.varying(var), nonzero) if self._varies(var) else nonzero

    def wanted(self, var: Any) -> Array:
        """Return 1 where an element reaches an output."""
        found = self.live.get(var)
        return jnp.zeros(var.aval.shape, jnp.float32) if found is None else found

    def _forward(self, eqn: Any) -> None:
        found = bind(eqn, [self.value(v) for v in eqn.invars])
        if not any(self._varies(v) for v in eqn.invars):
            for var, value in zip(eqn.outvars, found, strict=True):
                self._write(var, value, jnp.zeros(var.aval.shape, jnp.float32))
            return
        clean = self._binary(eqn, forward=True)
        for var, value, mask in zip(eqn.outvars, found, self._depends(eqn), strict=True):
            self._write(var, value, mask if clean else _mask(mask > 0))

    def _binary(self, eqn: Any, *, forward: bool) -> bool:
        """Say whether an operation makes masks of zeros and ones only. Fewer operations compile faster."""
        name = eqn.primitive.name
        return (
            name in MOVES_ELEMENTS or _elementwise(eqn) or (forward and name == "broadcast_in_dim")
        )

    def _depends(self, eqn: Any) -> list[Array]:
        name, shapes = eqn.primitive.name, [v.aval.shape for v in eqn.outvars]
        masks = [self.varying(v) for v in eqn.invars]
        if name in PRODUCTS:
            (a, b), (varies_a, varies_b) = eqn.invars, masks
            terms = [product(eqn, [varies_a, self.nonzero(b)])] if self._varies(a) else []
            if self._varies(b):
                terms.append(product(eqn, [self.nonzero(a), varies_b]))
            return [sum(terms[1:], terms[0])]
        if name in SUMS and (name in ("concatenate", "pad") or len(eqn.invars) == 1):
            return _through(eqn, masks, [])
        if name in SUMS:
            first, *places = eqn.invars
            if not self._varies(first) and name in ("gather", "dynamic_slice"):
                return [looked_up(eqn, self.value(first))]
            moved = _through(eqn, masks[:1], [self.value(v) for v in places])
            where = sum((jnp.max(m, initial=0.0) for m in masks[1:]), jnp.zeros(()))
            return [jnp.maximum(m, where) for m in moved]
        if name == "mul":
            (a, b), (varies_a, varies_b) = eqn.invars, masks
            terms = [varies_a * self.nonzero(b)] if self._varies(a) else []
            terms += [self.nonzero(a) * varies_b] if self._varies(b) else []
            return [jnp.broadcast_to(functools.reduce(jnp.maximum, terms), shapes[0])]
        if name == "select_n":
            return [jnp.broadcast_to(self._selected(eqn, masks), shapes[0])]
        if name == REPEATED:
            return self._repeated(eqn, masks)
        if name in SCATTERS:
            operand, where, updates = eqn.invars
            if self._varies(where):
                there = spread_over_windows(eqn, self.nonzero(updates))
                return [jnp.maximum(there, spread_to_axes(eqn, self.nonzero(operand)))]
            return [jnp.maximum(masks[0], spread_over_windows(eqn, masks[2]))]
        if _elementwise(eqn):
            those = [m for v, m in zip(eqn.invars, masks, strict=True) if self._varies(v)]
            return [jnp.broadcast_to(functools.reduce(jnp.maximum, those), shapes[0])]
        anything = sum((jnp.max(m, initial=0.0) for m in masks), jnp.zeros(()))
        return [jnp.broadcast_to(anything, shape) for shape in shapes]

    def _selected(self, eqn: Any, masks: list[Array]) -> Array:
        """Return what varies of elements that are chosen among several."""
        which, *cases = eqn.invars
        if not self._varies(which):
            return lax.select_n(self.value(which), *masks[1:])
        # Which one it is makes no difference where all are the same constant.
        first, *others = [self.value(v) for v in cases]
        apart = [_mask(first != other) for other in others]
        chosen = jnp.broadcast_to(masks[0], jnp.shape(first))
        return jnp.maximum(
            functools.reduce(jnp.maximum, masks[1:]),
            chosen * functools.reduce(jnp.maximum, apart, jnp.zeros(jnp.shape(first))),
        )

    def _repeated(self, eqn: Any, masks: list[Array]) -> list[Array]:
        """Return what varies, with the input or from turn to turn, of what a loop carries."""
        count = len(eqn.outvars)
        before, after = eqn.invars[:count], eqn.invars[count : 2 * count]
        found = [
            jnp.maximum(
                jnp.maximum(masks[i], masks[count + i]), _mask(self.value(a) != self.value(b))
            )
            for i, (a, b) in enumerate(zip(before, after, strict=True))
        ]
        if not eqn.params["last"]:
            return found
        # If the turns so far do not show what any number of turns would, nothing is known.
        more = sum(
            (jnp.max(f - m, initial=0.0) for f, m in zip(found, masks[:count], strict=True)),
            jnp.zeros(()),
        )
        return [jnp.maximum(f, _mask(more > 0)) for f in found]

    def _backward(self, eqn: Any) -> None:
        if not any(self._varies(v) for v in eqn.invars):
            return  # its results are constants
        live = [self.wanted(v) for v in eqn.outvars]
        clean = self._binary(eqn, forward=False)
        for var, mask in zip(eqn.invars, self._wants(eqn, live), strict=True):
            if mask is None or not self._varies(var):
                continue
            found = mask if clean else _mask(mask > 0)
            self.live[var] = jnp.maximum(found, self.live[var]) if var in self.live else found

    def _wants(self, eqn: Any, live: list[Array]) -> list[Array | None]:
        name = eqn.primitive.name
        if name in PRODUCTS:
            a, b = eqn.invars
            found: list[Array | None] = [None, None]
            if self._varies(a):
                found[0] = self._pulled[id(eqn)] = _pulled(eqn, self.nonzero(b), live[0])
            if self._varies(b):
                found[1] = _pulled(eqn, self.nonzero(a), live[0], side=1)
            return found
        if name in SUMS:
            rest = [self.value(v) for v in eqn.invars[1:]]
            if name in ("concatenate", "pad"):
                masks = [self.varying(v) for v in eqn.invars]
                return list(jax.vjp(lambda *m: _through(eqn, list(m), []), *masks)[1](live))
            anything = jnp.max(live[0], initial=0.0)
            if any(self._varies(v) for v in eqn.invars[1:]):
                first = read_anywhere(eqn, live[0])
            else:
                back = jax.vjp(lambda m: _through(eqn, [m], rest), self.varying(eqn.invars[0]))[1]
                first = back(live)[0]
            return [
                first,
                *(jnp.full(v.aval.shape, anything, jnp.float32) for v in eqn.invars[1:]),
            ]
        if name == "mul":
            a, b = eqn.invars
            return [
                _fit(live[0] * self.nonzero(b), a.aval.shape) if self._varies(a) else None,
                _fit(live[0] * self.nonzero(a), b.aval.shape) if self._varies(b) else None,
            ]
        if name == "select_n" and not self._varies(eqn.invars[0]):
            which = jnp.broadcast_to(self.value(eqn.invars[0]), live[0].shape)
            return [None, *(live[0] * _mask(which == i) for i in range(len(eqn.invars) - 1))]
        if name in SCATTERS:
            everywhere = jnp.broadcast_to(jnp.max(live[0], initial=0.0), eqn.invars[1].aval.shape)
            return [live[0], everywhere, read_from_windows(eqn, live[0])]
        if name == REPEATED:
            return [jnp.ones(v.aval.shape, jnp.float32) for v in eqn.invars]
        if _elementwise(eqn):
            return [_fit(live[0], v.aval.shape) for v in eqn.invars]
        anything = sum((jnp.max(m, initial=0.0) for m in live), jnp.zeros(()))
        if eqn.effects:
            anything = jnp.ones(())
        return [jnp.broadcast_to(anything, v.aval.shape) for v in eqn.invars]

    def needed(self, site: Site) -> Bool[Array, " size"]:
        """Return which terms of a contraction bring something that varies to an output."""
        eqn = self.jaxpr.eqns[site.index]
        a, b = eqn.invars
        live = self.wanted(eqn.outvars[0])
        if not self._varies(a) and not self._varies(b):
            if a.aval.shape[site.axis] != b.aval.shape[site.other]:  # a convolution in groups
                return jnp.ones(a.aval.shape[site.axis], bool)
            # A product of parameters: its terms may go where they are nothing.
            return _along(self.nonzero(a), site.axis) & _along(self.nonzero(b), site.other)
        terms = jnp.zeros(a.aval.shape)
        if self._varies(a):
            terms = terms + self.varying(a) * self._pulled[id(eqn)]
        if self._varies(b):
            terms = terms + self.nonzero(a) * _pulled(eqn, self.varying(b), live)
        return _along(terms, site.axis)


def _pulled(eqn: Any, other: Array, live: Array, *, side: int = 0) -> Array:
    """Return from which elements of an operand a product reaches live elements, given the other operand."""

    def of(mask: Array) -> Array:
        return product(eqn, [mask, other] if side == 0 else [other, mask])

    # Linear as it is, it need not be run forward again, as a derivative would.
    shape = jax.ShapeDtypeStruct(eqn.invars[side].aval.shape, jnp.float32)
    return jax.linear_transpose(of, shape)(live)[0]


def _along(mask: Array, axis: int) -> Bool[Array, " size"]:
    """Return which indices of an axis have any element."""
    return jnp.any(mask > 0, axis=tuple(i for i in range(mask.ndim) if i != axis))


def _elementwise(eqn: Any) -> bool:
    shape = eqn.outvars[0].aval.shape
    return eqn.primitive.name in ELEMENTWISE and all(
        stretches(v.aval.shape, shape) for v in eqn.invars
    )


def stretches(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Say whether an operation on elements takes an argument of a shape for a result of another."""
    return old == () or (
        len(old) == len(new) and all(a in (1, b) for a, b in zip(old, new, strict=True))
    )


def _fit(mask: Array, shape: tuple[int, ...]) -> Array:
    """Return a result's mask for an argument, which may have been stretched to it."""
    if shape == ():
        return jnp.max(mask, initial=0.0)
    axes = tuple(i for i, (a, b) in enumerate(zip(mask.shape, shape, strict=True)) if a != b)
    return jnp.max(mask, axis=axes, keepdims=True, initial=0.0) if axes else mask
