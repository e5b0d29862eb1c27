"""Weights of eight bits: which arrays may be rounded, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.export.network_function import NetworkFunction, output_difference


@dataclass(frozen=True)
class Int8:
    """Which weights are stored in eight bits: those that can be rounded without harm.

    Matrices and kernels are rounded to 255 levels, as far apart as the largest weight of each output needs;
    zeros stay zero. With posterior scales σ, an array is rounded if that costs at most `nats` per weight, by
    the mean of (w - ŵ)²/2σ²: the rise in free energy to second order. Without them, arrays are rounded in
    the order of the harm that each does alone, while the outputs on the example change by at most `change`
    of the largest. Biases, and arrays with fewer than `least` numbers, are left.

    Args:
        posterior_scale: Path of an array to the posterior standard deviation of its weights, as
            `codec.posterior_scales` returns them; 0 for removed ones.
        nats: Per weight, at most.
        change: Of an output, relative to the largest, at most.
        least: Numbers of an array that is worth it.

    Raises:
        ValueError: For bounds that are not positive.

    Example:
        A weight whose posterior is wide can be rounded for few nats:

        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> which = bmr.export.Int8(posterior_scale={"layers.0.weight": 0.1}, nats=0.01)
        >>> network = bmr.zoo.MLP(64, (32,), 10, key=jax.random.key(0))
        >>> report = bmr.export.onnx(network, jnp.ones(64), "mlp.onnx", int8=which)  # doctest: +SKIP
    """

    posterior_scale: Mapping[str, Any] | None = None
    nats: float = 0.05
    change: float = 0.01
    least: int = 256

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not (self.nats > 0 and self.change > 0 and self.least >= 1):
            raise ValueError(
                "Int8: nats and change must be positive and least at least 1, got "
                f"{self.nats}, {self.change} and {self.least}."
            )


@dataclass(frozen=True)
class Rounded:
    """An array in eight bits.

    Attributes:
        codes: Whole numbers from -127 to 127.
        steps: What one is worth, for each output.
        axis: Of the outputs.
        nats: What rounding costs by the posterior; None without one.
        change: What it alone changes of an output; None where it was not measured.
    """

    codes: np.ndarray
    steps: np.ndarray
    axis: int
    nats: float | None = None
    change: float | None = None

    @property
    def values(self) -> np.ndarray:
        """The rounded weights."""
        shape = [1] * self.codes.ndim
        shape[self.axis] = -1
        return self.codes.astype(np.float32) * self.steps.reshape(shape)


def rounded(array: np.ndarray, axis: int) -> Rounded:
    """Round an array to eight bits.

    Args:
        array: Of two or more axes.
        axis: Of its outputs, which have a step each.

    Example:
        >>> found = rounded(np.array([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]], np.float32), 0)
        >>> found.codes.tolist()
        [[127, 64, 0], [0, 0, 0]]
    """
    axis %= array.ndim
    others = tuple(i for i in range(array.ndim) if i != axis)
    largest = np.abs(array).max(others)
    steps = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    shape = [1] * array.ndim
    shape[axis] = -1
    codes = np.clip(np.rint(array / steps.reshape(shape)), -127, 127).astype(np.int8)
    return Rounded(codes, steps, axis)


def weights_to_round(made: NetworkFunction, names: set[str], options: Int8) -> dict[str, Rounded]:
    """Return the arrays that may be rounded.

    Args:
        made: The network.
        names: Those that can be stored so.
        options: The bounds.

    Raises:
        ValueError: For posterior scales that do not fit the network.
    """
    scales = _scales(made, options)
    tried: dict[str, Rounded] = {}
    for name, array in zip(made.names, made.arrays, strict=True):
        values = np.asarray(array)
        if name not in names or values.ndim < 2 or values.size < options.least:
            continue
        if values.dtype == np.float32 and np.isfinite(values).all():
            tried[name] = rounded(values, made.output_axis)
    held = {n: np.asarray(a) for n, a in zip(made.names, made.arrays, strict=True)}
    found = {}
    for name in [n for n in tried if n in scales]:
        nats = _nats(held[name], tried[name].values, scales[name])
        if nats <= options.nats * held[name].size:
            one = tried[name]
            found[name] = Rounded(one.codes, one.steps, one.axis, nats=nats)
    rest = {name: one for name, one in tried.items() if name not in scales}
    return found | _least_harm(made, rest, found, options)


def _scales(made: NetworkFunction, options: Int8) -> dict[str, np.ndarray]:
    given = made.cut(options.posterior_scale or {})
    shapes = {name: a.shape for name, a in zip(made.names, made.arrays, strict=True)}
    found = {}
    for name, scale in given.items():
        scale = np.asarray(scale, np.float64)
        if name not in shapes or scale.shape not in ((), shapes[name]):
            where = f"shape {shapes[name]}" if name in shapes else f"one of {list(shapes)[:3]}"
            raise ValueError(
                f"Int8: posterior_scale['{name}'] of shape {scale.shape} does not fit; expected {where}."
            )
        found[name] = np.broadcast_to(scale, shapes[name])
    return found


def _nats(values: np.ndarray, other: np.ndarray, scale: np.ndarray) -> float:
    gap = np.square(values.astype(np.float64) - other)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(gap == 0, 0.0, gap / (2 * np.square(scale)))
    return float(each.sum())


def _least_harm(
    made: NetworkFunction, tried: dict[str, Rounded], done: dict[str, Rounded], options: Int8
) -> dict[str, Rounded]:
    """Return those whose rounding, together, keeps the outputs within the bound."""
    if not tried:
        return {}
    run = jax.jit(made.call)
    expected = run(made.arrays, made.inputs)

    def change(chosen: dict[str, Rounded]) -> float:
        return output_difference(run(replaced(made, done | chosen), made.inputs), expected)

    alone = {name: change({name: one}) for name, one in tried.items()}
    found: dict[str, Rounded] = {}
    for name in sorted(tried, key=alone.__getitem__):
        one = tried[name]
        more = found | {name: Rounded(one.codes, one.steps, one.axis, change=alone[name])}
        if change(more) <= options.change:
            found = more
    return found


def replaced(made: NetworkFunction, chosen: Mapping[str, Rounded]) -> list[jax.Array]:
    """Return the arrays of a network, some of them rounded."""
    return [
        jnp.asarray(chosen[name].values) if name in chosen else array
        for name, array in zip(made.names, made.arrays, strict=True)
    ]
