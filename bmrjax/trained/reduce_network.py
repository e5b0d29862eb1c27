"""Bayesian model reduction of a network that is trained."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.errors import FitWarning, warn
from bmrjax.trained.fine_tune import FineTune, Tune, tuner
from bmrjax.trained.losses import Loss
from bmrjax.trained.network_reduction import NetworkReduction
from bmrjax.trained.path_progress import reducing
from bmrjax.trained.prepare_network import prepare
from bmrjax.trained.reduce_units import reduce_units
from bmrjax.trained.reduce_weights import reduce_weights
from bmrjax.trained.unit_options import UnitOptions
from bmrjax.trained.unit_reduction import UnitReduction
from bmrjax.trained.weight_rows import Pattern, check_pattern


class _Options(TypedDict, total=False):
    """The options of `reduce_network`."""

    loss: Loss | Callable[[Any, Any], Any] | None
    held_out: Any
    keep: float | None
    flops: float | None
    lose_at_most: float | None
    pattern: Pattern | None
    leave: Sequence[str]
    smallest: float | None
    fine_tune: FineTune | Tune | None
    num_data: int | None
    seed: int
    progress: bool


@overload
def reduce_network(
    network: Any, data: Any, *, units: Literal[False] = False, **options: Unpack[_Options]
) -> NetworkReduction: ...
@overload
def reduce_network(
    network: Any, data: Any, *, units: Literal[True] | UnitOptions, **options: Unpack[_Options]
) -> UnitReduction: ...
@not_after_fork
def reduce_network(
    network: Any,
    data: Any,
    *,
    units: bool | UnitOptions = False,
    loss: Loss | Callable[[Any, Any], Any] | None = None,
    held_out: Any = None,
    keep: float | None = None,
    flops: float | None = None,
    lose_at_most: float | None = None,
    pattern: Pattern | None = None,
    leave: Sequence[str] = (),
    smallest: float | None = None,
    fine_tune: FineTune | Tune | None = None,
    num_data: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> NetworkReduction | UnitReduction:
    r"""Remove weights or units from a trained network, and move the weights that stay, without training.

    The posterior of the weights W of each layer is taken to be normal around the trained ones. Its
    precision is N A ⊗ diag(g) + δI: A the second moment of the layer's inputs, g the curvature of the
    loss in its outputs, both from one pass over calibration rows; N the number of data points; δ the
    prior precision of largest marginal likelihood. N is divided by a temperature, so that predicted
    losses are those that a short first pass measures on rows that are kept out. Removing a weight of
    posterior variance C then changes the log evidence by

    .. math::  ΔF = -\frac{w^2}{2 C} - \frac{1}{2} \ln(δ C)

    in nats, positive in favour of removal: minus the saliency of Optimal Brain Surgeon, which is the
    predicted increase of the loss, and what the evidence gains by a parameter less. So the weights of
    all layers compete on one scale, and no ratio per layer is chosen. The weights that stay in the same
    row move to where the posterior has them, given that the others are zero; biases with them.

    Weights are removed in rounds, each of which keeps 85 % of them. Each round computes the factors anew,
    at the network as it is, and fits each layer to its outputs in the dense network. So later rounds
    correct the errors of earlier ones and of the layers before. Each round is measured on rows that are
    kept out, and by default the last network is returned, from dense to sparse, before the first that they
    do not show to be as good as the dense one; see `bmrjax.trained.PathPoint.as_good`.

    With ``units=True`` whole neurons, channels and attention heads are removed, and `bmrjax.compact` cuts
    them out, so that the network is smaller. The weights J that read a unit, in all layers, are removed
    together, and the evidence changes by

    .. math::  ΔF = \sum -\frac{1}{2} w_J^T C_{JJ}^{-1} w_J - \frac{1}{2} \ln |δ C_{JJ}|

    summed over the rows of these layers. Where nothing reads a unit, the data say nothing of the weights that
    make it: they are removed at no change of the evidence. The layers that read it take up what it put out
    as far as other units and the bias can. Units of all layers compete by this cost divided by the
    parameters, or operations, that the network loses with each. Where no share is given, the first two
    rounds are smaller.

    Layers are found among the network's operations and not by their class: any array that is multiplied
    with what depends on the input, by a matrix product or a convolution, grouped or not, once or several
    times. What is not found is left as it is, with the reason in `NetworkReduction.not_judged`. A layer
    that sums over more than 1,024 inputs, or is large (more than 200 outputs of 1,000 inputs each, 1,600 of
    500), may be split into parts of about 256 to 2,048 inputs, the narrower the more weights it has. Parts
    are judged side by side; later rounds correct for what they have in common, and without `fine_tune` the
    last fit of the kept weights is of the whole layer.

    The weights of the network that is returned are fitted once more: layer by layer, and, unless it is as
    good as the dense one, in all layers together, by Gauss-Newton steps towards the outputs of the dense
    network on the calibration rows. A fit is taken if held-out rows are predicted no worse.

    Args:
        network: An Equinox module that is written for one row; an ``(equinox module, equinox.nn.State)``
            pair; or a Flax NNX module, written for a batch. It runs in inference mode.
        data: ``(inputs, targets)``: an array, or a dict or other pytree of arrays, for a network of one
            argument, or a tuple of one for each argument; and what the loss takes. Rows are on the leading
            axes of all arrays. Hundreds to thousands; of more, 4,096 are used. With None for the targets, the
            network's own predictions stand in.
        loss: A `bmrjax.trained.Loss`, or a function of the outputs and targets of one row, in nats; where
            the network returns several arrays, a function of all of them as it returns them. By default
            `CrossEntropy` of logits for integer targets, `BinaryCrossEntropy` of logits for integers that are
            zeros and ones of the shape of the outputs, and `SquaredError` for floating-point targets other
            than zeros and ones.
        units: Whether whole units are removed in place of single weights. A `bmrjax.trained.UnitOptions` in
            place of True says how many of them stay at least, and multiples of which number.
        held_out: Rows to choose by, ``(inputs, targets)``; best those that the network was not trained
            on. By default a quarter of the data.
        keep: Share of the judged weights to keep, between 0 and 1; with ``units=True`` of all parameters.
            The path ends there.
        flops: Share of the operations in matrix products and convolutions to keep; for ``units=True``. Then
            units compete by cost per operation.
        lose_at_most: Percentage points of held-out accuracy that may be lost; for losses without an
            accuracy, nats per row.
        pattern: ``(n, m)``: of each m consecutive inputs of an output (channels of a convolution) n
            stay, as ``(2, 4)``. The path ends where the pattern is reached.
        leave: Paths of arrays to leave as they are; patterns such as ``"layers.0.*"``.
        smallest: Share of the weights, or parameters, at which the path ends. By default it ends at 2 %, or
            where neither the rows that are kept out nor the evidence speak for going on: three rounds after
            the first point that has lost too much and two after that of highest evidence.
        fine_tune: Training between rounds: `bmrjax.trained.FineTune`, or a function of the network, with
            zeros where weights are removed, and of masks by path (False is removed) that returns the
            network. Removed weights are set to zero again afterwards, and later rounds fit what stays to the
            outputs of the layers as they are then.
        num_data: Number of data points that the network was trained on. By default those in `data`.
        seed: Of the split, and of the random directions in which the curvature is taken.
        progress: Whether to show what the reduction does and how long it will take, on a terminal or in a
            notebook. Nothing is shown elsewhere, such as in a file.

    Returns:
        The reduced network, the path, and receipts: a `NetworkReduction` with masks, or a `UnitReduction`.

    Raises:
        TypeError: For arguments of another kind.
        ValueError: For data that do not fit the network, options out of range, names that are not there,
            or a network without an array that can be judged.

    Warns:
        FitWarning: For each of the `findings`: few rows are kept out, so that a loss would not be noticed; no
            gradient reaches a layer, which is left as it is; the temperature ended at a bound; or units
            cannot be removed as far as asked, or not cut out.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> found = bmr.reduce_network(network, (x, y), keep=0.5)
        >>> type(found.network).__name__, sum(int(mask.sum()) for mask in found.masks.values())
        ('MLP', 16)
        >>> found = bmr.reduce_network(network, (x, y), units=True, keep=0.5)
        >>> found.network.layers[0].weight.shape
        (3, 3)

    References:
        Hassibi and Stork (1993), NeurIPS 5, for the saliency and the compensation; MacKay (1992), Neural
        Computation 4, for the evidence; Martens and Grosse (2015), ICML, for the factors; Singh and
        Alistarh (2020), NeurIPS 33, for rounds.
    """
    _check_options(keep, lose_at_most, pattern, smallest)
    by_unit = _unit_options(units, keep, flops, lose_at_most, pattern)
    with reducing(wanted=progress) as shown:
        ready = prepare(
            network,
            data,
            loss=loss,
            held_out=held_out,
            leave=leave,
            num_data=num_data,
            seed=seed,
            block=1 if pattern is None else pattern[1],
            units=by_unit is not None,
        )
        tune = tuner(fine_tune, ready.traced, ready.loss, ready.rest)
        if by_unit is not None:
            found = reduce_units(
                ready,
                by_unit,
                keep=keep,
                flops=flops,
                lose_at_most=lose_at_most,
                smallest=smallest,
                tune=tune,
                shown=shown,
            )
        else:
            found = reduce_weights(
                ready,
                keep=keep,
                lose_at_most=lose_at_most,
                pattern=pattern,
                smallest=smallest,
                tune=tune,
                shown=shown,
            )
    for finding in found.findings:
        warn(f"reduce_network: {finding}", FitWarning)
    return found


def _check_options(
    keep: float | None,
    lose_at_most: float | None,
    pattern: Pattern | None,
    smallest: float | None,
) -> None:
    for name, value in (("keep", keep), ("smallest", smallest)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"reduce_network: {name} is a share between 0 and 1, got {value}.")
    if lose_at_most is not None and not lose_at_most >= 0:
        raise ValueError(f"reduce_network: lose_at_most is not negative, got {lose_at_most}.")
    if keep is not None and (lose_at_most is not None or pattern is not None):
        raise ValueError("reduce_network: give one of keep, lose_at_most and pattern.")


def _unit_options(
    units: Any,
    keep: float | None,
    flops: float | None,
    lose_at_most: float | None,
    pattern: Pattern | None,
) -> UnitOptions | None:
    """Return how units are removed; None for single weights."""
    if not isinstance(units, bool | UnitOptions):
        raise TypeError(
            f"reduce_network: units is True, False or bmr.trained.UnitOptions(...), got {units!r}."
        )
    if not units:
        if flops is not None:
            raise ValueError("reduce_network: flops is an option of units=True.")
        if pattern is not None:
            check_pattern(pattern, "reduce_network", units=False)
        return None
    if pattern is not None:
        check_pattern(pattern, "reduce_network", units=True)
    if flops is not None:
        if not 0 < flops < 1:
            raise ValueError(f"reduce_network: flops is a share between 0 and 1, got {flops}.")
        if keep is not None or lose_at_most is not None:
            raise ValueError("reduce_network: give one of keep, flops and lose_at_most.")
    return units if isinstance(units, UnitOptions) else UnitOptions()
