"""A table of the elements of a result, with names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bmrjax.distributions import SpikeAndSlab as SpikeAndSlabOfNumPyro
from bmrjax.distributions import TruncatedLogNormal
from bmrjax.element_names import element_names, named_axes
from bmrjax.reduction import LogNormal, Normal, SpikeAndSlab

if TYPE_CHECKING:
    from pandas import DataFrame


def summary_table(
    result: Any, posterior: Mapping[str, Normal | SpikeAndSlab | LogNormal], *, prob: float
) -> "DataFrame":
    """Return one row per element of the sites with masks, or of all sites if none has any.

    Args:
        result: Whose masks and names are shown.
        posterior: Its posterior by site.
        prob: Probability of the central interval.

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
        columns |= {title: np.asarray(value).ravel() for title, value in values.items()}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _moments(q: Any, keep: Any, low: float, high: float) -> dict[str, Any]:
    """Return mean, standard deviation, interval and inclusion probability; of removed elements, constants."""
    titles = f"{100 * low:g} %", f"{100 * high:g} %"
    kept = jnp.asarray(keep)
    removed = 0.0
    # Stand-ins for removed elements, whose scale is zero, so that nothing divides by it.
    scale = jnp.where(kept, q.scale, 1.0)
    found: dict[str, Any] = {}
    if isinstance(q, SpikeAndSlab):
        found["inclusion_prob"] = jnp.broadcast_to(q.inclusion_prob, q.loc.shape)
        fn: Any = SpikeAndSlabOfNumPyro(q.loc, scale, jnp.where(kept, q.logits, 0.0))
    elif isinstance(q, LogNormal):
        fn, removed = TruncatedLogNormal(jnp.where(kept, q.loc, q.low), scale, q.low, q.high), 1.0
    else:
        fn = dist.Normal(q.loc, scale)
    values = {
        "mean": (fn.mean, removed),
        "sd": (jnp.sqrt(fn.variance), 0.0),
        titles[0]: (fn.icdf(low), removed),
        titles[1]: (fn.icdf(high), removed),
    }
    shown = {title: jnp.where(kept, value, other) for title, (value, other) in values.items()}
    return {**shown, **found}
