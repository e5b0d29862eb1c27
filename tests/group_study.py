"""A made-up group study of which everything is exact given the variances."""

import functools

import jax.numpy as jnp
import numpy as np
from scipy import stats

import bmrjax as bmr
from bmrjax import reduction


class Study:
    """Linear models of several subjects with known noise, under priors of which none is standard."""

    noise_scale = 0.7
    prior_scale = np.array([1.3, 0.6, 2.0])
    rows = 25

    def __init__(self, count=12, *, seed=0, effects=((0.8, 0.0, -1.0), (0.0, 0.5, 0.0)), tau=0.15):
        rng = np.random.default_rng(seed)
        self.age = rng.normal(40, 12, count)
        standard = (self.age - self.age.mean()) / self.age.std()
        mean, slope = np.array(effects)
        self.theta = mean + np.outer(standard, slope) + tau * rng.normal(size=(count, 3))
        self.x = [rng.normal(size=(self.rows, 3)) for _ in range(count)]
        self.y = [
            x @ t + self.noise_scale * rng.normal(size=self.rows)
            for x, t in zip(self.x, self.theta, strict=True)
        ]
        self.standard = standard

    @property
    def arrays(self):
        covariance = [
            np.linalg.inv(x.T @ x / self.noise_scale**2 + np.diag(self.prior_scale**-2.0))
            for x in self.x
        ]
        loc = [
            c @ x.T @ y / self.noise_scale**2
            for c, x, y in zip(covariance, self.x, self.y, strict=True)
        ]
        prior = reduction.Normal(jnp.zeros(3), jnp.asarray(self.prior_scale))
        return {"loc": np.array(loc), "covariance": np.array(covariance), "prior": prior}

    @functools.cached_property
    def stacked(self):
        """All rows, as a linear function of the mean and the slope in units of their priors."""
        design = np.stack([np.ones_like(self.standard), self.standard], 1)
        blocks = [
            np.kron(row[None], x * self.prior_scale) for row, x in zip(design, self.x, strict=True)
        ]
        return np.concatenate(blocks), np.concatenate(self.y)

    def whole(self, relative_tau, free=None):
        """Return the log evidence of the hierarchy and the posterior of its effects by one big Gaussian."""
        matrix, y = self.stacked
        free = np.ones(matrix.shape[1], bool) if free is None else free
        covariance = self.noise_scale**2 * np.eye(len(y)) + matrix[:, free] @ matrix[:, free].T
        for i, x in enumerate(self.x):
            block = slice(i * self.rows, (i + 1) * self.rows)
            own = x * self.prior_scale * relative_tau
            covariance[block, block] += own @ own.T
        evidence = stats.multivariate_normal(cov=covariance).logpdf(y)
        gain = matrix.T @ np.linalg.inv(covariance)
        return evidence, gain @ y, np.eye(matrix.shape[1]) - gain @ matrix

    def alone(self):
        """Return the sum of the subjects' own log evidences."""
        total = 0.0
        for x, y in zip(self.x, self.y, strict=True):
            own = x * self.prior_scale
            covariance = self.noise_scale**2 * np.eye(len(y)) + own @ own.T
            total += stats.multivariate_normal(cov=covariance).logpdf(y)
        return total


NAMES = ["gain", "decay", "delay"]


def fixed(study, **options):
    """Return the second level with standard deviations between subjects that are all but fixed."""
    scale = {"between_scale": 0.2, "between_spread": 1e-6}
    return bmr.peb(design={"age": study.age}, names=NAMES, **study.arrays, **(scale | options))
