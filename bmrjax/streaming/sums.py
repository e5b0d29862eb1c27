r"""The compiled passes over a piece of a posterior: provisional masks, and sums for the fixed point.

With ΔF the evidence difference of removing a weight, an inclusion probability is
q(ζ) = σ(ζ - ΔF) = 1 / (1 + s e^{-ζ} E), E = e^{ΔF} / s = e^{-μ²/2σ²} / σ: one exponential a weight, and
a division for each ζ. All in float32; what lies too near a decision for that is marked, for the caller to
settle in float64.

XLA fuses on a CPU into one consumer only, so a piece goes by in tiles whose intermediates stay in a core's
cache, and sums are over tiles, element by element.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int8

from bmrjax.streaming.folder import Width

TILE = 32768
UNDECIDED, BAD = 2, 3
# What stays for certain, and adds exactly one to every moment: e^{-μ²/2σ²} is zero. Float16 has it.
PADDING = 6e4, 1.0
UNIT = 2.0**-24
# Of E: five roundings in μ²/2σ², which is below ln(s/σ) - ζ + 20 wherever q(1 - q) counts. 60 is that
# for σ > s e^-40. Input in float64 is rounded to float32 first, and the bound is for what it becomes.
RELATIVE_ERROR_OF_ODDS = (5 * 60 + 8) * UNIT
# So ln E is known this well, with room, in nats.
MARGIN = 1e-4
# The square root of the smallest normal float32: where `reduction.normal` stops narrowing.
_NARROWEST = 1.0842022e-19


def relative_rounding(chunk: int) -> float:
    """Bound the relative error of a moment over a piece of `chunk` weights."""
    return (chunk // TILE + 8) * UNIT


def powers_of(steps: int) -> list[int]:
    """Return how many moments each ζ needs.

    The first is known, so Σq does. The last one decides, but what its sums say is only reported: Σq and
    Σq² do. Those in between take the iteration on.
    """
    return [1] + [3] * (steps - 2) + [2] * (steps > 1)


class Sums(NamedTuple):
    """What a pass returns of a piece.

    Attributes:
        codes: A weight: 0 goes, 1 stays, 2 is undecided, 3 is not a number or not a width.
        moments: Σq, Σq², Σq³ a ζ, as many as `powers_of` says, in parts to add up. No ζ for shrinkage.
        delta_f: Over what is removed: Σ ln E in parts for the spike and slab, ΣΔF in parts for shrinkage.
    """

    codes: Int8[Array, " chunk"]
    moments: list[list[Float[Array, " part"]]]
    delta_f: Float[Array, " part"]


def _over_tiles(
    body: Callable[[Array, Array], tuple[Array, list[Array]]],
    loc: Array,
    width: Array,
    tiles: Array,
    shapes: list[tuple[int, ...]],
) -> tuple[Array, list[Array]]:
    """Run `body` on each of the first tiles; collect its codes and add up the rest."""
    locs, widths = loc.reshape(-1, TILE), width.reshape(-1, TILE)

    def step(i: Array, carry: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
        codes, totals = carry
        code, terms = body(
            jax.lax.dynamic_index_in_dim(locs, i, keepdims=False).astype(jnp.float32),
            jax.lax.dynamic_index_in_dim(widths, i, keepdims=False).astype(jnp.float32),
        )
        codes = jax.lax.dynamic_update_index_in_dim(codes, code, i, 0)
        return codes, [t + x for t, x in zip(totals, terms, strict=True)]

    start = jnp.zeros(locs.shape, jnp.int8), [jnp.zeros(s, jnp.float32) for s in shapes]
    codes, totals = jax.lax.fori_loop(0, tiles, step, start)
    return codes.reshape(-1), totals


@functools.partial(jax.jit, static_argnames="kind")
def spike_slab_sums(
    loc: Float[Array, " chunk"],
    width: Float[Array, " chunk"],
    tiles: Int[Array, ""],
    odds: Float[Array, " steps"],
    window: Float[Array, " 2"],
    *,
    kind: Width,
) -> Sums:
    """Sum the inclusion probabilities at each ζ, and judge by the last one.

    Args:
        loc: Means.
        width: Scales, variances or precisions. Padded as `PADDING` says.
        tiles: How many tiles of `TILE` to visit.
        odds: s e^{-ζ} for each ζ at which to sum, |ζ| ≤ 60.
        window: E of what stays is below the first, of what goes above the second.
        kind: What `width` is.
    """
    powers = powers_of(len(odds))

    def body(loc: Array, width: Array) -> tuple[Array, list[Array]]:
        if kind == "scale":
            inverse = 1.0 / width
        else:
            inverse = jax.lax.rsqrt(width) if kind == "variance" else jnp.sqrt(width)
        z = loc * inverse
        ratio = inverse * jnp.exp(-0.5 * z * z)
        code = jnp.where(ratio < window[0], 1, jnp.where(ratio > window[1], 0, UNDECIDED))
        valid = (inverse > 0) & (inverse + jnp.abs(z) < jnp.inf)
        terms = []
        for j, power in enumerate(powers):
            q = 1.0 / (1.0 + odds[j] * ratio)
            terms += [q, q * q, q * q * q][:power]
        # One logarithm for four weights.
        w = jnp.where(ratio > window[1], ratio, 1.0).reshape(4, -1)
        terms.append(jnp.log((w[0] * w[1]) * (w[2] * w[3])))
        return jnp.where(valid, code, BAD).astype(jnp.int8), terms

    shapes = [(TILE,)] * sum(powers) + [(TILE // 4,)]
    codes, totals = _over_tiles(body, loc, width, tiles, shapes)
    ends = [sum(powers[: i + 1]) for i in range(len(powers))]
    moments = [totals[end - power : end] for power, end in zip(powers, ends, strict=True)]
    return Sums(codes, moments, totals[-1])


@functools.partial(jax.jit, static_argnames="kind")
def shrinkage_sums(
    loc: Float[Array, " chunk"],
    width: Float[Array, " chunk"],
    tiles: Int[Array, ""],
    variance: Float[Array, ""],
    prior_scale: Float[Array, ""],
    *,
    kind: Width,
) -> Sums:
    """Judge by the sign of ΔF for the reduced prior N(0, variance).

    Args:
        loc: Means.
        width: Scales, variances or precisions. Padded as `PADDING` says.
        tiles: How many tiles of `TILE` to visit.
        variance: Of the reduced prior, at most the prior's.
        prior_scale: s.
        kind: What `width` is.
    """
    rest = 1.0 - variance / jnp.square(prior_scale)
    log_prior = 2.0 * jnp.log(prior_scale)

    def body(loc: Array, width: Array) -> tuple[Array, list[Array]]:
        valid = (width > 0) & (width < jnp.inf) & (jnp.abs(loc) < jnp.inf)
        scale = width
        if kind != "scale":
            scale = jnp.sqrt(width) if kind == "variance" else jax.lax.rsqrt(width)
        scale = jnp.maximum(scale, _NARROWEST)
        total = variance + rest * scale * scale
        delta_f = 0.5 * (log_prior - jnp.log(total) - rest * (loc * loc) / total)
        code = jnp.where(delta_f < -MARGIN, 1, jnp.where(delta_f > MARGIN, 0, UNDECIDED))
        code = jnp.where(valid, code, BAD).astype(jnp.int8)
        return code, [jnp.where((delta_f > MARGIN) & valid, delta_f, 0.0)]

    codes, (delta_f,) = _over_tiles(body, loc, width, tiles, [(TILE,)])
    return Sums(codes, [], delta_f)


def delta_f_double(
    loc: np.ndarray, width: np.ndarray, kind: Width, prior_scale: float, variance: float
) -> Float[np.ndarray, " n"]:
    """Compute ΔF in float64, in nats, positive where the evidence favours removal.

    Args:
        loc: Means, of any float dtype.
        width: Scales, variances or precisions.
        kind: Which of them.
        prior_scale: s.
        variance: Of the reduced prior; zero for a spike.
    """
    loc, width = loc.astype(np.float64), width.astype(np.float64)
    scale = width
    if kind != "scale":
        scale = np.sqrt(width) if kind == "variance" else 1.0 / np.sqrt(width)
    rest = 1.0 - variance / prior_scale**2
    total = variance + rest * np.square(np.maximum(scale, _NARROWEST))
    return 0.5 * (np.log(prior_scale**2 / total) - rest * np.square(loc) / total)
