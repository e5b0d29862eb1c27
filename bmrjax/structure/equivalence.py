"""Whether two networks give the same."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.structure.cost import compiled_exactly, flops
from bmrjax.structure.traced_once import TracedOnce

# What is said where nothing comes out of a network but NaN.
ZERO_BY_ZERO = (
    "One cause is weights that are zero and are divided by their norm, 0 / 0: in the network's code, write "
    "v / jnp.maximum(norm, 1e-12) in place of v / norm."
)
# How far outputs may be apart, relative to the largest of them.
OUTPUT_TOLERANCE = 1e-5
# And how many times as far as they move when every parameter is rounded the other way.
ROUNDINGS = 4
# Integers are drawn up to here, or up to the largest of the example.
MOST = 15


def random_inputs(inputs: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """Return the inputs, and random ones like them: normal, or integers in the range of theirs."""
    found = [inputs]
    for seed in range(2):
        # On the host: a device would compile a program for each shape.
        rng = np.random.default_rng(seed)
        found.append(tuple(_like(x, rng) for x in inputs))
    return found


def _like(x: Array, rng: np.random.Generator) -> Array:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.asarray(rng.standard_normal(x.shape), x.dtype)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        parts = rng.standard_normal((2, *x.shape))
        return jnp.asarray(parts[0] + 1j * parts[1], x.dtype)
    if x.dtype == jnp.bool_:
        return jnp.asarray(rng.integers(0, 2, x.shape), x.dtype)
    if jnp.issubdtype(x.dtype, jnp.integer) and x.size:
        low, high = min(int(x.min()), 0), max(int(x.max()), MOST)
        return jnp.asarray(rng.integers(low, high, x.shape, endpoint=True), x.dtype)
    return x


class Trial:
    """A network, compiled and run.

    Args:
        traced: The network.
        arrays: Its parameters.
        inputs: Several sets of inputs. What the code refuses as it runs is left out, but for the first.
        shake: Whether to run it with its parameters rounded another way as well, to see how far its
            outputs depend on that.

    Attributes:
        inputs: The sets of inputs that it ran on.
        flops: Floating-point operations of a call.
        outputs: For each set, the leaves of what it gave, on the host.
        shaken: The same with the other parameters.

    Raises:
        ValueError: If no number at all comes out of a network that is shaken.
    """

    def __init__(
        self,
        traced: TracedOnce,
        arrays: Sequence[Array],
        inputs: Sequence[tuple[Array, ...]],
        *,
        shake: bool = False,
    ):
        run = compiled_exactly(traced, arrays, inputs[0])
        self.flops: float = flops(run, traced.closed.jaxpr)
        self.inputs: list[tuple[Array, ...]] = []
        self.outputs: list[list[np.ndarray]] = []
        for i, draw in enumerate(inputs):
            try:
                found = run(arrays, draw)
                self.outputs.append(_on_host(found))
            except jax.errors.JaxRuntimeError:
                # Checks within the network's code, of the range of integers for one.
                if i == 0 or not shake:
                    raise
            else:
                self.inputs.append(draw)
        self.shaken: list[list[np.ndarray]] = []
        if shake:
            self._check()
            moved = _shaken(arrays)
            self.shaken = [_on_host(run(moved, draw)) for draw in self.inputs]

    def check_shapes(self, shapes: Sequence[Any]) -> None:
        """Raise ValueError unless outputs have these shapes."""
        for a, b in zip(self.outputs[0], shapes, strict=True):
            if a.shape != b.shape:
                raise ValueError(f"the output has shape {b.shape} instead of {a.shape}")

    def _check(self) -> None:
        for leaf in zip(*self.outputs, strict=True):
            if leaf[0].size and leaf[0].dtype.kind in "fc" and all(np.isnan(a).all() for a in leaf):
                raise ValueError(
                    "compact: the network gives nothing but NaN, on the example inputs and on random "
                    f"ones, so there is nothing to compare a smaller one with. {ZERO_BY_ZERO}"
                )


def _on_host(outputs: Any) -> list[np.ndarray]:
    found = [np.asarray(a) for a in jax.tree.leaves(outputs)]
    # NumPy does not count half precisions of JAX among its floating-point numbers.
    return [a.astype(np.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a for a in found]


def _shaken(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays whose elements are larger or smaller by the relative precision of their numbers."""
    rng, found = np.random.default_rng(0), []
    for array in arrays:
        sign = rng.choice(np.array([-1.0, 1.0]), array.shape)
        moved = np.asarray(array).astype(np.float64) * (
            1 + float(jnp.finfo(array.dtype).eps) * sign
        )
        found.append(jnp.asarray(moved, array.dtype))
    return found


def difference(old: Trial, new: Trial) -> float | None:
    """Return how far the outputs of a network are from those of another, relative to the largest.

    Where one gives NaN or infinity, so must the other. Integers and truth values must be equal, but where
    rounding alone changes them.

    Args:
        old: The network, shaken.
        new: The other one, run on the same inputs.

    Returns:
        The largest over all leaves of the outputs; None if that is more than rounding explains.

    Raises:
        ValueError: If the outputs have another shape.
    """
    worst = 0.0
    runs = zip(old.outputs, old.shaken, new.outputs, strict=True)
    # For each leaf, the sets of inputs.
    for leaf in zip(*(zip(*run, strict=True) for run in runs), strict=True):
        scale = noise = gap = 0.0
        for a, shaken, b in leaf:
            if a.shape != b.shape:
                raise ValueError(f"the output has shape {b.shape} instead of {a.shape}")
            if a.dtype.kind not in "fc":
                if ((a != b) & (a == shaken)).any():
                    return None
                continue
            numbers = np.isfinite(a)
            if (numbers != np.isfinite(b)).any() or not np.array_equal(
                a[~numbers], b[~numbers], equal_nan=True
            ):
                return None
            both = numbers & np.isfinite(shaken)
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            first, second = a.astype(wide), b.astype(wide)
            scale = max(scale, np.abs(first[numbers]).max(initial=0.0))
            gap = max(gap, np.abs(first[numbers] - second[numbers]).max(initial=0.0))
            noise = max(noise, np.abs(first[both] - shaken[both]).max(initial=0.0))
        if gap > max(OUTPUT_TOLERANCE * scale, ROUNDINGS * noise):
            return None
        worst = max(worst, float(gap / scale) if gap else 0.0)
    return worst
