"""Sparse variational dropout: what is nearly all noise goes."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bmrjax import reduction
from bmrjax.criteria.base import Decision, MaskCriterion, MaskState, Sites, require


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DropoutRate(MaskCriterion):
    r"""Remove weights with a dropout rate b = σ² / (μ² + σ²) of `threshold` and more.

    The rule of sparse variational dropout, for posteriors under `priors.LogUniform`. That prior has no
    evidence, so `delta_f` says something else here: minus the divergence of the weight's posterior from the
    prior, what the fit pays for it in nats. It is at most zero, and nearly that for what goes.

    Args:
        threshold: Least b that goes, between 0 and 1.

    Raises:
        ValueError: For a threshold outside (0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.2, -3.0]), jnp.array([1.0, 1.0]))}
        >>> p = {"w": reduction.ImproperLogUniform(jnp.ones(2))}
        >>> criterion = criteria.DropoutRate()
        >>> criterion(q, p, criterion.init(q)).keep["w"]
        Array([False,  True], dtype=bool)

    References:
        Molchanov, Ashukha and Vetrov (2017), section 4.3; Federici, Ullrich and Welling (2017), Appendix B.1.
    """

    threshold: float | Float[Array, ""] = 0.95

    def __post_init__(self) -> None:
        require(self, "threshold", lambda value: (value > 0) & (value <= 1), "in (0, 1]")

    @property
    def may_go_beyond(self) -> bool:
        """No: the threshold is the user's."""
        return False

    def __call__(
        self,
        posterior: Sites,
        prior: Sites,
        state: MaskState,
        *,
        layers: Mapping[str, str] | None = None,
    ) -> Decision:
        """Reduce once; see `Criterion`."""
        del prior, layers
        # |μ| / σ at the threshold, so that nothing is squared.
        least = jnp.sqrt((1.0 - self.threshold) / self.threshold)
        keep = {
            name: state.keep[name] & (jnp.abs(q.loc) > least * q.scale)
            for name, q in posterior.items()
        }
        delta_f = {name: -reduction.log_uniform_divergence(q) for name, q in posterior.items()}
        return Decision(keep, delta_f, MaskState(keep))
