"""Columns in units of their standard deviation, and what the reduction says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.heredity import HeredityOption
from bmrjax.fitted.reduce_fit import reduce_source
from bmrjax.fitted.source import source_from_arrays
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


def reduce_columns(
    columns: Standardised,
    loc: Float[np.ndarray, " n"],
    covariance: Float[np.ndarray, "n n"],
    *,
    precision: Float[np.ndarray, "n n"] | None = None,
    outputs: int,
    prior_scale: float,
    expected: float | None,
    groups: Mapping[str, Sequence[str]] | None,
    heredity: HeredityOption,
    seed: int,
) -> FitReduction:
    """Reduce the posterior of intercepts and coefficients, a column at a time.

    Args:
        columns: The columns.
        loc: Posterior mean: of all intercepts, then of the coefficients of each output, one after the other.
        covariance: Their covariance.
        precision: Its inverse, where that is known to more digits than the covariance has for it.
        outputs: Number of intercepts; a column is in a submodel for all outputs or for none.
        prior_scale: Standard deviation of the prior of a coefficient.
        expected: Expected number of candidates that are in, before the data.
        groups: Name of a group to the columns in it.
        heredity: As in `reduce_fit`.
        seed: Of the sampler.
    """
    width = len(columns.names)
    elements = [f"intercept {i}" for i in range(outputs)]
    elements += [f"{name} {i}" for i in range(outputs) for name in columns.names]
    in_groups = {name: [name] for name in columns.names}
    for name, members in (groups or {}).items():
        unknown = sorted(set(members) - set(columns.names))
        if isinstance(members, str) or unknown:
            raise ValueError(
                f"groups: '{name}' is a list of column names; {unknown} are none of the columns that vary."
            )
        for member in members:
            del in_groups[member]
        in_groups[name] = list(members)
    units = {
        name: [f"{member} {i}" for i in range(outputs) for member in members]
        for name, members in in_groups.items()
    }
    scale = np.full(len(loc), prior_scale)
    scale[:outputs] = INTERCEPT_SCALE
    assert len(loc) == outputs * (width + 1)
    prior = Normal(jnp.zeros(len(loc)), jnp.asarray(scale))
    return reduce_source(
        source_from_arrays(loc, covariance, prior, elements, precision=precision),
        groups=units,
        forced=elements[:outputs],
        expected=expected,
        heredity=heredity,
        seed=seed,
    )
