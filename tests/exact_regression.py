"""A conjugate regression of which every submodel's evidence is exact, for tests of finished fits."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from bmrjax import reduction


class Linear:
    """A conjugate linear model with known noise; no prior variance is one."""

    noise_scale, prior_scale = 0.7, 1.3

    def __init__(self, size: int, *, seed: int, rows: int = 60, effects=(0.9, -0.6, 0.3)):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(rows, size)) + 0.7 * rng.normal(size=(rows, 1))
        self.beta = np.zeros(size)
        self.beta[: len(effects)] = effects
        self.y = self.x @ self.beta + self.noise_scale * rng.normal(size=rows)
        precision = self.x.T @ self.x / self.noise_scale**2
        precision += np.eye(size) / self.prior_scale**2
        self.covariance = np.linalg.inv(precision)
        self.loc = self.covariance @ self.x.T @ self.y / self.noise_scale**2

    @property
    def arrays(self):
        prior = reduction.Normal(jnp.zeros(len(self.loc)), np.full(len(self.loc), self.prior_scale))
        return {"loc": self.loc, "covariance": self.covariance, "prior": prior}

    @property
    def data(self):
        return np.float32(self.x), np.float32(self.y)

    def draws(self, count: int = 4000, *, seed: int = 0):
        rng = np.random.default_rng(seed)
        return {"beta": rng.multivariate_normal(self.loc, self.covariance, count)}

    def model(self, x, y):
        prior = dist.Normal(0, self.prior_scale).expand([x.shape[1]]).to_event(1)
        beta = numpyro.sample("beta", prior)
        numpyro.sample("y", dist.Normal(x @ beta, self.noise_scale), obs=y)

    def log_evidence(self, inside):
        x = self.x[:, inside]
        covariance = self.prior_scale**2 * x @ x.T + self.noise_scale**2 * np.eye(len(self.y))
        return stats.multivariate_normal(cov=covariance).logpdf(self.y)

    @functools.cached_property
    def submodels(self):
        masks = np.array(list(itertools.product([True, False], repeat=len(self.loc))))
        return masks, np.array([self.log_evidence(mask) for mask in masks])

    def posterior(self, expected: float | None = None):
        """Return all submodels with their posterior probabilities."""
        masks, evidence = self.submodels
        log_prob = evidence + log_prior(masks, expected)
        weight = np.exp(log_prob - log_prob.max())
        return masks, weight / weight.sum()

    def enumerated(self, expected: float | None = None):
        """Return inclusion probabilities and the most probable submodel."""
        masks, prob = self.posterior(expected)
        return prob @ masks, masks[np.argmax(prob)]


def log_prior(masks, expected=None):
    """Return ln of the prior of submodels: a shared probability up to ½, or an expected number of effects."""
    size, count = masks.sum(-1), masks.shape[-1]
    if expected is None:
        inside = special.betainc(size + 1, count - size + 1, 0.5)
        return np.log(2 * inside) + special.betaln(size + 1, count - size + 1)
    return np.log(expected / (count - expected)) * size
