"""The standard deviations between subjects: components, their posterior, and the integral over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp
from scipy.stats import chi2, norm, qmc

from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.normality import tail_shape
from bmrjax.group.second_level import AtScales, SecondLevel

# Nodes of an integral: at least these, and some for each component.
LEAST_NODES, _NODES_PER_COMPONENT = 512, 64
# Rounds, of which all but the last teach the proposal where the posterior is.
_ROUNDS = 3

# Degrees of freedom of the proposal: its tails are heavier than those of the posterior.
_FREEDOM = 5.0
_STEP = 1e-4


@dataclass(frozen=True)
class VarianceComponents:
    """Which elements share a standard deviation between subjects, and what is known of it beforehand.

    Attributes:
        names: Name of each component.
        of_element: Component of each element.
        scale: Prior median of the standard deviations, per standard deviation of the first level's prior.
        spread: Prior standard deviation of their logarithm.
    """

    names: tuple[str, ...]
    of_element: Int[np.ndarray, " n"]
    scale: float
    spread: float

    def log_scale(self, standard: Float[np.ndarray, "nodes c"]) -> Float[np.ndarray, "nodes n"]:
        """Return ln of the standard deviation of each element, from standardised components."""
        return (np.log(self.scale) + self.spread * standard)[:, self.of_element]


def components_of(
    layout: ElementLayout,
    components: Mapping[str, Sequence[str | int]] | None,
    *,
    scale: float,
    spread: float,
) -> VarianceComponents:
    """Return the components: those that are named, and one for every other element.

    Args:
        layout: The elements.
        components: Name of a component to its elements or sites.
        scale: See `VarianceComponents`.
        spread: See `VarianceComponents`.

    Raises:
        ValueError: For names that are not there, or elements in two components.
    """
    for name, value in (("between_scale", scale), ("between_spread", spread)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"peb: {name} is a positive number, got {value}.")
    names: list[str] = []
    of_element = np.full(layout.size, -1)
    for name, members in (components or {}).items():
        if isinstance(members, str):
            raise TypeError(f"peb: the component '{name}' is a list of names; write ['{members}'].")
        names.append(name)
        for i in (i for m in members for i in layout.find(m, f"the component '{name}'")):
            if of_element[i] >= 0:
                raise ValueError(
                    f"peb: '{layout.label[i]}' is in the components '{names[of_element[i]]}' and '{name}'; "
                    "one component per element."
                )
            of_element[i] = len(names) - 1
        if len(names) - 1 not in of_element:
            raise ValueError(f"peb: the component '{name}' is empty.")
    for i, label in enumerate(layout.label):
        if of_element[i] < 0:
            of_element[i] = len(names)
            names.append(label)
    return VarianceComponents(tuple(names), of_element, scale, spread)


@dataclass(frozen=True)
class IntegratedLevel:
    """The second level, with the standard deviations between subjects integrated out.

    Attributes:
        log_evidence: As in `AtScales`.
        error: Monte Carlo standard error of it.
        pareto_k: Shape of the tail of the importance weights; NaN without ArviZ.
        standard: Standardised components, by node.
        weight: Weight of each node; they add up to one.
        log_scale: ln of the standard deviation of each element, by node.
        nodes: Effects, by node.
    """

    log_evidence: float
    error: float
    pareto_k: float
    standard: Float[np.ndarray, "nodes c"]
    weight: Float[np.ndarray, " nodes"]
    log_scale: Float[np.ndarray, "nodes n"]
    nodes: AtScales

    def moments(self) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, "q q"]]:
        """Return mean and covariance of the effects."""
        loc = self.weight @ self.nodes.loc
        away = self.nodes.loc - loc
        within = np.einsum("b,bnm->nm", self.weight, self.nodes.covariance)
        return loc, within + np.einsum("b,bn,bm->nm", self.weight, away, away)


def integrate_level(
    level: SecondLevel,
    components: VarianceComponents,
    *,
    start: Float[np.ndarray, " c"] | None = None,
    least_nodes: int = LEAST_NODES,
    seed: int = 0,
) -> IntegratedLevel:
    """Integrate over the standard deviations between subjects, by importance sampling.

    Their logarithms have a normal prior. The proposal is a multivariate t around the mode, moved and scaled
    by the weights of earlier rounds; its points are those of a scrambled Sobol sequence. Every node has its
    evidence and effects in closed form.

    Args:
        level: The model.
        components: The standard deviations.
        start: Standardised components where the search for the mode starts; by default at the prior's median.
        least_nodes: Least number of nodes.
        seed: Of the scrambling.
    """
    count = len(components.names)
    begin = np.zeros(count) if start is None else start
    loc = _mode(level, components, begin)
    covariance = _curvature(level, components, loc)
    nodes = 2 ** int(np.ceil(np.log2(max(least_nodes, _NODES_PER_COMPONENT * count))))
    for again in range(_ROUNDS - 1):
        drawn = _nodes(level, components, loc, covariance, nodes // 2, seed + again)
        weight = np.exp(drawn[1] - np.asarray(logsumexp(drawn[1])))
        # With few nodes that count, their covariance would be worse than Laplace's.
        if 1 / np.sum(weight**2) > 10 * count:
            loc = weight @ drawn[0]
            away = drawn[0] - loc
            covariance = (weight * away.T) @ away + 1e-9 * np.eye(count)
    standard, log_weight, at = _nodes(level, components, loc, covariance, nodes, seed + _ROUNDS)
    weight = np.exp(log_weight - np.asarray(logsumexp(log_weight)))
    log_mean = float(np.asarray(logsumexp(log_weight))) - np.log(len(weight))
    relative = np.exp(log_weight - log_mean)
    return IntegratedLevel(
        log_mean,
        float(relative.std(ddof=1) / np.sqrt(len(weight))),
        tail_shape(log_weight),
        standard,
        weight,
        components.log_scale(standard),
        at,
    )


def _log_posterior(
    level: SecondLevel, components: VarianceComponents, standard: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ln of evidence times prior, up to a constant, and its gradient."""
    at = level.at(components.log_scale(standard))
    assert at.gradient is not None
    gradient = np.zeros(standard.shape)
    np.add.at(gradient.T, components.of_element, components.spread * at.gradient.T)
    return at.log_evidence - 0.5 * (standard**2).sum(1), gradient - standard


def _mode(level: SecondLevel, components: VarianceComponents, start: np.ndarray) -> np.ndarray:
    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _log_posterior(level, components, point[None])
        return -float(value[0]), -gradient[0]

    # Beyond ten prior standard deviations the prior alone would cost 50 nats.
    bounds = [(-10.0, 10.0)] * len(start)
    return minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds).x


def _curvature(level: SecondLevel, components: VarianceComponents, mode: np.ndarray) -> np.ndarray:
    """Return the covariance of Laplace's approximation, from differences of gradients."""
    steps = _STEP * np.eye(len(mode))
    points = np.concatenate([mode + steps, mode - steps])
    _, gradient = _log_posterior(level, components, points)
    up, down = np.split(gradient, 2)
    precision = -(up - down) / (2 * _STEP)
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    # The prior alone has curvature one.
    return (vectors / np.maximum(values, 0.5)) @ vectors.T


def _nodes(
    level: SecondLevel,
    components: VarianceComponents,
    loc: np.ndarray,
    covariance: np.ndarray,
    count: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, AtScales]:
    """Return points of the proposal, ln of their weights, and what is known there."""
    size = len(loc)
    uniform = qmc.Sobol(size + 1, rng=np.random.default_rng(seed)).random(count)
    uniform = np.clip(uniform, 1e-12, 1 - 1e-12)
    noise = norm.ppf(uniform[:, :size])
    noise /= np.sqrt(chi2.ppf(uniform[:, size:], _FREEDOM) / _FREEDOM)
    factor = np.linalg.cholesky(covariance)
    standard = loc + noise @ factor.T
    at = level.at(components.log_scale(standard), gradient=False)
    value = at.log_evidence - 0.5 * (standard**2).sum(1)
    log_prior_constant = -0.5 * size * np.log(2 * np.pi)
    half = 0.5 * (_FREEDOM + size)
    log_proposal = (
        gammaln(half)
        - gammaln(0.5 * _FREEDOM)
        - 0.5 * size * np.log(_FREEDOM * np.pi)
        - np.log(np.diag(factor)).sum()
        - half * np.log1p((noise**2).sum(1) / _FREEDOM)
    )
    return standard, value + log_prior_constant - log_proposal, at
