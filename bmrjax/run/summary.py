"""A table of the elements of a result, with names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.criteria import Criterion
from bmrjax.families import shown_elements
from bmrjax.infer.arguments import Data
from bmrjax.infer.posterior import compiled_posteriors
from bmrjax.run.element_names import element_names, named_axes

if TYPE_CHECKING:
    from pandas import DataFrame


def summary_table(
    result: Any,
    posterior: Mapping[str, Any],
    *,
    prob: float,
    scores: Mapping[str, Mapping[str, Any]] | None = None,
) -> "DataFrame":
    """Return one row per element of the sites with masks, or of all sites if none has any.

    Args:
        result: Whose masks and names are shown.
        posterior: Its posterior by site.
        prob: Probability of the central interval.
        scores: Further columns, title to values by site; see `scores_of`.

    Raises:
        ValueError: For a probability outside (0, 1).
        ImportError: Without the package pandas.
    """
    if not 0 < prob < 1:
        raise ValueError(f"summary: prob is between 0 and 1, got {prob}.")
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"summary returns a table of pandas ({error}). Install it by pip install pandas."
        ) from None
    names = [n for n in posterior if n in result.keep] or list(posterior)
    shapes = {name: tuple(posterior[name].loc.shape) for name in names}
    axes = named_axes(shapes, result.columns, result.class_names)
    low, high = (1 - prob) / 2, (1 + prob) / 2
    frames = []
    for name, shape in shapes.items():
        keep = result.keep.get(name, np.ones(shape, bool))
        columns = {
            "site": name,
            "element": element_names(shape, axes[name]),
            "kept": np.asarray(keep).ravel(),
        }
        values = _moments(posterior[name], keep, low, high)
        values |= {title: by[name] for title, by in (scores or {}).items() if name in by}
        columns |= {title: np.asarray(value).ravel() for title, value in values.items()}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def scores_of(result: Any, criterion: Criterion, data: Data) -> dict[str, dict[str, Any]]:
    """Return what a criterion says of the elements that are kept, from the posterior as it is.

    Args:
        result: A result with its program.
        criterion: The criterion.
        data: Arguments of the program; ``()`` for none.

    Returns:
        ``"delta_f"``, ln of the evidence without the element over the evidence with it, in nats, NaN for
        removed elements; and ``"inclusion_prob"`` for a criterion that has it; each by site.

    Raises:
        ValueError: If the criterion reads none of the posteriors.
    """
    model, guide = result.unpruned_model, result.unpruned_guide
    found = compiled_posteriors(model, guide, data)(result.params, result.keep)
    names = [
        name
        for name, q in found.posterior.items()
        if criterion.reads(q, found.prior[name]) and (name in result.keep or not result.keep)
    ]
    if not names:
        raise ValueError(
            f"summary: {type(criterion).__name__} reads {criterion.family.__name__} posteriors, and no site "
            "that was judged has one."
        )
    found = found.only(names)
    keep = {n: result.keep.get(n, jnp.ones(found.posterior[n].loc.shape, bool)) for n in names}
    # A criterion may hold arrays, and is not hashed.
    decision = quick_jit(lambda *state: criterion(*state), num_calls=1)(found, keep)
    delta_f = {n: jnp.where(keep[n], value, jnp.nan) for n, value in decision.delta_f.items()}
    included = decision.statistics.get("inclusion_prob")
    return {"delta_f": delta_f} | ({} if included is None else {"inclusion_prob": included})


def _moments(q: Any, keep: Any, low: float, high: float) -> dict[str, Any]:
    """Return mean, standard deviation, interval and inclusion probability; of removed elements, constants."""
    titles = f"{100 * low:g} %", f"{100 * high:g} %"
    kept = jnp.asarray(keep)
    fn, removed, included = shown_elements(q, kept)
    values = {
        "mean": (fn.mean, removed),
        "sd": (jnp.sqrt(fn.variance), 0.0),
        titles[0]: (fn.icdf(low), removed),
        titles[1]: (fn.icdf(high), removed),
    }
    columns = {title: jnp.where(kept, value, other) for title, (value, other) in values.items()}
    return columns if included is None else columns | {"inclusion_prob": included}
