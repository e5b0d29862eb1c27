"""Soft weight sharing: a mixture of normals that all layers have in common."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float

from bmrjax.distributions import ImproperReciprocal, SharedCenters
from bmrjax.priors.base import Prior, require_positive
from bmrjax.priors.layer import Layer


class Components(NamedTuple):
    """The components of a mixture of normals.

    Attributes:
        log_weight: ln π_k; the one at zero comes first.
        mean: μ_k.
        precision: λ_k.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import priors
        >>> found = priors.Components(
        ...     log_weight=jnp.log(jnp.array([0.9, 0.1])), mean=jnp.array([0.0, 0.5]),
        ...     precision=jnp.array([100.0, 400.0]),
        ... )
        >>> weight = 0.4
        >>> score = found.log_weight + 0.5 * jnp.log(found.precision)
        >>> score = score - 0.5 * found.precision * (weight - found.mean) ** 2
        >>> int(score.argmax())  # the component that the weight belongs to
        1
    """

    log_weight: Float[Array, " k"]
    mean: Float[Array, " k"]
    precision: Float[Array, " k"]


@dataclass(frozen=True)
class SoftWeightSharing(Prior):
    r"""A learned mixture of normals over the means of all weights, so that they cluster; one cluster is zero.

    .. math:: \ln p(m) = τ \sum_i \ln \sum_k π_k N(m_i; μ_k, 1/λ_k), \qquad μ_0 = 0, π_0 \text{ fixed}

    With `dropout`, the weights also have the log-uniform prior of `LogUniform` and normal posteriors, of
    which m are the means (the paper's VD + SWS); without it they are points (SWS). After the fit each weight
    takes the mean of its component: `codec.learned_mixture` reads them off a result, for `codec.encode`.

    It starts at the network: the means are spread evenly over about one standard deviation of its nonzero
    weights to either side, and components are about as wide as they are apart. Give it a trained network, and
    the earlier fit too, ``FitOptions(start=result)``; `optimizer` has the published learning rates. After
    variational dropout most weights are zero already. Without it they have to come to zero: start with
    components as wide as the weights, `start_scale` of 0.25 and `start_reach` of 0.6, say, as Ullrich et al.
    do, which the prior of the precisions then narrows while they draw the weights along. That takes thousands
    of steps: until then the component at zero covers all weights, and they would collapse to it.

    Sites: the tensors themselves, and for all layers ``<network>.sharing.precision``, which has a Gamma
    prior and a point posterior under `infer.AutoMeanField`. The parameters ``<network>.sharing.means`` and
    ``.logits`` are those of the other components. The deterministic sites ``<network>.sharing.log_weight``
    and ``.mean`` record all components, zero first.

    Args:
        components: K, with the one at zero; odd.
        zero_weight: π_0.
        concentration: Shape of the Gamma prior of the precisions.
        rate: Its rate.
        factor: τ.
        dropout: Whether the weights have a log-uniform prior and normal posteriors.
        start_scale: Standard deviation that all components begin with; None for .9 of what is between them.
        start_reach: The largest mean they begin with; None for about a standard deviation of the weights.
        shared: The components, once `begin` has sampled them.

    Raises:
        ValueError: For numbers out of range.

    Example:
        >>> import jax, numpyro
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> model = bmr.programs.classifier(network, bmr.priors.SoftWeightSharing(components=3))
        >>> trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(1)))
        >>> trace.get_trace(jax.numpy.ones((1, 4)))["net.sharing.mean"]["value"].shape
        (3,)

    References:
        Nowlan and Hinton (1992); Ullrich, Meeds and Welling (2017); Federici, Ullrich and Welling (2017),
        section 2, Appendix A and Table 3.
    """

    components: int = 17
    zero_weight: float = 0.999
    concentration: float = 1e5
    rate: float = 10.0
    factor: float = 0.02
    dropout: bool = True
    start_scale: float | None = None
    start_reach: float | None = None
    shared: Components | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {"concentration": self.concentration, "rate": self.rate, "factor": self.factor}
        starts = {"start_scale": self.start_scale, "start_reach": self.start_reach}
        numbers |= {name: value for name, value in starts.items() if value is not None}
        require_positive(self, **numbers)
        if self.components < 3 or self.components % 2 == 0:
            raise ValueError(
                f"SoftWeightSharing: components must be odd and at least 3, got {self.components}."
            )
        if not 0 < self.zero_weight < 1:
            raise ValueError(
                f"SoftWeightSharing: zero_weight must be between 0 and 1, got {self.zero_weight}."
            )

    @staticmethod
    def optimizer(speed: float | optax.Schedule = 1.0) -> optax.GradientTransformation:
        """Return Adam with the published learning rates.

        Means of weights 5e-5, logarithms of variances, means of components and logarithms of precisions 1e-4,
        logarithms of proportions 3e-3; those of `infer.AutoMeanField`, which learns half the logarithm of a
        variance, at half its rate.

        Args:
            speed: Factor on all of them, or a schedule of one.
        """
        rates = {"loc": 5e-5, "scale": 5e-5, "means": 1e-4, "precision": 1e-4, "logits": 3e-3}

        def label(params: dict[str, Array]) -> dict[str, str]:
            return {name: _kind(name) for name in params}

        factor: Any = speed if callable(speed) else optax.constant_schedule(float(speed))

        def at(rate: float) -> optax.Schedule:
            return lambda step: rate * factor(step)

        adams: dict[Any, Any] = {kind: optax.adam(at(rate)) for kind, rate in rates.items()}
        return optax.partition(adams, label)

    def begin(self, name: str, layers: Sequence[Layer]) -> "SoftWeightSharing":
        """Sample the mixture that all layers share; see `Prior.begin`."""
        half = self.components // 2
        spacing = 2 * _spread(layers) / self.components
        if self.start_reach is not None:
            spacing = jnp.asarray(self.start_reach / half)
        scale = 0.9 * spacing if self.start_scale is None else self.start_scale
        steps = jnp.array([k for k in range(-half, half + 1) if k])
        others = jnp.asarray(numpyro.param(f"{name}.sharing.means", spacing * steps))
        logits = jnp.asarray(numpyro.param(f"{name}.sharing.logits", jnp.zeros(2 * half)))
        prior = dist.Gamma(self.concentration, self.rate).expand([self.components]).to_event(1)
        start = jnp.broadcast_to(1 / jnp.square(scale), (self.components,))
        infer = {"posterior": "point", "init": start}
        precision = jnp.asarray(numpyro.sample(f"{name}.sharing.precision", prior, infer=infer))
        rest = math.log1p(-self.zero_weight) + jax.nn.log_softmax(logits)
        log_weight = jnp.concatenate([jnp.array([math.log(self.zero_weight)]), rest])
        mean = jnp.concatenate([jnp.zeros(1), others])
        numpyro.deterministic(f"{name}.sharing.log_weight", log_weight)
        numpyro.deterministic(f"{name}.sharing.mean", mean)
        return replace(self, shared=Components(log_weight, mean, precision))

    def layer(self, layer: Layer) -> dict[str, Float[Array, "..."]]:
        """See `Prior.layer`."""
        found = self.shared
        if found is None:
            return self.begin(layer.name, [layer]).layer(layer)
        values = {}
        for part, tensor in layer.tensors.items():
            prior = SharedCenters(
                ImproperReciprocal(tensor.shape) if self.dropout else None,
                found.log_weight,
                found.mean,
                jnp.log(found.precision),
                factor=self.factor,
                batch_shape=tensor.shape,
            ).to_event(len(tensor.shape))
            infer: dict = {"layer": layer.name}
            if tensor.init is not None:
                infer["init"] = tensor.init
            if not self.dropout:
                infer["posterior"] = "point"
            values[part] = jnp.asarray(numpyro.sample(layer.site(part), prior, infer=infer))
        return values


def _kind(parameter: str) -> str:
    """Return which of the published learning rates is that of a parameter."""
    for kind in ("means", "precision", "logits"):
        if f".sharing.{kind}" in parameter:
            return kind
    return "scale" if parameter.endswith("_scale") else "loc"


def _spread(layers: Sequence[Layer]) -> Float[Array, ""]:
    """Return the standard deviation of the weights that are not zero, 1 without any."""
    arrays = [t.init for layer in layers for t in layer.tensors.values() if t.init is not None]
    present = sum((jnp.sum(a != 0) for a in arrays), jnp.zeros((), jnp.int32))
    square = sum((jnp.sum(jnp.square(a)) for a in arrays), jnp.zeros(()))
    return jnp.where(present > 0, jnp.sqrt(square / jnp.maximum(present, 1)), 1.0)
