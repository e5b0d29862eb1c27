"""Plots of what `reduce_fit` found."""

from typing import TYPE_CHECKING, Any

from jaxtyping import ArrayLike

from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.plot.axes import (
    BLUE,
    GREY,
    clean_axes,
    mark_truth,
    new_figure,
    rows_height,
    titled,
    true_values,
)
from bmrjax.run.page_words import short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def inclusion(found: FitReduction, *, truth: ArrayLike | None = None, most: int = 40) -> "Figure":
    """Plot inclusion probabilities, and the averaged means and intervals beside them, by name.

    Args:
        found: From `bmrjax.reduce_fit`.
        truth: What the elements really are, as of simulated data, one value per row of `FitReduction.table`;
            drawn as a mark beside each interval.
        most: How many elements are drawn at most, the most probable ones.

    Returns:
        A figure with two panels that share their rows; elements of the chosen submodel are blue. ArviZ has
        a forest plot of the averaged draws, ``arviz.plot_forest(found.to_arviz())``.

    Raises:
        ValueError: If there are not as many true values as elements.

    Example:
        >>> import jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> prior = bmr.reduction.Normal(jnp.zeros(2), jnp.ones(2))
        >>> found = bmr.reduce_fit(
        ...     loc=jnp.array([0.8, 0.1]), covariance=0.02 * jnp.eye(2), prior=prior, names=["dose", "age"]
        ... )
        >>> bmr.plot.inclusion(found).axes[0].get_title(loc="left")
        '1 of 2 in the chosen submodel'
    """
    table: Any = found.table()
    total = len(table)
    chosen = table["kept"]
    if truth is not None:
        table = table.assign(truth=true_values(truth, total, "inclusion", "elements"))
    table = table.loc[sorted(table.nlargest(most, "inclusion_prob").index)]
    one_site = table["site"].nunique() == 1
    names = [
        row.element if one_site else f"{row.site}[{row.element}]"
        for row in table[["site", "element"]].itertuples()
    ]
    prob = table["inclusion_prob"]
    rows, colors = range(len(table)), [BLUE if kept else GREY for kept in table["kept"]]
    figure = new_figure((8.4, rows_height(len(table))))
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(rows, prob, color=colors, height=0.6)
    left.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    left.set_xlim(0, 1)
    left.set_xlabel("Inclusion probability")
    left.set_yticks(rows, short_names(names))
    left.set_ylim(len(table) - 0.4, -0.6)
    titled(left, f"{int(chosen.sum()):,} of {total:,} in the chosen submodel", inches=3.0)
    right.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
    right.hlines(rows, table["2.5 %"], table["97.5 %"], color=colors, linewidth=2, zorder=2)
    right.scatter(table["mean"], rows, color=colors, s=25, zorder=3)
    right.set_xlabel("Mean over submodels, 95% interval")
    if truth is not None:
        mark_truth(right, table["truth"])
    for ax in (left, right):
        clean_axes(ax)
    return figure


def sizes(found: FitReduction, *, seed: int = 0) -> "Figure":
    """Plot the expected log predictive density of submodels against their size.

    Args:
        found: From `bmrjax.reduce_fit`, with a program.
        seed: Of the draws; see `FitReduction.path`.

    Returns:
        A figure of the difference from the best size, with a standard error; the chosen size is marked, and
        sizes whose estimate is not reliable are hollow. ArviZ compares models that were fitted one by one,
        by ``arviz.plot_compare``.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (40, 2))
        >>> draws = {"beta": jnp.array([1.0, 0.0]) + 0.1 * jax.random.normal(jax.random.key(1), (500, 2))}
        >>> found = bmr.reduce_fit(draws, model=program, data=(x, x[:, 0]))
        >>> bmr.plot.sizes(found).axes[0].get_xlabel()
        'Candidates in the submodel'
    """
    table: Any = found.path(seed=seed)
    size, value = table["size"], table["difference"]
    figure = new_figure((5.6, 3.6))
    ax = figure.subplots()
    ax.axhline(0.0, color=GREY, linewidth=0.8, linestyle=":")
    ax.errorbar(size, value, table["difference_error"], color=BLUE, zorder=2)
    reliable = table["pareto_k"] <= 0.7
    face = [BLUE if trusted else "white" for trusted in reliable]
    ax.scatter(size, value, color=face, edgecolors=BLUE, s=30, zorder=3)
    chosen = int(found.models()["size"].iloc[0])
    if chosen in list(size):
        at = float(value[size == chosen].iloc[0])
        ring = {"facecolors": "none", "edgecolors": "black", "s": 110, "zorder": 4}
        ax.scatter(chosen, at, label=f"chosen: {chosen}", **ring)
        # In the corner below the higher end.
        corner = "lower right" if value.iloc[-1] > value.iloc[0] else "lower left"
        ax.legend(frameon=False, fontsize=9, loc=corner)
    ax.set_xlabel("Candidates in the submodel")
    titled(ax, "Expected log predictive density, nats from the best", inches=4.6)
    clean_axes(ax)
    return figure
