"""The SVI engine: any program, guide, ELBO and optimiser, compiled once per run."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.backend.on_device import floats_on_device, on_device
from bmrjax.backend.quick_compile import quick_jit
from bmrjax.backend.random_keys import split_keys
from bmrjax.convergence import Settled
from bmrjax.criteria import SitePosteriors
from bmrjax.handlers import inference
from bmrjax.infer.adopted import common_values, mutable_values
from bmrjax.infer.arguments import Data, Keep, arguments
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.epoch_steps import EpochSteps
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.init import initialise
from bmrjax.infer.kl_growth import as_growth
from bmrjax.infer.loop import Loop, LoopMode
from bmrjax.infer.mixed_precision import MatmulDtype, check_matmul_dtype
from bmrjax.infer.natural_gradient import Optimizer, resolved
from bmrjax.infer.normal_sites import NormalSite, normal_sites
from bmrjax.infer.placed_batch import placed
from bmrjax.infer.placement import Placement
from bmrjax.infer.posterior import read_posteriors
from bmrjax.infer.prefetch import prefetch
from bmrjax.infer.stacked import stacked, unstacked
from bmrjax.infer.state import EpochInfo, State
from bmrjax.infer.svi_step import SVIStep


class Engine:
    """Compile and run SVI for a model, a guide, an ELBO and an optimiser.

    Args:
        model: NumPyro program of one batch: ``model(*batch)`` for a tuple of arrays,
            ``model(**batch)`` for a dict. It is written as for the whole data; where a batch is a part of
            them, the engine scales the observed sites with a log density per row by the number of data over
            the batch size.
        guide: NumPyro guide with the same arguments.
        optimizer: An optax optimiser, or a `NaturalGradient`.
        loss: A NumPyro ELBO.
        num_data: Number of data in the whole set.
        batch_size: Data per step. With as many as there are, every step sees all rows in their order.
        row_sites: Sites with a log density per row; by default those with an axis as long as the batch.
        kl_weight: Factor on the KL term.
        kl_warmup: Steps over which that factor grows linearly from zero, or pairs of a step and its factor.
        loop: See `bmrjax.infer.loop.Loop`.
        until: Ends an epoch early, once the fit has converged; asked inside the compiled program.
        placement: Where arrays live; on one device by default.
        matmul_dtype: ``"bfloat16"`` multiplies matrices and convolves in it while training; see
            `sparsify`.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro.infer, optax
        >>> from bmrjax.infer import AutoMeanField, Engine
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 2))
        >>> data, keep = (x, 2.0 * x[:, 0]), {"w": jnp.array([True, False])}
        >>> engine = Engine(
        ...     program, AutoMeanField(program), optimizer=optax.adabelief(0.02), num_data=100,
        ...     batch_size=100, loss=numpyro.infer.TraceMeanField_ELBO(),
        ... )
        >>> state = engine.init(jax.random.key(1), data)
        >>> state, info = engine.epoch(state, keep, data, jax.random.key(2), num_steps=500)
        >>> engine.constrain(state)["w_auto_loc"].round(1)[0], engine.num_compilations
        (Array(2., dtype=float32), 1)
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        *,
        optimizer: Optimizer,
        loss: Any,
        num_data: int,
        batch_size: int,
        row_sites: Collection[str] | None = None,
        kl_weight: float = 1.0,
        kl_warmup: int | Sequence[tuple[float, float]] | None = None,
        loop: LoopMode = "auto",
        until: Settled | None = None,
        placement: Placement | None = None,
        matmul_dtype: MatmulDtype | None = None,
    ):
        check_matmul_dtype(matmul_dtype)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"The optimizer is a {type(optimizer).__name__}; give an optax optimiser, such as "
                "optax.adabelief(1e-2), or infer.NaturalGradient()."
            )
        self.model, self.guide = model, guide
        self.optimizer, self.loss = optimizer, loss
        self._transforms: Mapping[str, Any] = {}
        self.num_data, self.batch_size = num_data, batch_size
        self.row_sites = row_sites
        self.kl_weight = kl_weight
        self.matmul_dtype = matmul_dtype
        self.loop: LoopMode = loop
        self._unconstrain: Callable | None = None
        self.until = until
        self.placement: Placement = Placement() if placement is None else placement
        self.placement.check_batch(batch_size, "batch_size")
        self.step: SVIStep = SVIStep(
            model,
            guide,
            loss=loss,
            num_data=num_data,
            row_sites=row_sites,
            kl_weight=kl_weight,
            kl_growth=as_growth(kl_warmup),
            placement=self.placement,
            matmul_dtype=matmul_dtype,
        )
        self.steps = steps = EpochSteps(
            self.step, num_data=num_data, batch_size=batch_size, until=until
        )
        ends: dict[str, Any] = {"patience": 1 if until is None else until.window}
        self._epoch = Loop(steps.over_rows, loop, until=until and steps.has_settled, **ends)
        self._epoch_of_many = Loop(steps.of_many, loop, until=until and steps.have_settled, **ends)
        self._single = Loop(steps.on_batch, "dispatch")
        self.free_energy: FreeEnergy = FreeEnergy(
            model,
            guide,
            loss=loss,
            batch_size=batch_size,
            row_sites=row_sites,
            loop=loop,
            placement=self.placement,
        )
        self._order = quick_jit(steps.order, static_argnums=(1,))
        self._orders = quick_jit(jax.vmap(steps.order, (0, None)), static_argnums=(1,))
        self._sites = quick_jit(self._site_posteriors)
        self._conditioned = quick_jit(self._condition)
        self.init_seconds: float = 0.0

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling the training step so far."""
        return sum(loop.compile_seconds for loop in self.loops())

    @property
    def num_compilations(self) -> int:
        """How many training programs were compiled so far."""
        return sum(loop.num_compilations for loop in self.loops())

    def loops(self) -> tuple[Loop, ...]:
        """Return what repeats the training step."""
        return self._epoch, self._epoch_of_many, self._single

    @property
    def loop_mode(self) -> str:
        """How the training step is repeated: ``"fused"`` or ``"dispatch"``."""
        return (self._epoch_of_many if self._epoch_of_many.num_compilations else self._epoch).mode

    # --- starting -------------------------------------------------------------------------

    def init(
        self,
        key: Array,
        batch: Data,
        *,
        model: Callable | None = None,
        guide: Callable | None = None,
    ) -> State:
        """Start a fit, in one compiled program.

        Args:
            key: PRNG key.
            batch: One batch of data.
            model: The program to start at, which may differ in the network that it starts from alone.
            guide: Its guide.

        Returns:
            The first state.
        """
        model = self.model if model is None else model
        guide = self.guide if guide is None else guide
        start = initialise(model, guide, self.loss, key, batch)
        self.step.constrain, self._unconstrain = quick_jit(start.constrain), start.unconstrain
        self._transforms = start.transforms
        # That of the first start serves for all.
        if self.step.optimizer is None:
            params = jax.eval_shape(start.constrain, start.params)
            sites = functools.partial(self.normal_sites, params, batch)
            self.step.optimizer = resolved(self.optimizer, sites, self.guide)
        return self.placement.made(self._first, start.params, start.mutable)

    def _first(self, params: dict[str, Array], mutable: Any) -> State:
        """Return the state that begins with these parameters, which shares no buffer with anything."""
        assert self.step.optimizer is not None
        zeros = [jnp.zeros((), jnp.int32)] * 4
        # The optimiser may hand the same array out twice, and a donated buffer may not.
        parts = (params, self.step.optimizer.init(params), mutable)
        return State(*jax.tree.map(lambda x: jnp.array(x, copy=True), parts), *zeros)

    def normal_sites(self, params: Mapping[str, Any], batch: Data) -> list[NormalSite]:
        """Return the sites of the guide whose posterior is independent normals.

        Args:
            params: Constrained parameters, or their shapes.
            batch: One batch of data.
        """
        return normal_sites(self.guide, params, self._transforms, batch)

    def adopt(self, state: State, params: Mapping[str, Any]) -> State:
        """Return the first state of a fit that takes over what an earlier one learned.

        Args:
            state: From `init`.
            params: Constrained parameters and mutable sites. Those with a name that the program has are
                taken, the others left.

        Raises:
            ValueError: If no name is common, or a shape differs.
        """
        assert self._unconstrain is not None
        now = self.placement.fetch(self.constrain(state))
        common = common_values(params, now, state.params)
        taken = {name: common.get(name, now[name]) for name in state.params}
        first = self.placement.made(self._first, self._unconstrain(taken), None)
        return replace(first, mutable=self.placement.parted(mutable_values(state.mutable, common)))

    def constrain(self, state: State) -> dict[str, Array]:
        """Return the parameters of `state` on their own scales, with the mutable sites."""
        if self.step.constrain is None:
            raise RuntimeError("Engine.init must come first.")
        return {**self.step.constrain(state.params), **(state.mutable or {})}

    # --- what a run calls -----------------------------------------------------------------

    def epoch(
        self,
        state: State,
        keep: Keep,
        data: Data,
        key: Array,
        *,
        num_steps: int,
        rate: float = 1.0,
    ) -> tuple[State, EpochInfo]:
        """Take `num_steps` steps over shuffled minibatches of arrays on the device, or over all of them.

        Args:
            state: Consumed: its buffers are donated.
            keep: Masks by site.
            data: The whole data set, arrays with a common leading axis.
            key: PRNG key of this epoch; the same key gives the same epoch.
            num_steps: Steps; every row is seen once before any is seen twice.
            rate: Factor on the optimiser's updates.
        """
        shuffle, noise = split_keys(key, 2)
        order = self._rows(shuffle, num_steps)
        before = None if self.until is None else state.num_steps + 0  # its own is consumed
        with self.steps.nan_is_meant():
            losses, order, noise, factor = self.placement.everywhere(
                (self.steps.unwritten(num_steps), order, noise, floats_on_device(rate))
            )
            args = (data, order, self.placement.parted(dict(keep)), noise, factor)
            state, losses = self._epoch((state, losses), num_steps, *args)
        taken = on_device(np.int32(num_steps)) if before is None else state.num_steps - before
        return state, EpochInfo(losses, taken)

    def _rows(self, key: Array, num_steps: int) -> Array:
        """Return the rows in the order in which the steps of an epoch see them; none if each sees all."""
        if self.steps.is_whole:
            return on_device(np.zeros(0, np.int32))
        return self._order(key, num_steps * self.batch_size)

    def epoch_of_many(
        self,
        states: Sequence[State],
        keeps: Sequence[Keep],
        data: Data,
        keys: Sequence[Array],
        *,
        num_steps: int,
        rates: Sequence[float],
        kl_weights: Sequence[float] | None = None,
    ) -> list[tuple[State, EpochInfo]]:
        """Take an epoch of several fits in one program; each is as if `epoch` ran it alone.

        Args:
            states: One a fit. Kept intact.
            keeps: Masks by site, one dict per fit.
            data: The whole data set, shared.
            keys: PRNG key of this epoch, one per fit.
            num_steps: Steps of each.
            rates: Factor on the optimiser's updates, one per fit; a fit does not have to settle if its
                factor is 0.
            kl_weights: Factor on the divergence, one per fit; by default the engine's.
        """
        pairs = jnp.stack([jax.random.split(key) for key in keys])
        orders = self._orders(pairs[:, 0], num_steps * self.batch_size)
        state, keep = stacked([(s, dict(k)) for s, k in zip(states, keeps, strict=True)])
        before = state.num_steps + 0
        runs = jnp.asarray(rates) > 0
        weights = [self.kl_weight] * len(states) if kl_weights is None else kl_weights
        factors = jnp.asarray(rates, float), jnp.asarray(weights, float)
        args = (data, orders, keep, pairs[:, 1], *factors)
        with self.steps.nan_is_meant():
            carry = (state, self.steps.unwritten(len(states), num_steps), runs)
            state, losses, _ = self._epoch_of_many(carry, num_steps, *args)
        taken = state.num_steps - before
        parts = unstacked((state, losses, taken), len(states))
        return [(s, EpochInfo(found, steps)) for s, found, steps in parts]

    def epoch_from(
        self,
        state: State,
        keep: Keep,
        batches: Iterable[Data],
        key: Array,
        *,
        num_steps: int,
        rate: float = 1.0,
    ) -> tuple[State, EpochInfo]:
        """Take `num_steps` steps over batches that an iterator hands out; see `epoch`.

        Raises:
            ValueError: If the iterator ends early.
        """
        _, noise = split_keys(key, 2)
        first = (floats_on_device(np.zeros(num_steps)), noise, floats_on_device(rate))
        losses, noise, factor = self.placement.everywhere(first)
        carry = (state, losses)
        masks = self.placement.parted(dict(keep))
        taken = itertools.islice(batches, num_steps)
        with contextlib.closing(prefetch(taken)) as ready:
            for i in range(num_steps):
                batch = next(ready, None)
                if batch is None:
                    raise ValueError(
                        f"The iterator of batches ended after {i} of {num_steps} steps of an epoch. "
                        "Give one that goes on, or fewer steps_per_epoch."
                    )
                args = (placed(batch, self.placement), masks, noise, factor)
                carry = self._single.one_step(carry, i, *args)
        return carry[0], EpochInfo(carry[1], on_device(np.int32(num_steps)))

    def vfe(self, state: State, keep: Keep, data: Data, key: Array) -> float:
        """Measure the variational free energy, nats for all data; see `FreeEnergy`.

        A fresh posterior sample per batch, a hundred at least; KL weight 1; networks in inference mode.

        Args:
            state: Kept intact.
            keep: Masks by site.
            data: The whole data set, every row of which counts.
            key: PRNG key; with the same one, states are compared under the same random numbers.
        """
        return self.free_energy.measured(self.constrain(state), keep, data, key)

    def condition(self, state: State, before: Keep, after: Keep) -> State:
        """Move the posterior to where it is given that the elements that `after` drops are zero.

        In a factorised posterior the others stay; a `CorrelatedGuide` knows where they go.
        """
        if not isinstance(self.guide, CorrelatedGuide):
            return state
        params = self._conditioned(state.params, dict(before), dict(after))
        return replace(state, params=self.placement.parted(params))

    def _condition(self, params: dict[str, Array], before: Keep, after: Keep) -> dict[str, Array]:
        assert self.step.constrain is not None
        assert self._unconstrain is not None
        guide: Any = self.guide
        return self._unconstrain(guide.condition(self.step.constrain(params), before, after))

    def site_posteriors(
        self, state: State, batch: Data, keep: Keep | None = None
    ) -> SitePosteriors:
        """Return the posteriors and priors of the latent sites; see `criteria.SitePosteriors`.

        Args:
            state: Kept intact.
            batch: One batch of data.
            keep: Masks by site; a joint posterior is that of what they keep.
        """
        return self._sites(state, batch, dict(keep or {}))

    def _site_posteriors(self, state: State, batch: Data, keep: Keep) -> SitePosteriors:
        args, kwargs = arguments(batch)
        with inference():
            params = self.constrain(state)
            found = read_posteriors(self.model, self.guide, params, args, kwargs, keep)
        return self.placement.constrain_parted(found)
