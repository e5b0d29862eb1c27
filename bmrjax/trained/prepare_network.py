"""What every reduction of a trained network starts with: layers found, rows split, a loss."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.structure.call_arguments import Arguments
from bmrjax.structure.network_arrays import is_equinox
from bmrjax.trained.evaluation import Evaluation
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.losses import Loss, SquaredError
from bmrjax.trained.moments import Calibration
from bmrjax.trained.network_data import (
    Rows,
    check_logits,
    check_rows_fit,
    checked_rows,
    loss_of,
    noise_scale,
    split_calibration,
    with_predictions,
)
from bmrjax.trained.output_fit import OutputLoss
from bmrjax.trained.traced import OutputTree, Traced, trace


@dataclass(frozen=True)
class Prepared:
    """A network with its data.

    Attributes:
        traced: The network, taken apart.
        left: Numbers of the layers that are left alone.
        calibration: Gives the moments of the layers.
        evaluate: Gives loss and metrics on rows that are kept out.
        held_out: These rows.
        num_data: Number of data points that the network was trained on.
        loss: The loss.
        rest: All other rows; those of the calibration are among them.
        calibrate_by: The rows of the calibration.
        predict: Gives the outputs of the given network.
        example: Inputs as the network takes them: one row for Equinox, a batch of one for Flax NNX.
    """

    traced: Traced
    left: set[int]
    calibration: Calibration
    evaluate: Evaluation
    held_out: Rows
    num_data: int
    loss: Loss
    rest: Rows
    calibrate_by: Rows
    predict: Callable[[Any], np.ndarray]
    example: tuple[Any, ...]

    def output_loss(self) -> OutputLoss:
        """Return how far a network's outputs are from those of the given one, on the calibration rows.

        With a loss that does not say what predictions are (`Loss.from_predictions`), from the targets.
        """
        try:
            rows = with_predictions(self.calibrate_by, self.loss, self.predict)
        except ValueError:
            rows = self.calibrate_by
        return OutputLoss(self.traced.capture, self.loss, rows.inputs, rows.targets)


def prepare(
    network: Any,
    data: Any,
    *,
    loss: Loss | Callable[[Any, Any], Any] | None = None,
    held_out: Any = None,
    leave: Sequence[str] = (),
    num_data: int | None = None,
    seed: int = 0,
    block: int = 1,
    units: bool = False,
) -> Prepared:
    """See the arguments of `bmrjax.reduce_network`; for `block`, the m of a pattern."""
    rows, given = checked_rows(data), None
    if num_data is not None and num_data < 1:
        raise ValueError(f"reduce_network: num_data is at least 1, got {num_data}.")
    if held_out is not None:
        given = checked_rows(held_out, "held_out")
        _check_alike(rows, given)
    found = trace(network, rows.inputs, block, unroll=units, structure=rows.structure)
    dense = found.parts.arrays
    left = _left(found.layers, found.parts.names, leave)
    calibrate_by, choose_by, rest = split_calibration(rows, given, np.random.default_rng(seed))
    predict = _predict(found, dense)
    outputs = predict(tuple(x[:256] for x in calibrate_by.inputs))
    if not np.isfinite(outputs).all():
        raise ValueError("reduce_network: the network's outputs are not finite.")
    # The losses of this package take the one array of a network that returns it in a tuple, say.
    is_function = callable(loss) and not isinstance(loss, type | Loss)
    if len(found.outputs.leaves) > 1 or (is_function and not found.outputs.is_array):
        loss = _of_the_tree(loss, found.outputs)
    used = loss_of(loss, outputs.shape[1:], rows.targets)
    if given is not None:
        check_rows_fit(used, outputs.shape[1:], given.targets, "targets of held_out")
    check_logits(used, outputs, jax.tree.map(lambda y: y[:256], calibrate_by.targets))
    if rows.targets is None:
        calibrate_by = with_predictions(calibrate_by, used, predict)
        choose_by = with_predictions(choose_by, used, predict)
        rest = with_predictions(rest, used, predict)
    if isinstance(used, SquaredError) and used.noise_scale is None:
        used = SquaredError(noise_scale(predict(choose_by.inputs), choose_by.targets))
    calibration = Calibration(
        found.capture,
        used,
        dense,
        calibrate_by.inputs,
        calibrate_by.targets,
        key=jax.random.key(seed),
    )
    evaluate = Evaluation(found.capture, used, choose_by.inputs, choose_by.targets)
    one = slice(0, 1) if not is_equinox(network) else 0
    example = tuple(jnp.asarray(part[one]) for part in rows.inputs)
    return Prepared(
        found,
        left,
        calibration,
        evaluate,
        choose_by,
        num_data if num_data else len(rows),
        used,
        rest,
        calibrate_by,
        predict,
        tuple(Arguments(example, rows.structure).of(example)),
    )


def _of_the_tree(loss: Any, tree: OutputTree) -> Callable[[Array, Any], Any]:
    """Return a loss of the one array of a network's outputs, from one of the outputs."""
    if not callable(loss) or isinstance(loss, type | Loss):
        shapes = ", ".join(f"{leaf.dtype}{leaf.shape}" for leaf in tree.leaves)
        raise TypeError(
            f"reduce_network: the network returns a tree of arrays, {shapes} per row. Give loss=, a function "
            "of what it returns and of the targets of one row, in nats."
        )
    function: Any = loss
    return lambda outputs, targets: function(tree(outputs), targets)


def _check_alike(rows: Rows, other: Rows) -> None:
    here, there = ([x.shape[1:] for x in some.inputs] for some in (rows, other))
    if rows.structure != other.structure:
        raise ValueError(
            f"reduce_network: held_out must be like data: inputs {other.structure or there} for "
            f"{rows.structure or here}."
        )
    if here != there or (rows.targets is None) != (other.targets is None):
        raise ValueError(
            f"reduce_network: held_out must be like data: inputs {there} a row for {here}, and targets in "
            "both or in none."
        )


def _left(layers: Sequence[TracedLayer], names: Sequence[str], leave: Sequence[str]) -> set[int]:
    """Return the numbers of the layers that are left alone."""
    if isinstance(leave, str):
        raise TypeError(f"reduce_network: leave is a sequence of paths, as ({leave!r},).")
    for pattern in leave:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names)
            raise ValueError(f"reduce_network: no array is called {pattern!r}; there are {known}.")
    left = {
        k
        for k, layer in enumerate(layers)
        if any(fnmatch.fnmatchcase(names[layer.array], pattern) for pattern in leave)
    }
    if len(left) == len(layers):
        raise ValueError("reduce_network: leave leaves nothing to judge.")
    return left


def _predict(found: Traced, dense: Sequence[Array]) -> Callable[[Any], np.ndarray]:
    run = quick_jit(
        jax.vmap(lambda arrays, x: found.capture.outputs(arrays, x), (None, 0)), num_calls=16
    )

    def predict(inputs: Any) -> np.ndarray:
        parts = []
        for start in range(0, len(inputs[0]), 256):
            some = tuple(jnp.asarray(x[start : start + 256]) for x in inputs)
            parts.append(np.asarray(run(dense, some)))
        return np.concatenate(parts)

    return predict
