"""Rows that a caller gives to `reduce_network`: checked, and split."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.checks import check_unmasked, plain_array
from bmrjax.trained.losses import BinaryCrossEntropy, CrossEntropy, FunctionLoss, Loss, SquaredError

# Rows beyond these add to the cost of the curvature, and little to its precision.
CALIBRATION_ROWS = 4096
HELD_OUT_ROWS = 10_000
# Errors of this part of the targets are those of sums in float32.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Rows:
    """Rows of inputs and targets; targets are None where nobody has any.

    Attributes:
        inputs: The arrays that the network's arguments are made of.
        targets: A pytree of arrays.
        structure: How the arrays make up the arguments; None if each is one.
    """

    inputs: tuple[np.ndarray, ...]
    targets: Any
    structure: Any = None

    def __len__(self) -> int:
        return len(self.inputs[0])

    def take(self, where: np.ndarray) -> "Rows":
        """Return some rows."""
        targets = jax.tree.map(lambda part: part[where], self.targets)
        return replace(self, inputs=tuple(part[where] for part in self.inputs), targets=targets)


def checked_rows(data: Any, name: str = "data") -> Rows:
    """Return rows of a pair of inputs and targets.

    Args:
        data: ``(inputs, targets)``; inputs an array, a pytree of arrays that is one argument, or a tuple or
            list of these, one for each argument; targets a pytree of arrays, or None. Rows on the leading
            axis of each array.
        name: Name of the argument.

    Raises:
        TypeError: For anything but a pair of arrays.
        ValueError: For arrays of different length, or numbers that are not finite.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(
            f"reduce_network: {name} is a pair (inputs, targets), with None for targets that nobody has; got "
            f"{type(data).__name__}{f' of {len(data)}' if isinstance(data, tuple | list) else ''}."
        )
    inputs, targets = data
    # A named tuple is one argument, as a dict is.
    are_arguments = isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields")
    inputs = tuple(inputs) if are_arguments else (inputs,)
    leaves, structure = jax.tree.flatten(inputs, is_leaf=lambda part: isinstance(part, list))
    for which, given in (("inputs", leaves), ("targets", targets)):
        for part in jax.tree.leaves(given):
            check_unmasked(part, f"reduce_network: one of the {which} of {name}")
    arrays = [_with_rows(part, f"inputs of {name}") for part in leaves]
    targets = jax.tree.map(lambda part: _with_rows(part, f"targets of {name}"), targets)
    if not leaves:
        raise TypeError(f"reduce_network: inputs of {name} have no array.")
    arrays = [("inputs", part) for part in arrays]
    arrays += [("targets", part) for part in jax.tree.leaves(targets)]
    for which, part in arrays:
        if np.issubdtype(part.dtype, np.floating) and not np.isfinite(part).all():
            raise ValueError(f"reduce_network: {which} of {name} have numbers that are not finite.")
    lengths = {len(part) for _, part in arrays}
    if len(lengths) != 1:
        shapes = ", ".join(f"{which} {part.shape}" for which, part in arrays)
        raise ValueError(f"reduce_network: {name} must have as many targets as inputs: {shapes}.")
    count = lengths.pop()
    if count < 2:
        raise ValueError(f"reduce_network: {name} has {count} rows; hundreds are needed.")
    inputs = tuple(_narrow(part) for which, part in arrays if which == "inputs")
    plain = structure == jax.tree.structure(inputs)
    return Rows(inputs, jax.tree.map(_narrow, targets), None if plain else structure)


def _with_rows(part: Any, which: str) -> np.ndarray:
    """Return an array that has rows."""
    array = plain_array(np.asarray(part))
    if array.dtype == object or array.ndim == 0:
        raise TypeError(
            f"reduce_network: {which} must be arrays with a row axis, or dicts, tuples and other pytrees of "
            f"such arrays; got {type(part).__name__}. What is not one of rows, such as an option, or a graph "
            "that all rows share, belongs in a module around the network."
        )
    return array


def _narrow(array: np.ndarray) -> np.ndarray:
    """Return an array with the dtype that JAX would give it."""
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def split_calibration(
    rows: Rows, held_out: Rows | None, rng: np.random.Generator
) -> tuple[Rows, Rows, Rows]:
    """Return rows to calibrate by, rows to choose by, and all rows but the latter.

    A quarter of the rows is to choose by, unless they are given.
    """
    order, rest = rng.permutation(len(rows)), rows
    if held_out is None:
        chosen = order[: max(len(rows) // 4, 1)][:HELD_OUT_ROWS]
        held_out, order = rows.take(np.sort(chosen)), order[max(len(rows) // 4, 1) :]
        rest = rows.take(np.sort(order))
    return rows.take(np.sort(order[:CALIBRATION_ROWS])), held_out, rest


def loss_of(given: Any, outputs: tuple[int, ...], targets: Any) -> Loss:
    """Return the loss: the one given, or the one that the targets suggest.

    Args:
        given: A `Loss`, a function of outputs and targets, or None.
        outputs: Shape of one row of outputs.
        targets: Targets of the rows, or None.

    Raises:
        TypeError: For a loss of another kind.
        ValueError: If targets do not fit the outputs.
    """
    if given is not None and not isinstance(given, Loss):
        if not callable(given) or isinstance(given, type):
            raise TypeError(
                "reduce_network: loss is an instance of bmr.trained.Loss, such as CrossEntropy(), or a "
                f"function of outputs and targets; got {given!r}."
            )
        function: Any = given
        return FunctionLoss(function)
    if given is not None:
        check_rows_fit(given, outputs, targets)
        return given
    if targets is None:
        raise ValueError(
            "reduce_network: without targets the loss must be named: loss=bmr.trained.CrossEntropy() for "
            "logits, BinaryCrossEntropy(), or SquaredError(noise_scale=...)."
        )
    leaves = jax.tree.leaves(targets)
    if len(leaves) != 1 or leaves[0] is not targets:
        raise ValueError("reduce_network: targets that are not one array need a loss; give loss=.")
    whole = np.issubdtype(targets.dtype, np.integer) or targets.dtype == bool
    are_labels = targets.shape[1:] == outputs[:-1] and outputs[-1:] > (1,)
    found: Loss = SquaredError()
    ones = np.asarray(targets == 1)
    if ones.any() and not ones.all() and np.all(ones | (targets == 0)):
        is_one_hot = (
            outputs[-1:] > (1,) and targets.shape[1:] == outputs and (ones.sum(-1) == 1).all()
        )
        if not whole and are_labels:
            raise ValueError(
                f"reduce_network: the targets are zeros and ones of dtype {targets.dtype}, one per "
                f"{outputs[-1]} outputs. Give integers for class labels, as by targets.astype(int)."
            )
        if is_one_hot or (not whole and np.prod(targets.shape[1:]) == np.prod(outputs)):
            kind = "rows with a single one" if is_one_hot else "zeros and ones"
            softmax = "CrossEntropy() of one logit per class, " if is_one_hot else ""
            convert = " Convert the targets by targets.astype(np.float32) as well." if whole else ""
            raise ValueError(
                f"reduce_network: the targets are {kind} of dtype {targets.dtype}, and could belong to "
                "several losses. Name the one that the network was trained with: "
                "loss=bmr.trained.BinaryCrossEntropy() of one logit per target, "
                f"{softmax}or SquaredError() of predicted values.{convert}"
            )
    if whole and are_labels:
        found = CrossEntropy()
    elif whole and set(np.unique(targets)) <= {0, 1}:
        found = BinaryCrossEntropy()
    elif whole:
        raise ValueError(
            f"reduce_network: integer targets of shape {targets.shape[1:]} a row do not fit outputs of shape "
            f"{outputs}: labels have the shape of the outputs without the last axis. For counts or "
            "other integers, make them floating-point numbers or give loss=."
        )
    check_rows_fit(found, outputs, targets)
    return found


def check_rows_fit(
    loss: Loss, outputs: tuple[int, ...], targets: Any, which: str = "targets"
) -> None:
    """Raise ValueError if targets do not fit the outputs under a loss.

    Args:
        loss: The loss.
        outputs: Shape of one row of outputs.
        targets: Targets of the rows, or None.
        which: Which these are, for the message.
    """
    if targets is None:
        return
    shape = np.shape(targets)[1:]
    if isinstance(loss, CrossEntropy):
        labels = np.issubdtype(np.asarray(targets).dtype, np.integer)
        if shape != (outputs[:-1] if labels else outputs):
            raise ValueError(
                f"reduce_network: {which}: labels of shape {shape} a row do not fit logits of shape "
                f"{outputs}."
            )
        if labels and not (0 <= np.min(targets) and np.max(targets) < outputs[-1]):
            raise ValueError(
                f"reduce_network: {which}: labels run from {np.min(targets)} to {np.max(targets)}, but there "
                f"are {outputs[-1]} classes."
            )
    elif isinstance(loss, BinaryCrossEntropy | SquaredError):
        if int(np.prod(shape)) != int(np.prod(outputs)):
            raise ValueError(
                f"reduce_network: {which} of shape {shape} a row do not fit outputs of shape {outputs}."
            )
        if not _in_one_order(shape, outputs):
            raise ValueError(
                f"reduce_network: {which} of shape {shape} a row have their axes in another order than "
                f"outputs of shape {outputs}; transpose or reshape them."
            )


def _in_one_order(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether one shape is the other one with some neighbouring axes made one; ones do not count."""
    ends = [set(np.cumprod([n for n in shape if n != 1]).tolist()) for shape in (one, other)]
    return ends[0] <= ends[1] or ends[1] <= ends[0]


def check_logits(loss: Loss, outputs: Any, targets: Any) -> None:
    """Raise ValueError if what should be logits are probabilities.

    Args:
        loss: What the outputs are for.
        outputs: Of some rows.
        targets: Of these rows; None without.
    """
    values = np.asarray(outputs, np.float32)
    if isinstance(loss, BinaryCrossEntropy) and targets is not None:
        if _are_probabilities(values, np.asarray(targets, np.float32).reshape(values.shape)):
            raise ValueError(
                "reduce_network: the outputs are probabilities, where logits are expected; leave the sigmoid "
                "out of the network."
            )
    if not isinstance(loss, CrossEntropy) or outputs.shape[-1] < 2:
        return
    if (values >= 0).all() and np.allclose(values.sum(-1), 1, atol=1e-3):
        raise ValueError(
            "reduce_network: the outputs are probabilities, where logits are expected; leave the softmax "
            "out of the network."
        )


def _are_probabilities(values: np.ndarray, targets: np.ndarray) -> bool:
    """Return whether outputs between 0 and 1 fit zeros and ones better as probabilities than as logits."""
    if (values < 0).any() or (values > 1).any():
        return False
    probs = np.clip(values, 1e-6, 1 - 1e-6)
    as_probs = -np.mean(targets * np.log(probs) + (1 - targets) * np.log(1 - probs))
    return bool(as_probs < np.mean(np.logaddexp(0, values) - targets * values))


def noise_scale(outputs: Any, targets: np.ndarray) -> float:
    """Return the root mean squared error of outputs.

    Raises:
        ValueError: If it is zero, up to the rounding of float32.
    """
    targets = np.asarray(targets, np.float64).ravel()
    error = np.asarray(outputs, np.float64).ravel() - targets
    scale = float(np.sqrt(np.mean(error**2)))
    if not scale > _ROUNDING * float(np.sqrt(np.mean(targets**2))):
        raise ValueError(
            "reduce_network: the network reproduces its targets, so the scale of the noise cannot be "
            "estimated; give loss=bmr.trained.SquaredError(noise_scale=...), the error that matters."
        )
    return scale


def with_predictions(rows: Rows, loss: Loss, predict: Any) -> Rows:
    """Return rows whose targets are the network's own predictions."""
    targets = jax.vmap(loss.from_predictions)(jnp.asarray(predict(rows.inputs)))
    return replace(rows, targets=jax.tree.map(np.asarray, targets))
