"""Submodels under normals that are expanded where submodels are probable, in place of the full model's."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IdentityTransform
from scipy.special import logsumexp

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.greedy import climb
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.local_normal import LocalNormal, LocalNormals, normal_elements
from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.other_elements import Node, OtherElements, reduced_whole
from bmrjax.fitted.program_function import look_at_sites
from bmrjax.fitted.source import Source
from bmrjax.fitted.swept import Precision
from bmrjax.infer.arguments import Data
from bmrjax.infer.tracing import is_latent

# Elements that are not normal of which there may be so many, each of which multiplies what it costs.
MOST_OTHER = 6
# Data points per element from which the noise scale of the full model stands for that of its submodels. With
# 20 columns, one joint normal of 2,000 draws is off by up to 0.1 in an inclusion probability (50 rows) and
# 0.07 (200 rows), the integral by up to 0.025 and 0.008.
MANY_DATA = 20
# Rounds of search and refit; a submodel that comes back ends them.
_ROUNDS = 20
# Nodes are added at an end of the line as long as there is a submodel there so near to the best, in nats.
_EDGE, _MOST_ADDED = 8.0, 60

# Distance of the mean of the fit from that of the program, in standard deviations, that is let pass; the same
# where the program's mean is taken to be its mode.
_MOST_SHIFT, _MOST_SKEWED_SHIFT = 0.35, 1.0
_NOT_NORMAL = (
    "not refitted, since the program is not normal in the judged elements given the others"
)


@dataclass(frozen=True)
class Refit:
    """What takes the place of the joint normal of the fit.

    Attributes:
        nodes: The posterior that submodels are searched under.
        normal: The joint normal at the node where the chosen submodel has most of its evidence.
        whole: Inside to the joint normal over all latent elements, by the moments of that submodel.
        is_exact: Whether the density is normal in the judged elements given the others.
        others: Names of sites that are not normal, which each submodel has at values of its own.
    """

    nodes: Nodes
    normal: JointNormal
    whole: Callable[[Bool[np.ndarray, " n"]], Whole]
    is_exact: bool
    others: tuple[str, ...]

    def __str__(self) -> str:
        """Return what was done, in words."""
        others = ", ".join(f"'{name}'" for name in self.others)
        about = f" over {others}" if others else ""
        if self.is_exact:
            return f"integrated anew for each submodel{about}, since the full model's joint normal is not it"
        return f"expanded anew at the mode of the chosen submodel{about}"


def count_observed(model: Callable, data: Data) -> int:
    """Return how many numbers a program observes."""

    def count(sites: Any) -> int:
        return sum(
            np.size(site["value"])
            for site in sites.values()
            if site["type"] == "sample" and site["is_observed"]
        )

    return look_at_sites(count, model, data)


def refit_submodels(
    source: Source,
    whole: Whole,
    precision: Precision,
    prior: ModelPrior,
    rng: np.random.Generator,
    *,
    by_default: bool,
) -> Refit | str:
    r"""Condition on what else is latent where a submodel has it, and not where the full model has it.

    The posterior of a full model with about as many elements as data points explains the noise away: its
    noise scale is not that of any submodel worth having, and no joint normal of it says what they are. With
    x the judged elements, and all others of which the density is normal jointly with them, and ψ the rest
    (noise scales), the evidence of a submodel is

    .. math::  \ln \int p(y, ψ | S) dψ, \quad p(y, ψ | S) = \int p(y, x_S, ψ) dx_S,

    where the inner integral is closed: exact, if the density is normal in x given ψ. The outer one is a
    quadrature about the mode for the most probable submodel. That is found by turns: the mode of ψ for a
    submodel, the most probable submodel for this ψ, until it does not change, from the empty submodel and
    from the best one of the full normal.

    Args:
        source: The fit, with its program.
        whole: Joint normal over all latent elements by the fit.
        precision: That of the judged elements, and the units.
        prior: Prior on submodels.
        rng: Source of randomness.
        by_default: Whether the caller left the choice open: then the fit stays as it is where the density is
            not normal in the judged elements, or has another mean than the fit.

    Returns:
        The normals; or why there are none.

    References:
        Rue, Martino and Chopin (2009), Journal of the Royal Statistical Society B 71, for integrals over
        what makes the rest normal.
    """
    assert source.model is not None
    layout, normal, model, data = source.layout, source.normal, source.model, source.data
    units = precision.units
    smallest, full_mask = np.zeros(len(units), bool), np.ones(len(units), bool)
    judged = whole.positions(layout)
    unconstrained, names = _sites(whole, layout, model, data)
    x, is_exact = normal_elements(whole, judged, unconstrained, model, data, rng)
    if not is_exact and by_default:
        return _NOT_NORMAL
    normals = LocalNormals(whole, x, model, data, is_exact=is_exact)
    if not is_exact and len(x) > len(judged):
        # Scales without constraint may have no maximum together with what explains the noise away.
        full = normals.at_mode(whole.loc, np.ones(len(x), bool))
        if full is None or full.conditioned(np.ones(len(x), bool)) is None:
            x = judged
            normals = LocalNormals(whole, x, model, data, is_exact=False)
    varies = np.diag(whole.covariance) > 0
    at = np.setdiff1d(np.flatnonzero(varies), x)
    others = tuple(dict.fromkeys(names[i] for i in at))
    if len(at) > MOST_OTHER:
        return f"not refitted, since {len(at)} elements of {list(others)} are not normal, above {MOST_OTHER}"
    other = OtherElements(normals, whole.loc, at, normal)
    search = _Search(other, normal, units, prior, whole.loc[at])
    best = search.best([smallest, climb(precision, full_mask, prior)])
    everything = np.ones(layout.size, bool)
    full_mode = other.mode(whole.loc[at], everything)
    if best is None or full_mode is None:
        return "not refitted, since the evidence has no maximum over what else is latent"
    mask, mode, covariance = best
    inside = search.elements(mask)
    found = other.nodes(mode, covariance, inside)
    if len(at) == 1:
        found = search.extended(found, mask)
    of_full = other.nodes(*full_mode, everything)
    kept = [(node, own) for node in found if (own := search.precision(node.local)) is not None]
    if not kept or not of_full:
        return "not refitted, since the curvature is not that of a maximum"
    of_nodes = [other.log_evidence(n.local, everything) + n.log_weight for n in of_full]
    log_full = float(np.asarray(logsumexp(of_nodes)))
    log_weight = [other.log_evidence(n.local, everything) + n.log_weight for n, _ in kept]
    nodes = Nodes([own[1] for _, own in kept], np.array(log_weight) - log_full)
    heaviest = int(np.argmax(nodes.by_node(mask)))

    def of_submodel(inside: Bool[np.ndarray, " n"]) -> Whole:
        some = of_full if inside.all() else [node for node, _ in kept]
        if not inside.all() and other.is_far(some, inside, mode, covariance):
            own_mode = other.mode(other.nearest(some, inside), inside)
            some = some if own_mode is None else other.nodes(*own_mode, inside)
        if not is_exact:
            again = [(node, other.local(node.local.point[at], inside)) for node in some]
            some = [replace(node, local=local) for node, local in again if local is not None]
        return reduced_whole(some, other, whole, inside)

    refit = Refit(nodes, kept[heaviest][1][0], of_submodel, is_exact, others)
    if by_default and farthest_mean(refit, source) is not None:
        return "not refitted, since the program's posterior lies elsewhere than the fit"
    return refit


def farthest_mean(refit: Refit, source: Source) -> tuple[int, float] | None:
    """Return which element's mean by the program is farthest from that of the fit, if it is too far.

    Args:
        refit: The program's posterior of the full model.
        source: The fit.

    Returns:
        The element, and how far in standard deviations.
    """
    own = refit.whole(np.ones(source.layout.size, bool))
    at = own.positions(source.layout)
    sd = np.sqrt(np.minimum(np.diag(own.covariance)[at], np.diag(source.normal.covariance)))
    shift = (own.loc[at] - source.normal.loc) / sd
    error = 0.0 if source.independent_draws is None else 1 / math.sqrt(source.independent_draws)
    most = (_MOST_SHIFT if refit.is_exact else _MOST_SKEWED_SHIFT) + 3 * error
    worst = int(np.argmax(np.abs(shift)))
    return (worst, float(shift[worst])) if abs(shift[worst]) > most else None


def _sites(
    whole: Whole, layout: ElementLayout, model: Callable, data: Data
) -> tuple[list[Int[np.ndarray, " k"]], dict[int, str]]:
    """Return positions of the other sites without constraint, and the name of each position's site."""
    unconstrained = look_at_sites(_without_constraint, model, data)
    where = {
        name: np.ravel(np.asarray(value)).astype(int)
        for name, value in whole.unpack(np.arange(len(whole.loc))).items()
    }
    names = {int(i): name for name, of_site in where.items() for i in of_site}
    varies = np.diag(whole.covariance) > 0
    free = []
    for name in unconstrained:
        if name in layout.index or name not in where:
            continue
        positions = where[name][varies[where[name]]]
        if len(positions):
            free.append(positions)
    return free, names


def _without_constraint(sites: Any) -> list[str]:
    """Return the names of the latent sites that can have any value."""
    found = []
    for name, site in sites.items():
        if is_latent(site):
            transform = biject_to(site["fn"].support)
            while hasattr(transform, "base_transform"):
                transform = transform.base_transform
            if isinstance(transform, IdentityTransform):
                found.append(name)
    return found


class _Search:
    """The most probable submodel and the other elements, by turns."""

    def __init__(
        self,
        other: OtherElements,
        normal: JointNormal,
        units: list[Int[np.ndarray, " k"]],
        prior: ModelPrior,
        start: Float[np.ndarray, " d"],
    ):
        self._other, self._normal, self._units, self._prior = other, normal, units, prior
        self._start = start

    def elements(self, mask: Bool[np.ndarray, " units"]) -> Bool[np.ndarray, " n"]:
        """Return the elements that are in."""
        found = np.ones(len(self._normal.loc), bool)
        for is_in, unit in zip(mask, self._units, strict=True):
            found[unit] = is_in
        return found

    def precision(self, local: LocalNormal) -> tuple[JointNormal, Precision] | None:
        """Return the normal of the judged elements, all others of x marginalised."""
        size = len(self._normal.loc)
        found = local.conditioned(np.ones(len(local.at), bool))
        if found is None:
            return None
        _, loc, covariance = found
        try:
            normal = replace(self._normal, loc=loc[:size], covariance=covariance[:size, :size])
            return normal, Precision(normal, self._units)
        except np.linalg.LinAlgError:
            return None

    def best(
        self, starts: list[Bool[np.ndarray, " units"]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the most probable submodel with the mode of the other elements and their covariance."""
        most, found = -math.inf, None
        for start in starts:
            mask, psi, seen = start, self._start, set()
            for _ in range(_ROUNDS):
                mode = self._other.mode(psi, self.elements(mask))
                if mode is None:
                    break
                psi, covariance = mode
                value = self._log_prob(mask, psi, covariance)
                if value > most:
                    most, found = value, (mask, psi, covariance)
                seen.add(mask.tobytes())
                own = self._climb(psi, mask)
                if own is None or own.tobytes() in seen:
                    break
                mask = own
        return found

    def _climb(self, psi: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
        local = self._other.local(psi, self.elements(mask))
        own = None if local is None else self.precision(local)
        return None if own is None else climb(own[1], mask, self._prior)

    def _log_prob(self, mask: np.ndarray, psi: np.ndarray, covariance: np.ndarray) -> float:
        """Return ln of the probability of a submodel by Laplace's approximation, up to a constant."""
        inside = self.elements(mask)
        value = self._other.log_evidence(self._other.local(psi, inside), inside)
        log_det = np.linalg.slogdet(covariance)[1] if len(psi) else 0.0
        return value + 0.5 * float(log_det) + float(self._prior.log_prob(mask))

    def extended(self, nodes: list[Node], mask: Bool[np.ndarray, " units"]) -> list[Node]:
        """Add nodes at the ends of a line while there are submodels there that are not improbable."""
        at = self._other.at
        if len(nodes) < 2:
            return nodes
        step = nodes[1].local.point[at] - nodes[0].local.point[at]
        peak = max(self._value(node, mask) for node in nodes)
        for end, sign in ((0, -1.0), (-1, 1.0)):
            for _ in range(_MOST_ADDED):
                if self._value(nodes[end], mask) < peak - _EDGE:
                    break
                psi = nodes[end].local.point[at] + sign * step
                local = self._other.local(psi, self.elements(mask))
                if local is None or self.precision(local) is None:
                    break
                nodes.insert(len(nodes) if sign > 0 else 0, Node(local, nodes[end].log_weight))
        return nodes

    def _value(self, node: Node, mask: np.ndarray) -> float:
        """Return ln of the probability of the most probable submodel at a node."""
        own = self.precision(node.local)
        if own is None:
            return -math.inf
        top = climb(own[1], mask, self._prior, swaps=False)
        return self._other.log_evidence(node.local, self.elements(top)) + float(
            self._prior.log_prob(top)
        )
