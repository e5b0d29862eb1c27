"""Losses of a network: their value, their curvature, and what is reported of them."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Loss(eqx.Module):
    """Minus a log likelihood of one row's targets given the network's outputs, in nats.

    Implementing a loss: `value` is the loss of one row, `root` a random vector v with E[v vᵀ] = the
    Hessian of `value` in the outputs (or its Gauss-Newton part, which may not have a negative
    eigenvalue), and `metrics` what else a path reports, averages over rows, by name. `from_predictions`
    returns the targets that stand in for those that nobody has: the network's own predictions.

    Example:
        A loss of one's own, the absolute deviation of a Laplace likelihood with a smooth centre:

        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import trained
        >>> class Smooth(trained.Loss):
        ...     def value(self, outputs, targets):
        ...         return jnp.sum(jnp.sqrt(1 + (outputs - targets) ** 2))
        ...
        ...     def root(self, key, outputs, targets):
        ...         curvature = (1 + (outputs - targets) ** 2) ** -1.5
        ...         return jnp.sqrt(curvature) * jax.random.normal(key, outputs.shape)
        >>> loss, outputs, target = Smooth(), jnp.array([0.5]), jnp.array([0.5])
        >>> jax.hessian(loss.value)(outputs, target), loss.root(jax.random.key(0), outputs, target).shape
        (Array([[1.]], dtype=float32), (1,))
    """

    @abstractmethod
    def value(self, outputs: Array, targets: Any) -> Float[Array, ""]:
        """Return the loss of one row in nats."""

    @abstractmethod
    def root(self, key: PRNGKeyArray, outputs: Array, targets: Any) -> Array:
        """Return a random vector, shaped as the outputs, whose second moment is the curvature."""

    def metrics(self, outputs: Array, targets: Any) -> dict[str, Array]:
        """Return further figures of one row by name."""
        return {}

    def from_predictions(self, outputs: Array) -> Any:
        """Return targets made of the network's own outputs."""
        raise ValueError(
            f"reduce_network: without targets, {type(self).__name__} is not defined; give data=(inputs, "
            "targets), or loss=bmr.trained.CrossEntropy() or SquaredError(noise_scale=...)."
        )


@final
class CrossEntropy(Loss):
    """Softmax cross-entropy of logits with integer labels, or with probabilities of the classes.

    Outputs are logits with the classes on the last axis; further axes, such as places of a sequence, add
    up.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import trained
        >>> loss = trained.CrossEntropy()
        >>> outputs = jnp.array([0.0, 0.0, 4.0])
        >>> loss.value(outputs, jnp.array(2)).round(3), loss.metrics(outputs, jnp.array(2))
        (Array(0.036, dtype=float32), {'accuracy': Array(1., dtype=float32)})
    """

    def value(self, outputs: Array, targets: Any) -> Float[Array, ""]:
        """See `Loss.value`."""
        log_probs = jax.nn.log_softmax(outputs.astype(jnp.float32), -1)
        if _are_labels(targets):
            return -jnp.sum(jnp.take_along_axis(log_probs, targets[..., None], -1))
        return -jnp.sum(jnp.asarray(targets, log_probs.dtype) * log_probs)

    def root(self, key: PRNGKeyArray, outputs: Array, targets: Any) -> Array:
        """See `Loss.root`: for p = softmax(outputs), (diag(√p) − p √pᵀ) ε has covariance diag(p) − p pᵀ."""
        probs = jax.nn.softmax(outputs, -1)
        noise = jax.random.rademacher(key, outputs.shape, outputs.dtype)
        scaled = jnp.sqrt(probs) * noise
        return scaled - probs * jnp.sum(scaled, -1, keepdims=True)

    def metrics(self, outputs: Array, targets: Any) -> dict[str, Array]:
        """See `Loss.metrics`: the accuracy."""
        labels = targets if _are_labels(targets) else jnp.argmax(targets, -1)
        return {"accuracy": jnp.mean((jnp.argmax(outputs, -1) == labels).astype(jnp.float32))}

    def from_predictions(self, outputs: Array) -> Any:
        """See `Loss.from_predictions`: the probabilities."""
        return jax.nn.softmax(outputs, -1)


@final
class BinaryCrossEntropy(Loss):
    """Cross-entropy of logits with targets of zeros and ones of the same shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import trained
        >>> loss = trained.BinaryCrossEntropy()
        >>> outputs, targets = jnp.array([0.0, 4.0]), jnp.array([1.0, 1.0])
        >>> loss.value(outputs, targets).round(3), loss.from_predictions(outputs).round(1)
        (Array(0.711, dtype=float32), Array([0.5, 1. ], dtype=float32))
    """

    def value(self, outputs: Array, targets: Any) -> Float[Array, ""]:
        """See `Loss.value`."""
        logits = outputs.astype(jnp.float32).ravel()
        return jnp.sum(
            jax.nn.softplus(logits) - logits * jnp.asarray(targets, logits.dtype).ravel()
        )

    def root(self, key: PRNGKeyArray, outputs: Array, targets: Any) -> Array:
        """See `Loss.root`."""
        probs = jax.nn.sigmoid(outputs)
        noise = jax.random.rademacher(key, outputs.shape, outputs.dtype)
        return jnp.sqrt(probs * (1 - probs)) * noise

    def metrics(self, outputs: Array, targets: Any) -> dict[str, Array]:
        """See `Loss.metrics`: the accuracy."""
        right = (outputs.ravel() > 0) == (jnp.ravel(targets) > 0.5)
        return {"accuracy": jnp.mean(right.astype(jnp.float32))}

    def from_predictions(self, outputs: Array) -> Any:
        """See `Loss.from_predictions`: the probabilities."""
        return jax.nn.sigmoid(outputs)


@final
class SquaredError(Loss):
    """Minus the log density of targets under a normal with the outputs as its mean and one scale.

    Args:
        noise_scale: Standard deviation of the targets given the inputs. By default the root mean squared
            error of the given network on the calibration rows.

    Example:
        >>> import jax.numpy as jnp
        >>> from bmrjax import trained
        >>> loss = trained.SquaredError(noise_scale=0.5)
        >>> loss.value(jnp.array([1.0]), jnp.array([2.0])).round(2)  # ½ (1/0.5)² + ln 0.5 + ½ ln 2π
        Array(2.23, dtype=float32)
    """

    noise_scale: float | Array | None = None

    def value(self, outputs: Array, targets: Any) -> Float[Array, ""]:
        """See `Loss.value`."""
        scale = self._scale()
        z = (
            outputs.astype(jnp.float32).ravel() - jnp.asarray(targets, jnp.float32).ravel()
        ) / scale
        return 0.5 * jnp.sum(z**2) + z.size * (jnp.log(scale) + 0.5 * jnp.log(2 * jnp.pi))

    def root(self, key: PRNGKeyArray, outputs: Array, targets: Any) -> Array:
        """See `Loss.root`."""
        return jax.random.rademacher(key, outputs.shape, outputs.dtype) / self._scale()

    def metrics(self, outputs: Array, targets: Any) -> dict[str, Array]:
        """See `Loss.metrics`: the mean squared error."""
        return {
            "mse": jnp.mean((outputs.ravel() - jnp.asarray(targets, outputs.dtype).ravel()) ** 2)
        }

    def from_predictions(self, outputs: Array) -> Any:
        """See `Loss.from_predictions`: the outputs; the noise cannot be estimated then."""
        if self.noise_scale is None:
            raise ValueError(
                "reduce_network: without targets, the scale of the noise is not known; give "
                "loss=bmr.trained.SquaredError(noise_scale=...), the error that matters, or targets."
            )
        return outputs

    def _scale(self) -> Array:
        if self.noise_scale is None:
            raise ValueError("SquaredError: noise_scale has not been estimated yet.")
        return jnp.asarray(self.noise_scale, jnp.float32)


@final
class FunctionLoss(Loss):
    """A function of the outputs and the targets of one row, in nats, such as minus a log likelihood.

    Its curvature is the positive part of its Hessian in the outputs, which costs the cube of their
    number: 512 at most.

    Args:
        function: ``function(outputs, targets)`` to a scalar, twice differentiable in the outputs.

    Example:
        A Poisson likelihood of counts, given the logarithm of the rate:

        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import trained
        >>> loss = trained.FunctionLoss(lambda rate, count: jnp.sum(jnp.exp(rate) - count * rate))
        >>> outputs, count = jnp.array([0.7]), jnp.array([3.0])
        >>> loss.value(outputs, count).round(3)
        Array(-0.086, dtype=float32)
        >>> keys = jax.random.split(jax.random.key(0), 5000)
        >>> draws = jax.vmap(lambda key: loss.root(key, outputs, count))(keys)
        >>> jnp.mean(draws**2).round(0), jnp.exp(outputs).round(0)  # the curvature is the rate
        (Array(2., dtype=float32), Array([2.], dtype=float32))
    """

    function: Callable[[Array, Any], Array] = eqx.field(static=True)

    def value(self, outputs: Array, targets: Any) -> Float[Array, ""]:
        """See `Loss.value`."""
        return jnp.reshape(self.function(outputs, targets), ())

    def root(self, key: PRNGKeyArray, outputs: Array, targets: Any) -> Array:
        """See `Loss.root`."""
        if outputs.size > 512:
            raise ValueError(
                f"reduce_network: a loss given as a function takes 512 outputs at most, got {outputs.size}; "
                "subclass bmr.trained.Loss and write `root`."
            )
        hessian = jax.hessian(lambda z: self.value(z.reshape(outputs.shape), targets))
        values, vectors = jnp.linalg.eigh(hessian(outputs.ravel()))
        noise = jax.random.rademacher(key, values.shape, outputs.dtype)
        return (vectors @ (jnp.sqrt(jnp.maximum(values, 0)) * noise)).reshape(outputs.shape)


def _are_labels(targets: Any) -> bool:
    return bool(jnp.issubdtype(jnp.asarray(targets).dtype, jnp.integer))
