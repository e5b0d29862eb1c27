"""Submodels under one joint normal, or under several: one for each value of what else is latent."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import logsumexp

from bmrjax.fitted.log_sum_exp import log_sum_exp
from bmrjax.fitted.swept import Precision, Swept


class Nodes:
    r"""A posterior that is a mixture of joint normals, of which a submodel's evidence is a sum.

    Node k is a value of the other latent variables, at which the posterior of the judged elements is normal.
    With the full model's evidence there, times the weight of the node in a quadrature, the evidence of a
    submodel S relative to the full model is

    .. math::  ΔF(S) = \ln \sum_k \exp(w_k + ΔF_k(S)).

    Args:
        precisions: The joint normal at each node, all with the same units.
        log_weight: ln of the weighted evidence of the full model at each node, less ln of its evidence; zero
            for one node.
    """

    def __init__(self, precisions: Sequence[Precision], log_weight: Float[np.ndarray, " nodes"]):
        self.precisions: tuple[Precision, ...] = tuple(precisions)
        self.log_weight: np.ndarray = np.asarray(log_weight, np.float64)
        self._matrices = np.stack([p.matrix for p in self.precisions])
        self._eta = np.stack([p.eta for p in self.precisions])
        self._base = np.array([0.5 * (p.log_det - p.loc @ p.eta) for p in self.precisions])
        self._at_zero = np.stack(
            [p.log_prior_at_zero + 0.5 * np.log(2 * np.pi) for p in self.precisions]
        )

    @classmethod
    def one(cls, precision: Precision) -> "Nodes":
        """Return a single joint normal."""
        return cls([precision], np.zeros(1))

    def __len__(self) -> int:
        return len(self.precisions)

    @property
    def units(self) -> list[np.ndarray]:
        """Elements of each unit."""
        return self.precisions[0].units

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.precisions[0].size

    def elements(self, masks: Bool[np.ndarray, "*lead units"]) -> Bool[np.ndarray, "*lead n"]:
        """Return which elements are in, from which units are."""
        return self.precisions[0].elements(masks)

    def by_node(self, mask: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " nodes"]:
        """Return the terms whose exponentials add up to the evidence of a submodel, in nats.

        Args:
            mask: Units that are in.
        """
        inside = self.elements(mask)
        kept = np.flatnonzero(inside)
        blocks = self._matrices[:, kept[:, None], kept]
        factor = np.linalg.cholesky(blocks)
        half = np.linalg.solve(factor, self._eta[:, kept, None])[..., 0]
        log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1)
        of_kept = 0.5 * (half**2).sum(1) - log_det
        return self.log_weight + self._base + of_kept - self._at_zero[:, ~inside].sum(1)

    def terms(
        self, mask: Bool[np.ndarray, " units"]
    ) -> tuple[
        Float[np.ndarray, " nodes"], Float[np.ndarray, "nodes n"], Float[np.ndarray, "nodes n"]
    ]:
        """Return the posterior of a submodel as a mixture: shares, means and variances by node.

        Args:
            mask: Units that are in. Elements that are out have a mean and a variance of zero.
        """
        share = self.by_node(mask)
        kept = np.flatnonzero(self.elements(mask))
        loc, variance = np.zeros((2, len(self), self.size))
        covariance = np.linalg.inv(self._matrices[:, kept[:, None], kept])
        scale = np.stack([p.scale[kept] for p in self.precisions])
        loc[:, kept] = scale * np.einsum("kij,kj->ki", covariance, self._eta[:, kept])
        variance[:, kept] = scale**2 * np.diagonal(covariance, axis1=1, axis2=2)
        return np.exp(share - log_sum_exp(share)), loc, variance

    def delta_f(self, mask: Bool[np.ndarray, " units"]) -> float:
        """Return ln of the evidence of a submodel over that of the full one, in nats.

        Args:
            mask: Units that are in.
        """
        if len(self) == 1:
            return Swept(self.precisions[0], mask).delta_f() + float(self.log_weight[0])
        return log_sum_exp(self.by_node(mask))

    def heaviest(self, mask: Bool[np.ndarray, " units"]) -> int:
        """Return the node where a submodel has most of its evidence.

        Args:
            mask: Units that are in.
        """
        return int(np.argmax(self.by_node(mask))) if len(self) > 1 else 0

    def removal(self, mask: Bool[np.ndarray, " units"]) -> Float[np.ndarray, " units"]:
        """Return ln of the evidence without each unit over that with it, the others being as they are.

        Args:
            mask: Units that are in.
        """
        if len(self) == 1:
            return -Swept(self.precisions[0], mask).log_bayes_factors()
        share = self.by_node(mask)
        share = (share - log_sum_exp(share))[:, None]
        factors = np.stack([Swept(p, mask).log_bayes_factors() for p in self.precisions])
        out = -np.asarray(logsumexp(share + factors, axis=0))
        return np.where(mask, np.asarray(logsumexp(share - factors, axis=0)), out)
