"""The networks of all benchmarks, by name."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bmrjax import metrics, zoo
from bmrjax.structure import named_arrays

RELU: dict[str, Any] = {"activation": jax.nn.relu}
# LeNet-5 for colours, as wide as in the papers that have it.
WIDE: dict[str, Any] = {"conv_features": (18, 48, 360), "hidden": 256}


def _mlp(inputs: int, *sizes: int, **fixed: Any) -> Callable[..., Any]:
    """Return what builds a perceptron of ten classes; another width of its layers may be given."""
    return lambda hidden=sizes, **more: zoo.MLP(inputs, hidden, 10, **fixed, **more)


_NETWORKS: dict[str, Callable[..., Any]] = {
    "MLP 60-30": _mlp(64, 60, 30, **RELU),
    "MLP 100-100": _mlp(784, 100, 100),
    "MLP 5x400": _mlp(784, 400, 400, 400, 400, 400),
    "LeNet-300-100": _mlp(784, 300, 100, **RELU),
    "LeNet-500-300": _mlp(784, 500, 300, **RELU),
    "LeNet-5": lambda **more: zoo.LeNet5(**more),
    "LeNet-5-Caffe": lambda **more: zoo.LeNet5Caffe(**more),
    "VGG": lambda **more: eqx.nn.make_with_state(zoo.VGG)(**more),
    "ViT": lambda **more: zoo.ViT(**more),
    "ResNet-18": lambda **more: zoo.resnet18(small_images=True, **more),
    "ResNet-50": lambda **more: zoo.resnet50(small_images=True, **more),
    # As Equinox has it, with no layer of this library.
    "Equinox MLP 200-200": lambda key: eqx.nn.Sequential([
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.MLP(784, 10, width_size=200, depth=2, activation=jax.nn.swish, key=key),
    ]),
}  # fmt: skip


def build(name: str, seed: int = 0, **more: Any) -> Any:
    """Return a network, initialised by a seed.

    Args:
        name: A name of this module.
        seed: Of the PRNG key.
        more: Options of the network.
    """
    return _NETWORKS[name](key=jax.random.key(seed), **more)


def classifier_of(kind: str, shape: tuple[int, ...], classes: int, seed: int, **more: Any) -> Any:
    """Return a network of Marković et al. (2024) for images of a shape (channels, height, width)."""
    more["key"] = jax.random.key(seed)
    if kind == "mlp":
        return zoo.MLP(math.prod(shape), (400,) * 5, classes, **more)
    if kind == "lenet5":
        return zoo.LeNet5(shape[0], classes, **(WIDE if shape[0] == 3 else {}), **more)
    if kind == "vit":
        return zoo.ViT(shape[0], classes, image_size=shape[1:], **more)
    del more["dropout"]  # as published, none for a point estimate either
    return zoo.MLPMixer(shape[0], classes, image_size=shape[1:], **more)


def weights(network: Any) -> tuple[int, int]:
    """Return how many weights are not zero, biases aside, and how many there are."""
    arrays = [a for name, a in named_arrays(network).items() if name.endswith("weight")]
    return sum(int(np.count_nonzero(a)) for a in arrays), sum(a.size for a in arrays)


def log_probs(network: Any, x: Any, batch_size: int = 1000) -> Any:
    """Return the log class probabilities of a plain network, rows by classes."""
    apply = eqx.filter_jit(lambda net, rows: jax.vmap(net)(rows))
    parts = [apply(network, x[i : i + batch_size]) for i in range(0, len(x), batch_size)]
    return jax.nn.log_softmax(jnp.concatenate(parts))


def scores(log_probs: Any, labels: Any) -> dict[str, float]:
    """Return accuracy, as a fraction, and NLL in nats per data point, of log class probabilities."""
    labels = np.asarray(labels)
    return {
        "accuracy": float((np.asarray(log_probs).argmax(1) == labels).mean()),
        "nll": -float(log_probs[np.arange(len(labels)), labels].mean()),
    }


def calibrated_scores(log_probs: Any, labels: Any) -> dict[str, float]:
    """Return accuracy, as a fraction, NLL in nats per data point, and ECE, of log class probabilities."""
    labels, probs = jnp.asarray(labels), jnp.exp(log_probs)
    return {
        "accuracy": float(metrics.accuracy(probs, labels)),
        "nll": float(-jnp.mean(jnp.take_along_axis(log_probs, labels[:, None], 1))),
        "ece": float(metrics.expected_calibration_error(probs, labels)),
    }


def score(network: Any, data: Any) -> dict[str, float]:
    """Return accuracy in percent and NLL in nats per data point of a plain network."""
    found, labels = log_probs(network, data[0]), jnp.asarray(data[1], jnp.int32)
    chosen = jnp.take_along_axis(found, labels[:, None], 1)[:, 0]
    return {
        "accuracy": 100 * float(metrics.accuracy(jnp.exp(found), labels)),
        "nll": float(metrics.negative_log_likelihood(chosen)),
    }


def train(
    network: Any, data: Any, *, optimizer: optax.GradientTransformation, batch: int, epochs: int, seed: int
) -> Any:  # fmt: skip
    """Return a classifier trained by plain Optax, in epochs that are shuffled by a seed."""
    x, y = data
    state = optimizer.init(eqx.filter(network, eqx.is_inexact_array))

    def loss(network: Any, x: Any, y: Any) -> Any:
        logits = jax.vmap(network)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @eqx.filter_jit
    def step(network: Any, state: Any, x: Any, y: Any) -> Any:
        gradient = eqx.filter_grad(loss)(network, x, y)
        params = eqx.filter(network, eqx.is_inexact_array)
        updates, state = optimizer.update(gradient, state, params)
        return eqx.apply_updates(network, updates), state

    rng, steps = np.random.default_rng(seed), len(x) // batch
    for _ in range(epochs):
        order = rng.permutation(len(x))[: steps * batch].reshape(steps, batch)
        for rows in order:
            network, state = step(network, state, x[rows], y[rows])
    return network
