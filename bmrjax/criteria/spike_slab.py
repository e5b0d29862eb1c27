"""Stochastic Bayesian model reduction under a spike-and-slab prior."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from jaxtyping import Array, Bool, Float
from scipy.special import betaln

from bmrjax import reduction
from bmrjax.criteria.base import Criterion, Decision, Masks, by_layer, masks, require
from bmrjax.criteria.groups import Groups
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import Normal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpikeAndSlab(Criterion):
    r"""Keep what a spike-and-slab prior, fitted to the posterior, includes.

    With ΔF_i = ln E_q[δ(z_i) / p(z_i)] the evidence difference of removing element i, and a
    Beta posterior over the inclusion probability π_l of each layer, iterate

    .. math::

        q(λ_i = 1) = σ(ψ(α_l) - ψ(β_l) - ΔF_i), \quad
        α_l = α_0 + \sum_i q(λ_i = 1), \quad β_l = β_0 + \sum_i q(λ_i = 0)

    and keep the elements with q(λ_i = 1) ≥ ½. There is no threshold to choose. ΔF is exact
    for a normal posterior and any normal or Laplace prior; the fixed point is the mean-field optimum.

    What a round removes stays removed, with q(λ_i = 1) = 0. In α and β it counts as `removed` says:
    ``"excluded"``, so that the sparser a layer gets, the more evidence what is left must show; or
    ``"at prior"``, a variable with ΔF = 0, which is where the posterior of a removed one drifts in
    the published code, and which leaves the threshold near ΔF = 0.

    With `regrow`, every element is judged anew; note that the posterior of a removed element
    receives no force from the data, so it returns by the accident of its last posterior unless it
    is re-fitted.

    The statistics of a decision are ``"inclusion_prob"``, q(λ = 1) of each element, in [0, 1] and zero for
    what an earlier round removed, and ``"alpha"`` and ``"beta"``, the parameters of q(π_l) of the layer that
    a site is in.

    With `groups`, an i is a group: its ΔF is the sum of its elements', they stay or go together, and
    α and β count groups, each in the layer of the first of its sites.

    Args:
        alpha: Prior count of included elements, α_0 > 0; a scalar, or an array to `vmap` over.
        beta: Prior count of excluded elements, β_0 > 0.
        num_steps: Fixed-point iterations.
        regrow: Whether removed elements may return.
        removed: How removed elements count in the fixed point: ``"excluded"`` or ``"at prior"``.
        groups: Which elements go together; by default each one is on its own.
        family: `reduction.Normal` posteriors, or `reduction.Laplace`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.01, 3.0]), jnp.array([0.1, 0.1]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> criterion = criteria.SpikeAndSlab()
        >>> criterion(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Marković, Friston and Kiebel (2024), Algorithm 1 and the equations above it.
    """

    alpha: float | Float[Array, ""] = 1.0
    beta: float | Float[Array, ""] = 1.0
    num_steps: int = field(default=4, metadata={"static": True})
    regrow: bool = field(default=False, metadata={"static": True})
    removed: Literal["excluded", "at prior"] = field(default="excluded", metadata={"static": True})
    groups: Groups | None = None
    family: type = field(default=Normal, repr=False, metadata={"static": True})
    has_mask_prior = True

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            require(self, name, lambda value: value > 0, "positive")
        if self.num_steps < 1:
            raise ValueError(f"SpikeAndSlab: num_steps must be at least 1, got {self.num_steps}.")
        if self.removed not in ("excluded", "at prior"):
            raise ValueError(
                f"SpikeAndSlab: removed must be 'excluded' or 'at prior', got {self.removed!r}."
            )

    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Reduce once; see `Criterion`. Raises ValueError for a layer map that misses a site."""
        kept, posterior, prior = masks(found, keep), found.posterior, found.prior
        members_of = by_layer("SpikeAndSlab", posterior, found.layers)
        delta_f = {name: reduction.delta_f_each(q, prior[name]) for name, q in posterior.items()}
        # Not a number never removes, and must not take the rest of its layer along.
        judged = {name: jnp.where(jnp.isnan(df), -jnp.inf, df) for name, df in delta_f.items()}
        eligible = {
            name: jnp.ones_like(kept[name]) if self.regrow else kept[name] for name in posterior
        }
        inclusion: dict[str, Array] = {}
        alpha: dict[str, Array] = {}
        beta: dict[str, Array] = {}
        if self.groups is None:
            for members in members_of.values():
                probs, *counts = self._fixed_point(
                    [judged[name] for name in members], [eligible[name] for name in members]
                )
                inclusion.update(zip(members, probs, strict=True))
                alpha.update(dict.fromkeys(members, counts[0]))
                beta.update(dict.fromkeys(members, counts[1]))
        else:
            # Removed elements do not contribute to the score of the rest of their group.
            counted = {n: jnp.where(eligible[n], df, 0.0) for n, df in judged.items()}
            total, alive = self.groups.sum(counted), self.groups.any(eligible)
            included = jnp.zeros_like(total)
            for members, mine in zip(
                members_of.values(), self._groups_of(members_of, delta_f), strict=True
            ):
                (probs,), *counts = self._fixed_point([total], [alive & mine], mine)
                included = jnp.where(mine, probs, included)
                alpha.update(dict.fromkeys(members, counts[0]))
                beta.update(dict.fromkeys(members, counts[1]))
            spread = self.groups.spread(included, delta_f)
            inclusion = {n: jnp.where(eligible[n], spread[n], 0.0) for n in delta_f}
        stays = {name: eligible[name] & (inclusion[name] >= 0.5) for name in posterior}
        found_too = {"inclusion_prob": inclusion, "alpha": alpha, "beta": beta}
        statistics = {
            title: {name: values[name] for name in posterior} for title, values in found_too.items()
        }
        return Decision(stays, delta_f, statistics)

    @property
    def may_go_beyond(self) -> bool:
        """Only where each element is on its own."""
        return self.groups is None

    def _groups_of(
        self, members_of: Mapping[str, list[str]], like: Mapping[str, Array]
    ) -> list[Bool[Array, " count"]]:
        """Return, for each layer, which groups are counted there: those that no layer before it has."""
        assert self.groups is not None
        found, seen = [], jnp.zeros(self.groups.count, bool)
        for members in members_of.values():
            has = self.groups.any({name: jnp.ones(like[name].shape, bool) for name in members})
            found.append(has & ~seen)
            seen = seen | has
        return found

    def mask_log_prob(self, keep: Masks, *, layers: Mapping[str, str] | None = None) -> float:
        """Return the log probability of the masks with each layer's π integrated out, in nats.

        A layer that includes k of n elements has ln B(α + k, β + n - k) - ln B(α, β): where few
        are included, each costs about ln(n / k) nats. Computed on the host, in double precision.
        """
        alpha, beta = float(self.alpha), float(self.beta)
        counts = self._counts(keep, layers)
        return float(sum(_log_beta_binomial(alpha, beta, size, k) for size, k in counts))

    def mask_cost(self, keep: Masks, *, layers: Mapping[str, str] | None = None) -> float:
        """Return what the masks cost, in nats: never less for including more of a layer.

        It is minus `mask_log_prob`, but a layer that includes more than the least probable number of elements
        (half of them, if α = β) costs what that number does. Without this, a prior that gives every
        inclusion probability the same weight would pay for including everything: ln C(n, k) nats.
        """
        alpha, beta = float(self.alpha), float(self.beta)
        total = 0.0
        for size, included in self._counts(keep, layers):
            every = _log_beta_binomial(alpha, beta, size, np.arange(included + 1))
            total -= np.min(every)
        return float(total)

    def _counts(self, keep: Masks, layers: Mapping[str, str] | None) -> list[tuple[int, int]]:
        """Return how many elements, or groups, each layer has, and how many of them are included."""
        members_of = by_layer("SpikeAndSlab", keep, layers)
        if self.groups is not None:
            there = self.groups.any(keep)
            owned = self._groups_of(members_of, keep)
            return [(int(jnp.sum(mine)), int(jnp.sum(there & mine))) for mine in owned]
        return [
            (
                sum(keep[name].size for name in members),
                sum(int(np.sum(np.asarray(keep[name]))) for name in members),
            )
            for members in members_of.values()
        ]

    def _fixed_point(
        self, delta_f: list[Array], eligible: list[Array], present: Array | None = None
    ) -> tuple[list[Array], Array, Array]:
        """Iterate over the variables of a layer; of one array, `present` says which are in it."""
        dtype = delta_f[0].dtype
        total: Any = float(sum(df.size for df in delta_f))
        if present is not None:
            total = jnp.sum(present, dtype=dtype)
        alpha_0, beta_0 = jnp.asarray(self.alpha, dtype), jnp.asarray(self.beta, dtype)

        def threshold(alpha: Array, beta: Array) -> Array:
            # Once for both, since XLA writes the function out at each call.
            of_alpha, of_beta = digamma(jnp.stack([alpha, beta]))
            return of_alpha - of_beta

        def include(zeta: Array) -> list[Array]:
            return [
                jnp.where(e, jax.nn.sigmoid(zeta - df), 0.0).astype(dtype)
                for df, e in zip(delta_f, eligible, strict=True)
            ]

        gone = total - sum((jnp.sum(e, dtype=dtype) for e in eligible), jnp.zeros((), dtype))

        def counted(zeta: Array, probs: list[Array]) -> tuple[Array, Array]:
            included = sum((jnp.sum(q) for q in probs), jnp.zeros((), dtype))
            if self.removed == "at prior":
                included = included + gone * jax.nn.sigmoid(zeta)
            return alpha_0 + included, beta_0 + (total - included)

        def update(_: Array, counts: tuple[Array, Array]) -> tuple[Array, Array]:
            zeta = threshold(*counts)
            return counted(zeta, include(zeta))

        # The probabilities of the last iteration come from the counts before it, as in the
        # paper; only the sums travel through the loop, so memory stays at one pass.
        before = jax.lax.fori_loop(0, self.num_steps - 1, update, (alpha_0, beta_0))
        zeta = threshold(*before)
        probs = include(zeta)
        return probs, *counted(zeta, probs)


def _log_beta_binomial(alpha: float, beta: float, size: int, included: Any) -> Any:
    """Return the log probability of each single mask of a layer, in nats."""
    return betaln(alpha + included, beta + size - included) - betaln(alpha, beta)
