"""Where a constant can go that a contraction loses with the units that made it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jec
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bmrjax.backend.jaxprs import bind_one

# Operations that move the elements of one array about.
MOVES_CONSTANTS = (
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "convert_element_type",
    "copy",
    "copy_p",
)
# How far from it, relatively, a bias may represent a constant.
BIAS_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Target:
    """A parameter that is added to the result of a contraction.

    Attributes:
        argument: Its position among the arguments of the function.
        sign: -1 where it is subtracted.
        spread: From the shape of the parameter to the shape where it is added.
        carry: From the shape of the contraction to that shape.
        uses: How often the parameter is read in all.
    """

    argument: int
    sign: float
    spread: Callable[[Array], Array]
    carry: Callable[[Array], Array]
    uses: int

    def shift(
        self, constant: Float[Array, "..."], wanted: Float[Array, "..."]
    ) -> tuple[Float[Array, "..."], Bool[Array, "..."]] | None:
        """Return what to add to the parameter, and where; None if it cannot stand for the constant.

        Args:
            constant: What the contraction loses.
            wanted: 1 where that must be made up for.
        """
        constant, wanted = self.carry(constant), self.carry(wanted)
        # Half precision cannot count to a thousand.
        kind = jnp.promote_types(constant.dtype, jnp.float32)
        like, back = jax.vjp(self.spread, jnp.zeros(self._shape, kind))
        constant, wanted = constant.astype(like.dtype), wanted.astype(like.dtype)
        total, count = back(constant * wanted)[0], back(wanted)[0]
        shift = total / jnp.maximum(count, 1)
        error = jnp.max(jnp.abs(self.spread(shift) - constant) * wanted, initial=0.0)
        close = error <= BIAS_TOLERANCE * (1 + jnp.max(jnp.abs(constant), initial=0.0))
        return (self.sign * shift, count > 0) if bool(close) else None

    _shape: tuple[int, ...] = ()


class Targets:
    """Finds the parameters that can take up a constant part of a variable.

    One is looked for along additions, of skip connections too, and operations that move elements.

    Args:
        jaxpr: Without calls.
        num_params: How many of the arguments are parameters.
    """

    def __init__(self, jaxpr: Any, num_params: int):
        self._uses: dict[Any, list[Any]] = {}
        for eqn in jaxpr.eqns:
            for v in eqn.invars:
                if not isinstance(v, jec.Literal):
                    self._uses.setdefault(v, []).append(eqn)
        self._made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self._places = {v: i for i, v in enumerate(jaxpr.invars[:num_params])}
        self._outputs = {v for v in jaxpr.outvars if not isinstance(v, jec.Literal)}

    def _parameter(self, v: Any) -> tuple[Any, list[Any]] | None:
        chain: list[Any] = []
        while not isinstance(v, jec.Literal) and v not in self._outputs:
            if v in self._places:
                return v, chain[::-1]
            eqn = self._made.get(v)
            if eqn is None or len(self._uses[v]) != 1:
                return None
            if eqn.primitive.name not in (*MOVES_CONSTANTS, "broadcast_in_dim"):
                return None
            chain.append(eqn)
            v = eqn.invars[0]
        return None

    def of(self, var: Any) -> Target | None:
        """Return the parameter that can take up a constant part of a variable, if there is one."""
        sign, moves = 1.0, []
        while len(self._uses.get(var, [])) == 1 and var not in self._outputs:
            (eqn,) = self._uses[var]
            name = eqn.primitive.name
            if name in MOVES_CONSTANTS:
                moves.append(eqn)
            elif name in ("add", "add_any", "sub"):
                first = eqn.invars[0] is var
                other = eqn.invars[1 if first else 0]
                if name == "sub" and not first:
                    sign = -sign
                found = self._parameter(other)
                if found is not None:
                    leaf, chain = found
                    subtracted = name == "sub" and first
                    return Target(
                        self._places[leaf],
                        -sign if subtracted else sign,
                        _run(chain, eqn.outvars[0].aval.shape),
                        _run(moves, eqn.outvars[0].aval.shape),
                        len(self._uses[leaf]),
                        leaf.aval.shape,
                    )
            else:
                return None
            (var,) = eqn.outvars
        return None


def _run(eqns: list[Any], shape: tuple[int, ...]) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        for eqn in eqns:
            x = bind_one(eqn, [x])
        return jnp.broadcast_to(x, shape)

    return run
