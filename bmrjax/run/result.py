"""The result of a run."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Bool

from bmrjax.backend.on_device import on_device
from bmrjax.checks import check_key
from bmrjax.criteria import Criterion
from bmrjax.infer.evaluate import Evaluator
from bmrjax.report import check_page_name, write_page
from bmrjax.run.data_tree import data_tree
from bmrjax.run.diagnose import Finding, diagnose
from bmrjax.run.facts import without_predictions
from bmrjax.run.inspection import Inspection
from bmrjax.run.point import Point, best, kept_counts, layer_sparsities
from bmrjax.run.pruned_program import PrunedProgram
from bmrjax.run.result_html import result_html
from bmrjax.run.result_page import result_page
from bmrjax.run.result_text import result_text
from bmrjax.run.save_result import save_result
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.sparsest import sparsest_as_good, sparsest_within, warn_none_as_good
from bmrjax.run.summary import scores_of, summary_table

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataTree


@dataclass(repr=False)
class Result(PrunedProgram):
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
        vfe: VFE of this state on the training data, nats for all data; None if never measured. That of the
            tempered program, where `temperature` is not 1; `free_energy` measures that of the program itself.
        temperature: Of `FitOptions`; the likelihood counted 1 / temperature times.
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
        latent_sites: Names of the sites that an automatic guide was fitted to; None if unknown. A loaded
            result may meet its program without targets, and these names then say which sites are
            latent.
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
    temperature: float = 1.0
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
    latent_sites: tuple[str, ...] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: without compiled programs, which belong to one process."""
        return vars(self) | {"_evaluators": {}}

    def __repr__(self) -> str:
        """Return a summary: what is left, how well it fits, which sites were judged, what is wrong."""
        return result_text(self)

    def _repr_html_(self) -> str:
        """Return the head of a report, for notebooks."""
        return result_html(self)

    def diagnose(self) -> list[Finding]:
        """Say what is wrong with this run, or may be, and what to do about it.

        The codes of the findings: ``"not-converged"`` (the loss was still falling), ``"skipped-steps"``,
        ``"constant"`` (the predictions do not depend on the inputs), ``"dead-layer"`` (all weights of a layer
        of a network were removed), ``"no-better-than-trivial"`` (than the mean of the targets, or the largest
        class), ``"worse-than-unreduced"`` (another point of the path predicts held-out data much better),
        ``"other-criterion"``, ``"many-small-effects"`` (another point of the path has a lower free energy,
        and the prior on the masks decided against it), ``"rounds-taken-back"`` (all of them),
        ``"nothing-removed"``, ``"other-guide"`` (correlated columns under independent posteriors), and
        ``"scale"`` (inputs or targets far from unit scale). What needs data was measured when the run ended,
        on at most 500 rows unless the program has to see all of them: on held-out rows if there were any.
        `sparsify` warns of the first serious ones by `FitWarning`, which
        ``warnings.filterwarnings("ignore", category=bmr.FitWarning)`` silences.

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
        return layer_sparsities(self.keep, self.layers)

    @property
    def vfe_per_datum(self) -> float | None:
        """`vfe` over the number of data, in nats per data point."""
        return None if self.vfe is None else self.vfe / self.num_data

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
            params=on_device(point.params),
            keep=on_device(dict(point.keep)),
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
        self,
        key: Array,
        data: Any,
        *,
        num_samples: int = 100,
        within: float = 0.0,
        as_good_as: "Result | None" = None,
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
            as_good_as: Another result, which `data` are scored by as well: the sparsest point is taken that
                is not worse in negative log likelihood, nor in accuracy, by more than `within` standard
                errors. With that of `Fit.init` at a trained network, as much is removed as the network's own
                predictions allow. Where no point is as good, a warning says so, and this has no effect.

        Returns:
            That point; its `metrics` are those on `data` (the NLL in nats per data point).

        Raises:
            ValueError: Without a path, or if no point has a finite score.
            TypeError: For something else than a result in `as_good_as`.
        """
        if not self.path:
            raise ValueError("This result has no path to choose from.")
        check_key(key, "most_predictive", num_samples=num_samples)
        data = self._checked(data, "most_predictive: data")
        evaluator = self._evaluator()
        if as_good_as is not None and not isinstance(as_good_as, Result):
            raise TypeError(
                "most_predictive: as_good_as takes a result, as `Fit(...).result(state)` of a trained "
                f"network, got {type(as_good_as).__name__}."
            )
        points = [self.at(i) for i in range(len(self.path))]
        scores = [
            evaluator.scores(at.params, at.keep, data, key, num_samples=num_samples)
            for at in points
        ]
        kept = [point.kept for point in self.path]
        index = None
        if as_good_as is not None:
            other = as_good_as._evaluator().scores(
                as_good_as.params, as_good_as.keep, data, key, num_samples=num_samples
            )
            index = sparsest_as_good(scores, kept, other, within=within)
            if index is None:
                warn_none_as_good(scores, other)
        if index is None:
            log_probs = np.stack([np.asarray(each.log_prob) for each in scores])
            index = sparsest_within(log_probs, kept, within=within)
        return dataclasses.replace(points[index], metrics=scores[index].metrics)

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
            TypeError: If `key` is not a JAX PRNG key.
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
    def report(
        self,
        path: str | Path,
        data: Any = None,
        *,
        key: Array | None = None,
        inputs: Any = (),
        num_samples: int = 100,
        title: str = "What was kept, and what was removed",
        command: str = "",
        free_energy: Any = None,
        costs: bool = True,
        latency: bool = False,
    ) -> Path:
        """Write a page that explains this result: one file of HTML that needs no network.

        It has a slider along the path, from dense to sparse, with all measures of a point together; what each
        layer, unit or coefficient lost, by name, with ΔF and what it was measured to cost, and what was taken
        back; predicted against actual free energy; calibration; coefficients with intervals; the findings of
        `diagnose`; settings and versions. What was not measured is left out, or named as such.

        Args:
            path: Of the file, which ends in ``.html`` or ``.htm``; one that is there is replaced.
            data: Held-out data of the form that the program was fitted on, with the targets: for calibration,
                and for metrics of each point. Without them, the metrics are those that the run took.
            key: PRNG key for `data`; all points see the same noise.
            inputs: Arguments of the program, such as ``(x[:2],)``, in place of `data`: with either, the page
                has ΔF, coefficients, and the cost of networks.
            num_samples: Posterior samples of a metric.
            title: Heading of the page.
            command: How the result was made, a line of a shell or of Python.
            free_energy: From `bmrjax.free_energy_report`, to be drawn.
            costs: Whether each network is cut to what it uses, for its bytes and FLOPs. It takes about a
                second of a core for each of up to 24 points of a small network, more for a large one.
            latency: Whether these networks are timed too, on batches of 256.

        Returns:
            The path.

        Raises:
            TypeError: If `key` is not a JAX PRNG key.
            ValueError: For a path that does not end in .html or .htm, or data without targets.
            ImportError: Without the extra ``report``.

        Example:
            >>> import tempfile
            >>> import bmrjax as bmr
            >>> rows = [{"vfe": 1000.0 / epoch, "steps": 10} for epoch in range(1, 9)]
            >>> result = bmr.Result({}, {}, {}, 100, history=rows)
            >>> result.report(tempfile.mkdtemp() + "/report.html").name
            'report.html'
        """
        check_page_name(path)
        page = result_page(
            self,
            data=data,
            key=key,
            inputs=inputs,
            num_samples=num_samples,
            title=title,
            command=command,
            free_energy=free_energy,
            costs=costs,
            latency=latency,
        )
        return write_page(page, path)

    def save(self, directory: str | Path) -> None:
        """Write parameters, masks, history and path; see `bmrjax.load`.

        Arrays go to safetensors, the rest to JSON; the folder is complete or not there.
        """
        save_result(self, Path(directory))
