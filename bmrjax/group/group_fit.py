"""What a second level says: effects, variation between subjects, and the subjects themselves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.given_groups import GivenGroups
from bmrjax.fitted.layout import ElementLayout, shortened
from bmrjax.fitted.model_average import mixture_quantile
from bmrjax.fitted.submodel_options import SubmodelOptions
from bmrjax.group.between import IntegratedLevel, VarianceComponents
from bmrjax.group.design import Design
from bmrjax.group.leave_one_out import LeaveOneOut, leave_one_out
from bmrjax.group.messages import errors_of
from bmrjax.group.reduce_effects import reduce_effects
from bmrjax.group.second_level import SecondLevel
from bmrjax.group.subjects import Subjects
from bmrjax.run.diagnose import Finding

if TYPE_CHECKING:
    from pandas import DataFrame

# Rows of a table that are printed.
_ROWS = 30


@dataclass(frozen=True, repr=False)
class GroupFit:
    """A linear model of subjects' parameters; `peb` makes it, printing it shows the effects.

    Effects are in the units of the parameters per unit of the covariate. The constant is the mean of the
    group, at the average of the covariates.

    Attributes:
        covariates: Name of each column of the design; the constant first.
        elements: Name of each parameter.
        subjects: Name of each subject.
        mean: Posterior mean of the effects, covariate to array with one entry per parameter.
        sd: Their posterior standard deviation.
        lower: Lower end of the central 95 % interval.
        upper: Upper end.
        covariance: Posterior covariance of all effects, covariate after covariate.
        between_sd: Posterior mean of the standard deviation between subjects of each parameter, what
            covariates explain left out.
        between_lower: Lower end of its central 95 % interval.
        between_upper: Upper end.
        delta_f: ln of the evidence of this hierarchical model over the product of the subjects' own
            evidences, in nats. Positive favours the hierarchical model.
        subject_loc: Posterior mean of each subject's parameters given all subjects' data.
        subject_covariance: Their posterior covariance.
        pareto_k: How well the joint normal covers each subject's posterior: up to 0.7 it does; NaN if it
            was not measured.
        findings: What is wrong with the fits, or may be.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> rng = np.random.default_rng(0)
        >>> age = np.linspace(20, 60, 12)
        >>> study = bmr.peb(
        ...     design={"age": age},
        ...     loc=np.outer(age - 40, [0.02, 0.0]) + rng.normal(0, 0.1, (12, 2)),
        ...     covariance=np.stack([0.01 * np.eye(2)] * 12),
        ...     prior=bmr.reduction.Normal(0.0, 1.0),
        ...     names=["gain", "decay"],
        ... )
        >>> study.mean["age"].round(2), study.lower["age"].round(2) > 0
        (array([0.02, 0.  ]), array([ True, False]))
        >>> study.table().shape, study.subject_table().shape
        ((4, 7), (24, 4))
    """

    covariates: tuple[str, ...]
    elements: tuple[str, ...]
    subjects: tuple[str, ...]
    mean: dict[str, Float[np.ndarray, " n"]]
    sd: dict[str, Float[np.ndarray, " n"]]
    lower: dict[str, Float[np.ndarray, " n"]]
    upper: dict[str, Float[np.ndarray, " n"]]
    covariance: Float[np.ndarray, "q q"]
    between_sd: Float[np.ndarray, " n"]
    between_lower: Float[np.ndarray, " n"]
    between_upper: Float[np.ndarray, " n"]
    delta_f: float
    subject_loc: Float[np.ndarray, "subjects n"]
    subject_covariance: Float[np.ndarray, "subjects n n"]
    pareto_k: Float[np.ndarray, " subjects"]
    findings: tuple[Finding, ...]
    _design: Design = field(repr=False)
    _layout: ElementLayout = field(repr=False)
    _components: VarianceComponents = field(repr=False)
    _level: SecondLevel = field(repr=False)
    _integral: IntegratedLevel = field(repr=False)
    _unit: Float[np.ndarray, " q"] = field(repr=False)
    _origin: Float[np.ndarray, " q"] = field(repr=False)
    _prior_scale: Float[np.ndarray, " n"] = field(repr=False)
    _seed: int = field(repr=False)

    @classmethod
    def of(
        cls,
        subjects: Subjects,
        design: Design,
        components: VarianceComponents,
        level: SecondLevel,
        integral: IntegratedLevel,
        findings: tuple[Finding, ...],
        seed: int,
    ) -> "GroupFit":
        """Return the second level in the units of the parameters.

        Args:
            subjects: What is known of the subjects.
            design: Their covariates.
            components: Standard deviations between subjects.
            level: The model.
            integral: What it says.
            findings: What is wrong.
            seed: Of later draws.
        """
        sigma, eta, width = subjects.prior_scale, subjects.prior_loc, len(design.names)
        unit = (sigma / design.scale[:, None]).ravel()
        origin = np.concatenate([eta, np.zeros((width - 1) * len(eta))])
        loc, covariance = integral.moments()
        variance = np.einsum("bnn->bn", integral.nodes.covariance)
        ends = [
            mixture_quantile(
                integral.weight, np.ones_like(variance), integral.nodes.loc, variance, level_
            )
            for level_ in (0.025, 0.975)
        ]

        def by_covariate(flat: np.ndarray) -> dict[str, np.ndarray]:
            return dict(zip(design.names, flat.reshape(width, -1), strict=True))

        tau = np.exp(integral.log_scale) * sigma
        between = [_quantile(tau, integral.weight, q) for q in (0.025, 0.975)]
        own_loc, own_covariance = level.subjects(integral.log_scale, integral.weight)
        return cls(
            covariates=design.names,
            elements=subjects.layout.label,
            subjects=design.subjects,
            mean=by_covariate(origin + unit * loc),
            sd=by_covariate(unit * np.sqrt(np.diag(covariance))),
            lower=by_covariate(origin + unit * ends[0]),
            upper=by_covariate(origin + unit * ends[1]),
            covariance=unit[:, None] * covariance * unit,
            between_sd=integral.weight @ tau,
            between_lower=between[0],
            between_upper=between[1],
            delta_f=integral.log_evidence,
            subject_loc=eta + sigma * own_loc,
            subject_covariance=sigma[:, None] * own_covariance * sigma,
            pareto_k=subjects.pareto_k,
            findings=findings,
            _design=design,
            _layout=subjects.layout,
            _components=components,
            _level=level,
            _integral=integral,
            _unit=unit,
            _origin=origin,
            _prior_scale=sigma,
            _seed=seed,
        )

    def table(self) -> "DataFrame":
        """Return one row per effect.

        Returns:
            The columns ``"covariate"``, ``"element"``, ``"mean"``, ``"sd"``, ``"2.5 %"``, ``"97.5 %"`` and
            ``"positive"``, the probability that the effect is above zero.
        """
        import pandas as pd

        integral, zero = self._integral, -self._origin / self._unit
        sd = np.sqrt(np.einsum("bnn->bn", integral.nodes.covariance))
        positive = integral.weight @ ndtr((integral.nodes.loc - zero) / sd)
        columns = {"mean": self.mean, "sd": self.sd, "2.5 %": self.lower, "97.5 %": self.upper}
        return pd.DataFrame(
            {
                "covariate": np.repeat(np.array(self.covariates, object), len(self.elements)),
                "element": list(self.elements) * len(self.covariates),
                **{name: np.concatenate(list(value.values())) for name, value in columns.items()},
                "positive": positive,
            }
        )

    def subject_table(self) -> "DataFrame":
        """Return the subjects' parameters given all data: one row per subject and parameter."""
        import pandas as pd

        sd = np.sqrt(np.einsum("inn->in", self.subject_covariance))
        return pd.DataFrame(
            {
                "subject": np.repeat(np.array(self.subjects, object), len(self.elements)),
                "element": list(self.elements) * len(self.subjects),
                "mean": self.subject_loc.ravel(),
                "sd": sd.ravel(),
            }
        )

    @property
    def subject_loc_alone(self) -> Float[np.ndarray, "subjects n"]:
        """Posterior mean of each subject's parameters by its own data and the prior of its fit."""
        level = self._level
        own = np.linalg.solve(level.precision + np.eye(level.size), level.score[..., None])[..., 0]
        return self._origin[: level.size] + self._prior_scale * own

    def reduce(
        self,
        *,
        groups: GivenGroups = None,
        forced: Sequence[str | int] = (),
        expected: float | None = None,
        verify: bool = True,
    ) -> FitReduction:
        """Say which effects the evidence needs, by the search of `reduce_fit`.

        Effects are named by parameter where the design is a constant alone, and else as in
        ``"age[gain]"``; a covariate's name stands for its effects on all parameters.

        Args:
            groups: Name of a group to the effects that are in a submodel together.
            forced: Effects that are in every submodel; ``["mean"]`` keeps the means of the group.
            expected: Expected number of candidates that are in, before the data. By default they share a
                probability that is uniform between 0 and ½.
            verify: Whether to compute the evidence of the most probable submodels again, each with its own
                integral over the standard deviations between subjects. The first prediction takes the
                posterior of the effects for a normal, which it is not when subjects are few.

        Returns:
            Inclusion probabilities by covariate, and the rest of what `reduce_fit` returns; with `verify`, by
            the measured evidence.
        """
        with errors_of("GroupFit.reduce"):
            return reduce_effects(
                self._level,
                self._components,
                self._integral,
                self._second_layout(),
                self._unit,
                self._origin,
                SubmodelOptions(groups, forced, expected=expected),
                verify=verify,
                seed=self._seed,
                text=self._text(),
            )

    def leave_one_out(self, covariate: str) -> LeaveOneOut:
        """Predict a covariate of each subject from its fit and from all other subjects.

        The second level is fitted to the others; the probability of the subject's posterior under each value
        of the covariate then says which values are likely. A covariate with two values has the share of
        each among the others as its prior, any other a normal with their mean and standard deviation.

        Args:
            covariate: Name of a column of the design, not the constant.

        Raises:
            ValueError: If there is no such covariate, or if the others do not determine its effect.
        """
        names = self.covariates[1:]
        if covariate not in names:
            raise ValueError(
                f"GroupFit.leave_one_out: there is no covariate '{covariate}'; there are "
                f"{shortened(names) or 'none but the constant'}."
            )
        return leave_one_out(
            self._level,
            self._components,
            self._design,
            self._integral.weight @ self._integral.standard,
            self.covariates.index(covariate),
            seed=self._seed,
        )

    def _second_layout(self) -> ElementLayout:
        if len(self.covariates) == 1:
            return ElementLayout.of_sites(
                {self.covariates[0]: (len(self.elements),)}, list(self.elements)
            )
        shape = (len(self.elements),)
        return ElementLayout.of_sites(dict.fromkeys(self.covariates, shape), list(self.elements))

    def _text(self) -> str:
        return (
            f"effects of {shortened(self.covariates, 6)} on {len(self.elements)} parameters of "
            f"{len(self.subjects)} subjects"
        )

    def __repr__(self) -> str:
        """Return what was fitted, whether to trust it, and the effects."""
        trusted = np.nanmax(self.pareto_k) if np.isfinite(self.pareto_k).any() else math.nan
        checked = (
            "normality of the subjects' posteriors was not checked"
            if math.isnan(trusted)
            else f"Pareto k of the subjects' posteriors up to {trusted:.2f}"
        )
        lines = [
            f"GroupFit: {self._text()}",
            f"delta_f {self.delta_f:.1f} nats for the hierarchical model over subjects by themselves; "
            f"{checked}",
        ]
        if self.findings:
            lines += ["findings:", *(f"  {finding}" for finding in self.findings)]
        table = self.table()
        hidden = len(table) - _ROWS
        shown = table.head(_ROWS).to_string(index=False, float_format="{:.3g}".format)
        if hidden > 0:
            shown += f"\n... and {hidden} more effects; table() has all"
        between = "\n".join(
            f"  {name}: {sd:.3g} [{low:.3g}, {high:.3g}]"
            for name, sd, low, high in list(
                zip(
                    self.elements,
                    self.between_sd,
                    self.between_lower,
                    self.between_upper,
                    strict=True,
                )
            )[:_ROWS]
        )
        text = "\n  ".join(lines)
        return f"{text}\n{shown}\nstandard deviation between subjects:\n{between}"


def _quantile(
    values: Float[np.ndarray, "nodes n"], weight: Float[np.ndarray, " nodes"], level: float
) -> Float[np.ndarray, " n"]:
    """Return a quantile of weighted values, by column."""
    order = np.argsort(values, axis=0)
    below = np.cumsum(weight[order], axis=0)
    at = np.argmax(below >= level, axis=0)
    return np.take_along_axis(values, order, 0)[at, np.arange(values.shape[1])]
