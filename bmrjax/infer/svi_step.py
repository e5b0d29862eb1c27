"""One step of stochastic variational inference, of one fit or of several side by side."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from bmrjax.handlers import at_step, draws, fast_noise, prune, scale_elbo
from bmrjax.infer.arguments import Data, Keep, arguments, length
from bmrjax.infer.estimate import drawn_shapes
from bmrjax.infer.kl_growth import KLGrowth, kl_factor
from bmrjax.infer.mixed_precision import MatmulDtype, of_program, with_low_matmuls
from bmrjax.infer.placement import Placement
from bmrjax.infer.stacked import select_members
from bmrjax.infer.state import State, counted


class SVIStep:
    """Take a gradient of the loss on one batch, and update a state by it if all is finite.

    Args:
        model: NumPyro program; see `bmrjax.infer.Engine`, also for the other arguments.
        guide: Its guide.
        loss: A NumPyro ELBO.
        num_data: Number of data in the whole set.
        row_sites: Names of the observed sites with a log density per row.
        kl_weight: Factor on the KL term.
        kl_growth: How that factor grows at the start; see `bmrjax.infer.kl_growth`.
        placement: Where arrays live.
        matmul_dtype: What matrices are multiplied in.

    Attributes:
        constrain: From unconstrained to constrained parameters; None until the fit has started.
        optimizer: What turns gradients into updates; None until then too.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        *,
        loss: Any,
        num_data: int,
        row_sites: Collection[str] | None,
        kl_weight: float,
        kl_growth: KLGrowth,
        placement: Placement,
        matmul_dtype: MatmulDtype | None,
    ):
        self._model, self._guide = model, guide
        self._elbo = loss
        self._num_data, self._row_sites = num_data, row_sites
        self._kl_weight = kl_weight
        self.kl_growth = kl_growth
        self._placement, self._matmul_dtype = placement, matmul_dtype
        self.constrain: Callable | None = None
        self.optimizer: optax.GradientTransformation | None = None

    def _programs(self, keep: Keep, rows: int, kl: ArrayLike) -> tuple[Any, Any]:
        scaled: dict[str, Any] = {"kl": kl}
        if rows != self._num_data:
            scaled |= {"likelihood": self._num_data / rows, "sites": self._row_sites, "rows": rows}
        model = scale_elbo(prune(of_program(self._model), keep), **scaled)
        shapes = drawn_shapes(self._elbo, self._guide)
        guide = scale_elbo(prune(fast_noise(self._guide, shapes=shapes), keep), **scaled)
        return model, guide

    def loss(
        self,
        params: dict[str, Array],
        mutable: Any,
        step: Array,
        keep: Keep,
        kl: ArrayLike,
        batch: Data,
        key: Array,
    ) -> tuple[Array, Any]:
        """Return the loss on a batch, in nats for all data, and the mutable sites after it.

        Args:
            params: Unconstrained parameters.
            mutable: Mutable sites; None if there are none.
            step: How many steps were taken before.
            keep: Masks by site.
            kl: Factor on the KL term.
            batch: One batch.
            key: PRNG key of the step.
        """
        args, kwargs = arguments(self._placement.constrain_rows(batch))
        rows = length(batch)
        programs = (draws(fn, rows) for fn in self._programs(keep, rows, kl))
        model, guide = (at_step(fn, step) for fn in programs)
        assert self.constrain is not None
        values = {**self.constrain(params), **(mutable or {})}
        with self._placement.tracing():
            if mutable is None:
                return self._elbo.loss(key, values, model, guide, *args, **kwargs), None
            result = self._elbo.loss_with_mutable_state(key, values, model, guide, *args, **kwargs)
        return result["loss"], result["mutable_state"]

    def _gradients(
        self, state: State, batch: Data, keep: Keep, key: Array, kl_weight: ArrayLike
    ) -> tuple[Array, Any, Any, Array]:
        kl = jnp.asarray(kl_weight)
        if self.kl_growth:
            kl = kl * kl_factor(self.kl_growth, state.num_steps + 1)
        gradient = jax.value_and_grad(self.loss, has_aux=True)
        if self._matmul_dtype is not None:
            gradient = with_low_matmuls(gradient)
        (loss, mutable), grads = gradient(
            state.params, state.mutable, state.num_steps, keep, kl, batch, key
        )
        total = sum((jnp.sum(g) for g in jax.tree.leaves(grads)), jnp.zeros(()))
        return loss, mutable, grads, jnp.isfinite(loss) & jnp.isfinite(total)

    def _accept(self, params: Any, opt_state: Any, grads: Any, rate: Array) -> tuple[Any, Any]:
        assert self.optimizer is not None
        # Optax counts steps in integers, and raises floats to them.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = self.optimizer.update(grads, opt_state, params)
        updates = jax.tree.map(lambda u: rate.astype(u.dtype) * u, updates)
        return optax.apply_updates(params, updates), opt_state

    def update(
        self, state: State, batch: Data, keep: Keep, key: Array, rate: Array
    ) -> tuple[State, Array]:
        """Return the state after a step, and its loss: NaN, and the old state, where it is not finite.

        Args:
            state: Before the step.
            batch: One batch.
            keep: Masks by site.
            key: PRNG key of the step.
            rate: Factor on the optimiser's updates.
        """
        loss, mutable, grads, good = self._gradients(state, batch, keep, key, self._kl_weight)

        def accept(params: Any, opt_state: Any, _: Any, grads: Any, mutable: Any) -> Any:
            return *self._accept(params, opt_state, grads, rate), mutable

        # A conditional, not a select: XLA would compute every gradient anew for each of its uses
        # in the optimiser, and takes four times as long to compile that.
        before = state.params, state.opt_state, state.mutable
        after = jax.lax.cond(good, accept, lambda *args: args[:3], *before, grads, mutable)
        return counted(state, after, good), jnp.where(good, loss, jnp.nan)

    def update_of_many(
        self,
        states: State,
        batches: Data,
        keeps: Keep,
        keys: Array,
        rates: Array,
        kl_weights: Array,
        *,
        shared: bool,
    ) -> tuple[State, Array]:
        """Take a step of each of several fits, whose arrays have a leading axis over them; see `update`.

        Args:
            states: Before the step.
            batches: Their batches; one for all of them if `shared`.
            keeps: Masks by site.
            keys: PRNG keys of the step.
            rates: Factors on the optimiser's updates.
            kl_weights: Factors on the divergence.
            shared: Whether all fits see the same rows.
        """
        args = states, batches, keeps, keys, kl_weights
        axes = (0, None if shared else 0, 0, 0, 0)
        losses, mutable, grads, good = jax.vmap(self._gradients, axes)(*args)

        def accept(params: Any, opt_state: Any, _: Any, grads: Any, mutable: Any) -> Any:
            return *jax.vmap(self._accept)(params, opt_state, grads, rates), mutable

        def accept_good(*args: Any) -> Any:
            return select_members(good, args[:3], accept(*args))

        # One conditional for all of them: a conditional under `vmap` would be a select.
        before = states.params, states.opt_state, states.mutable
        after = jax.lax.cond(jnp.all(good), accept, accept_good, *before, grads, mutable)
        return jax.vmap(counted)(states, after, good), jnp.where(good, losses, jnp.nan)
