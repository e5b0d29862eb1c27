"""Numbers of a program that an ensemble varies without compiling again."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.handlers import substitute
from numpyro.primitives import mutable

from bmrjax.criteria import Criterion

RESERVED = ("kl_weight", "rate", "criterion")


def hyperparameter(name: str, default: ArrayLike) -> Array:
    """Return a number of a program that `ensemble` may give each member its own value of.

    It is data to the compiled program, and a site that is kept with the parameters: a fit, its checkpoints
    and its result carry the value along.

    Args:
        name: Of the site, and in the grid.
        default: The value of a run that is given none; its shape and dtype are those of all values.

    Raises:
        ValueError: For a name that `ensemble` has another use for, or a value of another shape.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     scale = bmr.hyperparameter("scale", 1.0)
        ...     beta = numpyro.sample("beta", dist.Normal(0, scale).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (40, 3))
        >>> members = bmr.ensemble(
        ...     program, (x, x[:, 0]), keys=[jax.random.key(1)], grid={"scale": [0.1, 1.0]},
        ...     criterion=None, batch_size=None, steps_per_epoch=300, num_epochs=2, progress=False,
        ... )
        >>> [member.hyperparameters["scale"] for member in members]
        [0.1, 1.0]
        >>> first, second = (float(member.params["beta_auto_loc"][0]) for member in members)
        >>> first < 0.8 < second
        True
    """
    if name in RESERVED:
        raise ValueError(
            f"hyperparameter: '{name}' is a setting that ensemble varies by itself; take another name."
        )
    value = jnp.asarray(mutable(name, jnp.asarray(default, float)))
    if value.shape != jnp.shape(default):
        raise ValueError(
            f"hyperparameter: '{name}' was given a value of shape {value.shape}, and its default has shape "
            f"{jnp.shape(default)}; give values of that shape."
        )
    return value


@dataclass(frozen=True)
class GridPoint:
    """The settings of a member of an ensemble: a point of its grid.

    Attributes:
        values: Hyper-parameters of its program.
        kl_weight: Factor on its divergence; None for that of the settings.
        rate: Factor on its learning rate.
        criterion: Its criterion; None for that of the settings.
    """

    values: dict[str, Any] = field(default_factory=dict)
    kl_weight: float | None = None
    rate: float = 1.0
    criterion: Criterion | None = None

    def given(self, program: Callable) -> Callable:
        """Return a program with these hyper-parameters."""
        data = {name: jnp.asarray(value, float) for name, value in self.values.items()}
        return substitute(program, data=data) if data else program

    def record(self) -> dict[str, Any]:
        """Return it as JSON values, without what is as the settings say."""
        found = {name: np.asarray(value).tolist() for name, value in self.values.items()}
        if self.kl_weight is not None:
            found["kl_weight"] = self.kl_weight
        if self.rate != 1.0:
            found["rate"] = self.rate
        if self.criterion is not None:
            found["criterion"] = repr(self.criterion)
        return found


def points_of(grid: Mapping[str, Sequence[Any]] | None) -> list[GridPoint]:
    """Return the points of a grid, the last name's values side by side.

    Raises:
        ValueError: For a name without values, or a value that cannot be.
        TypeError: For a criterion that is none.
    """
    grid = {} if grid is None else dict(grid)
    for name, values in grid.items():
        if isinstance(values, str) or not len(values):
            raise ValueError(f"ensemble: grid['{name}'] is {values!r}; give a list of values.")
        shapes = {np.shape(value) for value in values if name not in RESERVED}
        if len(shapes) > 1:
            found = " and ".join(map(str, sorted(shapes, key=len)))
            raise ValueError(
                f"ensemble: grid['{name}'] has values of shapes {found}; give one shape."
            )
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    return [_grid_point(point) for point in points]


def _grid_point(point: dict[str, Any]) -> GridPoint:
    given = {name: point.pop(name) for name in RESERVED if name in point}
    for name in ("kl_weight", "rate"):
        if name in given:
            given[name] = float(given[name])
            if not 0 < given[name] < float("inf"):
                raise ValueError(
                    f"ensemble: grid['{name}'] has {given[name]}; it must be positive."
                )
    criterion = given.get("criterion")
    if "criterion" in given and not isinstance(criterion, Criterion):
        raise TypeError(
            f"ensemble: grid['criterion'] has a {type(criterion).__name__}; give criteria, such as "
            "bmr.criteria.SpikeAndSlab()."
        )
    for name, value in point.items():
        if not np.all(np.isfinite(np.asarray(value, float))):
            raise ValueError(f"ensemble: grid['{name}'] has {value}; give finite numbers.")
    return GridPoint(point, **given)
