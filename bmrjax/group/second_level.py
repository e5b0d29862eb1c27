"""Evidence and posteriors of a hierarchical model, given the standard deviations between subjects."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

# Numbers in one array of a chunk of nodes: 32 MB of them.
_CHUNK = 4_000_000


@dataclass(frozen=True)
class AtScales:
    """What the second level is, for each of several choices of the standard deviations between subjects.

    Attributes:
        log_evidence: ln of the evidence of the hierarchical model over the product of the evidences that the
            subjects have under their own prior, in nats.
        gradient: Its derivative with respect to ln of the standard deviation of each element; None where it
            was not needed.
        loc: Posterior mean of the effects, covariate after covariate; zero where an effect is left out.
        covariance: Their posterior covariance; zero where an effect is left out.
    """

    log_evidence: Float[np.ndarray, " nodes"]
    gradient: Float[np.ndarray, "nodes n"] | None
    loc: Float[np.ndarray, "nodes q"]
    covariance: Float[np.ndarray, "nodes q q"]


@dataclass(frozen=True)
class SecondLevel:
    r"""Subjects' likelihoods, read from their posteriors, under a linear model of their parameters.

    All is in units of the first level's prior, which is N(0, I) here. Subject i with posterior N(m, C) has
    the likelihood

    .. math::  \ln L_i(θ) = c_i + h_i^T θ - θ^T P_i θ / 2,  P_i = C^{-1} - I,  h_i = C^{-1} m,

    with c such that its evidence under the prior is one. The second level is θ_i = Σ_k x_ik β_k + ε_i with
    β ~ N(0, I) and ε ~ N(0, diag(τ²)), in which everything is a Gaussian integral once τ is given.

    Attributes:
        precision: P of each subject, positive semi-definite.
        score: h of each subject.
        constant: Sum of c over the subjects.
        design: x, one row per subject.
        free: Effects that are not left out, covariate after covariate.

    References:
        Friston, Litvak, Oswal, Razi, Stephan, van Wijk, Ziegler and Zeidman (2016), NeuroImage 128, for the
        model; Searle, Casella and McCulloch (1992), Variance Components, for the integrals.
    """

    precision: Float[np.ndarray, "subjects n n"]
    score: Float[np.ndarray, "subjects n"]
    constant: float
    design: Float[np.ndarray, "subjects covariates"]
    free: Bool[np.ndarray, " q"]

    @property
    def size(self) -> int:
        """Number of parameters of a subject."""
        return self.score.shape[1]

    def reduced(
        self, free: Bool[np.ndarray, " q"], value: Float[np.ndarray, " q"]
    ) -> "SecondLevel":
        """Return the model in which some effects have a fixed value.

        Args:
            free: Effects that stay.
            value: Value of the others.
        """
        gone = np.where(free, 0.0, value).reshape(self.design.shape[1], self.size)
        shift = self.design @ gone
        moved = np.einsum("inm,im->in", self.precision, shift)
        constant = self.constant + float(np.sum(shift * (self.score - 0.5 * moved)))
        return replace(self, score=self.score - moved, constant=constant, free=free)

    def without(
        self, subject: int, design: Float[np.ndarray, "others covariates"]
    ) -> "SecondLevel":
        """Return the model of the other subjects, under a design of theirs.

        The constant of the evidence stays that of all subjects.
        """
        rest = np.delete(np.arange(len(self.score)), subject)
        return replace(self, precision=self.precision[rest], score=self.score[rest], design=design)

    def at(self, log_scale: Float[np.ndarray, "nodes n"], *, gradient: bool = True) -> AtScales:
        """Evaluate the model.

        Args:
            log_scale: ln of the standard deviation of each element between subjects.
            gradient: Whether the gradient is needed, which is a third of the work.
        """
        found = [self._chunk(part, gradient=gradient) for part in self._parts(log_scale)]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(one, name) for one in found])

        return AtScales(
            joined("log_evidence"),
            joined("gradient") if gradient else None,
            joined("loc"),
            joined("covariance"),
        )

    def subjects(
        self, log_scale: Float[np.ndarray, "nodes n"], weight: Float[np.ndarray, " nodes"]
    ) -> tuple[Float[np.ndarray, "subjects n"], Float[np.ndarray, "subjects n n"]]:
        """Return mean and covariance of each subject's parameters given all data, averaged over nodes.

        Args:
            log_scale: ln of the standard deviation of each element between subjects, by node.
            weight: Weight of each node; they add up to one.
        """
        first = np.zeros(self.score.shape)
        second = np.zeros(self.precision.shape)
        done = 0
        for part in self._parts(log_scale):
            own = weight[done : done + len(part)]
            done += len(part)
            loc, covariance = self._subjects(part)
            first += np.einsum("b,bin->in", own, loc)
            outer = loc[..., :, None] * loc[..., None, :]
            second += np.einsum("b,binm->inm", own, covariance + outer)
        return first, second - first[:, :, None] * first[:, None, :]

    def _parts(self, log_scale: np.ndarray) -> Iterator[np.ndarray]:
        largest = max(self.precision.size, len(self.free) ** 2)
        step = max(1, _CHUNK // largest)
        for start in range(0, len(log_scale), step):
            yield log_scale[start : start + step]

    def _chunk(self, log_scale: np.ndarray, *, gradient: bool) -> AtScales:
        given = self._given(log_scale)
        loc, covariance, log_det = self._effects(given)
        quadratic = (given.score * loc).sum(1)
        log_evidence = self.constant + given.log_evidence + 0.5 * (quadratic - log_det)
        if not gradient:
            return AtScales(log_evidence, None, loc, covariance)
        mean, spread = self._means(loc, covariance)
        residual = self.score - np.einsum("inm,bim->bin", self.precision, mean)
        standard = np.einsum("binm,bm,bim->bin", given.inverse, given.scale, residual)
        through = given.inverse @ given.scaled
        variance = np.einsum("binn->bin", given.inverse) + np.einsum(
            "binm,bimk,bink->bin", through, spread, through
        )
        return AtScales(log_evidence, (standard**2 + variance - 1.0).sum(1), loc, covariance)

    def _subjects(self, log_scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = self._given(log_scale)
        loc, covariance, _ = self._effects(given)
        mean, spread = self._means(loc, covariance)
        tau = given.scale[:, None, :]
        within = tau[..., :, None] * given.inverse * tau[..., None, :]
        residual = self.score - np.einsum("inm,bim->bin", self.precision, mean)
        carried = np.eye(self.size) - within @ self.precision
        own = mean + np.einsum("binm,bim->bin", within, residual)
        return own, within + carried @ spread @ np.swapaxes(carried, -1, -2)

    def _given(self, log_scale: np.ndarray) -> "_Given":
        """Integrate over ε, with G = I + T P T, whose eigenvalues are at least one for every T."""
        scale = np.exp(log_scale)
        scaled = scale[:, None, :, None] * self.precision
        inner = scaled * scale[:, None, None, :]
        inner[..., np.arange(self.size), np.arange(self.size)] += 1.0
        factor = np.linalg.cholesky(inner)
        log_det = 2.0 * np.log(np.einsum("binn->bin", factor)).sum((1, 2))
        inverse = np.linalg.inv(inner)
        inverse = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
        weighted = scale[:, None, :] * self.score
        solved = np.einsum("binm,bim->bin", inverse, weighted)
        log_evidence = 0.5 * ((weighted * solved).sum((1, 2)) - log_det)
        # (P⁻¹ + T²)⁻¹ and (I + P T²)⁻¹ h, which exist for a singular P as well.
        marginal = self.precision - np.swapaxes(scaled, -1, -2) @ inverse @ scaled
        score = self.score - np.einsum("bimn,bim->bin", scaled, solved)
        x, nodes, size = self.design, len(scale), len(self.free)
        matrix = np.einsum("ik,il,binm->bknlm", x, x, marginal, optimize=True)
        vector = np.einsum("ik,bin->bkn", x, score)
        return _Given(
            scale,
            scaled,
            inverse,
            log_evidence,
            matrix.reshape(nodes, size, size),
            np.where(self.free, vector.reshape(nodes, size), 0.0),
        )

    def _effects(self, given: "_Given") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean and covariance of the effects, and ln of the determinant of their precision."""
        both = self.free[:, None] & self.free
        matrix = np.where(both, given.matrix, 0.0) + np.eye(len(self.free))
        matrix = 0.5 * (matrix + np.swapaxes(matrix, -1, -2))
        factor = np.linalg.cholesky(matrix)
        log_det = 2.0 * np.log(np.einsum("bnn->bn", factor)).sum(1)
        covariance = np.where(both, np.linalg.inv(matrix), 0.0)
        return np.einsum("bnm,bm->bn", covariance, given.score), covariance, log_det

    def _means(self, loc: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and covariance of what the design says of each subject."""
        x, n = self.design, self.size
        loc = loc.reshape(len(loc), -1, n)
        covariance = covariance.reshape(len(loc), loc.shape[1], n, loc.shape[1], n)
        spread = np.einsum("ik,il,bknlm->binm", x, x, covariance, optimize=True)
        return np.einsum("ik,bkn->bin", x, loc), spread


@dataclass(frozen=True)
class _Given:
    """Integrals over ε: T, T P, (I + T P T)⁻¹, ln of the evidence at β = 0, and the likelihood of β."""

    scale: np.ndarray
    scaled: np.ndarray
    inverse: np.ndarray
    log_evidence: np.ndarray
    matrix: np.ndarray
    score: np.ndarray
