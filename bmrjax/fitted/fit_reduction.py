"""What the reduction of a finished fit says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.averaged_draws import averaged_draws
from bmrjax.fitted.checked_share import checked_share
from bmrjax.fitted.compare_families import compare_families, members_by_name
from bmrjax.fitted.credible_sets import CredibleSet, find_credible_sets
from bmrjax.fitted.false_discoveries import within_false_discoveries
from bmrjax.fitted.fit_text import fit_text
from bmrjax.fitted.fitted_posterior import Whole
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.measured_average import MeasuredAverage
from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.models_table import models_table
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.normality import Normality
from bmrjax.fitted.predictive_path import predictive_path
from bmrjax.fitted.reduction_page import reduction_page
from bmrjax.fitted.reduction_tree import reduction_tree
from bmrjax.fitted.search import Found
from bmrjax.fitted.source import Source
from bmrjax.fitted.verification import Verification
from bmrjax.report import write_page
from bmrjax.run.diagnose import Finding
from bmrjax.run.inspection import Inspection
from bmrjax.run.serial import one_at_a_time

if TYPE_CHECKING:
    from pandas import DataFrame

BySite = dict[str, Float[np.ndarray, "..."]]


@dataclass(frozen=True, repr=False)
class FitReduction:
    """Which elements of a finished fit the evidence needs; `reduce_fit` makes it, printing it shows a table.

    Arrays are by site and shaped as the site. Elements that had been removed before have an inclusion
    probability and moments of zero, and a `delta_f` of NaN.

    Attributes:
        inclusion_prob: Posterior probability that an element is in the model, over all submodels. This, and
            `mean` and what follows it, is by measured evidence where `is_measured`, else by predicted one.
        delta_f: ln of the evidence without an element over that of the full model, in nats. Positive
            favours removal. For elements of a group, that of the group; NaN for forced ones.
        delta_f_given: The same, the other elements being those of the chosen submodel: what removing one more
            would gain, or what leaving it out has gained. Positive favours removal.
        mean: Posterior mean, averaged over submodels, zeros counted.
        sd: Posterior standard deviation, averaged in the same way.
        lower: Lower end of the central 95 % interval of the average.
        upper: Upper end.
        chosen: Elements of the most probable submodel: True is in.
        median: Elements with an inclusion probability above one half.
        candidates: What is in a submodel or not: names of elements and groups.
        pareto_k: How well the joint normal covers the posterior: up to 0.7 it does; NaN if it was not
            measured.
        findings: What is wrong with the fit, or may be.
        inspection: Which sites of the program were judged, and why the others were not; empty for arrays.
        verification: Predicted against measured evidence of the most probable submodels; None where it was
            not measured.
        is_measured: Whether these submodels have exchanged probability by their measured evidence: it is
            there, and can be relied on.
        predicted_inclusion_prob: `inclusion_prob` by predicted evidence alone.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> prior = bmr.reduction.Normal(jnp.zeros(2), jnp.ones(2))
        >>> covariance = jnp.array([[0.02, 0.01], [0.01, 0.02]])
        >>> found = bmr.reduce_fit(
        ...     loc=jnp.array([0.8, 0.1]), covariance=covariance, prior=prior, names=["dose", "age"]
        ... )
        >>> best = found.models().iloc[0]
        >>> bool(best["dose"]), bool(best["age"]), f"{best['prob']:.2f}", f"{best['delta_f']:.2f} nats"
        (True, False, '0.92', '1.71 nats')
        >>> found.table()[["element", "kept", "inclusion_prob"]].round(2).values.tolist()
        [['dose', True, 1.0], ['age', False, 0.08]]
    """

    inclusion_prob: BySite
    delta_f: BySite
    delta_f_given: BySite
    mean: BySite
    sd: BySite
    lower: BySite
    upper: BySite
    chosen: dict[str, Bool[np.ndarray, "..."]]
    median: dict[str, Bool[np.ndarray, "..."]]
    candidates: tuple[str, ...]
    pareto_k: float
    findings: tuple[Finding, ...]
    inspection: Inspection
    verification: Verification | None
    is_measured: bool
    predicted_inclusion_prob: BySite
    _layout: ElementLayout = field(repr=False)
    _found: Found = field(repr=False)
    _after: MeasuredAverage = field(repr=False)
    _correlation: Float[np.ndarray, "units units"] = field(repr=False)
    _prior: ModelPrior = field(repr=False)
    _text: str = field(repr=False)
    _normality: Normality = field(repr=False)
    _nodes: Nodes = field(repr=False)
    _source: Source | None = field(repr=False)
    _submodel: Callable[[Bool[np.ndarray, " n"]], Whole] | None = field(repr=False)

    def models(self) -> "DataFrame":
        """Return the 64 most probable submodels and all within Occam's window, the most probable first.

        Returns:
            One row per submodel; the window has those that are at least a twentieth as probable as the best.
            The columns are a boolean one for each candidate (``"size (candidate)"`` for one whose name is
            that of another column, as ``"size"``), ``"size"`` (how many are in), ``"prob"``
            (among all submodels) and ``"delta_f"`` (ln of its evidence over that of the full model, in
            nats; positive favours the submodel). Where evidence was measured, also ``"measured"``, which is
            `delta_f` from the program; and where `is_measured`, ``"measured_prob"``, by which they are then
            ordered. Both are NaN for submodels that were not measured.
        """
        return models_table(
            self._after, self.verification, self.candidates, is_measured=self.is_measured
        )

    def table(self) -> "DataFrame":
        """Return one row per element, by name.

        Returns:
            The columns ``"site"``, ``"element"``, ``"kept"`` (in the chosen submodel), ``"inclusion_prob"``,
            ``"delta_f"``, ``"delta_f_given"``, ``"mean"``, ``"sd"``, ``"2.5 %"`` and ``"97.5 %"``; where
            `is_measured`, ``"predicted_inclusion_prob"`` too.
        """
        import pandas as pd

        flat = self._layout.flat
        predicted = {"predicted_inclusion_prob": flat(self.predicted_inclusion_prob)}
        return pd.DataFrame(
            {
                "site": self._layout.site,
                "element": self._layout.element,
                "kept": flat(self.chosen).astype(bool),
                "inclusion_prob": flat(self.inclusion_prob),
                **(predicted if self.is_measured else {}),
                "delta_f": flat(self.delta_f),
                "delta_f_given": flat(self.delta_f_given),
                "mean": flat(self.mean),
                "sd": flat(self.sd),
                "2.5 %": flat(self.lower),
                "97.5 %": flat(self.upper),
            }
        )

    def select(self, *, false_discovery_rate: float = 0.1) -> dict[str, Bool[np.ndarray, "..."]]:
        """Return the longest list of effects of which a given share is expected to be false, at most.

        Measured evidence is used where `is_measured`. A group counts as one.

        Args:
            false_discovery_rate: The share, above 0 and below 1; by default a tenth.

        Returns:
            Site to a boolean array, True for elements that are listed. Forced elements are True.

        Raises:
            TypeError: For a rate that is not a number.
            ValueError: For a rate out of range.

        Example:
            >>> import jax.numpy as jnp
            >>> import bmrjax as bmr
            >>> found = bmr.reduce_fit(
            ...     loc=jnp.array([0.8, 0.37, 0.0]),
            ...     covariance=0.02 * jnp.eye(3),
            ...     prior=bmr.reduction.Normal(0.0, 1.0),
            ... )
            >>> found.inclusion_prob["z"].round(2)
            array([1.  , 0.67, 0.07])
            >>> found.select()["z"], found.select(false_discovery_rate=0.2)["z"]
            (array([ True, False, False]), array([ True,  True, False]))

        References:
            Müller et al. (2004), Journal of the American Statistical Association 99.
        """
        rate = checked_share(false_discovery_rate, "FitReduction.select: false_discovery_rate")
        prob = self._layout.flat(self.inclusion_prob)
        of_units = np.array([prob[unit[0]] for unit in self._nodes.units])
        kept = within_false_discoveries(of_units, rate)
        return self._layout.by_site(self._nodes.elements(kept), missing=False)

    def credible_sets(
        self, coverage: float = 0.95, *, least_correlation: float = 0.5
    ) -> tuple[CredibleSet, ...]:
        """Return disjoint sets of candidates with an effect in each, where it is not known which it is.

        Columns that are nearly collinear, or weights that can be exchanged, share the probability of one
        effect. The members of a set stand in for each other, and at least one of them is in the model, with
        at least the probability `coverage`; a candidate that is certain is a set by itself. An effect that is
        not certain enough is in no set. Measured evidence is used where `is_measured`.

        Args:
            coverage: Least probability that a set holds an effect, above 0 and below 1.
            least_correlation: Least absolute correlation of two members in the likelihood: of their columns,
                in a linear regression. At 0, an effect may stand in for an unrelated one.

        Returns:
            The sets, that of the most probable candidate first.

        Raises:
            TypeError: For a coverage or a correlation that is not a number.
            ValueError: For one that is out of range.

        Example:
            >>> import numpy as np
            >>> import bmrjax as bmr
            >>> rng = np.random.default_rng(0)
            >>> x = rng.normal(size=(50, 3))
            >>> x[:, 1] = x[:, 0]  # an exact copy
            >>> y = x[:, 0] + rng.normal(size=50)
            >>> covariance = np.linalg.inv(x.T @ x + np.eye(3))
            >>> found = bmr.reduce_fit(
            ...     loc=covariance @ x.T @ y,
            ...     covariance=covariance,
            ...     prior=bmr.reduction.Normal(0.0, 1.0),
            ...     names=["dose", "dose_again", "age"],
            ... )
            >>> sorted(found.credible_sets()[0].names)
            ['dose', 'dose_again']

        References:
            Wang, Sarkar, Carbonetto and Stephens (2020), Journal of the Royal Statistical Society B 82,
            for credible sets of effects and the least correlation of their members.
        """
        coverage = checked_share(coverage, "FitReduction.credible_sets: coverage")
        least_correlation = checked_share(
            least_correlation, "FitReduction.credible_sets: least_correlation", ends=True
        )
        weight, sets = self._terms()
        return find_credible_sets(
            weight,
            sets,
            self._correlation,
            self.candidates,
            coverage=coverage,
            least_correlation=least_correlation,
        )

    def families(self, sets: Mapping[str, Sequence[str]]) -> "DataFrame":
        """Compare families of submodels: those with an effect in a set of candidates, and those without.

        Args:
            sets: Name of a set to the candidates in it, or to names of sites for all of theirs; the sets do
                not overlap.

        Returns:
            One row per combination of sets, the most probable first: a boolean column for each set (whether
            any of its candidates is in), ``"prior"`` and ``"prob"``, the probabilities of the family before
            and after the data, and ``"prob_equal"``, what the latter would be if all families had been as
            probable before the data, so that large ones have no advantage.

        Raises:
            ValueError: For names that are not there, sets that overlap, or more than six of them.

        References:
            Penny et al. (2010), PLoS Computational Biology 6, Comparing families of dynamic causal models.
        """
        members = members_by_name(sets, self.candidates, self._layout)
        weight, submodels = self._terms()
        return compare_families(weight, submodels, members, self._prior)

    @one_at_a_time
    def path(self, *, seed: int = 0) -> "DataFrame":
        """Say how well submodels of each size predict, by leaving each data point out.

        The expected log predictive density of the most probable submodel of each size, by Pareto-smoothed
        importance sampling: draws from the joint normal given that the removed elements are zero, weighted by
        the program. Nothing is fitted again. Small submodels that predict as well as the best can be
        used in its place. All sizes are there with up to 12 candidates; beyond, those up to twice the
        size of the chosen submodel and ten more.

        Args:
            seed: Of the draws.

        Returns:
            One row per size: ``"size"``, ``"candidates"`` (names of those that are in), ``"elpd"`` (sum over
            data points, in nats; larger is better) with ``"elpd_error"``, ``"difference"`` from the
            best size with ``"difference_error"``, and ``"pareto_k"``, the largest over data points whose
            weights vary (zero for the others); above 0.7, the row is not reliable.

        Raises:
            ValueError: Without a program, or draws of all its latent sites.

        References:
            Vehtari, Gelman and Gabry (2017), Statistics and Computing 27; Piironen, Paasiniemi and Vehtari
            (2020), Electronic Journal of Statistics 14, for sizes against predictions.
        """
        source = self._source
        if source is None or source.model is None or self._submodel is None:
            why = (
                source.whole if source is not None else "this is the second level of a group study"
            )
            raise ValueError(
                f"FitReduction.path needs the joint posterior of a program: {why}. Call reduce_fit with a "
                "fit of a NumPyro program, or give the program as model=, with data=."
            )
        masks = self._found.path
        return predictive_path(
            masks,
            self._nodes.elements(masks),
            self.candidates,
            self._submodel,
            source.model,
            source.data,
            np.random.default_rng(seed),
        )

    def draws(self, num_draws: int = 4000, *, seed: int = 0) -> BySite:
        """Draw the judged sites from their posterior, averaged over submodels.

        Args:
            num_draws: Number of draws.
            seed: Of the draws.

        Returns:
            Site to draws, along a leading axis; elements outside the submodel of a draw are zero.
        """
        if num_draws < 1:
            raise ValueError(f"FitReduction.draws: num_draws is at least 1, got {num_draws}.")
        rng = np.random.default_rng(seed)
        flat = averaged_draws(self._nodes, *self._terms(), self._after.found.node, num_draws, rng)
        padded = np.concatenate([flat, np.zeros((num_draws, 1))], 1)
        return {name: padded[:, where] for name, where in self._layout.index.items()}

    def to_arviz(self, num_draws: int = 4000, *, seed: int = 0) -> Any:
        """Return a tree of data sets for ArviZ, with the names of the elements as coordinates.

        Args:
            num_draws: Draws of the posterior that is averaged over submodels.
            seed: Of the draws.

        Returns:
            An `xarray.DataTree` with the groups ``posterior`` (one chain) and ``reduction`` (by site, the
            inclusion probability and `delta_f` of each element).

        Raises:
            ImportError: Without xarray.
        """
        of_sites = self.draws(num_draws, seed=seed)
        return reduction_tree(of_sites, self.inclusion_prob, self.delta_f, self._layout)

    def _terms(self) -> tuple[Float[np.ndarray, " terms"], Bool[np.ndarray, "terms units"]]:
        """Return weights of submodels and the units in them, after verification if there was one."""
        found = self._after.found
        return found.weight, found.sets

    def report(
        self, path: str | Path, *, title: str = "The reduction of a finished fit", command: str = ""
    ) -> Path:
        """Write a page that explains this reduction: one file of HTML that needs no network.

        It has inclusion probabilities and averaged effects by name, the most probable submodels, predicted
        against measured evidence where it was measured, and the findings.

        Args:
            path: Of the file, which ends in ``.html`` or ``.htm``; one that is there is replaced.
            title: Heading of the page.
            command: How it was made, a line of a shell or of Python.

        Returns:
            The path.

        Raises:
            ValueError: For a path that does not end in .html.
            ImportError: Without the extra ``report``.
        """
        return write_page(reduction_page(self, title=title, command=command), path)

    def __repr__(self) -> str:
        """Return what was chosen, whether to trust it, and the table."""
        text = f"{self._text}; {self._found.text}; {self._prior}"
        return fit_text(self, self._after, text, self._normality)
