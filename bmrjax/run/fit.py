"""A fit in the hands of its caller: start, take epochs, measure, reduce."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from numpyro.infer import TraceMeanField_ELBO

from bmrjax.backend.on_device import on_device
from bmrjax.checks import check_key
from bmrjax.convergence import Settled
from bmrjax.criteria import Criterion, Order, SitePosteriors, SpikeAndSlab, smallest_snr_first
from bmrjax.criteria.reduce_once import Round
from bmrjax.handlers import both_masks, complete_missing, temper
from bmrjax.infer.arguments import Data
from bmrjax.infer.check_program import check_program
from bmrjax.infer.default_guide import default_guide
from bmrjax.infer.engine import Engine
from bmrjax.infer.estimate import PropagatedELBO, elbo
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.natural_gradient import NaturalGradient, Optimizer
from bmrjax.infer.network_at_start import starting_at
from bmrjax.infer.placement import Placement
from bmrjax.infer.prepare_guide import latent_sites_of
from bmrjax.infer.prior_location import PriorFacts, prior_facts
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.infer.row_sites import row_sites
from bmrjax.infer.state import EpochInfo, State
from bmrjax.run.batches import Batches
from bmrjax.run.fit_data import fit_data
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.fit_state import FitState, check_state
from bmrjax.run.inspection import Inspection
from bmrjax.run.judged import reducible
from bmrjax.run.masks_at_start import carried_over, with_removed
from bmrjax.run.parameters_at_start import as_start
from bmrjax.run.reducer import Reducer
from bmrjax.run.result import Result
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.settings import check_program_kind


class Fit:
    """Fit and reduce a program in a loop of one's own, in compiled steps.

    `sparsify` is a loop over these methods, with a schedule, records and files. A state is a pytree that
    belongs to the caller: copy it, save it, go back to it.

    Args:
        model: NumPyro program; see `sparsify`, also for all other arguments but `order` and `until`.
        data: Its arguments.
        guide: Its guide.
        criterion: Decides which elements are kept; None fits without reducing.
        order: Which elements are removed first, where not all may be removed at once.
        sites: Names of the sites to reduce.
        optimizer: An optax optimiser, or `infer.NaturalGradient`; ``optax.adabelief(1e-2)`` by default.
        batch_size: Data per step; None for all.
        until: Ends an epoch once the loss has settled.
        options: What is set less often, such as the estimator, devices and precision; see `FitOptions`. That
            too many steps were bad (`max_bad_steps`) is for the caller to check.

    Attributes:
        inspection: Which sites are judged, and why the others are not; after `init`.
        num_data: Number of rows.
        steps: Steps of an epoch by default: one pass over the data, and at least 100.

    Raises:
        TypeError: For data that are neither arrays nor `Batches`.
        ValueError: For data or settings that do not fit together; the message says what to do.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> fit = bmr.Fit(program, (x, 2.0 * x[:, 0]), batch_size=None)
        >>> state = fit.init(jax.random.key(1))
        >>> for key in jax.random.split(jax.random.key(2), 5):
        ...     state, info = fit.epoch(state, key)
        ...     state, round = fit.reduce(state, 0.5)
        >>> state.keep["beta"].tolist()
        [True, False, False]
        >>> fit.result(state).num_kept
        1
    """

    @one_at_a_time
    def __init__(
        self,
        model: Callable,
        data: Data | Batches,
        guide: Callable | None = None,
        *,
        criterion: Criterion | None = SpikeAndSlab(),  # noqa: B008 - frozen, and holds no array
        order: Order = smallest_snr_first,
        sites: Sequence[str] | None = None,
        optimizer: Optimizer | None = None,
        batch_size: int | None = 128,
        until: Settled | None = None,
        options: FitOptions = FitOptions(),  # noqa: B008 - frozen, and holds no array
    ):
        check_program_kind(model, guide)
        if not isinstance(criterion, Criterion | None):
            raise TypeError(
                f"Fit: criterion must be an object like criteria.SpikeAndSlab(), got {criterion!r}."
            )
        if not isinstance(options, FitOptions):
            raise TypeError(
                f"Fit: options must be an object like FitOptions(estimator='local'), got {options!r}."
            )
        (model, removed), (guide, masks) = unpruned(model), unpruned(guide)
        self._removed = both_masks(removed, masks)
        self.criterion: Criterion | None = criterion
        self.order: Order = order
        self._sites, self._start = sites, as_start(options.start)
        self.placement: Placement = Placement(options.mesh)
        found = fit_data(model, data, batch_size=batch_size, static=options.static)
        self.source = found.source
        self.num_data: int = found.num_data
        self.example: Data = found.example
        self.columns, self.row_paths, looked_at = found.columns, found.row_paths, found.looked_at
        self.steps: int = max(found.least_steps, 0 if until is None else 20 * until.window)
        loss, estimator = options.loss, options.estimator
        # A part of what a resumed run must agree in.
        self.estimator = loss.estimator if isinstance(loss, PropagatedELBO) else estimator
        by_density = not isinstance(loss, TraceMeanField_ELBO | PropagatedELBO | None)
        key = jax.random.key(0)
        missing = check_program(
            *(model, self.example, looked_at, key),
            discrete=guide is not None,
            atoms=not by_density or not isinstance(guide, AutoMeanField | None),
            divergences=not by_density,
        )
        if missing:
            model = complete_missing(model, sites=missing)
        self.row_sites: dict[str, int] | None = None
        if found.batch_size < self.num_data:
            self.row_sites = row_sites(model, looked_at, key)
        if guide is None:
            guide = default_guide(
                model,
                looked_at,
                criterion=criterion,
                estimator=estimator,
                loss=loss,
                start=None if self._start is None else self._start.params,
                mesh=options.mesh,
                factorised=isinstance(optimizer, NaturalGradient),
            )(model)
        self.model, self._temperature = model, options.temperature
        self.guide: Any = guide
        self.engine: Engine = Engine(
            model if self._temperature == 1 else temper(model, temperature=self._temperature),
            self.guide,
            optimizer=optax.adabelief(1e-2) if optimizer is None else optimizer,
            loss=elbo(estimator) if loss is None else loss,
            num_data=self.num_data,
            batch_size=found.batch_size,
            row_sites=self.row_sites,
            kl_weight=options.kl_weight,
            kl_warmup=options.kl_warmup,
            loop=options.loop,
            until=until,
            placement=self.placement,
            matmul_dtype=options.matmul_dtype,
        )
        if not isinstance(self.source, Batches):
            self.source = self.placement.everywhere(self.source)
        self.inspection = Inspection()
        self._reducers: list[Reducer] = []
        self._shapes: dict[str, tuple[int, ...]] = {}

    # --- what its caller calls --------------------------------------------------------------

    @one_at_a_time
    def init(self, key: Array) -> FitState:
        """Return the state that a fit begins in.

        Args:
            key: PRNG key; the same one gives the same state.

        Raises:
            ValueError: If nothing can be judged, with the reason for each site.
        """
        state, _, self.inspection = self.begin(key, self.model, self.guide, self.criterion)
        return state

    @one_at_a_time
    def epoch(
        self,
        state: FitState,
        key: Array,
        *,
        num_steps: int | None = None,
        rate: float = 1.0,
        index: int = 0,
    ) -> tuple[FitState, EpochInfo]:
        """Take the steps of an epoch, in one compiled program.

        Args:
            state: Consumed: its buffers are used again. Copy what you want to go back to, by
                ``jax.tree.map(jnp.copy, state)``.
            key: PRNG key of the epoch.
            num_steps: Steps; every row is seen once before any is seen twice.
            rate: Factor on the optimiser's updates.
            index: Which epoch of the `Batches` it is, if the data are such.

        Returns:
            The state after the epoch, and the loss of each step.

        Raises:
            TypeError: For something else than a state.
            ValueError: For a state that an earlier epoch consumed, or fewer than one step.
        """
        check_key(key, "Fit.epoch", num_steps=num_steps)
        check_state(state, "epoch")
        steps = self.steps if num_steps is None else num_steps
        options: dict[str, Any] = {"num_steps": steps, "rate": rate}
        if isinstance(self.source, Batches):
            batches = self.source.epoch(index, steps)
            svi, info = self.engine.epoch_from(state.svi, state.keep, batches, key, **options)
        else:
            svi, info = self.engine.epoch(state.svi, state.keep, self.source, key, **options)
        return FitState(svi, state.keep, state.memory), info

    @one_at_a_time
    def measure(self, state: FitState, key: Array) -> float:
        """Return the variational free energy of a state, in nats for all data; lower is better.

        Args:
            state: Kept intact.
            key: PRNG key. With the same one, states are compared under the same random numbers.

        Raises:
            ValueError: If the data are `Batches`.
        """
        check_key(key, "Fit.measure")
        check_state(state, "measure")
        return self.engine.vfe(state.svi, state.keep, self.arrays, key)

    @one_at_a_time
    def reduce(self, state: FitState, fraction: float = 1.0) -> tuple[FitState, Round]:
        """Evaluate the criterion, and remove at most a fraction of what is kept.

        Args:
            state: Kept intact.
            fraction: From 0 to 1; see `bmrjax.limit`.

        Returns:
            The state after the round, and the round: its `decision`, and how many elements were `proposed`
            and `removed`.

        Raises:
            ValueError: For a fraction that is none, or if the fit has no criterion.
        """
        check_state(state, "reduce")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Fit.reduce: fraction must be from 0 to 1, got {fraction}.")
        if not self._reducers:
            raise ValueError(
                "Fit.reduce: there is nothing to reduce with. Give Fit a criterion, and call init first."
            )
        return self._reducers[0].reduce(state, fraction)

    @one_at_a_time
    def site_posteriors(self, state: FitState) -> SitePosteriors:
        """Return the posteriors and priors that a criterion reads; see `bmrjax.site_posteriors`.

        Args:
            state: Kept intact.
        """
        check_state(state, "site_posteriors")
        return self.engine.site_posteriors(state.svi, self.example, state.keep)

    @one_at_a_time
    def params(self, state: FitState) -> dict[str, Any]:
        """Return the parameters of a state on their own scales, with the mutable sites.

        Args:
            state: Kept intact.
        """
        check_state(state, "params")
        return self.engine.constrain(state.svi)

    @one_at_a_time
    def result(self, state: FitState, **records: Any) -> Result:
        """Return a state as a result, which predicts, reports, shrinks and saves.

        Args:
            state: Kept intact.
            **records: Other fields of `Result`, such as a ``history``.
        """
        check_state(state, "result")
        params, keep = on_device(self.placement.fetch((self.params(state), dict(state.keep))))
        fields: dict[str, Any] = {
            "layers": self._reducers[0].layers if self._reducers else {},
            "num_data": self.num_data,
            "num_skipped": int(state.svi.num_skipped),
            "loop_mode": self.engine.loop_mode,
            "num_compilations": self.engine.num_compilations,
            "temperature": self._temperature,
            "unpruned_model": self.model,
            "unpruned_guide": self.guide,
            "row_arguments": self.row_paths,
            "by_rows": self.row_sites is not None,
            "columns": self.columns,
            "inspection": self.inspection,
            "latent_sites": latent_sites_of(records.get("unpruned_guide", self.guide)),
        }
        return Result(params=params, keep=keep, **{**fields, **records})

    # --- what a run calls -------------------------------------------------------------------

    @property
    def arrays(self) -> Data:
        """The data, where they are arrays."""
        if isinstance(self.source, Batches):
            raise ValueError(  # noqa: TRY004 - another method is what helps
                "Fit.measure: the VFE is measured on arrays, and the data are Batches."
            )
        return self.source

    def begin(
        self, key: Array, model: Callable, guide: Callable, criterion: Criterion | None
    ) -> tuple[FitState, Reducer | None, Inspection]:
        """Begin a fit of this program or of one that starts at another network, judged by any criterion.

        Args:
            key: PRNG key.
            model: The program.
            guide: Its guide.
            criterion: What it is judged by.

        Returns:
            Its state, what it is reduced with, and which sites are judged.
        """
        check_key(key, "Fit.init")
        engine, start = self.engine, self._start
        with starting_at(None if start is None else start.network):
            svi = engine.init(key, self.example, model=model, guide=guide)
        if start is not None:
            data = self.example if isinstance(self.source, Batches) else self.source
            svi = start.adopted(engine, svi, self.example, data, key)
        self._check_shapes(svi)
        begun = both_masks(
            with_removed(self._removed), {} if start is None else with_removed(start.keep)
        )
        if criterion is None and self._sites is None and not begun:
            return FitState(svi, {}), None, Inspection()
        found, inspection = reducible(
            self.priors,
            engine.site_posteriors(svi, self.example),
            criterion=criterion,
            sites=self._sites,
            guide=type(guide).__name__,
            started=begun,
        )
        keep = {name: on_device(np.ones(q.loc.shape, bool)) for name, q in found.posterior.items()}
        keep |= carried_over(begun, keep)
        if criterion is None:
            return FitState(svi, keep), None, inspection
        memory = criterion.init(found.posterior)
        keep, memory = self.placement.parted((keep, memory))
        # Raise for what it cannot read now, not after the epochs before the first reduction.
        jax.eval_shape(criterion, found, keep, memory)
        return FitState(svi, keep, memory), self._reducer(criterion, found), inspection

    @functools.cached_property
    def priors(self) -> dict[str, PriorFacts]:
        """What is known of the prior of each latent site, by name. A fit has to have begun."""
        return prior_facts(self.engine.model, self.example)

    def _check_shapes(self, svi: State) -> None:
        shapes = jax.tree.map(jnp.shape, svi.params)
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            differing = sorted({*shapes.items()} ^ {*self._shapes.items()})[0][0]
            raise ValueError(
                f"ensemble: the programs differ in the parameter '{differing}'. Members may start from "
                "different networks of one shape; run others apart."
            )

    def _reducer(self, criterion: Criterion, found: SitePosteriors) -> Reducer:
        """Return what reduces by a criterion, compiled once."""
        for reducer in self._reducers:
            if reducer.criterion is criterion:
                return reducer
        assert found.layers is not None
        sites, layers = list(found.posterior), dict(found.layers)
        self._reducers.append(
            Reducer(self.engine, criterion, self.order, sites, layers, self.example)
        )
        return self._reducers[-1]
