"""Run a function with uncertain arrays in place of numbers, by its jaxpr and one rule per primitive."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.extend.core as jec
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.backend.jaxprs import CALLS, bind, bind_one
from bmrjax.backend.noise import normal_noise
from bmrjax.infer.propagate.uncertain import GammaVariable, NotNormalError, Uncertain, root_of

Mode = Literal["local", "moments"]
Rule = Callable[["Context", Any, list[Any]], Any]

# Primitive name to a rule for when at least one argument is uncertain. A rule returns one value, or a
# list where the primitive has several results, or `NotImplemented`.
RULES: dict[str, Rule] = {}

# What a gamma variable passes through as it is, and functions that pass it on.
_MOVES = {
    "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev", "copy", "copy_p",
    "broadcast_in_dim", "convert_element_type", "stop_gradient",
}  # fmt: skip

_AFFINE = {"add", "add_any", "sub", "neg", "mul"}
# What stays normal, and may stretch an argument of one index, or a number, to the others.
_STRETCHING = {"add", "add_any", "sub", "mul", "div", "select_n"}
# What takes the moments of its arguments.
_SUMS = {"dot_general", "conv_general_dilated", "reduce_sum", "reduce_window_sum", "cumsum"}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class NoRuleError(NotImplementedError):
    """The network uses an operation that moments cannot be carried through."""

    def __init__(self, primitive: str):
        # A constant could stand for a softmax's maximum. But its denominator, taken as normal and independent
        # of the numerator, comes near zero: at a scale of 1 means came out up to 29 times off.
        softmax = " (a softmax has it, and so has attention)" if primitive == "reduce_max" else ""
        super().__init__(
            f"estimator='moments' has no rule for the operation '{primitive}'{softmax} on these uncertain "
            "arrays. Use FitOptions(estimator='local'), which samples there, or 'global'."
        )


@dataclass
class Context:
    """What the rules of one run share.

    Attributes:
        mode: ``"moments"`` carries means and variances to the end; ``"local"`` samples them where an
            operation is not linear.
        key: PRNG key of the samples.
    """

    mode: Mode
    key: Array
    _count: int = field(default=0)

    def next_key(self) -> Array:
        """Return a key that was not used before."""
        self._count += 1
        return jax.random.fold_in(self.key, self._count)

    def draw(self, value: Any) -> Any:
        """Return a sample of an uncertain array; the same one at every call."""
        if isinstance(value, GammaVariable):
            return value.draw(self.next_key())
        if not isinstance(value, Uncertain):
            return value
        if value.drawn is None:
            for source in value.sources:
                if source.drawn is None:
                    source.drawn = self._draw_source(source)
            value.drawn = value.at({id(s): s.drawn for s in value.sources})
        return value.drawn

    def _draw_source(self, source: Uncertain) -> Array:
        if source.moved_from is not None:
            origin, move = source.moved_from
            return move(self.draw(origin))
        noise = normal_noise(self.next_key(), source.shape, source.dtype)
        return source.mean + root_of(source.variance) * noise


def interpret(ctx: Context, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Run a jaxpr.

    Args:
        ctx: The context.
        jaxpr: A `jax.extend.core.Jaxpr`.
        consts: Values of its constants.
        args: Arrays, or `Uncertain` ones.

    Returns:
        Its results: arrays, or `Uncertain` ones.
    """
    values: dict[Any, Any] = {}
    equations, uses = _live(jaxpr)
    unread = uses.copy()
    outside = {id(s) for v in (*consts, *args) if isinstance(v, Uncertain) for s in v.sources}

    def read(var: Any) -> Any:
        if isinstance(var, jec.Literal):
            return var.val
        value = values[var]
        unread[var] -= 1
        if not isinstance(value, Uncertain) or uses[var] == 1:
            return value
        # What two operations share is one variable: independent samples would lose that, and so
        # would functions of more sources than can be carried.
        if ctx.mode == "local":
            return ctx.draw(value)
        return value if len(value.sources) == 1 else value.as_source

    def write(var: Any, value: Any) -> None:
        values[var] = value
        if ctx.mode == "local" or not isinstance(value, Uncertain) or uses[var] == 1:
            return
        # A shared function of one source that nothing else knows may as well be a source where all that
        # follows is affine in it, as a gate is: that needs its mean and variance only.
        if is_private(var, value) and _stays_affine(var, equations):
            values[var] = value.as_source

    def is_private(var: Any, value: Uncertain) -> bool:
        """Say whether nothing else that will be read is a function of the value's source."""
        (source, *others) = map(id, value.sources)
        others += [
            id(s)
            for other, v in values.items()
            if other is not var and unread[other] > 0 and isinstance(v, Uncertain)
            for s in v.sources
        ]
        return source not in outside and source not in others

    def factors(eqn: Any, inputs: list[Any]) -> list[Any]:
        """Return the arguments of a product, a gate among them as a source, if all that follows is affine."""
        if ctx.mode == "local" or not all(isinstance(v, Uncertain) for v in inputs):
            return inputs
        if not _stays_affine(eqn.outvars[0], equations):
            return inputs
        a, b = inputs
        if {id(s) for s in a.sources} & {id(s) for s in b.sources}:
            return inputs

        def is_gate(var: Any, value: Uncertain) -> bool:
            one = len(value.sources) == 1 and not value.is_normal and unread[var] == 0
            return one and is_private(var, value)

        pairs = zip(eqn.invars, inputs, strict=True)
        return [v.as_source if is_gate(var, v) else v for var, v in pairs]

    for var, value in zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True):
        write(var, value)
    for eqn in equations:
        try:
            inputs = [read(var) for var in eqn.invars]
            if eqn.primitive.name == "mul":
                inputs = factors(eqn, inputs)
            found = _apply(ctx, eqn, inputs)
        except NotNormalError:
            raise NoRuleError(eqn.primitive.name) from None
        for var, value in zip(eqn.outvars, found, strict=True):
            write(var, value)
    return [read(var) for var in jaxpr.outvars]


def _stays_affine(var: Any, equations: list[Any]) -> bool:
    """Say whether all that is computed from a variable, until its moments are needed, is affine in it."""
    found = {var}
    for eqn in equations:
        read = [v for v in eqn.invars if not isinstance(v, jec.Literal) and v in found]
        name = eqn.primitive.name
        if not read or name in _MOVES or name in _SUMS:
            continue
        if name not in _AFFINE or (name == "mul" and len(read) > 1):
            return False
        found.update(eqn.outvars)
    return True


def _live(jaxpr: Any) -> tuple[list[Any], Counter]:
    """Return the equations that the results need, and how often each variable is read by them."""
    equations: list[Any] = []
    uses = Counter(v for v in jaxpr.outvars if not isinstance(v, jec.Literal))
    for eqn in reversed(jaxpr.eqns):
        if any(uses[v] for v in eqn.outvars) or eqn.effects:
            equations.append(eqn)
            uses.update(v for v in eqn.invars if not isinstance(v, jec.Literal))
    return equations[::-1], uses


def _apply(ctx: Context, eqn: Any, inputs: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    if any(isinstance(value, GammaVariable) for value in inputs):
        if name in CALLS:
            return RULES[name](ctx, eqn, inputs)
        if name in _MOVES:
            (value,) = inputs
            parts = (bind_one(eqn, [part]) for part in (value.concentration, value.rate))
            return [GammaVariable(*parts, moved_from=(value, lambda x: bind_one(eqn, [x])))]
        inputs = [ctx.draw(v) if isinstance(v, GammaVariable) else v for v in inputs]
    if ctx.mode == "local" and name in _STRETCHING:
        shape = eqn.outvars[0].aval.shape
        inputs = [ctx.draw(v) if _is_copied(v, shape) else v for v in inputs]
    if any(isinstance(value, Uncertain) for value in inputs):
        function = RULES.get(name)
        found = NotImplemented if function is None else function(ctx, eqn, inputs)
        if found is not NotImplemented:
            return found if isinstance(found, list) else [found]
        if ctx.mode == "moments":
            raise NoRuleError(name)
        inputs = [ctx.draw(value) for value in inputs]
    return bind(eqn, inputs)


def _is_copied(value: Any, shape: tuple[int, ...]) -> bool:
    """Say whether a sum over weights goes into several numbers: they have one sample of it."""
    return isinstance(value, Uncertain) and not value.distinct and value.shape != shape


def propagate(function: Callable[..., Any], mode: Mode, key: Array, *args: Any) -> Any:
    """Run a function of pytrees whose leaves are arrays or `Uncertain` ones.

    Args:
        function: A pure, traceable function.
        mode: See `Context`.
        key: PRNG key.
        *args: Its arguments.

    Returns:
        The function's result, with arrays or `Uncertain` ones as leaves.

    Raises:
        NoRuleError: In mode ``"moments"``, for an operation without a rule.
    """
    leaves, structure = jax.tree.flatten(args, is_leaf=is_uncertain)
    # New ones, since a run writes its samples into them.
    leaves = [_anew(x) for x in leaves]
    plain = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    shape: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        found, result = jax.tree.flatten(function(*jax.tree.unflatten(structure, values)))
        shape.append(result)
        return found

    closed = jax.make_jaxpr(flat)(*plain)
    found = interpret(Context(mode, key), closed.jaxpr, closed.consts, leaves)
    return jax.tree.unflatten(shape[-1], found)


def _anew(leaf: Any) -> Any:
    if isinstance(leaf, GammaVariable):
        return GammaVariable(leaf.concentration, leaf.rate)
    if isinstance(leaf, Uncertain):
        return Uncertain(leaf.mean, leaf.variance, distinct=leaf.distinct)
    return jnp.asarray(leaf)


def is_uncertain(value: Any) -> bool:
    """Say whether a leaf is an `Uncertain` array, or a `GammaVariable`."""
    return isinstance(value, Uncertain | GammaVariable)
