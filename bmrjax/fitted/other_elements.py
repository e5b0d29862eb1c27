"""The other latent variables of a program, fitted again for submodels in place of the full model."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp, ndtri

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.joint_normal import JointNormal
from bmrjax.fitted.local_normal import LocalNormal, LocalNormals

# Steps to the mode of what is not normal; the length, on the unconstrained space, that one has at most; the
# step, in standard deviations, at which it is reached.
_STEPS, _LONGEST, _REACHED = 30, 1.0, 0.1
# Distance of two nodes and how far they reach, in standard deviations, in one dimension and in two.
_SPACING, _REACH = (0.75, 1.0), (4.5, 3.75)
# Beyond so many standard deviations from what a quadrature is about, a submodel gets one of its own.
_FAR = 2.0
# Nodes in more dimensions, and the standard deviations that they are drawn with.
_DRAWN, _WIDER = 64, 1.3


@dataclass(frozen=True)
class Node:
    """Local normals at a value of the other elements.

    Attributes:
        local: The normal in x there.
        log_weight: ln of the weight of the node in a quadrature over the other elements.
    """

    local: LocalNormal
    log_weight: float


class OtherElements:
    """Where the elements that are not normal have their mode, and a quadrature over them, for a submodel.

    Args:
        normals: Local normals of the program.
        start: All latent elements, for a start.
        at: Positions of the other elements.
        normal: Prior of the judged elements, which are the first of x.
    """

    def __init__(
        self,
        normals: LocalNormals,
        start: Float[np.ndarray, " m"],
        at: Int[np.ndarray, " d"],
        normal: JointNormal,
    ):
        self.normals: LocalNormals = normals
        self.at: np.ndarray = at
        self._start = start
        ratio = normal.prior_loc / normal.prior_scale
        self._log_prior_at_zero = (
            -0.5 * ratio**2 - np.log(normal.prior_scale) - 0.5 * math.log(2 * math.pi)
        )
        self._known: dict[bytes, LocalNormal | None] = {}

    def free(self, inside: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " x"]:
        """Return which elements of x are free, from which judged elements are in."""
        return np.append(inside, np.ones(len(self.normals.at) - len(inside), bool))

    def local(
        self, psi: Float[np.ndarray, " d"], inside: Bool[np.ndarray, " n"]
    ) -> LocalNormal | None:
        """Return the normal in x at a value of the other elements.

        Args:
            psi: The other elements, on the unconstrained space.
            inside: Judged elements that are in, where the density is not normal.
        """
        key = psi.tobytes() + (b"" if self.normals.is_exact else inside.tobytes())
        if key not in self._known:
            point = self._start.copy()
            point[self.at] = psi
            self._known[key] = self.normals.at_mode(point, self.free(inside))
        return self._known[key]

    def log_evidence(self, local: LocalNormal | None, inside: Bool[np.ndarray, " n"]) -> float:
        """Return ln of the evidence of a submodel at a value of the other elements, a density in them."""
        found = None if local is None else local.log_integral(self.free(inside))
        if found is None:
            return -math.inf
        return found - float(self._log_prior_at_zero[~inside].sum())

    def mode(
        self, psi: Float[np.ndarray, " d"], inside: Bool[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]] | None:
        """Return the mode of the evidence over the other elements and minus its inverse curvature there.

        Newton's method by finite differences over about half a standard deviation.

        Args:
            psi: For a start.
            inside: Judged elements that are in.
        """

        def value(psi: np.ndarray) -> float:
            return self.log_evidence(self.local(psi, inside), inside)

        size = len(psi)
        width = np.full(size, 0.1)
        here = value(psi)
        if not size or not math.isfinite(here):
            return (psi, np.zeros((0, 0))) if math.isfinite(here) else None
        for _ in range(_STEPS):
            gradient, hessian = _differences(value, psi, here, width)
            if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
                return None
            values, vectors = np.linalg.eigh(-hessian)
            floor = 1e-3 * max(float(values[-1]), 1e-3)
            along = (vectors.T @ gradient) / np.maximum(values, floor)
            step = vectors @ along
            far = float(np.sqrt(np.sum(along**2 * np.maximum(values, floor))))
            is_maximum = bool(values[0] > floor)
            width = np.clip(0.5 / np.sqrt(np.maximum(-np.diag(hessian), 1e-6)), 1e-3, 0.3)
            if far < _REACHED and is_maximum:
                return psi, (vectors / values) @ vectors.T
            step *= min(1.0, _LONGEST / float(np.abs(step).max()))
            for power in range(8):
                trial = psi + 0.5**power * step
                there = value(trial)
                if there > here:
                    psi, here = trial, there
                    break
            else:
                return (psi, (vectors / values) @ vectors.T) if is_maximum else None
        return None

    def nodes(
        self,
        mode: Float[np.ndarray, " d"],
        covariance: Float[np.ndarray, "d d"],
        inside: Bool[np.ndarray, " n"],
    ) -> list[Node]:
        """Return a quadrature over the other elements.

        Args:
            mode: Mode of the evidence of a submodel.
            covariance: Minus its inverse curvature there.
            inside: Judged elements that are in, where the density is not normal.
        """
        found = []
        for psi, log_weight in _quadrature(mode, covariance):
            local = self.local(psi, inside)
            if local is not None and math.isfinite(self.log_evidence(local, inside)):
                found.append(Node(local, log_weight))
        return found

    def nearest(
        self, nodes: Sequence[Node], inside: Bool[np.ndarray, " n"]
    ) -> Float[np.ndarray, " d"]:
        """Return the other elements at the node where a submodel has most evidence.

        Args:
            nodes: A quadrature.
            inside: Judged elements that are in.
        """
        values = [self.log_evidence(node.local, inside) for node in nodes]
        return nodes[int(np.argmax(values))].local.point[self.at]

    def is_far(
        self,
        nodes: Sequence[Node],
        inside: Bool[np.ndarray, " n"],
        mode: Float[np.ndarray, " d"],
        covariance: Float[np.ndarray, "d d"],
    ) -> bool:
        """Say whether a submodel has its evidence at the edge of a quadrature, or beyond.

        Args:
            nodes: The quadrature.
            inside: Judged elements that are in.
            mode: What the quadrature is about.
            covariance: Its width.
        """
        if not len(mode):
            return False
        away = self.nearest(nodes, inside) - mode
        return float(away @ np.linalg.solve(covariance, away)) > _FAR**2


def _differences(
    value: Callable[[np.ndarray], float], psi: np.ndarray, here: float, width: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and Hessian by central differences."""
    size = len(psi)
    step = np.diag(width)
    up = np.array([value(psi + step[i]) for i in range(size)])
    down = np.array([value(psi - step[i]) for i in range(size)])
    hessian = np.diag((up + down - 2 * here) / width**2)
    for i, j in itertools.combinations(range(size), 2):
        both = value(psi + step[i] + step[j]) + value(psi - step[i] - step[j])
        mixed = both - up[i] - up[j] - down[i] - down[j] + 2 * here
        hessian[i, j] = hessian[j, i] = mixed / (2 * width[i] * width[j])
    return (up - down) / (2 * width), hessian


def _quadrature(
    mode: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"]
) -> list[tuple[Float[np.ndarray, " d"], float]]:
    """Return nodes about a mode and ln of their weights.

    In one and two dimensions a lattice, whose sum converges faster than any power for smooth densities that
    vanish at its edge; in more, a low-discrepancy sequence from a wider normal.
    """
    size = len(mode)
    if not size:
        return [(mode, 0.0)]
    factor = np.linalg.cholesky(covariance)
    log_det = float(np.log(np.diag(factor)).sum())
    if size <= 2:
        spacing, reach = _SPACING[size - 1], _REACH[size - 1]
        line = spacing * np.arange(-math.floor(reach / spacing), math.floor(reach / spacing) + 1)
        standard = np.array(list(itertools.product(*[line] * size)))
        standard = standard[np.linalg.norm(standard, axis=1) <= reach]
        return [(mode + factor @ z, size * math.log(spacing) + log_det) for z in standard]
    from scipy.stats import qmc  # takes longer to load than all that a plot needs beside it

    uniform = qmc.Sobol(size, rng=np.random.default_rng(0)).random(_DRAWN)
    standard = ndtri(np.clip(uniform, 1e-6, 1 - 1e-6))
    constant = size * (math.log(_WIDER) + 0.5 * math.log(2 * math.pi)) + log_det - math.log(_DRAWN)
    return [(mode + _WIDER * (factor @ z), constant + 0.5 * float(z @ z)) for z in standard]


def reduced_whole(
    nodes: Sequence[Node],
    other: OtherElements,
    whole: Whole,
    inside: Bool[np.ndarray, " n"],
) -> Whole:
    """Return the joint normal over all latent elements with the moments of a submodel's posterior.

    Args:
        nodes: A quadrature over the other elements.
        other: The other elements.
        whole: For the order of all latent elements.
        inside: Judged elements that are in.
    """
    free = other.free(inside)
    at = other.normals.at
    kept = [(part, node) for node in nodes if (part := node.local.conditioned(free)) is not None]
    log_share = np.array([part[0] + node.log_weight for part, node in kept])
    share = np.exp(log_share - logsumexp(log_share))
    points = np.stack([node.local.point for _, node in kept])
    points[:, at] = np.stack([part[1] for part, _ in kept])
    loc = share @ points
    centred = points - loc
    covariance = (share[:, None] * centred).T @ centred
    where = at[free]
    covariance[np.ix_(where, where)] += np.einsum(
        "k,kij->ij", share, np.stack([part[2] for part, _ in kept])
    )
    return replace(whole, loc=loc, covariance=0.5 * (covariance + covariance.T))
