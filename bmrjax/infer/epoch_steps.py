"""What the steps of an epoch see and when they end: steps of `Loop`, made of one `SVIStep`."""

import contextlib
import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bmrjax.backend.on_device import floats_on_device
from bmrjax.backend.threefry import unrolled
from bmrjax.convergence import Settled
from bmrjax.infer.arguments import Data, Keep
from bmrjax.infer.stacked import select_members
from bmrjax.infer.state import State
from bmrjax.infer.svi_step import SVIStep


class EpochSteps:
    """Steps over minibatches, over given batches, and of several fits side by side.

    Args:
        step: What is done with a batch.
        num_data: Number of data in the whole set.
        batch_size: Data per step. With as many as there are, every step sees all rows in their order.
        until: Ends an epoch early, once the fit has converged.
    """

    def __init__(self, step: SVIStep, *, num_data: int, batch_size: int, until: Settled | None):
        self._step, self._num_data, self._batch_size = step, num_data, batch_size
        self._until = until

    @property
    def is_whole(self) -> bool:
        """Whether every step sees all rows, in their order."""
        return self._batch_size >= self._num_data

    def unwritten(self, *shape: int) -> Array:
        """Return losses of steps that are not done yet; NaN if they may never be."""
        value = 0.0 if self._until is None else np.nan
        return floats_on_device(np.full(shape, value))

    def nan_is_meant(self) -> contextlib.AbstractContextManager[Any]:
        """Switch ``jax_debug_nans`` off where an epoch may end early: NaN is the loss of no step then."""
        return contextlib.nullcontext() if self._until is None else jax.debug_nans(new_val=False)

    def over_rows(
        self,
        carry: tuple[State, Array],
        i: Array,
        data: Data,
        order: Array,
        keep: Keep,
        key: Array,
        rate: Array,
    ) -> tuple[State, Array]:
        """Take a step over the next rows of an order, or over all of them."""
        if self.is_whole:
            return self.on_batch(carry, i, data, keep, key, rate)
        rows = jax.lax.dynamic_slice_in_dim(order, i * self._batch_size, self._batch_size)
        batch = jax.tree.map(lambda a: jnp.take(a, rows, axis=0, mode="clip"), data)
        return self.on_batch(carry, i, batch, keep, key, rate)

    def on_batch(
        self, carry: tuple[State, Array], i: Array, batch: Data, keep: Keep, key: Array, rate: Array
    ) -> tuple[State, Array]:
        """Take a step over the rows of a batch."""
        state, losses = carry
        state = replace(state, worst_in_row=jnp.where(i == 0, 0, state.worst_in_row))
        state, loss = self._step.update(state, batch, keep, jax.random.fold_in(key, i), rate)
        return state, losses.at[i].set(loss.astype(losses.dtype))

    def of_many(
        self,
        carry: tuple[State, Array, Array],
        i: Array,
        data: Data,
        orders: Array,
        keeps: Keep,
        keys: Array,
        rates: Array,
        kl_weights: Array,
    ) -> tuple[State, Array, Array]:
        """Take a step of each of several fits that still run; minibatches are their own."""
        states, losses, runs = carry
        states = replace(states, worst_in_row=jnp.where(i == 0, 0, states.worst_in_row))
        keys = jax.vmap(jax.random.fold_in, (0, None))(unrolled(keys), i)
        batches = data
        if not self.is_whole:
            size = self._batch_size
            rows = jax.lax.dynamic_slice_in_dim(orders, i * size, size, axis=1)
            batches = jax.tree.map(lambda a: jnp.take(a, rows, axis=0, mode="clip"), data)
        after, loss = self._step.update_of_many(
            states, batches, keeps, keys, rates, kl_weights, shared=self.is_whole
        )
        if self._until is not None:
            # A fit that has settled stays where it is, while the others go on.
            loss = jnp.where(runs, loss, jnp.nan)
            after = jax.lax.cond(
                jnp.all(runs),
                lambda _, new: new,
                functools.partial(select_members, runs),
                states,
                after,
            )
        return after, losses.at[:, i].set(loss.astype(losses.dtype)), runs

    def _settled(self, losses: Array, i: Array) -> Array:
        assert self._until is not None
        return self._until(losses / self._num_data, i)

    def has_settled(self, carry: tuple[State, Array], i: Array) -> tuple[Any, Array]:
        """Return whether the loss has settled, for `Loop`."""
        return carry, self._settled(carry[1], i)

    def have_settled(self, carry: tuple[State, Array, Array], i: Array) -> tuple[Any, Array]:
        """Return which fits still run, and whether none does, for `Loop`."""
        states, losses, runs = carry
        runs = runs & ~jax.vmap(self._settled, (0, None))(losses, i)
        return (states, losses, runs), ~jnp.any(runs)

    def order(self, key: Array, length: int) -> Int[Array, " length"]:
        """Return the rows in the order in which the steps see them, shuffled anew in each pass."""
        if self.is_whole:
            return jnp.zeros(0, jnp.int32)
        passes = -(-length // self._num_data)
        shuffle = jax.vmap(lambda k: jax.random.permutation(k, self._num_data))
        return shuffle(jax.random.split(key, passes)).reshape(-1)[:length]
