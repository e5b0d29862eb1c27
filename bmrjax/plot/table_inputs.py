"""What the first layer of a network reads of a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bmrjax.plot.axes import BLUE, GREY, clean_axes, new_figure, rows_height, titled
from bmrjax.run.input_paths import input_paths
from bmrjax.run.page_words import short_names
from bmrjax.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def inputs(
    result: Result, *arguments: Any, names: Sequence[str] | None = None, most: int = 40
) -> "Figure":
    """Plot how strongly a network reads each column of a table, by name.

    Only weights count from whose unit kept weights lead to an output, so a column without a bar has no
    influence on the predictions. Bars compare columns that are on one scale, such as the standardised
    ones of a `data.Dataset`; a bar says how large the weights are, not how the prediction changes with the
    column.

    Args:
        result: Of a `zoo.MLP` that the program calls ``net``, as the command line does, with its program.
        *arguments: Arguments of the program, as for `Result.posterior`.
        names: Of the inputs; by default those of the table that the result was fitted on.
        most: How many inputs are drawn at most, those with the longest bars.

    Returns:
        A figure with one bar per input: the root sum of squares of the posterior means of the weights that
        read it, with their number.

    Raises:
        ValueError: For another network, or names that are missing or too few.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> x = jax.random.normal(jax.random.key(0), (200, 3))
        >>> network = bmr.zoo.MLP(3, [4], 1, key=jax.random.key(1))
        >>> result = bmr.sparsify(
        ...     bmr.programs.regression(network, bmr.priors.Flat()), (x, x[:, :1]), key=jax.random.key(2),
        ...     num_epochs=4, steps_per_epoch=20,
        ... )
        >>> axes = bmr.plot.inputs(result, names=["dose", "age", "sex"]).axes[0]
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['dose', 'age', 'sex']
    """
    paths = input_paths(result.keep) if result.keep else None
    if paths is None:
        raise ValueError(
            "plot.inputs: it draws a zoo.MLP whose sites are called net.layers.0.weight and so on; there are "
            f"{list(result.keep)}."
        )
    given = [*(names if names is not None else result.columns or ())]
    width = paths.leads.shape[1]
    if len(given) != width:
        raise ValueError(
            f"plot.inputs: the network reads {width} inputs, and there are {len(given)} names; give names=."
        )
    mean = np.asarray(result.posterior(*arguments)[paths.site].loc, np.float64)
    size = np.sqrt((np.where(paths.leads, mean, 0.0) ** 2).sum(0))
    count = paths.leads.sum(0)
    shown = sorted(np.argsort(-size, kind="stable")[:most])
    rows = range(len(shown))
    figure = new_figure((6.4, rows_height(len(shown))))
    ax = figure.subplots()
    ax.barh(rows, size[shown], color=BLUE, height=0.7)
    for row, column in zip(rows, shown, strict=True):
        text = f" {count[column]:,}" if count[column] else " removed"
        ax.text(size[column], row, text, va="center", color="#333333" if count[column] else GREY)
    ax.set_yticks(rows, short_names([given[column] for column in shown]))
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, 1.12 * (float(size.max()) or 1.0))
    ax.set_xlabel("Size of the weights that read the column (number: how many)")
    more = f", the {most} largest shown" if width > most else ""
    titled(ax, f"{int((count > 0).sum()):,} of {width:,} inputs used{more}")
    clean_axes(ax)
    return figure
