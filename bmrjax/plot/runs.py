"""Plots of runs: coefficients, and what a metric loses as weights are removed."""

from typing import TYPE_CHECKING, Any

from bmrjax.plot.axes import BLUE, GREY, ORANGE, TITLES, clean_axes, new_figure, rows_height, titled
from bmrjax.run.page_words import short_names
from bmrjax.run.result import Result
from bmrjax.run.trade_off import TradeOff

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def coefficients(
    result: Result, *inputs: Any, site: str | None = None, prob: float = 0.9, most: int = 40
) -> "Figure":
    """Plot posterior means and intervals of the elements that are kept, by name.

    Args:
        result: With its program; see `Result.summary`, whose table is drawn.
        *inputs: Arguments of the program, as for `Result.posterior`.
        site: Name of the site to draw; by default all that were judged.
        prob: Probability of the intervals.
        most: How many elements are drawn at most, those with the largest means.

    Returns:
        A figure with a point and a line per element, in the order of the site, and the number of removed
        elements in its title. Of the draws with zeros in them, ArviZ has a forest plot,
        ``arviz.plot_forest(result.to_arviz(key, x))``.

    Raises:
        ValueError: For a site that is not there, or if nothing is kept.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program():
        ...     numpyro.sample("beta", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        >>> def guide():
        ...     numpyro.sample("beta", dist.Normal(jnp.array([2.0, 0.1, -1.0]), 0.2).to_event(1))
        >>> result = bmr.Result(
        ...     {}, {"beta": jnp.array([True, False, True])}, {}, 100, unpruned_model=program,
        ...     unpruned_guide=guide, columns=("dose", "age", "weight"),
        ... )
        >>> axes = bmr.plot.coefficients(result).axes[0]
        >>> [label.get_text() for label in axes.get_yticklabels()], axes.get_title(loc="left")
        (['dose', 'weight'], '2 of 3 kept')
    """
    table: Any = result.summary(*inputs, prob=prob)
    sites = list(dict.fromkeys(table["site"])) if len(table) else []
    if site is not None:
        if site not in sites:
            raise ValueError(f"coefficients: there is no site '{site}'; there are {sites}.")
        table, sites = table[table["site"] == site], [site]
    total, table = len(table), table[table["kept"]] if len(table) else table
    if not len(table):
        raise ValueError("coefficients: nothing is kept, so there is nothing to plot.")
    kept = len(table)
    largest = table["mean"].abs().sort_values(ascending=False).index[:most]
    table = table.loc[sorted(largest)]
    names = [
        row.element if len(sites) == 1 else f"{row.site}[{row.element}]"
        for row in table[["site", "element"]].itertuples()
    ]
    low, high = (table[title] for title in table.columns[5:7])
    figure = new_figure((6.4, rows_height(len(table))))
    ax = figure.subplots()
    ax.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
    ax.hlines(range(len(table)), low, high, color=BLUE, linewidth=2, zorder=2)
    ax.scatter(table["mean"], range(len(table)), color=BLUE, s=28, zorder=3)
    ax.set_yticks(range(len(table)), short_names(names))
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_xlabel(f"Posterior mean, {100 * prob:g}% interval")
    shown = f", the {most} largest shown" if kept > most else ""
    titled(ax, f"{kept:,} of {total:,} kept{shown}")
    clean_axes(ax)
    return figure


def trade_off_curve(curve: TradeOff) -> "Figure":
    """Plot a held-out metric over the removed fraction, with its knee.

    Args:
        curve: From `bmrjax.trade_off`.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> curve = bmr.TradeOff("rmse", np.array([0, 0.5, 0.9]), np.array([0.4, 0.41, 0.9]), np.arange(3))
        >>> bmr.plot.trade_off_curve(curve).axes[0].get_title(loc="left")
        'RMSE, held out'
    """
    figure = new_figure((5.6, 3.6))
    ax = figure.subplots()
    ax.plot(100 * curve.sparsity, curve.value, color=BLUE, marker=".")
    x, y = 100 * curve.sparsity[curve.knee], curve.value[curve.knee]
    ax.plot([x], [y], "o", color=ORANGE, label=f"knee: {x:.1f} % removed, {y:.4g}")
    ax.set_xlabel("Removed, %")
    titled(ax, f"{TITLES.get(curve.metric, curve.metric)}, held out", inches=4.6)
    ax.legend(frameon=False, fontsize=9)
    clean_axes(ax)
    return figure
