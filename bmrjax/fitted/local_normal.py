"""The normal that the density of a program is in some latent elements given the others, exactly or nearby."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from numpyro.infer.util import potential_energy
from scipy.linalg import solve_triangular

from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.program_function import program_function
from bmrjax.infer.arguments import Data

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
# Newton's steps to the mode, and the gain in nats below which it is reached.
_STEPS, _LITTLE = 20, 1e-2


@dataclass(frozen=True)
class LocalNormal:
    r"""Expansion of ln of a joint density to second order in the elements x, all others fixed.

    Attributes:
        point: All latent elements where it is expanded.
        at: Positions of x among them.
        log_density: ln of the joint density there.
        eta: Gradient at x = 0.
        precision: Minus the Hessian.
        log_origin: ln of the density at x = 0, by the expansion.
    """

    point: Float[np.ndarray, " m"]
    at: Int[np.ndarray, " n"]
    log_density: float
    eta: Float[np.ndarray, " n"]
    precision: Float[np.ndarray, "n n"]
    log_origin: float

    @classmethod
    def expanded(
        cls,
        point: Float[np.ndarray, " m"],
        at: Int[np.ndarray, " n"],
        log_density: float,
        gradient: Float[np.ndarray, " n"],
        precision: Float[np.ndarray, "n n"],
    ) -> "LocalNormal":
        """Return the expansion, from its value, gradient and precision where it is expanded."""
        x = point[at]
        precision = 0.5 * (precision + precision.T)
        along = precision @ x
        origin = log_density - gradient @ x - 0.5 * x @ along
        return cls(point, at, log_density, gradient + along, precision, float(origin))

    def log_integral(self, inside: Bool[np.ndarray, " n"]) -> float | None:
        """Return ln of the integral over some elements, the others being zero; None if there is no maximum.

        Args:
            inside: Elements of x that are free.
        """
        found = self._factor(inside)
        return None if found is None else found[0]

    def conditioned(
        self, inside: Bool[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"], Float[np.ndarray, "k k"]] | None:
        """Return what is left with the elements outside at zero; None if there is no maximum.

        Args:
            inside: Elements of x that are free.

        Returns:
            ln of the integral over the free elements, the mean of x, and the covariance of what is free.
        """
        found = self._factor(inside)
        if found is None:
            return None
        value, scale, factor, half = found
        # An inverse of the triangle, and products, are quicker than solving for each column.
        inverse = scale[:, None] * solve_triangular(factor, np.eye(len(scale)), lower=True).T
        loc = np.zeros(len(self.eta))
        loc[inside] = inverse @ half
        return value, loc, inverse @ inverse.T

    def _factor(
        self, inside: Bool[np.ndarray, " n"]
    ) -> tuple[float, np.ndarray, np.ndarray, np.ndarray] | None:
        block, eta = self.precision[np.ix_(inside, inside)], self.eta[inside]
        scale = 1 / np.sqrt(np.maximum(np.diag(block), 1e-300))
        try:
            factor = np.linalg.cholesky(block * scale * scale[:, None])
        except np.linalg.LinAlgError:
            return None
        half = solve_triangular(factor, scale * eta, lower=True)
        log_det = 2.0 * float(np.log(np.diag(factor)).sum() - np.log(scale).sum())
        value = self.log_origin + 0.5 * (float(half @ half) - log_det)
        return value + len(eta) * _HALF_LOG_TWO_PI, scale, factor, half


class LocalNormals:
    """Local normals of a program, at values of its other elements.

    Args:
        whole: For the order of all latent elements, on the unconstrained space.
        at: Positions of x.
        model: NumPyro program.
        data: Its arguments.
        is_exact: Whether the density is normal in x, so that it may be expanded anywhere.
    """

    def __init__(
        self,
        whole: Whole,
        at: Int[np.ndarray, " n"],
        model: Callable,
        data: Data,
        *,
        is_exact: bool,
    ):
        self.at: np.ndarray = at
        self.is_exact: bool = is_exact

        def expansion(seeded: Callable, args: Any, kwargs: Any, point: Any) -> Any:
            def potential(x: Any) -> Any:
                values = dict(whole.unpack(point.at[at].set(x)))
                return potential_energy(seeded, args, kwargs, values)

            def value_gradient(x: Any) -> Any:
                value, gradient = jax.value_and_grad(potential)(x)
                return gradient, (value, gradient)

            precision, (value, gradient) = jax.jacfwd(value_gradient, has_aux=True)(point[at])
            return -value, -gradient, precision

        self._expansion = program_function(expansion, model, data)

    def expand(self, point: Float[np.ndarray, " m"]) -> LocalNormal | None:
        """Return the expansion at a point; None if it is not finite there."""
        # What was rounded to the precision of JAX is where it is expanded.
        rounded = np.asarray(jnp.asarray(point))
        parts = [np.asarray(part, np.float64) for part in self._expansion(rounded)]
        if not all(np.isfinite(part).all() for part in parts):
            return None
        value, gradient, precision = parts
        return LocalNormal.expanded(
            rounded.astype(np.float64), self.at, float(value), gradient, precision
        )

    def at_mode(
        self, point: Float[np.ndarray, " m"], inside: Bool[np.ndarray, " n"]
    ) -> LocalNormal | None:
        """Return the expansion at the mode over x, with elements of x at zero and all others as they are.

        Newton's method; where a step lowers the density, half of it is tried. A density that is normal in x
        is expanded where it is.

        Args:
            point: All latent elements, for a start.
            inside: Elements of x that are free; the others are zero.

        Returns:
            The expansion; None if there is no mode to be found.
        """
        point = np.array(point, np.float64)
        if self.is_exact:
            return self.expand(point)
        point[self.at[~inside]] = 0.0
        found = self.expand(point)
        if found is None:
            return None
        for _ in range(_STEPS):
            conditioned = found.conditioned(inside)
            if conditioned is None:
                return None
            step = conditioned[1] - found.point[self.at]
            expected = 0.5 * float(step @ found.precision @ step)
            if expected < _LITTLE:
                break
            better = self._better(found, step)
            if better is None:
                break
            found = better
        return found

    def _better(self, found: LocalNormal, step: Float[np.ndarray, " n"]) -> LocalNormal | None:
        for power in range(8):
            point = found.point.copy()
            point[self.at] += 0.5**power * step
            trial = self.expand(point)
            if trial is not None and trial.log_density > found.log_density:
                return trial
        return None


def normal_elements(
    whole: Whole,
    judged: Int[np.ndarray, " n"],
    sites: list[Int[np.ndarray, " k"]],
    model: Callable,
    data: Data,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, " x"], bool]:
    """Say which elements the density is normal in jointly with the judged ones, given all others.

    Second differences of the gradient along random directions vanish where the density is normal. If it is
    not normal in the judged ones alone, all of `sites` go with them.

    Args:
        whole: Joint normal over all latent elements, for a start and for how far to go.
        judged: Positions of the judged elements.
        sites: Positions of the elements of other sites without constraint.
        model: NumPyro program.
        data: Its arguments.
        rng: Source of randomness.

    Returns:
        Positions, the judged ones first, and whether the density is normal in them.
    """

    def gradients(seeded: Callable, args: Any, kwargs: Any, points: Any) -> Any:
        def potential(point: Any) -> Any:
            return potential_energy(seeded, args, kwargs, dict(whole.unpack(point)))

        return jax.lax.map(jax.grad(potential), points)

    gradient = program_function(gradients, model, data)
    reach = _REACH * np.sqrt(np.diag(whole.covariance))

    def is_normal(at: np.ndarray) -> bool:
        direction = np.zeros(len(whole.loc))
        direction[at] = reach[at] * rng.choice([-1.0, 1.0], len(at)) * rng.uniform(0.5, 1, len(at))
        points = whole.loc + np.arange(3)[:, None] * direction
        found = np.asarray(gradient(points), np.float64)[:, at]
        if not np.isfinite(found).all():
            return False
        first, second = found[1] - found[0], found[2] - 2 * found[1] + found[0]
        return bool(np.linalg.norm(second) <= _AFFINE * np.linalg.norm(first))

    everything = np.concatenate([judged, *sites])
    if is_normal(everything):
        return everything, True
    if not is_normal(judged):
        return everything, False
    found = judged
    for site in sites:
        together = np.concatenate([found, site])
        found = together if is_normal(together) else found
    return found, True


# How far the gradient is compared, in standard deviations, and by how much of its change it may bend.
_REACH, _AFFINE = 5.0, 0.01
