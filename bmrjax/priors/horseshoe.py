"""The regularised horseshoe."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from bmrjax.distributions import LogGamma
from bmrjax.priors.base import Prior, require_positive, standard_normal
from bmrjax.priors.layer import Layer, Tensor


@dataclass(frozen=True)
class RegularizedHorseshoePrior(Prior):
    r"""Heavy-tailed scales that pull most rows (or weights) to zero and leave the large ones alone.

    .. math::

        w_{ij} = γ_{ij} \hat w_{ij}, \quad \hat w_{ij} \sim N(0, 1), \quad
        γ_{ij}^{-2} = c^{-2} + (υ τ_i λ_{ij})^{-2}

    with half-Cauchy scales υ ~ C⁺(0, τ_0) of the layer, τ_i ~ C⁺(0, 1) of each row (an output unit;
    an element, where the array is a vector of coefficients) and, with `local`, λ_ij ~ C⁺(0, 1) of
    each weight; λ = 1 without it. The slab c⁻² ~ Gamma bounds what the tails may do.

    Each half-Cauchy variable is the root of a quotient of two Gamma(½, 1) variables, so that a
    factorised posterior of log-normals keeps its tails; they are sampled as logarithms, and γ is
    computed from them, so that nothing under- or overflows in float32.

    Sites: each tensor's site holds ŵ. Below the layer's name, ``slab_precision`` holds c⁻²,
    ``global.log_a`` and ``global.log_b`` the layer's quotient, ``row.log_a`` and ``row.log_b``
    those of the rows, ``local.<tensor>.log_a`` and ``.log_b`` those of the weights. The tensors of
    a layer share rows where they have as many; a tensor with another number of rows has
    ``row.<tensor>``. The deterministic site ``<layer>.scale.<tensor>`` records γ.

    Args:
        global_scale: τ_0; see `expected_scale` for a choice by the number of relevant elements.
        slab_concentration: Shape of the Gamma prior of c⁻².
        slab_rate: Its rate.
        local: Whether each weight has a scale of its own.

    Example:
        >>> import jax, numpyro
        >>> from bmrjax import priors
        >>> prior = priors.RegularizedHorseshoePrior(global_scale=0.1)
        >>> with numpyro.handlers.seed(rng_seed=jax.random.key(0)):
        ...     prior.sample("beta", (3,)).shape
        (3,)

    References:
        Piironen and Vehtari (2017); Ghosh, Yao and Doshi-Velez (2018); Marković, Friston and
        Kiebel (2024), equation 6, section II-F and Appendix B. Equation 6 has the Gamma(2, 6) slab
        of the defaults, the text below equation 8 the Gamma(2, 2) of the flat prior.
    """

    global_scale: float = 0.01
    slab_concentration: float = 2.0
    slab_rate: float = 6.0
    local: bool = False

    def __post_init__(self) -> None:
        require_positive(
            self,
            global_scale=self.global_scale,
            slab_concentration=self.slab_concentration,
            slab_rate=self.slab_rate,
        )

    @staticmethod
    def expected_scale(
        num_relevant: float, num_total: int, num_data: int, *, noise: float = 1.0
    ) -> float:
        """Return the τ_0 under which about `num_relevant` of `num_total` elements are not shrunk.

        Args:
            num_relevant: The prior guess, between 0 and `num_total`.
            num_total: Number of elements, inputs of unit variance.
            num_data: Number of data.
            noise: Standard deviation of the observations; for a logistic likelihood, 2.

        Raises:
            ValueError: For a guess that is not strictly between 0 and `num_total`, and for data or noise
                that are not positive.

        Example:
            >>> from bmrjax import priors
            >>> priors.RegularizedHorseshoePrior.expected_scale(5, 105, 400)
            0.0025

        References:
            Piironen and Vehtari (2017), equation 3.12.
        """
        if not 0 < num_relevant < num_total:
            raise ValueError(
                f"expected_scale: num_relevant must be between 0 and num_total = {num_total}, got "
                f"{num_relevant}."
            )
        if not (num_data > 0 and noise > 0):
            raise ValueError(
                f"expected_scale: num_data and noise must be positive, got {num_data} and {noise}."
            )
        return num_relevant / (num_total - num_relevant) * noise / math.sqrt(num_data)

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        mean_precision = self.slab_concentration / self.slab_rate
        precision = jnp.asarray(
            numpyro.sample(
                layer.site("slab_precision"),
                dist.Gamma(self.slab_concentration, self.slab_rate),
                infer={"init": mean_precision},
            )
        )
        start = self._start(layer, mean_precision)
        of_layer = 2 * jnp.log(self.global_scale) + _log_quotient(layer.site("global"), ())
        # The rows' denominators take up what the global scale lacks at the start: a row that is not
        # there then shrinks on its own, and one that is need not climb out of the prior's pole.
        of_rows = self._rows(layer, 2 * jnp.log(self.global_scale) - start)
        values = {}
        for part, tensor in layer.tensors.items():
            log_variance = tensor.over_all(of_layer) + tensor.along_rows(of_rows[part])
            if self.local:
                log_variance = log_variance + _log_quotient(
                    layer.site(f"local.{part}"), tensor.shape
                )
            slab = tensor.over_all(jnp.log(precision))
            scale = jnp.exp(-0.5 * jnp.logaddexp(slab, -log_variance))
            numpyro.deterministic(layer.site(f"scale.{part}"), scale)
            unit = jnp.exp(-0.5 * jnp.logaddexp(jnp.log(mean_precision), -start))
            values[part] = scale * standard_normal(layer, part, tensor, unit)
        return values

    def _rows(self, layer: Layer, log_b: Float[Array, ""]) -> dict[str, Array]:
        sizes = {tensor.num_rows for tensor in layer.tensors.values()}
        if len(sizes) == 1:
            shared = _log_quotient(layer.site("row"), (sizes.pop(),), log_b)
            return dict.fromkeys(layer.tensors, shared)
        return {
            part: _log_quotient(layer.site(f"row.{part}"), (tensor.num_rows,), log_b)
            for part, tensor in layer.tensors.items()
        }

    def _start(self, layer: Layer, precision: float) -> Float[Array, ""]:
        """Return ln (υ τ)² at which the prior has the scale of the network's weights, or else 1."""
        known = [tensor for tensor in layer.tensors.values() if tensor.init is not None]
        weights = [tensor for tensor in known if len(tensor.shape) > 1] or known
        if not weights:
            return jnp.zeros(())
        total = sum(tensor.size for tensor in weights)
        mean_square = sum((_sum_of_squares(tensor) for tensor in weights), jnp.zeros(())) / total
        rest = 1.0 / jnp.maximum(mean_square, self.global_scale**2) - precision
        return -jnp.log(jnp.maximum(rest, 0.1 * precision))


def _sum_of_squares(tensor: Tensor) -> Array:
    return jnp.sum(jnp.square(jnp.asarray(tensor.init)))


def _log_quotient(
    name: str, shape: tuple[int, ...], log_b: float | Float[Array, ""] = 0.0
) -> Float[Array, "..."]:
    """Sample the logarithm of the square of half-Cauchy variables, ln a − ln b."""
    half = LogGamma(0.5).expand(shape).to_event(len(shape))
    a = numpyro.sample(f"{name}.log_a", half, infer={"init": 0.0})
    b = numpyro.sample(f"{name}.log_b", half, infer={"init": log_b})
    return jnp.asarray(a) - jnp.asarray(b)
