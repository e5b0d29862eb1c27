"""Columns in units of their standard deviation, and what the reduction says of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.heredity import HeredityOption
from bmrjax.fitted.reduce_fit import choose_elements, reduce_source
from bmrjax.fitted.source import Source, source_from_arrays
from bmrjax.fitted.submodel_options import SubmodelOptions
from bmrjax.reduction import Normal

# Standard deviation of the prior of an intercept, in the units of the standardised target or of log odds.
INTERCEPT_SCALE = 10.0


@dataclass(frozen=True)
class Standardised:
    """Columns with mean zero and standard deviation one.

    Attributes:
        x: The columns that vary.
        loc: Mean of every column.
        scale: Standard deviation of every column; one where it does not vary.
        varies: Which columns vary.
        names: Names of those that vary.
    """

    x: Float[np.ndarray, "rows varying"]
    loc: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    varies: Bool[np.ndarray, " columns"]
    names: tuple[str, ...]

    @classmethod
    def of(cls, x: Float[np.ndarray, "rows columns"], names: Sequence[str]) -> "Standardised":
        """Standardise columns; those that do not vary are left out."""
        loc, scale = x.mean(0), x.std(0)
        varies = scale > 1e-10 * np.maximum(np.abs(loc), 1e-300)
        scale = np.where(varies, scale, 1.0)
        kept = tuple(name for name, is_in in zip(names, varies, strict=True) if is_in)
        return cls(((x - loc) / scale)[:, varies], loc, scale, varies, kept)

    def spread(self, values: Any) -> np.ndarray:
        """Return values of the columns that vary among all columns, zero for the others."""
        found = np.zeros((*np.shape(values)[:-1], len(self.varies)))
        found[..., self.varies] = values
        return found


@dataclass(frozen=True)
class ColumnsPosterior:
    """The posterior of intercepts and coefficients, of which a column at a time may go.

    Attributes:
        columns: The columns.
        outputs: Number of intercepts; a column is in a submodel for all outputs or for none.
        prior_scale: Standard deviation of the prior of a coefficient.
        expected: Expected number of candidates that are in, before the data.
        groups: Name of a group to the columns in it.
        heredity: As in `reduce_fit`.
    """

    columns: Standardised
    outputs: int
    prior_scale: float
    expected: float | None
    groups: Mapping[str, Sequence[str]] | None
    heredity: HeredityOption

    def reduce(
        self,
        loc: Float[np.ndarray, " n"],
        covariance: Float[np.ndarray, "n n"],
        precision: Float[np.ndarray, "n n"] | None = None,
        *,
        seed: int,
    ) -> FitReduction:
        """Return the reduction of a posterior.

        Args:
            loc: Posterior mean: of all intercepts, then of the coefficients of each output, one after the
                other.
            covariance: Their covariance.
            precision: Its inverse, where that is known to more digits than the covariance has for it.
            seed: Of the sampler.
        """
        return reduce_source(self._source(loc, covariance, precision), self._options(), seed=seed)

    def choose(
        self,
        loc: Float[np.ndarray, " n"],
        covariance: Float[np.ndarray, "n n"],
        precision: Float[np.ndarray, "n n"] | None = None,
    ) -> tuple[Bool[np.ndarray, " n"], float]:
        """Return the elements of the best submodel that a greedy search finds, and ln of its prior.

        Args:
            loc: As in `reduce`.
            covariance: As in `reduce`.
            precision: As in `reduce`.
        """
        return choose_elements(self._source(loc, covariance, precision), self._options())

    def _source(self, loc: Any, covariance: Any, precision: Any) -> Source:
        scale = np.full(len(loc), self.prior_scale)
        scale[: self.outputs] = INTERCEPT_SCALE
        assert len(loc) == self.outputs * (len(self.columns.names) + 1)
        prior = Normal(jnp.zeros(len(loc)), jnp.asarray(scale))
        return source_from_arrays(loc, covariance, prior, self._elements(), precision=precision)

    def _elements(self) -> list[str]:
        outputs, intercept = range(self.outputs), "intercept"
        while intercept in self.columns.names:
            intercept += "_"
        elements = [f"{intercept} {i}" for i in outputs]
        return elements + [f"{name} {i}" for i in outputs for name in self.columns.names]

    def _options(self) -> SubmodelOptions:
        names = self.columns.names
        for name, members in (self.groups or {}).items():
            unknown = sorted(set(members) - set(names))
            if isinstance(members, str) or unknown:
                raise ValueError(
                    f"groups: '{name}' is a list of column names; {unknown} are none of the columns that "
                    "vary."
                )
            if name in names and name not in members:
                raise ValueError(
                    f"groups: '{name}' is also a column, which is not in that group. Give the group another "
                    "name."
                )
        grouped = Counter(member for members in (self.groups or {}).values() for member in members)
        if several := sorted(member for member, count in grouped.items() if count > 1):
            raise ValueError(
                f"groups: {several} are named more than once. A column is in one group at most."
            )
        in_groups = {name: [name] for name in names if name not in grouped}
        in_groups |= {name: list(members) for name, members in (self.groups or {}).items()}
        groups = {
            name: [f"{member} {i}" for i in range(self.outputs) for member in members]
            for name, members in in_groups.items()
        }
        forced = self._elements()[: self.outputs]
        return SubmodelOptions(groups, forced, self.heredity, self.expected)
