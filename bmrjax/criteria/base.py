"""The contract that every criterion keeps."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from bmrjax.reduction import Normal

State = TypeVar("State")
# Site name to its posterior or prior: `reduction.Normal`, or what `Criterion.family` says.
Sites = Mapping[str, Any]


def by_layer(
    criterion: str, posterior: Sites, layers: Mapping[str, str] | None
) -> dict[str, list[str]]:
    """Return the sites of each layer, in the order of `posterior`.

    Args:
        criterion: Name of the criterion, for the message.
        posterior: Site name to its posterior.
        layers: Site name to its layer; by default each site is a layer of its own.

    Raises:
        ValueError: If `layers` misses a site.
    """
    layers = {name: name for name in posterior} if layers is None else layers
    missing = sorted(set(posterior) - set(layers))
    if missing:
        raise ValueError(f"{criterion}: `layers` names no layer for the sites {missing}.")
    found: dict[str, list[str]] = {}
    for name in posterior:
        found.setdefault(layers[name], []).append(name)
    return found


def require(criterion: object, name: str, test: Callable[[Any], Any], expected: str) -> None:
    """Raise ValueError, naming the criterion, for a number of it that fails a test.

    A traced number has no value yet, and passes, as does what JAX puts in a number's place.
    """
    value = getattr(criterion, name)
    if isinstance(value, Tracer) or not isinstance(
        value, int | float | np.number | np.ndarray | jax.Array
    ):
        return
    if not np.all(test(np.asarray(value))):
        raise ValueError(f"{type(criterion).__name__}: {name} must be {expected}, got {value}.")


class Decision(NamedTuple):
    """What a criterion decides.

    Attributes:
        keep: A boolean mask per site, shaped as the site; True stays in the model.
        delta_f: ln of the evidence without the element over the evidence with it, in nats,
            shaped as the site. Positive favours removal.
        state: The criterion's state for the next call.
    """

    keep: dict[str, Bool[Array, "..."]]
    delta_f: dict[str, Float[Array, "..."]]
    state: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MaskState:
    """The state of a criterion that remembers only what it removed.

    Attributes:
        keep: Masks by site.
    """

    keep: dict[str, Bool[Array, "..."]]


class Criterion(abc.ABC, Generic[State]):
    """Decide which elements of which sites stay.

    A criterion is a small frozen object. Both methods are pure, jittable and vmappable: over
    seeds, over a grid of the criterion's own numbers, over anything.

    Attributes:
        family: The posteriors that it reads, a class of `bmrjax.reduction`. `sparsify` gives it the
            sites whose prior and posterior are of that family.
    """

    family: type = Normal

    @property
    def may_go_beyond(self) -> bool:
        """Whether single elements past what it proposes may be tried, as `schedules.Iterative` does."""
        return True

    @abc.abstractmethod
    def init(self, posterior: Sites) -> State:
        """Return the state before the first reduction: everything is kept.

        Args:
            posterior: Site name to its posterior, each shaped as the site.
        """

    def with_keep(self, state: State, keep: Mapping[str, Bool[Array, "..."]]) -> State:
        """Return `state` with the masks that were put in force, which a cap may have widened."""
        return dataclasses.replace(state, keep=dict(keep))  # type: ignore[type-var]

    def mask_log_prob(
        self, keep: Mapping[str, Bool[Array, "..."]], *, layers: Mapping[str, str] | None = None
    ) -> float:
        """Return the log prior probability of the masks, in nats; not traced.

        Zero for a criterion without a prior over masks.

        Args:
            keep: Site name to mask; True is included.
            layers: As in a call.
        """
        del keep, layers
        return 0.0

    def mask_cost(
        self, keep: Mapping[str, Bool[Array, "..."]], *, layers: Mapping[str, str] | None = None
    ) -> float:
        """Return what the masks cost, in nats, for comparing points of a run; not traced.

        It is minus `mask_log_prob`, unless that would reward including nearly everything.

        Args:
            keep: Site name to mask; True is included.
            layers: As in a call.
        """
        return -self.mask_log_prob(keep, layers=layers)

    @abc.abstractmethod
    def __call__(
        self,
        posterior: Sites,
        prior: Sites,
        state: State,
        *,
        layers: Mapping[str, str] | None = None,
    ) -> Decision:
        """Decide from a posterior and the prior it was fitted under.

        Args:
            posterior: Site name to its posterior, each shaped as the site.
            prior: The same sites, the same shapes (or broadcastable to them).
            state: From `init` or from the last `Decision`.
            layers: Site name to the name of the layer whose statistics it shares. By default
                each site is a layer of its own.

        Returns:
            Masks, evidence differences and the next state.
        """


class MaskCriterion(Criterion[MaskState]):
    """A criterion that remembers only what it removed."""

    def init(self, posterior: Sites) -> MaskState:
        """Return the state in which everything is kept."""
        return MaskState({name: jnp.ones(q.loc.shape, bool) for name, q in posterior.items()})
