"""Natural gradients of mean-field normal posteriors: variational online Newton, as an optax transformation.

For q = N(m, 1/P) with independent elements and the free energy F, the natural gradient step is

    m ← m − α (1/P) ∂F/∂m,    P ← P + ρ P u,    u = ∂F/∂ln s,    s = P^(−1/2),

since ∂F/∂P = −u / (2P), and the Fisher information of P is 1/(2P²). With one sample w = m + sε and the
gradient ĝ of the loss at w, u = s ε ĝ + s² · (prior precision) − 1: one gradient gives mean and curvature.
Since u is the gradient of any ELBO with respect to the log scale, the step needs to know nothing else of the
loss: estimators, masks, scaled likelihoods and priors with learned scales are all in the two gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bmrjax.infer.normal_sites import NormalSite, log_scale_of, of_log_scale

# Standardised gradients beyond this are cut, so that their squares and averages are float32 numbers.
_LARGEST = 1e6
# Scales stay between these: their squares, and those of their inverses, are float32 numbers.
_LOG_SCALES = (-18.0, 9.0)
# Decay of the averages that measure how large the gradients are: some hundred steps.
_MEMORY = 0.99
# One step changes no precision by more than a factor of 1.6, and no mean by more than a standard deviation.
_MOST_CURVATURE, _MOST_MEAN = 0.5, 1.0


class SiteState(NamedTuple):
    """What a site remembers between steps.

    Attributes:
        momentum: Running mean of the gradient with respect to the means, shaped as the site.
        mean_square: Running means over steps of the mean squares over the site of the standardised
            gradients s ∂F/∂m, and of u.
    """

    momentum: Float[Array, "..."]
    mean_square: Float[Array, "2"]


class NaturalState(NamedTuple):
    """State of the transformation.

    Attributes:
        num_steps: Steps taken.
        sites: By the name of the parameter of the means.
        others: State of the optimiser of all other parameters.
    """

    num_steps: Int[Array, ""]
    sites: dict[str, SiteState]
    others: Any


@dataclass(frozen=True, kw_only=True)
class NaturalGradient:
    r"""Fit mean-field normal sites by natural gradients, and all other parameters by an optax optimiser.

    Give it as ``optimizer=`` to `sparsify`, `ensemble` or `Fit`, with any NumPyro program and a guide in
    which some sites have independent normal posteriors, such as `AutoMeanField`. It moves the means by
    :math:`-α s^2 \, ∂F/∂m`, and the precisions :math:`P = s^{-2}` to :math:`P e^x` with
    :math:`x = ρ \, ∂F/∂\ln s`: to second order the published step, and positive for every x. A step needs one
    gradient at one sample of the weights, and beside the posterior only the momentum is stored: three
    numbers per weight. The average of several samples is a setting of the loss:
    ``FitOptions(loss=TraceMeanField_ELBO(num_particles=4))``.

    It is stable by construction. Each site has a trust region: where the gradients are large (a start with
    too much noise, small batches of much data), α and ρ shrink, so that a step moves the means by at most
    `learning_rate` posterior standard deviations, and the log precisions by at most `curvature_rate` (root
    mean squares over the site). The optimum does not depend on these rates; how far a run gets does. Scales
    that start small stay small for about 1 / ρ steps, and until then the posterior is colder than the
    optimum of the free energy.

    Args:
        learning_rate: Largest step of the means, in posterior standard deviations, root mean square per
            site. Where the gradients are small, it is α. A number or an optax schedule.
        curvature_rate: Largest change of the log precisions, root mean square per site. Where the
            gradients are small, it is ρ. A number or an optax schedule.
        momentum: Decay of the running mean of the gradient of the means, from 0 to below 1.
        warmup: Steps over which both rates grow linearly from zero.
        others: Optimiser of the parameters of all other sites; ``optax.adabelief(1e-2)`` by default.

    Raises:
        ValueError: For a rate that is not positive, or a momentum or warm-up out of range.
        TypeError: For `others` that is no optax optimiser.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> fit = bmr.Fit(
        ...     program, (x, 2.0 * x[:, 0]), batch_size=None, optimizer=bmr.infer.NaturalGradient()
        ... )
        >>> state, _ = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=1000)
        >>> (fit.params(state)["beta_auto_loc"].round(1) + 0.0).tolist()
        [2.0, 0.0, 0.0]

    References:
        Khan, Nielsen, Tangkaratt, Lin, Gal and Srivastava (2018), variational online Newton; Lin, Schmidt
        and Khan (2020), its second order, which keeps precisions positive; Shen et al. (2024), one sample
        per step.
    """

    learning_rate: float | optax.Schedule = 0.03
    curvature_rate: float | optax.Schedule = 0.001
    momentum: float = 0.9
    warmup: int = 100
    others: optax.GradientTransformation | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "curvature_rate"):
            rate = getattr(self, name)
            if not callable(rate) and not 0 < rate < float("inf"):
                raise ValueError(f"NaturalGradient: {name} must be positive, got {rate}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"NaturalGradient: momentum must be at least 0 and below 1, got {self.momentum}."
            )
        if self.warmup < 0:
            raise ValueError(f"NaturalGradient: warmup must not be negative, got {self.warmup}.")
        if not isinstance(self.others, optax.GradientTransformation | None):
            raise TypeError(
                f"NaturalGradient: others is a {type(self.others).__name__}; give an optax optimiser, such "
                "as optax.adabelief(1e-2)."
            )

    def of_sites(self, sites: Sequence[NormalSite]) -> optax.GradientTransformation:
        """Return the optax transformation of a dict of unconstrained parameters.

        Args:
            sites: The normal sites; see `normal_sites`. All other parameters go to `others`.
        """
        others = optax.adabelief(1e-2) if self.others is None else self.others
        named = {name for site in sites for name in (site.loc, site.scale)}

        def rest(tree: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in tree.items() if name not in named}

        def init(params: Any) -> NaturalState:
            zero = jnp.zeros((), jnp.int32)
            states = {}
            for site in sites:
                loc = params[site.loc]
                states[site.loc] = SiteState(jnp.zeros_like(loc), jnp.zeros(2, loc.dtype))
            return NaturalState(zero, states, others.init(rest(params)))

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            gradients, states = updates, {}
            moves: Any
            moves, rest_state = others.update(rest(gradients), state.others, rest(params))
            moves = dict(moves)
            for site in sites:
                log_scale, slope = log_scale_of(site, params[site.scale])
                step, states[site.loc] = self.step(
                    state.sites[site.loc],
                    log_scale,
                    gradients[site.loc],
                    gradients[site.scale] / slope,
                    state.num_steps,
                )
                moves[site.loc] = step[0]
                moved = of_log_scale(site, log_scale + step[1], params[site.scale], step[1])
                moves[site.scale] = moved - params[site.scale]
            return moves, NaturalState(state.num_steps + 1, states, rest_state)

        return optax.GradientTransformation(init, update)

    def step(
        self,
        state: SiteState,
        log_scale: Float[Array, "..."],
        gradient_loc: Float[Array, "..."],
        gradient_log_scale: Float[Array, "..."],
        num_steps: Int[Array, ""],
    ) -> tuple[tuple[Array, Array], SiteState]:
        """Return what a step adds to the means and the log scales of one site, and the site's new state.

        Args:
            state: Of the site.
            log_scale: Log standard deviations.
            gradient_loc: Gradient of the free energy with respect to the means.
            gradient_log_scale: The same for the log standard deviations. An element at which it is exactly
                zero is removed from the model, and stays where it is.
            num_steps: Steps taken before.
        """
        scale = jnp.exp(log_scale)
        kept = gradient_log_scale != 0
        u = jnp.clip(gradient_log_scale, -_LARGEST, _LARGEST)
        standardised = jnp.clip(scale * gradient_loc, -_LARGEST, _LARGEST)
        count = jnp.maximum(jnp.sum(kept, dtype=u.dtype), 1)
        squares = jnp.stack([jnp.sum(standardised**2), jnp.sum(u**2)]) / count
        mean_square = state.mean_square + (1 - _MEMORY) * (squares - state.mean_square)
        size = jnp.sqrt(mean_square / _debias(_MEMORY, num_steps, u.dtype))
        rates = [self._at(rate, num_steps) for rate in (self.learning_rate, self.curvature_rate)]
        alpha, rho = jnp.stack(rates).astype(u.dtype) / jnp.maximum(1, size)

        averaged = state.momentum + (1 - self.momentum) * (gradient_loc - state.momentum)
        debiased = scale * averaged / _debias(self.momentum, num_steps, u.dtype)
        move = scale * jnp.clip(alpha * debiased, -_MOST_MEAN, _MOST_MEAN)
        x = jnp.clip(rho * u, -_MOST_CURVATURE, _MOST_CURVATURE)
        grown = jnp.clip(log_scale - 0.5 * x, *_LOG_SCALES) - log_scale
        steps = jnp.where(kept, -move, 0), jnp.where(kept, grown, 0)
        return steps, SiteState(averaged, mean_square)

    def _at(self, rate: float | optax.Schedule, num_steps: Array) -> Array:
        value: ArrayLike = rate(num_steps) if callable(rate) else rate
        ramp = jnp.minimum(1.0, (num_steps + 1) / self.warmup) if self.warmup else 1.0
        return jnp.asarray(value * ramp)


def _debias(decay: float, num_steps: Array, dtype: Any) -> Array:
    """Return what a running mean that started at zero has to be divided by."""
    return 1 - jnp.power(jnp.asarray(decay, dtype), num_steps + 1)


Optimizer = optax.GradientTransformation | NaturalGradient


def resolved(
    optimizer: Optimizer, sites: Callable[[], Sequence[NormalSite]], guide: Any
) -> optax.GradientTransformation:
    """Return the optax transformation that an optimiser is for a guide.

    Args:
        optimizer: An optax optimiser, or a `NaturalGradient`.
        sites: Returns the guide's normal sites.
        guide: For the message.

    Raises:
        ValueError: For natural gradients without a normal site.
    """
    if not isinstance(optimizer, NaturalGradient):
        return optimizer
    found = sites()
    if not found:
        raise ValueError(
            f"NaturalGradient: the guide ({type(guide).__name__}) has no site whose posterior is independent "
            "normals with parameters of their own. Use infer.AutoMeanField(model), or an optax optimiser."
        )
    return optimizer.of_sites(found)
