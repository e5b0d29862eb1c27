"""What a network reads of a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bmrjax.plot.axes import BLUE, GREY, clean_axes, new_figure, rows_height, titled
from bmrjax.run.page_words import short_names
from bmrjax.run.result import Result
from bmrjax.structure.input_weights import input_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Read(NamedTuple):
    """Weights that read inputs, and which of them count; (units, inputs)."""

    weights: Float[np.ndarray, "units inputs"]
    counts: Bool[np.ndarray, "units inputs"]


def inputs(
    result: Result,
    *arguments: Any,
    names: Sequence[str] | None = None,
    site: str | None = None,
    most: int = 40,
) -> "Figure":
    """Plot how strongly a network reads each column of a table, by name.

    Only weights count from whose unit kept weights lead to an output, so a column without a bar has no
    influence on the predictions. Bars compare columns that are on one scale, such as the standardised
    ones of a `data.Dataset`; a bar says how large the weights are, not how the prediction changes with the
    column.

    Args:
        result: With its program: a network of Equinox or Flax NNX whose input is read by dense layers
            and by nothing else; or, with `site`, any program.
        *arguments: Arguments of the program without the targets, such as two rows of the table. With `site`,
            those that `Result.posterior` needs.
        names: Of the inputs; by default those of the table that the result was fitted on.
        site: Name of weights to draw in place of a network's: a vector with one element per input, or a
            matrix with one axis of inputs, which is found by its length. All its kept elements count,
            whether or not they lead to an output.
        most: How many inputs are drawn at most, those with the longest bars.

    Returns:
        A figure with one bar per input: the root sum of squares of the posterior means of the weights that
        read it, with their number.

    Raises:
        ValueError: If no network or several have a dense first layer, if there is no such site, or if names
            are missing or not as many as inputs.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> x = jax.random.normal(jax.random.key(0), (200, 3))
        >>> network = eqx.nn.MLP(3, 1, width_size=4, depth=1, key=jax.random.key(1))
        >>> result = bmr.sparsify(
        ...     bmr.programs.regression(network, bmr.priors.Flat()), (x, x[:, :1]), key=jax.random.key(2),
        ...     num_epochs=4, steps_per_epoch=20,
        ... )
        >>> axes = bmr.plot.inputs(result, x[:2], names=["dose", "age", "sex"]).axes[0]
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['dose', 'age', 'sex']
    """
    given = [*(names if names is not None else result.columns or ())]
    if site is None:
        found = _of_network(result, arguments)
    else:
        found = _of_site(result, arguments, site, len(given))
    width = found.counts.shape[1]
    if len(given) != width:
        raise ValueError(
            f"plot.inputs: the network reads {width} inputs, and there are {len(given)} names; give names=."
        )
    size = np.sqrt((np.where(found.counts, found.weights, 0.0) ** 2).sum(0))
    count = found.counts.sum(0)
    shown = sorted(np.argsort(-size, kind="stable")[:most])
    rows = range(len(shown))
    figure = new_figure((6.4, rows_height(len(shown))))
    ax = figure.subplots()
    ax.barh(rows, size[shown], color=BLUE, height=0.7)
    for row, column in zip(rows, shown, strict=True):
        text = f"{count[column]:,}" if count[column] else "removed"
        colour = "#333333" if count[column] else GREY
        # Browsers drop a blank at the beginning of a text.
        away = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(text, (size[column], row), color=colour, **away)
    ax.set_yticks(rows, short_names([given[column] for column in shown]))
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, 1.12 * (float(size.max()) or 1.0))
    ax.set_xlabel("Size of the weights that read the column (number: how many)")
    more = f", the {most} largest shown" if width > most else ""
    titled(ax, f"{int((count > 0).sum()):,} of {width:,} inputs used{more}")
    clean_axes(ax)
    return figure


def _of_network(result: Result, arguments: tuple[Any, ...]) -> _Read:
    """Return the weights of the network that reads the input by dense layers."""
    if not arguments:
        raise ValueError(
            "plot.inputs: the network is found by running the program; give its inputs, such as two rows: "
            "plot.inputs(result, x[:2]). Or give site=, the name of weights."
        )
    found, reasons = {}, []
    for name, (network, example) in result._networks(*arguments).items():
        try:
            found[name] = input_weights(network, *example)
        except ValueError as error:
            reasons.append(f"'{name}': {error}")
    if len(found) == 1:
        ((_, weights, leads),) = found.values()
        return _Read(weights.astype(np.float64), leads)
    sites = f"Give site=, the name of weights, one of {list(result.keep)}."
    if found:
        raise ValueError(f"plot.inputs: several networks read inputs: {list(found)}. {sites}")
    why = "; ".join(reasons) or "the program has no network made by random_module"
    raise ValueError(
        f"plot.inputs: it draws a network whose input is read by dense layers ({why}). {sites}"
    )


def _of_site(result: Result, arguments: tuple[Any, ...], site: str, width: int) -> _Read:
    """Return the kept weights of a site, with its axis of `width` inputs last."""
    if site not in result.keep:
        raise ValueError(f"plot.inputs: there is no site '{site}'; there are {list(result.keep)}.")
    keep = np.asarray(result.keep[site])
    weights = np.asarray(result.posterior(*arguments)[site].loc, np.float64)
    if keep.ndim not in (1, 2):
        raise ValueError(
            f"plot.inputs: '{site}' has shape {keep.shape}; it draws vectors and matrices."
        )
    axes = [axis for axis, length in enumerate(keep.shape) if length == width]
    if len(axes) != 1:
        either = (
            "either axis may be that of the inputs"
            if axes
            else f"no axis is as long as {width} names"
        )
        raise ValueError(
            f"plot.inputs: '{site}' has shape {keep.shape}, and {either}; give names= of the inputs"
            + (", and the program's inputs in place of site=." if axes else ".")
        )
    (axis,) = axes
    return _Read(*(np.moveaxis(a, axis, -1).reshape(-1, width) for a in (weights, keep)))
