"""Facts about data and predictions, measured once at the end of a run, that `diagnose` reads."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.criteria import Criterion
from bmrjax.families import element_support, inside
from bmrjax.handlers import inference, log_density_shape
from bmrjax.infer.arguments import Data, Keep, arguments, length
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.posterior import central_values
from bmrjax.infer.row_axes import row_axes
from bmrjax.infer.row_sites import subsampling
from bmrjax.infer.tracing import sites_of

_CLASSES = (
    dist.CategoricalLogits,
    dist.CategoricalProbs,
    dist.BernoulliLogits,
    dist.BernoulliProbs,
)
_MOST_ROWS = 500
_MOST_COLUMNS = 300

# What a program raises that cannot be run on a part of its rows, or whose likelihood has no mean.
_NOT_PREDICTABLE = (TypeError, ValueError, NotImplementedError, IndexError, KeyError)

_OF_PREDICTIONS = (
    "dependence", "nll", "trivial_nll", "accuracy", "trivial_accuracy", "rmse", "trivial_rmse",
)  # fmt: skip


class Examination:
    """Measure what the predictions at the centre of a posterior are worth, compiled once.

    Args:
        model: NumPyro program.
        guide: Its guide, which has met the program.
    """

    def __init__(self, model: Callable, guide: Callable):
        self._model, self._guide = model, guide
        self._run = quick_jit(self._at_centre)
        self._roles: dict[str, Any] = {}

    def __call__(
        self,
        params: Mapping[str, Any],
        keep: Keep,
        data: Data,
        *,
        whole: bool,
        metrics: Mapping[str, float] | None = None,
        criterion: Criterion | None = None,
    ) -> dict[str, Any]:
        """Return the facts, as JSON values.

        Args:
            params: Constrained parameters and mutable sites.
            keep: Masks by site.
            data: Rows to predict: held-out ones if there are any, else those of the training.
            whole: Whether the program has to see all rows; else 500 of them, evenly spaced, are used.
            metrics: Held-out metrics of `data`, which are then compared with the trivial predictor in
                place of those at the centre of the posterior.
            criterion: Criterion of the run.
        """
        rows = length(data)
        few = slice(None)
        if not whole and rows > _MOST_ROWS:
            few = np.linspace(0, rows - 1, _MOST_ROWS).astype(int)
        batch = jax.tree.map(lambda a: np.asarray(a)[few], data)
        facts: dict[str, Any] = {
            "rows": length(batch),
            "guide": type(self._guide).__name__,
            "joint": isinstance(self._guide, CorrelatedGuide),
            "criterion": None if criterion is None else type(criterion).__name__,
        }
        try:
            facts |= self._predictions(params, keep, batch)
        except _NOT_PREDICTABLE as error:
            facts["not_predictable"] = f"{type(error).__name__}: {error}"[:300]
            return facts
        names, targets = _names(self._model, batch), self._roles["targets"]
        leaves = jax.tree.leaves(batch)
        inputs = {names[i]: a for i, a in enumerate(leaves) if i not in targets}
        observed = {names[i]: leaves[i] for i in targets}
        facts |= {"inputs": list(inputs), "targets": list(observed)}
        facts["scales"] = _scales(inputs, "input")
        if self._roles["real"]:
            facts["scales"] += _scales(observed, "target")
        facts |= _correlation(inputs)
        for name in ("accuracy", "rmse", "nll"):
            if metrics and name in metrics and name in facts:
                facts[name] = float(metrics[name])
        facts["held_out"] = bool(metrics)
        return facts

    def _predictions(self, params: Mapping[str, Any], keep: Keep, batch: Data) -> dict[str, Any]:
        """Return how good the predictions are, and how much they depend on the inputs."""
        params, keep = dict(params), dict(keep)
        log_prob, mean, value = (np.asarray(a) for a in self._run(params, keep, batch))
        facts = _worth(log_prob, mean, value, self._roles)
        leaves, structure = jax.tree.flatten(batch)
        targets, rows = self._roles["targets"], length(batch)
        if 0 < len(targets) < len(leaves) and rows > 1:
            # Inputs of other rows: what does not depend on them stays as it is.
            other = np.random.default_rng(0).permutation(rows)
            mixed = [a if i in targets else a[other] for i, a in enumerate(leaves)]
            moved = np.asarray(self._run(params, keep, jax.tree.unflatten(structure, mixed))[0])
            facts["dependence"] = float(np.mean(np.abs(moved - log_prob)))
        return facts

    def _at_centre(
        self, params: dict[str, Any], keep: dict[str, Array], batch: Data
    ) -> tuple[Array, Array, Array]:
        """Return log density, mean and value of the observed site, with one entry per row."""
        args, kwargs = arguments(batch)
        values = central_values(self._guide, params, args, kwargs, keep)
        values = {n: jnp.where(keep[n], v, 0) if n in keep else v for n, v in values.items()}
        with inference():
            sites = sites_of(self._model, args, kwargs, values={**params, **values})
        rows = length(batch)
        observed = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and site["is_observed"]
        }
        parted = bool(subsampling(sites))
        axes = row_axes(self._model, observed, batch, params, subsamples=parted)
        if len(axes) != 1:
            raise ValueError(f"the program has {len(axes)} observed sites with a value per row")
        ((name, axis),) = axes.items()
        site = observed[name]
        fn, value = site["fn"], jnp.asarray(site["value"])
        log_prob = fn.log_prob(value)
        base = inside(fn)
        classes = isinstance(base, _CLASSES)
        # One distribution may stand for the values of all rows.
        shape = log_density_shape(site) + fn.event_shape
        if isinstance(base, dist.BernoulliLogits | dist.BernoulliProbs):
            mean = jnp.broadcast_to(jnp.asarray(base.probs), shape)
            mean = jnp.stack([1 - mean, mean], -1)
        elif classes:
            probs = jnp.asarray(base.probs)
            mean = jnp.broadcast_to(probs, (*shape, probs.shape[-1]))
        else:
            mean = jnp.broadcast_to(fn.mean, shape)
        self._roles = {
            "targets": [i for i, a in enumerate(jax.tree.leaves(batch)) if a is site["value"]],
            "classes": classes,
            "real": fn.support is not None
            and not fn.support.is_discrete
            and _is_unbounded(element_support(fn)),
            "masked": isinstance(base, dist.MaskedDistribution),
        }
        by_row = jnp.moveaxis(log_prob, axis, 0).reshape(rows, -1).sum(-1)
        return by_row, jnp.moveaxis(mean, axis, 0), jnp.moveaxis(value, axis, 0)


def without_predictions(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that hold for every point of a path: all but what was measured of predictions."""
    return {name: value for name, value in facts.items() if name not in _OF_PREDICTIONS}


def _worth(log_prob: Any, mean: Any, value: Any, roles: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the predictions with the mean of the targets, or with the frequencies of the classes."""
    if roles["masked"] or not roles["targets"]:
        return {}
    rows = len(log_prob)
    facts: dict[str, Any] = {"nll": -float(np.mean(log_prob))}
    if roles["classes"] and mean.ndim == 2 and value.ndim == 1:
        counts = np.bincount(value.astype(int), minlength=mean.shape[1])
        part = counts / rows
        facts["accuracy"] = float(np.mean(mean.argmax(-1) == value))
        facts["trivial_accuracy"] = float(part.max())
        facts["trivial_nll"] = float(-np.sum(part[part > 0] * np.log(part[part > 0])))
    elif not roles["classes"] and mean.shape == value.shape and np.isfinite(mean).all():
        flat, predicted = value.reshape(rows, -1).astype(float), mean.reshape(rows, -1)
        variance = np.var(flat, axis=0)
        facts["rmse"] = float(np.sqrt(np.mean((flat - predicted) ** 2)))
        facts["trivial_rmse"] = float(np.sqrt(np.mean(variance)))
        if roles["real"] and (variance > 0).all():
            facts["trivial_nll"] = float(0.5 * np.sum(np.log(2 * np.pi * variance) + 1))
    return facts


def _is_unbounded(support: Any) -> bool:
    bounded = hasattr(support, "lower_bound") or hasattr(support, "upper_bound")
    return not bounded and support is not dist.constraints.boolean


def _names(model: Callable, batch: Data) -> list[str]:
    """Return the names of the arguments that the arrays of a batch are passed as."""
    args, kwargs = arguments(batch)
    try:
        known = list(inspect.signature(model).parameters)
    except (TypeError, ValueError):
        known = []
    parts = {known[i] if i < len(known) else f"data[{i}]": part for i, part in enumerate(args)}
    names = {
        id(leaf): n for n, part in {**parts, **kwargs}.items() for leaf in jax.tree.leaves(part)
    }
    return [names.get(id(leaf), f"data[{i}]") for i, leaf in enumerate(jax.tree.leaves(batch))]


def _scales(arrays: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    """Return which columns are far from unit scale; constant ones are left out."""
    found = []
    for name, array in arrays.items():
        real = np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)
        if not real or (array.dtype.kind in "iu" and array.ndim < 2):
            continue
        columns = array.reshape(len(array), -1).astype(float)
        if array.ndim > 2:
            columns = columns.reshape(-1, 1)  # an image, or a series: one scale for all of it
        spread, middle = columns.std(0), np.abs(columns.mean(0))
        far = (spread > 0) & (
            (spread > 10) | (spread < 0.05) | (middle > 5 * np.maximum(spread, 1))
        )
        if far.any():
            where = np.flatnonzero(far)
            found.append(
                {
                    "argument": name,
                    "role": role,
                    "columns": where[:5].tolist() if columns.shape[1] > 1 else [],
                    "num_columns": int(far.sum()),
                    "least": float(columns[:, where].min()),
                    "most": float(columns[:, where].max()),
                }
            )
    return found


def _correlation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest absolute correlation between two columns of an input, and which they are."""
    best: dict[str, Any] = {}
    for name, array in inputs.items():
        if array.dtype.kind != "f" or array.ndim != 2 or not 2 <= array.shape[1] <= _MOST_COLUMNS:
            continue
        array = np.asarray(array, float)
        varies = np.flatnonzero(array.std(0) > 0)
        if len(varies) < 2 or len(array) < 3:
            continue
        found = np.abs(np.corrcoef(array[:, varies], rowvar=False))
        np.fill_diagonal(found, 0.0)
        i, j = np.unravel_index(found.argmax(), found.shape)
        if found[i, j] > best.get("correlation", 0.0):
            pair = [int(varies[i]), int(varies[j])]
            best = {"correlation": float(found[i, j]), "correlated": pair, "correlated_in": name}
            best["num_columns"] = int(array.shape[1])
    return best
