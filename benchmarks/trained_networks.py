"""Networks for `trained.py`: trained by plain Optax, kept in a folder, and read from there the next time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import bmrjax as bmr

BATCH = 128


def mlp(key: Any) -> eqx.Module:
    """Return 784-200-200-10 with swish, as Equinox has it."""
    return eqx.nn.Sequential(
        [
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.MLP(784, 10, width_size=200, depth=2, activation=jax.nn.swish, key=key),
        ]
    )


def lenet5(key: Any) -> eqx.Module:
    """Return LeNet-5 with tanh, as in Marković et al. 2024."""
    return bmr.zoo.LeNet5(key=key)


NETWORKS: dict[str, Callable[[Any], eqx.Module]] = {"mlp": mlp, "lenet5": lenet5}


def fashion_mnist(data_root: Path, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return rows to train on (54,000), to choose by (6,000) and to test on (10,000)."""
    data = bmr.data.load_dataset("fashion_mnist", data_root=data_root)
    train, chosen_by = data.split_train(validation=0.1, seed=seed)
    return {"train": train, "held_out": chosen_by, "test": data.test}


def trained(
    name: str, seed: int, rows: tuple[np.ndarray, np.ndarray], epochs: int, folder: Path
) -> Any:
    """Return a network trained by AdamW with a cosine schedule; read from `folder` if it is there."""
    network = NETWORKS[name](jax.random.key(seed))
    file = folder / f"{name}-{epochs}-{seed}.eqx"
    if file.exists():
        return eqx.tree_deserialise_leaves(file, network)
    x, y = rows
    steps = len(x) // BATCH
    optimizer = optax.adamw(optax.cosine_decay_schedule(1e-3, epochs * steps), weight_decay=1e-4)
    state = optimizer.init(eqx.filter(network, eqx.is_inexact_array))

    def loss(network: Any, x: Any, y: Any) -> Any:
        logits = jax.vmap(network)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @eqx.filter_jit
    def step(network: Any, state: Any, x: Any, y: Any) -> Any:
        gradient = eqx.filter_grad(loss)(network, x, y)
        updates, state = optimizer.update(
            gradient, state, eqx.filter(network, eqx.is_inexact_array)
        )
        return eqx.apply_updates(network, updates), state

    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(x))[: steps * BATCH].reshape(steps, BATCH)
        for some in order:
            network, state = step(network, state, x[some], y[some])
    folder.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    eqx.tree_serialise_leaves(partial, network)
    partial.rename(file)
    return network
