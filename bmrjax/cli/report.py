"""What a run tells: results.json, the summary on the terminal, the plots."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from bmrjax.cli.build import num_outputs
from bmrjax.cli.options import Sparsify, config_of


def document_of(options: Sparsify, found: Any, result: Any) -> dict[str, Any]:
    """Return what results.json holds."""
    import platform
    import statistics
    from importlib.metadata import version

    import jax

    seconds = [row["seconds"] for row in result.history]
    reducing = _rounds(result.history)
    return {
        **{name: result.metrics.get(name) for name in ("accuracy", "nll", "ece", "rmse")},
        "vfe_per_datum": result.vfe_per_datum,
        "sparsity": result.sparsity,
        "sparsity_per_layer": result.sparsity_per_layer,
        "kept": result.num_kept,
        "total": result.num_total,
        "target_mean": _listed(found.target_mean),
        "target_scale": _listed(found.target_scale),
        "input_mean": _listed(found.input_mean),
        "input_scale": _listed(found.input_scale),
        "outputs": num_outputs(found),
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


def _rounds(history: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of each reduction; an epoch without one takes microseconds for it."""
    return [row["reduce_seconds"] for row in history if row.get("reduce_seconds", 0) > 1e-4]


def why_nothing_went(history: list[dict[str, Any]], path: list[dict[str, Any]]) -> str:
    """Return why a run removed nothing, in a sentence that says what to do."""
    if any(p["kept"] < p["total"] for p in path if not p.get("taken_back")):
        return "Nothing went: the held-out data chose the point before any reduction."
    if not _rounds(history):
        return f"Nothing went: no reduction fitted into {len(history)} epochs. Give more --epochs."
    if any(row["taken_back"] for row in history):
        return "Nothing went: every round raised the VFE and was taken back. Train longer."
    return (
        "Nothing went: no reduction proposed anything. Train longer, so that the posterior settles."
    )


def summary_of(document: dict[str, Any]) -> str:
    """Return what a finished run prints."""
    lines = []
    config = document["config"]
    classes = document.get("num_classes")
    task = "regression" if classes is None else f"{classes} classes"
    lines.append(
        f"{config['data']}, {task}, {config['net']}, {config['method']}, {config['epochs']} epochs"
    )
    labels = {
        "accuracy": "accuracy",
        "rmse": "RMSE (standardised target)",
        "nll": "NLL, nats a datum",
        "ece": "ECE",
        "vfe_per_datum": "VFE, nats a datum",
        "step_ms": "step, ms",
        "compile_seconds": "compilation, s",
        "seconds": "whole run, s",
    }
    for name, label in labels.items():
        if document.get(name) is not None:
            lines.append(f"  {label:<28}{document[name]:.4g}")
    if document["total"]:
        kept = f"{document['kept']:,} of {document['total']:,} ({document['sparsity']:.1%} removed)"
        what = "units kept" if config["method"] == "noise" else "weights kept"
        lines.append(f"  {what:<28}{kept}")
        for layer, sparsity in document["sparsity_per_layer"].items():
            lines.append(f"    {layer:<26}{sparsity:.1%} removed")
        if not document["sparsity"] and config["method"] in ("bmr", "noise"):
            lines.append(f"  {why_nothing_went(document['history'], document['path'])}")
    if document["skipped_steps"]:
        lines.append(f"  {'steps skipped (not finite)':<28}{document['skipped_steps']}")
    return "\n".join(lines)


def write_plots(result: Any, out: Path) -> None:
    """Write the plots of a run, if matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("bmrjax: no plots without matplotlib: pip install 'bmrjax[plots]'", file=sys.stderr)
        return
    from bmrjax import plot

    figures = {"learning_curves": plot.learning_curves(result)}
    if result.keep:
        figures["sparsity_per_layer"] = plot.sparsity_per_layer(result)
        figures["path"] = plot.path(result)
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=150)


def _listed(array: Any) -> Any:
    return None if array is None else array.tolist()
