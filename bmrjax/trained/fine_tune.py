"""Training between rounds of removals, with removed weights held at zero."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool

from bmrjax.structure.network_arrays import parts_of
from bmrjax.trained.losses import Loss
from bmrjax.trained.network_data import Rows
from bmrjax.trained.traced import Traced

# What trains a network between rounds: a function of the network, with zeros where weights are removed, and
# of masks by path. What it returns has the same structure; removed weights are set to zero again.
Tune = Callable[[Any, dict[str, Bool[np.ndarray, "..."]]], Any]
# The same for arrays, with masks by number.
TuneArrays = Callable[[Sequence[Array], dict[int, Bool[np.ndarray, "..."]]], list[Array]]


@final
@dataclass(frozen=True)
class FineTune:
    """Training by Adam between rounds of `bmrjax.reduce_network`, in inference mode.

    Dropout is off, and running statistics stay as they are. So do arrays inside a `while_loop` and before
    one: no gradient goes back through it. The learning rate falls to zero by a cosine in each round.

    Args:
        epochs: Passes over the data in each round; parts of one are fine.
        learning_rate: Of Adam, at the start of each round.
        batch_size: Rows per step.
        seed: Of the order of the rows.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> tune = bmr.trained.FineTune(epochs=2, batch_size=50)
        >>> bmr.reduce_network(network, (x, y), keep=0.5, fine_tune=tune).kept
        0.5
    """

    epochs: float = 1.0
    learning_rate: float = 1e-3
    batch_size: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "batch_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"FineTune: {name} is positive, got {getattr(self, name)}.")


def tuner(
    given: FineTune | Tune | None, traced: Traced, loss: Loss, rows: Rows
) -> TuneArrays | None:
    """Return what trains arrays between rounds.

    Args:
        given: See `bmrjax.reduce_network`.
        traced: The network.
        loss: The loss.
        rows: The rows to train on.

    Raises:
        TypeError: For what is neither a `FineTune` nor a function.
    """
    if given is None:
        return None
    if isinstance(given, FineTune):
        return _Adam(given, traced, loss, rows)
    if not callable(given) or isinstance(given, type):
        raise TypeError(
            "reduce_network: fine_tune is bmr.trained.FineTune(...) or a function of the network and the "
            f"masks that returns the network, got {given!r}."
        )
    function: Tune = given
    parts = traced.parts

    def tuned(arrays: Sequence[Array], masks: dict[int, np.ndarray]) -> list[Array]:
        network = function(parts.build(arrays), {parts.names[i]: m for i, m in masks.items()})
        found = parts_of(network, caller="reduce_network: fine_tune")
        shapes = [x.shape for x in arrays]
        if found.names != parts.names or [x.shape for x in found.arrays] != shapes:
            raise ValueError(
                "reduce_network: fine_tune must return the network with the arrays that it got, of the same "
                "shapes."
            )
        return _held(found.arrays, masks)

    return tuned


class _Adam:
    def __init__(self, options: FineTune, traced: Traced, loss: Loss, rows: Rows):
        self._rows, self._rng = rows, np.random.default_rng(options.seed)
        self._size = min(options.batch_size, len(rows))
        self._steps = max(1, round(options.epochs * len(rows) / self._size))
        optimizer = optax.adam(optax.cosine_decay_schedule(options.learning_rate, self._steps))
        moved = [
            is_trained and i not in traced.no_gradient
            for i, is_trained in enumerate(traced.parts.trained)
        ]

        def mean_loss(arrays: Any, x: Any, y: Any) -> Array:
            arrays = [
                array if moves else jax.lax.stop_gradient(array)
                for array, moves in zip(arrays, moved, strict=True)
            ]

            def row(x: Any, y: Any) -> Array:
                return loss.value(traced.capture.outputs(arrays, x), y)

            return jnp.mean(jax.vmap(row)(x, y))

        @jax.jit
        def step(arrays: Any, masks: Any, state: Any, x: Any, y: Any) -> Any:
            gradients = jax.grad(mean_loss)(arrays, x, y)
            gradients = [
                g * masks[i].astype(g.dtype) if i in masks else g for i, g in enumerate(gradients)
            ]
            updates, state = optimizer.update(gradients, state, arrays)
            return optax.apply_updates(arrays, updates), state

        self._step, self._optimizer = step, optimizer

    def __call__(self, arrays: Sequence[Array], masks: dict[int, np.ndarray]) -> list[Array]:
        now: Any = list(arrays)
        state, given = self._optimizer.init(now), {i: jnp.asarray(m) for i, m in masks.items()}
        order = np.zeros(0, int)
        for _ in range(self._steps):
            if len(order) < self._size:
                order = self._rng.permutation(len(self._rows))
            some, order = order[: self._size], order[self._size :]
            batch = self._rows.take(some)
            x = tuple(jnp.asarray(part) for part in batch.inputs)
            now, state = self._step(now, given, state, x, jax.tree.map(jnp.asarray, batch.targets))
        if not all(bool(jnp.isfinite(x).all()) for x in now):
            raise ValueError(
                "reduce_network: fine-tuning left weights that are not finite; lower "
                "FineTune(learning_rate=...)."
            )
        return _held(now, masks)


def _held(arrays: Sequence[Array], masks: dict[int, np.ndarray]) -> list[Array]:
    return [x * jnp.asarray(masks[i], x.dtype) if i in masks else x for i, x in enumerate(arrays)]
