"""The result of a run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Bool

from bmrjax.checks import check_key
from bmrjax.criteria import Criterion
from bmrjax.handlers import prune
from bmrjax.infer.arguments import Data, arguments, length
from bmrjax.infer.draws import model_draws, posterior_draws
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.posterior import guide_posteriors
from bmrjax.infer.prediction import LEVELS, Prediction
from bmrjax.infer.prepare import prepare_guide
from bmrjax.infer.program_data import program_data
from bmrjax.infer.pruned_guide import PrunedGuide
from bmrjax.infer.rows import row_sites
from bmrjax.reduction import LogNormal, Normal, SpikeAndSlab
from bmrjax.run.at_center import networks_at_center, values_at_center
from bmrjax.run.data_tree import data_tree
from bmrjax.run.diagnose import Finding, diagnose
from bmrjax.run.facts import without_predictions
from bmrjax.run.inspection import Inspection
from bmrjax.run.point import Point, best, kept_counts, sparsity_per_layer
from bmrjax.run.result_inputs import by_position_or_name, check_without_arguments, checked_data
from bmrjax.run.save_result import save_result
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.shown import shown
from bmrjax.run.sparsest import sparsest_within
from bmrjax.run.summary import scores_of, summary_table
from bmrjax.structure.compact import Compact, compact

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataTree


@dataclass(repr=False)
class Result:
    """A fitted and pruned program.

    Attributes:
        params: Constrained parameters of the guide and the model, and mutable sites, by name.
        keep: Boolean masks by site; True = kept.
        layers: Site name to the layer whose statistics it shares.
        history: One dict per epoch: ``vfe`` (mean over the steps, nats for all data), ``kept``,
            ``sparsity_per_layer``, ``steps``, ``skipped_steps``, times in seconds, and held-out metrics where
            they were taken. ``taken_back`` marks the epochs of rounds that were undone.
        path: States that can be restored with `at`, in the order they were reached.
        metrics: Held-out metrics of this state, from the final number of samples.
        timing: ``init_seconds``, ``compile_seconds``, ``seconds`` of the whole run.
        num_skipped: Steps skipped because their loss or gradient was not finite.
        vfe: VFE of this state on the training data, nats for all data; None if never measured.
        hyperparameters: What the grid of an `ensemble` gave this member.
        row_arguments: The program's arguments that have one row per data point, as ``"0"`` for the first
            positional one and ``"x"`` for the keyword x; None if unknown.
        by_rows: Whether the program was fitted in minibatches, so that its rows can be evaluated in parts.
        unpruned_model: The program as it was given; `model` is the pruned one.
        unpruned_guide: The guide that was fitted, as it is; `guide` is the pruned one.
        columns: Names of the columns of the inputs, where they came from a table.
        class_names: Names of the classes of the targets, in the order of their numbers.
        inspection: Which sites were judged, and why the others were not; empty for a fit without a criterion.
        facts: What `diagnose` needs to know of the data and the predictions, measured when the run ended.
    """

    params: dict[str, Any]
    keep: dict[str, Bool[Array, "..."]]
    layers: dict[str, str]
    num_data: int
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    path: list[Point] = field(default_factory=list, repr=False)
    metrics: dict[str, float] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    num_skipped: int = 0
    loop_mode: str = "fused"
    num_compilations: int = 0
    vfe: float | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    row_arguments: tuple[str, ...] | None = None
    by_rows: bool = False
    unpruned_model: Callable | None = field(default=None, repr=False)
    unpruned_guide: Callable | None = field(default=None, repr=False)
    columns: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    _evaluators: dict[int | None, Evaluator] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    inspection: Inspection = field(default_factory=Inspection, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        """Return a summary: what is left, how well it fits, which sites were judged, what is wrong."""
        return shown(self)

    def diagnose(self) -> list[Finding]:
        """Say what is wrong with this run, or may be, and what to do about it.

        The codes of the findings: ``"not-converged"`` (the loss was still falling), ``"skipped-steps"``,
        ``"constant"`` (the predictions do not depend on the inputs), ``"dead-layer"`` (all weights of a layer
        of a network were removed), ``"no-better-than-trivial"`` (than the mean of the targets, or the largest
        class), ``"worse-than-unreduced"`` (another point of the path predicts held-out data much better),
        ``"other-criterion"``, ``"rounds-taken-back"`` (all of them), ``"nothing-removed"``, ``"other-guide"``
        (correlated columns under independent posteriors), and ``"scale"`` (inputs or targets far from unit
        scale). What needs data was measured when the run ended, on at most 500 rows unless the program has to
        see all of them: on held-out rows if there were any. `sparsify` warns of the first serious ones by
        `FitWarning`, which ``warnings.filterwarnings("ignore", category=bmr.FitWarning)`` silences.

        Returns:
            The findings, an empty list for a healthy run.

        Example:
            >>> import bmrjax as bmr
            >>> rows = [{"vfe": 1000.0 / epoch, "steps": 10} for epoch in range(1, 9)]
            >>> [finding.code for finding in bmr.Result({}, {}, {}, 100, history=rows).diagnose()]
            ['not-converged']
        """
        return diagnose(self)

    @property
    def num_kept(self) -> int:
        """Elements kept."""
        return kept_counts(self.keep)[0]

    @property
    def num_total(self) -> int:
        """Elements of all reducible sites."""
        return kept_counts(self.keep)[1]

    @property
    def sparsity(self) -> float:
        """Removed fraction of the reducible elements, in [0, 1]."""
        return 1.0 - self.num_kept / self.num_total if self.num_total else 0.0

    @property
    def sparsity_per_layer(self) -> dict[str, float]:
        """Removed fraction of each layer."""
        return sparsity_per_layer(self.keep, self.layers)

    @property
    def vfe_per_datum(self) -> float | None:
        """`vfe` over the number of data, in nats per data point."""
        return None if self.vfe is None else self.vfe / self.num_data

    def _programs(self) -> tuple[Callable, Callable]:
        if self.unpruned_model is None or self.unpruned_guide is None:
            raise ValueError(
                "This result was loaded without its program. Give it: "
                "bmr.load(directory, model=..., guide=...)."
            )
        return self.unpruned_model, self.unpruned_guide

    def _evaluator(self, batch_size: int | None = None) -> Evaluator:
        """Return what predicts with this program, which is compiled once for inputs of one shape."""
        if batch_size is None and self.by_rows:
            batch_size = 1000
        if batch_size not in self._evaluators:
            self._evaluators[batch_size] = Evaluator(*self._programs(), batch_size=batch_size)
        return self._evaluators[batch_size]

    @property
    def model(self) -> Callable:
        """The program without the removed elements: ``handlers.prune(unpruned_model, keep)``.

        Raises:
            ValueError: For a result that was loaded without its program.
        """
        return prune(self._programs()[0], self.keep)

    @property
    def guide(self) -> PrunedGuide:
        """The guide without the removed elements, for NumPyro's `Predictive` and its own methods.

        ``Predictive(result.model, guide=result.guide, params=result.params, num_samples=100)`` works, and
        so do ``result.guide.sample_posterior(key, result.params)``, ``median`` and ``quantiles``.

        Raises:
            ValueError: For a result that was loaded without its program.
        """
        return PrunedGuide(self._programs()[1], self.keep)

    def at(self, index: int) -> "Result":
        """Return the result at a point of the path.

        Args:
            index: Position in `path`; negative ones count from the end.
        """
        if not -len(self.path) <= index < len(self.path):
            raise IndexError(f"Result.at: the path has {len(self.path)} points, and no {index}.")
        point = self.path[index]
        return dataclasses.replace(
            self,
            params=jax.tree.map(jnp.asarray, point.params),
            keep={name: jnp.asarray(mask) for name, mask in point.keep.items()},
            metrics=dict(point.metrics),
            vfe=point.vfe,
            facts=self.facts if point.vfe == self.vfe else without_predictions(self.facts),
        )

    def smallest(self, *, vfe_within: float) -> "Result":
        """Return the sparsest point whose `Point.objective` is within a fraction of the best one's.

        Args:
            vfe_within: 0.05 admits a VFE up to 5 % above the best of the path.
        """
        if not self.path:
            raise ValueError("This result has no path to choose from.")
        if not vfe_within >= 0:
            raise ValueError(f"smallest: vfe_within must not be negative, got {vfe_within}.")
        lowest = self.path[best(self.path)].objective
        limit = lowest + vfe_within * abs(lowest)
        good = [i for i, point in enumerate(self.path) if point.objective <= limit]
        return self.at(min(good, key=lambda i: self.path[i].kept))

    @one_at_a_time
    def most_predictive(
        self, key: Array, data: Any, *, num_samples: int = 100, within: float = 0.0
    ) -> "Result":
        """Return the point of the path with the lowest negative log likelihood on `data`.

        The point with the best VFE is the sparsest that a mean-field posterior can justify, and on
        small data it predicts worse than points before it. Use data that were kept out of both
        training and testing.

        Args:
            key: PRNG key; all points see the same noise.
            data: Held-out data of the form that the program was fitted on.
            num_samples: Posterior samples.
            within: With 1, the sparsest point within one standard error of it, as the command line takes.

        Returns:
            That point; its `metrics` are those on `data` (the NLL in nats per data point).

        Raises:
            ValueError: Without a path, or if no point has a finite score.
        """
        if not self.path:
            raise ValueError("This result has no path to choose from.")
        check_key(key, "most_predictive", num_samples=num_samples)
        data = self._checked(data, "most_predictive: data")
        evaluator = self._evaluator()
        metrics, log_probs = [], []
        for i in range(len(self.path)):
            at = self.at(i)
            found = evaluator.scores(at.params, at.keep, data, key, num_samples=num_samples)
            metrics.append(found[0])
            log_probs.append(np.asarray(found[1]))
        kept = [point.kept for point in self.path]
        index = sparsest_within(np.stack(log_probs), kept, within=within)
        return dataclasses.replace(self.at(index), metrics=metrics[index])

    @one_at_a_time
    def predict(
        self,
        key: Array,
        *inputs: Any,
        num_samples: int = 100,
        levels: Sequence[float] = LEVELS,
        return_samples: bool = False,
        batch_size: int | None = None,
        **named: Any,
    ) -> Prediction:
        """Average the program's predictive over posterior samples.

        Args:
            key: PRNG key.
            *inputs: The program's arguments without the targets, as in ``model(x)``; give the
                targets too for their log predictive density.
            num_samples: Posterior samples.
            levels: Of the quantiles that `Prediction.quantiles` and `Prediction.interval` have.
            return_samples: Whether to return the draws too; they take num_samples times the memory of
                the mean.
            batch_size: Rows computed at a time. By default 1,000 for a program that was fitted in
                minibatches, else all of them: its rows may depend on each other.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Class probabilities or predictive means, with standard deviations and quantiles, one row per
            data point, in the unit of the targets; see `Prediction`.

        Raises:
            TypeError: If `key` is no PRNG key.
            ValueError: For inputs that are not finite, or levels that are not between 0 and 1.
        """
        check_key(key, "Result.predict", num_samples=num_samples, batch_size=batch_size)
        given = by_position_or_name(inputs, named, "predict")
        data = self._checked(given, "Result.predict: inputs")
        return self._evaluator(batch_size).predict(
            self.params,
            self.keep,
            data,
            key,
            num_samples=num_samples,
            levels=levels,
            return_samples=return_samples,
        )

    @one_at_a_time
    def evaluate(self, key: Array, data: Any, *, num_samples: int = 100) -> dict[str, float]:
        """Return accuracy, NLL and 20-bin ECE (classes) or RMSE and NLL on `data`."""
        check_key(key, "Result.evaluate", num_samples=num_samples)
        data = self._checked(data, "Result.evaluate: data")
        return self._evaluator().metrics(self.params, self.keep, data, key, num_samples=num_samples)

    @one_at_a_time
    def free_energy(
        self,
        key: Array,
        data: Any,
        *,
        num_samples: int = 100,
        batch_size: int | None = None,
        loss: Any = None,
    ) -> float:
        """Measure the VFE of this state on `data`, in nats for all of them.

        Args:
            key: PRNG key.
            data: What the program was fitted on, or other data of the same form.
            num_samples: Posterior samples at least to average over.
            batch_size: Data at a time; each batch of each pass has a posterior sample of its own. By default
                128 for a program that was fitted in minibatches, else all of them.
            loss: A NumPyro ELBO; ``TraceMeanField_ELBO()`` by default.

        Raises:
            TypeError: If `key` is no PRNG key.
            ValueError: For data that cannot be used, or parts of the data where the program needs all of
                them.
        """
        check_key(key, "Result.free_energy", num_samples=num_samples, batch_size=batch_size)
        model, guide = self._programs()
        arrays = self._checked(data, "Result.free_energy: data")
        arrays = program_data(model, arrays, batch_size=batch_size, name="Result.free_energy: data")
        rows = length(arrays)
        if batch_size is None:
            batch_size = min(128, rows) if self.by_rows else rows
        sites = None
        if batch_size < rows:
            sites = row_sites(model, arrays, jax.random.key(0), name="Result.free_energy")
        loss = numpyro.infer.TraceMeanField_ELBO() if loss is None else loss
        measure = FreeEnergy(model, guide, loss=loss, batch_size=batch_size, row_sites=sites)
        prepare_guide(model, guide, self.params, jax.tree.map(lambda a: a[:batch_size], arrays))
        passes = -(-num_samples // -(-rows // batch_size))
        return measure(self.params, self.keep, arrays, key, num_passes=passes)

    @one_at_a_time
    def posterior(self, *inputs: Any, **named: Any) -> dict[str, Normal | SpikeAndSlab | LogNormal]:
        """Return the posterior of each latent site, element by element, without what was removed.

        Args:
            *inputs: Arguments of the program: one batch. A guide that is written by hand needs them if it
                has arguments, and an automatic guide of a result that was loaded.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Site name to its posterior: of all sites with masks, and of the others whose posterior is normal,
            spike-and-slab or log-normal. Of removed elements loc and scale are 0; of removed noise, which is
            θ = 1 for certain, loc is -inf.

        Raises:
            ValueError: If a site with a mask has a posterior of another kind, or a point estimate.
        """
        _, guide = self._programs()
        data = self._inputs(inputs, named, "posterior")
        args, kwargs = arguments(data)
        return guide_posteriors(guide, self.params, args, kwargs, self.keep)

    @one_at_a_time
    def sample(
        self,
        key: Array,
        num_samples: int,
        *inputs: Any,
        deterministic: bool = False,
        **named: Any,
    ) -> dict[str, Array]:
        """Draw from the pruned posterior.

        Args:
            key: PRNG key.
            num_samples: Number of draws.
            *inputs: Arguments of the program: one batch. For `deterministic`, and for guides that need them.
            deterministic: Whether to return the program's deterministic sites too.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Latent site to draws, with a leading axis of `num_samples`; removed elements are zero.

        Raises:
            TypeError: If `key` is no PRNG key.
        """
        check_key(key, "Result.sample", num_samples=num_samples)
        model, guide = self._programs()
        data = self._inputs(inputs, named, "sample", program=model if deterministic else guide)
        latent_key, model_key = jax.random.split(key)
        drawn = posterior_draws(guide, self.params, self.keep, latent_key, num_samples, data)
        if deterministic:
            _, fixed = model_draws(model, drawn, self.params, self.keep, model_key, data)
            drawn |= fixed
        return drawn

    @one_at_a_time
    def predictive(
        self,
        key: Array,
        *inputs: Any,
        num_samples: int = 100,
        sites: Sequence[str] | None = None,
        **named: Any,
    ) -> dict[str, Array]:
        """Draw from the posterior predictive, by name, as `numpyro.infer.Predictive` does.

        Removed elements are zero, and networks run as at test time. For means, intervals and densities of
        many rows, `predict` needs less memory.

        Args:
            key: PRNG key.
            *inputs: The program's arguments, without the targets. If the targets are given, they are drawn
                anew all the same.
            num_samples: Number of draws.
            sites: Names of the sites to return, latent ones too; by default the observed and the
                deterministic sites.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Site name to draws, with a leading axis of `num_samples`.

        Raises:
            TypeError: If `key` is no PRNG key.
            ValueError: For names that are no sites of the program.
        """
        check_key(key, "Result.predictive", num_samples=num_samples)
        model, guide = self._programs()
        data = self._inputs(inputs, named, "predictive", program=model)
        latent_key, model_key = jax.random.split(key)
        latents = posterior_draws(guide, self.params, self.keep, latent_key, num_samples, data)
        drawn, fixed = model_draws(model, latents, self.params, self.keep, model_key, data)
        if sites is None:
            return {**drawn, **fixed}
        every = {**latents, **drawn, **fixed}
        unknown = sorted(set(sites) - set(every))
        if unknown:
            raise ValueError(
                f"predictive: the program has no sites {unknown}; there are {sorted(every)}."
            )
        return {name: every[name] for name in sites}

    def _checked(self, data: Any, name: str) -> Data:
        return checked_data(data, name, columns=self.columns, rows=self.row_arguments)

    def _inputs(
        self,
        inputs: tuple[Any, ...],
        named: Mapping[str, Any],
        name: str,
        *,
        program: Callable | None = None,
    ) -> Data:
        """Return the arguments of the program, checked, with automatic guides ready for use.

        Args:
            inputs: What was given by position.
            named: What was given by name.
            name: Of the method, for messages.
            program: What is called with them; the guide by default.
        """
        model, guide = self._programs()
        given = by_position_or_name(inputs, named, name)
        if not given:
            check_without_arguments(guide, program, name)
            return ()
        data = self._checked(given, f"Result.{name}: inputs")
        prepare_guide(model, guide, self.params, data)
        return data

    @one_at_a_time
    def to_arviz(
        self,
        key: Array,
        *inputs: Any,
        num_samples: int = 1000,
        prior_samples: int = 0,
        **named: Any,
    ) -> "DataTree":
        """Return draws from the posterior as an `xarray.DataTree`, the format of ArviZ from version 1 on.

        Args:
            key: PRNG key.
            *inputs: The program's arguments. With the targets there are the groups ``observed_data``,
                ``log_likelihood`` and ``posterior_predictive`` too; without them, ``predictions``.
            num_samples: Number of draws, of one chain.
            prior_samples: Draws from the prior of the whole program; 0 for none.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            A tree with the groups ``posterior`` (removed elements are zero) and ``masks``, which has a
            boolean for every element of each site that was judged: True = kept. Axes that stand for columns
            or classes have their names as coordinates.

        Raises:
            TypeError: If `key` is no PRNG key.
            ImportError: Without the package xarray.
        """
        check_key(key, "Result.to_arviz", num_samples=num_samples)
        data = self._inputs(inputs, named, "to_arviz")
        return data_tree(self, key, data, num_samples=num_samples, prior_samples=prior_samples)

    @one_at_a_time
    def summary(
        self,
        *inputs: Any,
        prob: float = 0.9,
        criterion: Criterion | None = None,
        **named: Any,
    ) -> "DataFrame":
        """Return a table of the elements that were judged, with names.

        Args:
            *inputs: Arguments of the program, as for `posterior`; with `criterion`, a batch of those that the
                program needs.
            prob: Probability of the central interval of each element.
            criterion: What judges the kept elements once more, from the posterior as it is: adds its
                evidence differences (``delta_f``, in nats, negative where the data speak for the element),
                and the inclusion probabilities of `criteria.SpikeAndSlab`.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            A pandas data frame with one row per element: its site, its name (that of the column, where an
            axis of the site stands for the columns), whether it is kept, posterior mean and standard
            deviation, the ends of its interval, and the posterior probability of inclusion where the
            posterior or the criterion has one. Without masks, of all sites that `posterior` can read.
        """
        posterior = self.posterior(*inputs, **named)
        scores = None
        if criterion is not None:
            data = self._inputs(inputs, named, "summary", program=self._programs()[0])
            scores = scores_of(self, criterion, data)
        return summary_table(self, posterior, prob=prob, scores=scores)

    @one_at_a_time
    def network(self, *inputs: Any) -> dict[str, Any]:
        """Return the random modules with their weights at the posterior mean, by name.

        Args:
            *inputs: Arguments of the program: one batch.

        Returns:
            Each as it was given: a module, or a pair of module and state with its running statistics.
        """
        return {name: network for name, (network, _) in self._networks(*inputs).items()}

    @one_at_a_time
    def compact(self, *inputs: Any, drop_inputs: bool = True) -> dict[str, Compact]:
        """Return the random modules at the posterior mean without what they do not use, by name.

        Args:
            *inputs: Arguments of the program: one batch.
            drop_inputs: See `bmrjax.compact`.

        Returns:
            A smaller network each, with a report; see `bmrjax.compact`.
        """
        return {
            name: compact(network, *args, drop_inputs=drop_inputs)
            for name, (network, args) in self._networks(*inputs).items()
        }

    @one_at_a_time
    def center(self, *inputs: Any) -> dict[str, Array]:
        """Return each latent site at the mean (or median) of its posterior, and what is deterministic there.

        Args:
            *inputs: Arguments of the program: one batch.

        Returns:
            Site name to value; removed elements are zero.
        """
        return values_at_center(*self._programs(), self.params, self.keep, inputs)

    def _networks(self, *inputs: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        return networks_at_center(*self._programs(), self.params, self.keep, inputs)

    def save(self, directory: str | Path) -> None:
        """Write parameters, masks, history and path; see `bmrjax.load`.

        Arrays go to safetensors, the rest to JSON; the folder is complete or not there.
        """
        save_result(self, Path(directory))
