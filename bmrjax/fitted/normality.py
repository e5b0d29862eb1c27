"""How normal a posterior is: importance weights between its joint normal and the program."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.infer.util import potential_energy, unconstrain_fn
from scipy.linalg import solve_triangular

from bmrjax.fitted.fitted_posterior import FittedPosterior, Whole
from bmrjax.fitted.pareto_smoothing import smooth_tails
from bmrjax.fitted.program_function import program_function, remembered_function
from bmrjax.infer.arguments import Data

# Above this, importance weights have no stable mean (Vehtari et al. 2024).
TRUSTED_PARETO_K = 0.7

# Share of the evidence in the tail of the weights up to which its shape does not matter: an evidence that is
# off by a tenth of a nat moves an inclusion probability by 0.025 at most.
_HARMLESS_TAIL = 0.1

# Draws from the normal at which the program is evaluated, and how many of them at a time.
NUM_DRAWS, _AT_A_TIME = 2000, 200

# Degrees of freedom of the t distribution that half of the draws with heavy tails are from, and its scale
# over that of the normal.
_DEGREES, _WIDER = 7, 1.5


@dataclass(frozen=True)
class Normality:
    """Whether the joint normal stands for the posterior.

    Attributes:
        pareto_k: Shape of the tail of the importance weights of the program over the normal; NaN if it was
            not measured. Up to 0.7 the normal covers the posterior.
        num_latent: Number of latent elements of which it was measured.
        reason: Why it was not measured; empty if it was.
        tail: Share of the evidence that is in the tail of the weights, above where the tail begins, by the
            Pareto distribution that `pareto_k` belongs to; infinite if its mean is.
        shift: How far the mean of each latent element by the program lies from that of the normal, in
            standard deviations, by importance sampling; 0 where it was not measured.
        shift_error: Monte Carlo standard error of each.
    """

    pareto_k: float
    num_latent: int = 0
    reason: str = ""
    tail: float = math.inf
    shift: Float[np.ndarray, " m"] = field(default_factory=lambda: np.zeros(0))
    shift_error: Float[np.ndarray, " m"] = field(default_factory=lambda: np.zeros(0))

    @property
    def trusted(self) -> bool | None:
        """Whether `pareto_k` is at most 0.7, or the weights hardly vary; None if it was not measured."""
        if math.isnan(self.pareto_k):
            return None
        return tail_is_harmless(self.pareto_k, self.tail)


def whole_normal(
    posterior: FittedPosterior,
    model: Callable,
    data: Data,
    latent: Mapping[str, tuple[int, ...]],
) -> Whole | str:
    """Return the joint normal over all latent elements of a program, or why there is none.

    Args:
        posterior: What was fitted.
        model: NumPyro program.
        data: Its arguments.
        latent: Latent site to shape.
    """
    if posterior.whole is not None:
        return posterior.whole
    missing = sorted(set(latent) - set(posterior.draws or {}))
    if missing:
        return f"there are no draws of {missing}"
    return _whole_of_draws(posterior.draws or {}, model, data, latent)


def measure_normality(
    whole: Whole | str, model: Callable, data: Data, rng: np.random.Generator
) -> Normality:
    """Draw from the joint normal over all latent elements, and compare its density with the program's.

    Args:
        whole: The joint normal, or why there is none.
        model: NumPyro program.
        data: Its arguments.
        rng: Source of randomness.

    References:
        Yao, Vehtari, Simpson and Gelman (2018), ICML, Yes, but did it work?; Vehtari et al. (2024), JMLR 25,
        Pareto smoothed importance sampling.
    """
    if isinstance(whole, str):
        return Normality(math.nan, reason=whole)
    drawn = weighted_draws(whole, log_joint(whole, model, data), rng)
    if drawn is None:
        return Normality(
            math.nan, reason="the covariance of all latent elements together is singular"
        )
    varies = np.diag(whole.covariance) > 0
    pareto_k = tail_shape(drawn.log_weights)
    tail = tail_share(drawn.log_weights, pareto_k)
    return Normality(pareto_k, int(varies.sum()), "", tail, *_shift(whole, drawn))


def tail_is_harmless(pareto_k: float, tail: float) -> bool:
    """Return whether the mean of weights is stable: their tail is short enough, or holds next to nothing.

    Args:
        pareto_k: Shape of the tail.
        tail: Share of the sum that is in it.
    """
    return pareto_k <= TRUSTED_PARETO_K or tail <= _HARMLESS_TAIL


def tail_shape(log_weights: Float[np.ndarray, " draws"]) -> float:
    """Return the shape of the tail of importance weights, Pareto k.

    Args:
        log_weights: ln of the weights, up to a constant.
    """
    finite = np.isfinite(log_weights)
    if not finite.any():
        return math.inf
    # Weights that hardly vary have no tail; rounding would be taken for one.
    if finite.all() and np.ptp(log_weights) < 0.05:
        return 0.0
    # The least that has a reciprocal; a tail that reaches below has no shape but is infinitely long.
    floor = log_weights[finite].max() - 300.0
    if np.sum(log_weights > floor) <= 3 * math.sqrt(len(log_weights)):
        return math.inf
    log_weights = np.maximum(np.where(finite, log_weights, floor), floor)
    return float(smooth_tails(log_weights[None])[1][0])


def tail_share(log_weights: Float[np.ndarray, " draws"], pareto_k: float) -> float:
    r"""Return the share of the mean weight that is in the tail, above where the tail begins.

    The tail is that of `tail_shape`, the largest :math:`M = 3 \sqrt S` of S weights. Its excess over the
    smallest of them is what importance sampling may get wrong. A generalised Pareto distribution with the
    shape k has the mean excess σ / (1 - k); the observed one is divided by 1 - k, so that what the draws did
    not reach is counted as well.

    Args:
        log_weights: ln of the weights, up to a constant.
        pareto_k: Shape of their tail.
    """
    if not pareto_k < 1:
        return math.inf
    weight = np.sort(np.where(np.isfinite(log_weights), log_weights, -np.inf))[::-1]
    weight = np.exp(weight - weight[0])
    length = min(len(weight) // 5, math.ceil(3 * math.sqrt(len(weight))))
    excess = float((weight[:length] - weight[length]).sum() / weight.sum())
    return excess / (1 - max(pareto_k, 0.0))


def log_joint(whole: Whole, model: Callable, data: Data) -> Callable[[Any], np.ndarray]:
    """Return ln of the joint density of a program as a compiled function of points, (draws, m) to (draws,).

    Args:
        whole: Joint normal on the unconstrained space, for the order of its elements.
        model: NumPyro program.
        data: Its arguments.
    """

    def potential(seeded: Callable, args: Any, kwargs: Any, points: Any) -> Any:
        def one(point: Any) -> Any:
            return potential_energy(seeded, args, kwargs, dict(whole.unpack(point)))

        return jax.lax.map(one, points, batch_size=_AT_A_TIME)

    # Traced once for all that is measured of a fit.
    evaluate = remembered_function(whole.functions, potential, model, data)
    return lambda points: -np.asarray(evaluate(points), np.float64)


@dataclass(frozen=True)
class Weighted:
    """Draws from a joint normal with their importance weights.

    Attributes:
        points: Draws on the unconstrained space.
        log_weights: ln of the joint density of the program less that of the normal, in nats, the Jacobian of
            the constraints included.
    """

    points: Float[np.ndarray, "draws m"]
    log_weights: Float[np.ndarray, " draws"]


def weighted_draws(
    whole: Whole,
    density: Callable[[Any], np.ndarray],
    rng: np.random.Generator,
    count: int = NUM_DRAWS,
    *,
    heavy: bool = False,
) -> Weighted | None:
    """Draw from a joint normal, and weight the draws by the program.

    Args:
        whole: Joint normal on the unconstrained space; elements without variance stay where they are.
        density: ln of the joint density of the program, as `log_joint` returns it.
        rng: Source of randomness.
        count: Number of draws.
        heavy: See `normal_draws`.

    Returns:
        The draws; None if the covariance is singular.
    """
    drawn = normal_draws(whole, rng, count, heavy=heavy)
    if drawn is None:
        return None
    points, log_normal = drawn
    return Weighted(points.astype(np.float64), density(points) - log_normal)


def normal_draws(
    whole: Whole, rng: np.random.Generator, count: int, *, heavy: bool = False
) -> tuple[np.ndarray, Float[np.ndarray, " draws"]] | None:
    """Draw from a joint normal.

    Args:
        whole: Joint normal on the unconstrained space; elements without variance stay where they are.
        rng: Source of randomness.
        count: Number of draws.
        heavy: Whether every second draw is from the multivariate t distribution of the same location and
            1.5 times the scale, with seven degrees of freedom, for posteriors with longer tails than the
            normal's.

    Returns:
        The draws in the precision that JAX computes in, and ln of their density, of the mixture where they
        are of two kinds; None if the covariance is singular.
    """
    varies = np.diag(whole.covariance) > 0
    covariance = whole.covariance[np.ix_(varies, varies)]
    scale = np.sqrt(np.diag(covariance))
    try:
        factor = np.linalg.cholesky(covariance / scale / scale[:, None])
    except np.linalg.LinAlgError:
        return None
    noise = rng.standard_normal((count, len(scale)))
    if heavy:
        noise[1::2] *= _WIDER * np.sqrt(_DEGREES / rng.chisquare(_DEGREES, (count // 2, 1)))
    points = np.tile(whole.loc, (count, 1))
    points[:, varies] += (noise @ factor.T) * scale
    # What was rounded to single precision is what the normal is evaluated at, too.
    points = np.asarray(jnp.asarray(points))
    deviation = (points.astype(np.float64) - whole.loc)[:, varies] / scale
    standard = solve_triangular(factor, deviation.T, lower=True)
    square, size = (standard**2).sum(0), len(scale)
    volume = np.log(np.diag(factor)).sum() + np.log(scale).sum()
    log_normal = -0.5 * square - 0.5 * size * math.log(2 * math.pi) - volume
    if not heavy:
        return points, log_normal
    log_t = -0.5 * (_DEGREES + size) * np.log1p(square / (_DEGREES * _WIDER**2)) - volume
    log_t += math.lgamma(0.5 * (_DEGREES + size)) - math.lgamma(0.5 * _DEGREES)
    log_t -= 0.5 * size * math.log(_DEGREES * math.pi * _WIDER**2)
    share = (count // 2) / count
    return points, np.logaddexp(log_normal + math.log1p(-share), log_t + math.log(share))


def _shift(
    whole: Whole, drawn: Weighted
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return how far the mean by the program lies from that of the normal, with its standard error."""
    sd = np.sqrt(np.diag(whole.covariance))
    standard = np.where(sd > 0, (drawn.points - whole.loc) / np.where(sd > 0, sd, 1.0), 0.0)
    log_weights = np.where(np.isfinite(drawn.log_weights), drawn.log_weights, -np.inf)
    weight = np.exp(log_weights - log_weights.max()) if np.isfinite(log_weights).any() else 0.0
    total = np.sum(weight)
    if not total > 0:
        return np.zeros(len(sd)), np.full(len(sd), np.inf)
    weight = weight / total
    shift = weight @ standard
    return shift, np.sqrt(weight**2 @ (standard - shift) ** 2)


def _whole_of_draws(
    draws: Mapping[str, np.ndarray],
    model: Callable,
    data: Data,
    latent: Mapping[str, tuple[int, ...]],
) -> Whole | str:
    """Return the joint normal of draws on the unconstrained space, or why there is none."""
    discrete = [name for name in latent if not np.issubdtype(draws[name].dtype, np.floating)]
    if discrete:
        return f"{discrete} are discrete"
    values = {name: jnp.asarray(draws[name]) for name in latent}

    def unconstrain(seeded: Callable, args: Any, kwargs: Any, values: Any) -> Any:
        return jax.vmap(lambda one: unconstrain_fn(seeded, args, kwargs, one))(values)

    free = program_function(unconstrain, model, data)(values)
    parts = {name: np.asarray(free[name]) for name in sorted(free)}
    unpack = _unpacking({name: (part.shape[1:], part.dtype) for name, part in parts.items()})
    count = len(next(iter(parts.values())))
    flat = np.concatenate([p.reshape(count, -1) for p in parts.values()], 1).astype(np.float64)
    if not np.isfinite(flat).all():
        return "some draws lie on the boundary of their support"
    size = flat.shape[1]
    if count < 2 * size + 2:
        return f"the program has {size} latent elements, and {count} draws are too few for their covariance"
    loc = flat.mean(0)
    centred = flat - loc
    still = np.ptp(flat, axis=0) <= 1e-12 * np.abs(loc)
    centred[:, still] = 0.0
    return Whole(loc, centred.T @ centred / (count - 1), unpack)


def _unpacking(sites: Mapping[str, tuple[tuple[int, ...], Any]]) -> Callable[[Any], dict[str, Any]]:
    """Return a function from a vector, of NumPy or of JAX, to its parts by site.

    Args:
        sites: Shape and type of each.
    """
    ends = np.cumsum([math.prod(shape) for shape, _ in sites.values()])

    def unpack(vector: Any) -> dict[str, Any]:
        found, start = {}, 0
        for (name, (shape, dtype)), end in zip(sites.items(), ends, strict=True):
            part = vector[start:end].reshape(shape)
            # Positions stay integers.
            is_real = jnp.issubdtype(part.dtype, jnp.floating)
            found[name], start = part.astype(dtype) if is_real else part, int(end)
        return found

    return unpack
