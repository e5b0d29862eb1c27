"""Bayesian model reduction under a regularised horseshoe prior."""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaincinv

from bmrjax import reduction
from bmrjax.criteria.base import Criterion, Decision, Masks, Sites, by_layer, masks, require
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import Normal
from bmrjax.reduction.full_precision import full_precision

# Edges of the cells of ln(υ λ), 64 of them over nine orders of magnitude; what lies outside
# belongs to the first and the last. The integrands vary over about two units.
_EDGES = np.linspace(math.log(1e-6), math.log(1e3), 65)
_CELLS = 0.5 * (_EDGES[1:] + _EDGES[:-1])
_SLABS = (0.1, 0.3, 0.5, 0.7, 0.9)
_BLOCK = 4096


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RegularizedHorseshoe(Criterion):
    r"""Keep what a regularised horseshoe prior would not shrink by more than half.

    The reduced prior of element i, in units of its prior's standard deviation, is N(0, γ_i²) with

    .. math::

        γ_i^{-2} = c^{-2} + (υ λ_i)^{-2}, \quad λ_i \sim C^+(0, 1), \quad υ \sim C^+(0, τ_0), \quad
        c^{-2} \sim Γ(a, b)

    and ln E_q[Ñ(0, γ²)/p] in closed form. The scales are integrated out: λ_i of each element by
    quadrature, υ and c of each layer on a grid, so the second level is neither sampled nor
    approximated by a variational posterior. With v the variance that the data alone leave to
    the element, kept is what has E[γ²/(γ² + v)] ≥ ½: the half-shrinkage rule. There is no threshold to
    choose.

    What a round removes stays removed; its posterior at that time goes on to inform υ.

    The statistics of a decision are ``"weight"``, the posterior mean of 1 − κ of each element, in [0, 1]: how
    much of its estimate the prior leaves standing, zero for what an earlier round removed; and
    ``"log_scale"``, that of ln υ of the layer that a site is in.

    Args:
        global_scale: τ_0, relative to the prior's standard deviation.
        slab_concentration: a, shape of the Gamma prior of c⁻².
        slab_rate: b, its rate.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.01, 3.0]), jnp.array([0.1, 0.1]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.RegularizedHorseshoe(0.1)
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Piironen and Vehtari (2017) for the prior; Carvalho, Polson and Scott (2010), section 3.4, for the
        rule; Marković, Friston and Kiebel (2024), section II-G, for the reduction.
    """

    global_scale: float | Float[Array, ""] = 0.01
    slab_concentration: float = field(default=2.0, metadata={"static": True})
    slab_rate: float = field(default=6.0, metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("global_scale", "slab_concentration", "slab_rate"):
            require(self, name, lambda value: value > 0, "positive")

    def reads(self, posterior: Any, prior: Any) -> bool:
        """Normal posteriors under normal priors only: the horseshoe is put in place of a normal."""
        return isinstance(posterior, Normal) and isinstance(prior, Normal)

    def init(self, posterior: Sites) -> dict[str, Normal]:
        """Return the memory: what each element's posterior was, over its prior, when it was kept last."""
        return {
            n: Normal(jnp.zeros_like(q.loc), jnp.ones_like(q.loc)) for n, q in posterior.items()
        }

    @full_precision
    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`. Raises ValueError for a layer map that misses a site."""
        kept, posterior, prior = masks(found, keep), found.posterior, found.prior
        if others := [name for name, q in posterior.items() if not self.reads(q, prior[name])]:
            raise TypeError(
                f"RegularizedHorseshoe reads normal posteriors under normal priors; {others} are others. "
                "Take criteria.SpikeAndSlab or criteria.Shrinkage for them."
            )
        members_of = by_layer("RegularizedHorseshoe", posterior, found.layers)
        before = self.init(posterior) if memory is None else memory
        seen = {
            name: _where(kept[name], _standardised(q, prior[name]), before[name])
            for name, q in posterior.items()
        }
        weight: dict[str, Array] = {}
        log_scale: dict[str, Array] = {}
        for members in members_of.values():
            weights, scale = self._layer([seen[name] for name in members])
            weight.update(zip(members, weights, strict=True))
            log_scale.update(dict.fromkeys(members, scale))
        weight, log_scale = (
            {name: values[name] for name in posterior} for values in (weight, log_scale)
        )
        weight = {name: jnp.where(kept[name], weight[name], 0.0) for name in posterior}
        delta_f = {name: reduction.delta_f_each(q, prior[name]) for name, q in posterior.items()}
        # Not a number never removes.
        stays = {
            name: kept[name] & ((weight[name] >= 0.5) | jnp.isnan(delta_f[name]))
            for name in posterior
        }
        return Decision(stays, delta_f, {"weight": weight, "log_scale": log_scale}, seen)

    def _layer(self, sites: list[Normal]) -> tuple[list[Array], Array]:
        loc = jnp.concatenate([q.loc.ravel() for q in sites])
        scale = jnp.concatenate([q.scale.ravel() for q in sites])
        size = loc.shape[0]
        length = max(1, min(_BLOCK, size))
        padding = -size % length
        blocks = (
            jnp.pad(loc, (0, padding)),
            jnp.pad(scale, (0, padding), constant_values=1.0),
            jnp.arange(size + padding) < size,
        )
        blocks = tuple(b.reshape(-1, length) for b in blocks)
        center = jnp.log(jnp.asarray(self.global_scale, loc.dtype))
        # A coarse grid of ln υ, then one as wide as the posterior there: over many elements it is
        # narrow.
        unit = jnp.linspace(-1.0, 1.0, 33, dtype=loc.dtype)
        coarse = center + 12.0 * unit
        probs = jax.nn.softmax(self._log_posterior(coarse, blocks), axis=(0, 1))
        mean = jnp.sum(probs * coarse[None])
        spread = jnp.sqrt(jnp.sum(probs * jnp.square(coarse - mean)[None]))
        fine = mean + jnp.maximum(5.0 * spread, 1.0) * unit
        probs = jax.nn.softmax(self._log_posterior(fine, blocks), axis=(0, 1))
        weights = jax.lax.map(lambda block: self._weights(fine, probs, block), blocks)
        ends = np.cumsum([q.loc.size for q in sites])[:-1]
        parts = jnp.split(weights.ravel()[:size], ends)
        return (
            [part.reshape(q.loc.shape) for part, q in zip(parts, sites, strict=True)],
            jnp.sum(probs * fine[None]),
        )

    def _reduced_variances(self, dtype: jnp.dtype) -> Float[Array, "slabs cells"]:
        slabs = gammaincinv(self.slab_concentration, _SLABS) / self.slab_rate
        precision = slabs[:, None] + np.exp(-2.0 * _CELLS)
        return jnp.asarray(1.0 / precision, dtype)

    def _evidence(self, block: tuple[Array, ...]) -> Float[Array, "n slabs cells"]:
        """Return E_q[p̃/p] in each cell, over the largest value of each element."""
        loc, scale, _ = block
        reduced = jnp.sqrt(self._reduced_variances(loc.dtype))[None]
        zero = jnp.zeros((), loc.dtype)
        unit = Normal(zero, jnp.ones((), loc.dtype))
        q = Normal(loc[:, None, None], scale[:, None, None])
        delta_f = reduction.normal(q, unit, Normal(zero, reduced)).delta_f
        return jnp.exp(delta_f - jnp.max(delta_f, axis=(1, 2), keepdims=True))

    def _log_posterior(
        self, log_scale: Float[Array, " g"], blocks: tuple[Array, ...]
    ) -> Float[Array, "slabs g"]:
        mass = _mass(log_scale)

        def of_block(block: tuple[Array, ...]) -> Array:
            # The largest value of an element is the same in every cell of the grid and cancels
            # there: added, it would leave no digits for what differs.
            marginal = jnp.einsum("nsc,gc->nsg", self._evidence(block), mass)
            log_marginal = jnp.log(jnp.maximum(marginal, 1e-30))
            return jnp.sum(jnp.where(block[2][:, None, None], log_marginal, 0.0), axis=0)

        log_evidence = jnp.sum(jax.lax.map(of_block, blocks), axis=0)
        away = log_scale - jnp.log(jnp.asarray(self.global_scale, log_scale.dtype))
        # ln of the half-Cauchy density of υ, times υ for the grid in ln υ.
        return log_evidence + (away - jax.nn.softplus(2.0 * away))[None]

    def _weights(
        self,
        log_scale: Float[Array, " g"],
        probs: Float[Array, "slabs g"],
        block: tuple[Array, ...],
    ) -> Float[Array, " n"]:
        evidence = self._evidence(block)
        variance = self._reduced_variances(block[0].dtype)
        # 1 − κ = γ² / (γ² + v), where 1/v = 1/σ² − 1 is what the data alone say.
        precision = 1.0 / jnp.square(block[1]) - 1.0
        gain = precision[:, None, None] * variance[None]
        shrinkage = gain / (1.0 + gain)
        mass = _mass(log_scale)
        marginal = jnp.maximum(jnp.einsum("nsc,gc->nsg", evidence, mass), 1e-30)
        kept = jnp.einsum("nsc,gc->nsg", evidence * shrinkage, mass)
        return jnp.sum(probs[None] * kept / marginal, axis=(1, 2))


def _standardised(posterior: Normal, prior: Normal) -> Normal:
    """Return what the posterior would be under N(0, 1), in units of the prior's standard deviation.

    It is no wider than the prior, for data never add uncertainty. What is not a number says nothing.
    """
    scale = jnp.minimum(posterior.scale / prior.scale, 1.0 - 1e-6)
    # Removed is zero, wherever the prior is: its mean moves there first.
    loc = posterior.loc / prior.scale - jnp.square(scale) * prior.loc / prior.scale
    scale = jnp.broadcast_to(scale, loc.shape)
    known = jnp.isfinite(loc) & jnp.isfinite(scale)
    return Normal(jnp.where(known, loc, 0.0), jnp.where(known, scale, 1.0 - 1e-6))


def _where(condition: Array, first: Normal, second: Normal) -> Normal:
    loc = jnp.where(condition, first.loc, second.loc)
    return Normal(loc, jnp.where(condition, first.scale, second.scale))


def _mass(log_scale: Float[Array, " g"]) -> Float[Array, "g cells"]:
    """Return the probability of each cell of ln(υ λ) given υ, by the half-Cauchy's distribution."""
    edges = jnp.exp(jnp.asarray(_EDGES[1:-1], log_scale.dtype)[None, :] - log_scale[:, None])
    below = (2.0 / jnp.pi) * jnp.arctan(edges)
    ones = jnp.ones((log_scale.shape[0], 1), below.dtype)
    return jnp.diff(jnp.concatenate([0.0 * ones, below, ones], axis=1), axis=1)
