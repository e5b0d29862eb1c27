"""What a run tells: results.json, the summary on the terminal, the plots."""

import functools
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bmrjax.cli.build import num_outputs
from bmrjax.cli.chosen_point import chosen_as, kept_by_the_fit
from bmrjax.cli.linear_model import linear_model, worse_than_linear
from bmrjax.cli.run_folder import config_of
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.files import write_atomically
from bmrjax.run.choose import row_log_prob
from bmrjax.run.diagnose import Finding
from bmrjax.run.input_paths import input_paths
from bmrjax.run.page_words import share_error


def document_of(options: SparsifyOptions, found: Any, result: Any) -> dict[str, Any]:
    """Return what results.json holds."""
    import platform
    import statistics
    from importlib.metadata import version

    seconds = [row["seconds"] for row in result.history]
    reducing = _rounds(result.history)
    linear, worse = beside_linear(options, found, result)
    return {
        **{name: result.metrics.get(name) for name in ("accuracy", "nll", "ece", "rmse")},
        "vfe_per_datum": result.vfe_per_datum,
        "temperature": result.temperature,
        "sparsity": result.sparsity,
        "sparsity_per_layer": result.sparsity_per_layer,
        "kept": result.num_kept,
        "total": result.num_total,
        "target_mean": _listed(found.target_mean),
        "target_scale": _listed(found.target_scale),
        "input_mean": _listed(found.input_mean),
        "input_scale": _listed(found.input_scale),
        "outputs": num_outputs(found),
        "columns": _listed_names(found.columns),
        "inputs_kept": used_inputs(result, found.columns),
        "target_names": _listed_names(found.target_names),
        "class_names": _listed_names(found.class_names),
        "table": None if found.encoding is None else found.encoding.to_json(),
        "notes": list(found.notes),
        "test_rows": len(found.test[0]),
        "trivial": trivial_metrics(found),
        **linear,
        **in_target_units(options, found, result),
        "findings": findings_of([*result.diagnose(), *worse]),
        "init_seconds": result.timing["init_seconds"],
        "compile_seconds": result.timing["compile_seconds"],
        "seconds": result.timing["seconds"],
        # An epoch that settled took fewer steps than another.
        "step_ms": 1e3 * statistics.median(row["seconds"] / row["steps"] for row in result.history),
        "reduce_ms": 1e3 * statistics.median(reducing) if reducing else None,
        # Medians: the first round also compiles.
        "reduce_fraction": (
            statistics.median(reducing) / statistics.median(seconds) if reducing else None
        ),
        "skipped_steps": result.num_skipped,
        "loop": result.loop_mode,
        "command": shlex.join(["bmrjax", *sys.argv[1:]]),
        "config": config_of(options),
        "input_shape": list(found.input_shape),
        "num_classes": found.num_classes,
        "seed": options.seed,
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {
            p: version(p) for p in ("bmrjax", "jax", "numpyro", "equinox", "flax", "optax")
        },
        "history": result.history,
        "path": [
            {
                "vfe_per_datum": p.vfe / result.num_data,
                **{k: getattr(p, k) for k in ("epoch", "kept", "total", "metrics", "taken_back")},
            }
            for p in result.path
        ],
    }


def beside_linear(
    options: SparsifyOptions, found: Any, result: Any
) -> tuple[dict[str, Any], list[Finding]]:
    """Return what a linear model reaches on the test rows, for results.json, and a finding where it wins."""
    linear = linear_model(found)
    if linear is None:
        return {}, []
    samples = 1 if options.method == "map" else options.num_samples or 100
    key = jax.random.key(options.seed + 1)  # that of the run's own metrics
    finding = worse_than_linear(linear, row_log_prob(result, key, found.test, num_samples=samples))
    return {"linear": {"name": linear.name} | linear.metrics}, [finding] if finding else []


def linear_figures(linear: Mapping[str, Any]) -> str:
    """Return what a linear model reaches, in words."""
    name = "rmse" if linear.get("accuracy") is None else "accuracy"
    return f"{name.replace('rmse', 'RMSE')} {shown(linear[name], '.4g')}, NLL {shown(linear['nll'], '.4g')}"


def trivial_metrics(found: Any) -> dict[str, float]:
    """Return what a prediction without inputs reaches on the held-out rows.

    It is the mean and the variance of the training targets, or the shares of the classes.
    """
    y, held = (np.asarray(part[1], np.float64) for part in (found.train, found.test))
    if found.num_classes is None:
        # Training targets are standardised.
        square = np.square(held)
        per_row = 0.5 * (square + math.log(2 * math.pi)).reshape(len(held), -1).sum(1)
        return {"rmse": float(np.sqrt(square.mean())), "nll": float(per_row.mean())}
    shares = (np.bincount(y.astype(int), minlength=found.num_classes) + 1e-6) / len(y)
    held = held.astype(int)
    return {
        "accuracy": float(np.mean(held == shares.argmax())),
        "nll": float(-np.mean(np.log(shares[held]))),
    }


def in_target_units(options: SparsifyOptions, found: Any, result: Any) -> dict[str, Any]:
    """Return figures of a regression in the units of its targets.

    They are the RMSE of each target, that of the training mean beside it, and the NLL per data point of all
    targets, whose density has the unit too.
    """
    if found.num_classes is not None or "rmse" not in result.metrics:
        return {}
    scale = np.asarray(found.target_scale, np.float64).ravel()
    y = np.asarray(found.test[1], np.float64)
    y = y.reshape(len(y), -1)
    if y.shape[1] == 1:
        errors = np.array([result.metrics["rmse"]])
    else:
        samples = 1 if options.method == "map" else options.num_samples or 100
        key = jax.random.key(options.seed + 2)
        prediction = result.predict(key, found.test[0], num_samples=samples)
        errors = np.sqrt(np.square(np.asarray(prediction.mean).reshape(y.shape) - y).mean(0))
    scale = np.broadcast_to(scale, errors.shape)
    return {
        "rmse_by_target": (errors * scale).tolist(),
        "trivial_rmse_by_target": (np.sqrt(np.square(y).mean(0)) * scale).tolist(),
        "nll_in_target_units": result.metrics["nll"] + float(np.log(scale).sum()),
    }


def used_inputs(result: Any, columns: Sequence[str] | None) -> list[str] | None:
    """Return the inputs from which kept weights lead to an output, in order.

    Args:
        result: Of a run on a table with an `zoo.MLP`.
        columns: Names of the inputs; None where they have none.

    Returns:
        Their names; None without names, or where the network is not a chain of layers.
    """
    paths = None if columns is None else input_paths(result.keep)
    if paths is None or columns is None or paths.leads.shape[1] != len(columns):
        return None
    return [column for i, column in enumerate(columns) if paths.leads[:, i].any()]


def findings_of(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return findings as JSON."""
    return [
        {"code": finding.code, "message": finding.message, "advice": finding.advice}
        for finding in findings
    ]


def _listed_names(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _rounds(history: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of each reduction; an epoch without one takes microseconds for it."""
    return [row["reduce_seconds"] for row in history if row.get("reduce_seconds", 0) > 1e-4]


def why_nothing_went(history: list[dict[str, Any]], path: list[dict[str, Any]]) -> str:
    """Return why a run removed nothing, in a sentence that says what to do."""
    if any(p["kept"] < p["total"] for p in path if not p.get("taken_back")):
        return "Nothing is removed: the held-out data chose the point before any reduction."
    if not _rounds(history):
        return f"Nothing is removed: no reduction fitted into {len(history)} epochs. Give more --num-epochs."
    if any(row["taken_back"] for row in history):
        return "Nothing is removed: every round raised the VFE and was taken back. Train longer."
    return "Nothing is removed: no reduction proposed anything. Train longer, so that the posterior settles."


def summary_of(document: dict[str, Any]) -> str:
    """Return what a finished run prints."""
    config = document["config"]
    classes = document.get("num_classes")
    task = "regression" if classes is None else f"{classes} classes"
    lines = [
        f"{config['data']}, {task}, {config['net']}, {config['method']}, {config['num_epochs']} epochs"
    ]
    labels = {
        "accuracy": "accuracy",
        "rmse": "RMSE, standardised target",
        "nll": "NLL per data point, nats",
        "ece": "ECE",
        "vfe_per_datum": "VFE per data point, nats",
        "step_ms": "step, ms",
        "compile_seconds": "compilation, s",
        "seconds": "whole run, s",
    }
    if (temperature := document.get("temperature", 1.0)) != 1:
        labels["vfe_per_datum"] = f"VFE at temperature {temperature:g}"
    trivial = document.get("trivial") or {}
    without_inputs = "the targets' mean" if classes is None else "the classes' shares alone"
    linear = document.get("linear")
    for name, label in labels.items():
        if name == "vfe_per_datum" and linear:
            lines.append(f"  {linear['name']:<28}{linear_figures(linear)}")
        if document.get(name) is not None:
            beside = (
                f"   ({shown(trivial[name], '.4g')} by {without_inputs})" if name in trivial else ""
            )
            error = _error(name, document)
            lines.append(f"  {label:<28}{document[name]:.4g}{error}{beside}")
        if name == "rmse":
            lines += _in_target_units(document)
        unit = document.get("nll_in_target_units")
        if name == "nll" and unit is not None:
            lines.append(f"    {'in units of the targets':<25} {unit:.4g}")
    if document["total"]:
        kept = f"{document['kept']:,} of {document['total']:,} ({document['sparsity']:.1%} removed)"
        what = "units kept" if config["method"] == "with-noise" else "weights kept"
        lines.append(f"  {what:<28}{kept}")
        lines += _chosen(document)
        for layer, sparsity in document["sparsity_per_layer"].items():
            lines.append(f"    {layer:<26}{sparsity:.1%} removed")
        explained = {"nothing-removed", "rounds-taken-back"} & {
            finding["code"] for finding in document.get("findings", ())
        }
        reduces = config["method"] in ("bmr", "with-noise")
        if reduces and not document["sparsity"] and not explained:
            lines.append(f"  {why_nothing_went(document['history'], document['path'])}")
    if compared := document.get("temperatures"):
        lines += _temperatures(compared)
    kept_inputs = document.get("inputs_kept")
    if kept_inputs is not None:
        more = f" and {len(kept_inputs) - 20} more" if len(kept_inputs) > 20 else ""
        names = f"{', '.join(kept_inputs[:20])}{more}" or "none"
        lines.append(
            f"  {'inputs kept':<28}{names} ({len(kept_inputs)} of {len(document['columns'])})"
        )
    if document["skipped_steps"]:
        lines.append(f"  {'steps skipped (not finite)':<28}{document['skipped_steps']}")
    for finding in document.get("findings", ()):
        lines.append(f"  {finding['code']}: {finding['message']} {finding['advice']}")
    return "\n".join(lines)


def _error(name: str, document: Mapping[str, Any]) -> str:
    """Return the standard error of an accuracy and the rows that it is of, where these are known."""
    rows = document.get("test_rows")
    if name != "accuracy" or not rows:
        return ""
    error = share_error(document[name], rows)
    return (f" ± {error:.2g}" if error else "") + f" on {rows:,} test rows"


def _chosen(document: Mapping[str, Any]) -> list[str]:
    """Return why the run ended at its point, and what the fit ended with."""
    reason = chosen_as(document)
    if not reason:
        return []
    before = kept_by_the_fit(document)
    last = "" if before is None else f"; the fit ended with {before:,}"
    return [f"    {'chosen as':<26}{reason}{last}"]


def _temperatures(compared: dict[str, Any]) -> list[str]:
    """Return the lines on the fits that were compared on validation rows, and the point estimate."""
    lines = [
        f"  {'NLL of validation rows':<28}{shown(compared['point_estimate_nll'], '.4g')} by a point estimate"
    ]
    for i, fit in enumerate(compared["fits"]):
        taken = ", taken" if i == compared["taken"] else ""
        lines.append(
            f"    {shown(fit['nll'], '.4g'):<26}at {name_of(fit)}, {fit['kept']:,} weights{taken}"
        )
    return lines


def name_of(fit: Mapping[str, Any]) -> str:
    """Return what tells a fit of a document from the others: temperature, start and warm-up."""
    start = f" from {fit['start']:g}" if "start" in fit else ""
    slowly = " with a slow warm-up" if fit.get("slow_warm_up") else ""
    return f"temperature {fit['temperature']:g}{start}{slowly}"


def shown(number: float | None, form: str) -> str:
    """Return a number of a document, in which those that are not finite are None."""
    return "not finite" if number is None else format(number, form)


def _in_target_units(document: dict[str, Any]) -> list[str]:
    """Return a line for the RMSE of each target in its own unit."""
    errors = document.get("rmse_by_target") or []
    trivial = document.get("trivial_rmse_by_target") or [None] * len(errors)
    names = document.get("target_names") or _target_numbers(len(errors))
    return [
        f"    {f'in the unit of {name}':<25} {shown(error, '.4g')}"
        + ("" if beside is None else f"   ({shown(beside, '.4g')} by the targets' mean)")
        for name, error, beside in zip(names, errors, trivial, strict=False)
    ]


def _target_numbers(count: int) -> list[str]:
    return ["the target"] if count == 1 else [f"target {i}" for i in range(count)]


def write_plots(result: Any, out: Path, rows: Any) -> str | None:
    """Write the plots of a run, if matplotlib is there; else return what to install.

    Args:
        result: Of the run.
        out: Folder of the run.
        rows: Inputs of the network, two rows of them.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "bmrjax: no plots without matplotlib: pip install 'bmrjax[plots]'"
    from bmrjax import plot

    figures = {"learning_curves": plot.learning_curves(result)}
    if result.keep:
        figures["sparsity_per_layer"] = plot.sparsity_per_layer(result)
        figures["path"] = plot.path(result)
        if used_inputs(result, result.columns) is not None:
            figures["inputs"] = plot.inputs(result, rows)
    for name, figure in figures.items():
        write_atomically(out / f"{name}.png", functools.partial(figure.savefig, dpi=150))
    return None


def _listed(array: Any) -> Any:
    return None if array is None else array.tolist()
