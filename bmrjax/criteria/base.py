"""The contract that every criterion keeps."""

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from bmrjax.criteria.groups import Groups
from bmrjax.criteria.site_posteriors import SitePosteriors
from bmrjax.reduction import Normal

# Site name to its posterior or prior: `reduction.Normal`, or what `Criterion.family` says.
Sites = Mapping[str, Any]
# Site name to mask; True is in the model.
Masks = Mapping[str, Bool[Array, "..."]]


def by_layer(
    criterion: str, sites: Iterable[str], layers: Mapping[str, str] | None
) -> dict[str, list[str]]:
    """Return the sites of each layer, in the order of `sites`.

    Args:
        criterion: Name of the criterion, for the message.
        sites: Their names.
        layers: Site name to its layer; by default each site is a layer of its own.

    Raises:
        ValueError: If `layers` misses a site.
    """
    layers = {name: name for name in sites} if layers is None else layers
    missing = sorted(set(sites) - set(layers))
    if missing:
        raise ValueError(f"{criterion}: `layers` names no layer for the sites {missing}.")
    found: dict[str, list[str]] = {}
    for name in sites:
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


def masks(found: SitePosteriors, keep: Masks | None) -> Masks:
    """Return the masks of a call, which are all True where there are none.

    Raises:
        TypeError: If `found` is something else, such as the posterior alone.
        ValueError: If the masks miss a site.
    """
    if not isinstance(found, SitePosteriors):
        raise TypeError(
            f"A criterion takes criteria.SitePosteriors(posterior, prior), got {type(found).__name__}."
        )
    if keep is not None:
        if missing := sorted(set(found.posterior) - set(keep)):
            raise ValueError(f"keep has no mask for the sites {missing}.")
        return keep
    # Filled by NumPy, which compiles nothing.
    return {n: jnp.asarray(np.ones(q.loc.shape, bool)) for n, q in found.posterior.items()}


class Decision(NamedTuple):
    """Decision of a criterion: masks, evidence differences, and statistics.

    Attributes:
        keep: A boolean mask per site, shaped as the site; True stays in the model.
        delta_f: ln of the evidence without the element over the evidence with it, in nats,
            shaped as the site. Positive favours removal.
        statistics: What else was found on the way, such as ``"inclusion_prob"``: name to site to array; see
            the criterion.
        memory: For the next call; see `Criterion.init`.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> q = {"w": reduction.Normal(jnp.array([0.01, 3.0]), jnp.array([0.1, 0.1]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> decision = criteria.SpikeAndSlab()(criteria.SitePosteriors(q, p))
        >>> decision.keep["w"], decision.delta_f["w"].round(1)
        (Array([False,  True], dtype=bool), Array([   2.3, -447.7], dtype=float32))
        >>> decision.statistics["inclusion_prob"]["w"].round(1)
        Array([0.1, 1. ], dtype=float32)
    """

    keep: dict[str, Bool[Array, "..."]]
    delta_f: dict[str, Float[Array, "..."]]
    statistics: dict[str, dict[str, Array]] = {}  # never written to
    memory: Any = None


class Criterion(abc.ABC):
    """Decide which elements of each site are kept.

    A criterion is a small frozen object. A call is pure, jittable and vmappable: over seeds, over a grid of
    the criterion's own numbers, over anything. The masks belong to the caller.

    Attributes:
        family: The posteriors that it reads, a class of `bmrjax.reduction`. `sparsify` gives it the
            sites whose posterior is of that family; see `reads`.
        groups: Which elements stay or go together; None if each one is on its own.
        has_mask_prior: Whether `mask_log_prob` is a prior over masks, which a schedule may count.

    Example:
        A criterion of one's own: remove what the data say little about.

        >>> import jax.numpy as jnp
        >>> from bmrjax import criteria, reduction
        >>> class Uncertain(criteria.Criterion):
        ...     def __call__(self, found, keep=None, memory=None):
        ...         sites = found.posterior.items()
        ...         delta_f = {n: reduction.delta_f_each(q, found.prior[n]) for n, q in sites}
        ...         keep = {n: q.scale < 0.5 * found.prior[n].scale for n, q in sites}
        ...         return criteria.Decision(keep, delta_f)
        >>> q = {"w": reduction.Normal(jnp.array([0.1, 3.0]), jnp.array([0.9, 0.1]))}
        >>> p = {"w": reduction.Normal(jnp.zeros(2), jnp.ones(2))}
        >>> Uncertain()(criteria.SitePosteriors(q, p)).keep["w"]
        Array([False,  True], dtype=bool)
    """

    family: type = Normal
    groups: Groups | None = None
    has_mask_prior: bool = False

    def reads(self, posterior: Any, prior: Any) -> bool:
        """Whether it can judge a site with this posterior and prior.

        By default it reads posteriors of its `family` under any prior with which they have a closed form. A
        criterion with formulas of its own for a normal prior has to exclude others here, such as
        `reduction.Laplace`.

        Args:
            posterior: Of the site, a class of `bmrjax.reduction`.
            prior: Of the site.
        """
        del prior
        return isinstance(posterior, self.family)

    @property
    def may_go_beyond(self) -> bool:
        """Whether single elements past what it proposes may be tried, as `schedules.Iterative` does."""
        return True

    def init(self, posterior: Sites) -> Any:
        """Return what a criterion that remembers earlier calls starts from; None for all others.

        Args:
            posterior: Site name to its posterior, each shaped as the site.
        """
        del posterior

    def mask_log_prob(self, keep: Masks, *, layers: Mapping[str, str] | None = None) -> float:
        """Return the log prior probability of the masks, in nats; not traced.

        Zero for a criterion without a prior over masks.

        Args:
            keep: Site name to mask; True is included.
            layers: As in `SitePosteriors`.
        """
        del keep, layers
        return 0.0

    def mask_cost(self, keep: Masks, *, layers: Mapping[str, str] | None = None) -> float:
        """Return what the masks cost, in nats, for comparing points of a run; not traced.

        It is minus `mask_log_prob`, unless that would reward including nearly everything.

        Args:
            keep: Site name to mask; True is included.
            layers: As in `SitePosteriors`.
        """
        return -self.mask_log_prob(keep, layers=layers)

    @abc.abstractmethod
    def __call__(
        self, found: SitePosteriors, keep: Masks | None = None, memory: Any = None
    ) -> Decision:
        """Decide from the posteriors and the priors they were fitted under.

        Args:
            found: Posteriors and priors.
            keep: The masks in force, by site; by default everything is kept. What is removed stays removed,
                unless the criterion says otherwise.
            memory: From `init` or from the last `Decision`.

        Returns:
            Masks, evidence differences, what else was found, and the memory of the next call.
        """
