"""The command `bmrjax report`: a page that explains a finished run."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax import nn
from bmrjax.cli.chosen_point import chosen_as, kept_by_the_fit
from bmrjax.cli.load_data import load_data
from bmrjax.cli.run_documents import read_results
from bmrjax.cli.run_folder import PAGE
from bmrjax.cli.run_report import linear_figures, name_of, shown
from bmrjax.cli.saved_options import ReportOptions
from bmrjax.cli.saved_run import loaded_run, of_a_whole_run
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.cli.underfits import underfit_findings
from bmrjax.cli.waiting import saying, waiting
from bmrjax.report import check_page_name, write_page
from bmrjax.run.page_words import of_rows, shown_number
from bmrjax.run.result_page import RunContext, result_page
from bmrjax.structure import compact

_NETWORKS = {
    "mlp": "a perceptron",
    "nnx-mlp": "a perceptron of Flax NNX",
    "lenet5": "LeNet-5",
    "lenet5-caffe": "LeNet-5 of Caffe",
    "vit": "a vision transformer",
    "nnx-vit": "a vision transformer of Flax NNX",
    "mlp-mixer": "an MLP-Mixer",
    "gru": "a GRU",
}
# Options of a run that say nothing about it.
_UNSAID = {"out", "data_root", "log", "progress", "resume", "overwrite", "mesh"}


def run_report(options: ReportOptions) -> None:
    """Write a page that explains a finished run."""
    if options.num_samples is not None and options.num_samples < 1:
        raise ValueError(f"--num-samples must be at least 1, got {options.num_samples}.")
    document = read_results(options.directory)
    out = options.directory / PAGE if options.out is None else options.out
    check_page_name(out)
    with waiting("loading the run and its data"):
        run, result = loaded_run(options.directory, document)
        data, notes = _held_out(run, options, document)
    if data is None:
        print(f"note: {notes[0]}")
    notes += of_temperatures(document)
    if linear := document.get("linear"):
        notes.append(f"On the test rows, {linear['name']} has {linear_figures(linear)}.")
    noise = run.method == "with-noise"
    example = jnp.zeros((2, *document["input_shape"]))

    def cut(at: Any) -> Mapping[str, Any]:
        if not noise:
            return at.compact(example, drop_inputs=True)
        network = nn.without_noise(at.network(example)["net"])
        return {"net": compact(network, example[0], drop_inputs=True)}

    with saying() as say:
        with of_a_whole_run(options.directory):
            page = result_page(
                result,
                data=data,
                # That of the run's own metrics.
                key=None if data is None else jax.random.key(run.seed + 1),
                inputs=(example,),
                num_samples=1
                if run.method == "map"
                else options.num_samples or run.num_samples or 100,
                title=_title(run, document),
                command=_command(options, document, out),
                costs=options.costs,
                latency=options.latency,
                context=RunContext(
                    settings=_settings(document),
                    notes=notes,
                    unit="units" if noise else "weights",
                    cut=cut,
                    anew=False,
                    remarks=_remarks(document),
                    chosen=_chosen(document),
                ),
                doing=say,
            )
        say("writing the page")
        write_page(page, out)
    print(f"{out.stat().st_size:,} bytes in {out}")


def _held_out(
    run: SparsifyOptions, options: ReportOptions, document: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """Return the held-out data of a run, None if they are not there any more, and notes for the reader."""
    try:
        found = load_data(replace(run, data_root=options.data_root))
    except (OSError, ValueError, ImportError) as error:
        why = " ".join(str(error).split())
        return None, [
            f"The held-out data could not be read, so that there is no calibration: {why}"
        ]
    # A file may have changed since: its rows would be other ones, and some of them in the training data.
    before = [
        document[f"{part}_{name}"] for part in ("input", "target") for name in ("mean", "scale")
    ]
    now = [found.input_mean, found.input_scale, found.target_mean, found.target_scale]
    if not all(_same(a, b) for a, b in zip(before, now, strict=True)):
        return None, [
            f"{run.data} has changed since the run, so that no calibration was measured on it."
        ]
    notes = []
    if found.target_scale is not None and np.size(found.target_scale) == 1:
        name = (document.get("target_names") or ["the target"])[0]
        scale = float(np.ravel(found.target_scale)[0])
        notes.append(
            f"The RMSE is of the standardised target; times {scale:.4g} it is in the unit of {name}."
        )
    return found.test, notes


def of_temperatures(document: Mapping[str, Any]) -> list[str]:
    """Return notes on the fits that were compared with each other and with a point estimate, if any were."""
    compared = document.get("temperatures")
    if compared is None:
        return []
    fits, point = compared["fits"], compared["point_estimate_nll"]
    found = underfit_findings(document)
    more = [f"{each['message']} {each['advice']}" for each in found]
    if len(fits) == 1:
        return [
            f"NLL of the validation rows, in nats per row: {shown(fits[0]['nll'], '.3g')} by this fit, "
            f"{shown(point, '.3g')} by a point estimate.",
            *more,
        ]
    each = "; ".join(
        f"{shown(fit['nll'], '.3g')} at {name_of(fit)}, and {fit['kept']:,} weights" for fit in fits
    )
    number, temperature = compared["taken"] + 1, fits[compared["taken"]]["temperature"]
    tempered = "whose free energies count the likelihood one over its temperature times"
    return [
        f"NLL of the validation rows, in nats per row: {each}; a point estimate has {shown(point, '.3g')}. "
        f"Fit {number} of these was taken, at temperature {temperature:g}"
        + (f", {tempered}." if temperature != 1 else "."),
        *more,
    ]


def _same(saved: Any, now: Any) -> bool:
    if saved is None or now is None:
        return saved is None and now is None
    saved, now = np.asarray(saved, np.float64), np.asarray(now, np.float64)
    return saved.shape == now.shape and bool(np.allclose(saved, now, rtol=1e-5, atol=1e-8))


def _title(run: SparsifyOptions, document: Mapping[str, Any]) -> str:
    classes, targets = document["num_classes"], document.get("target_names") or ()
    task = "regression" if classes is None else f"{classes} classes"
    what = ", ".join(targets) if 0 < len(targets) <= 3 else Path(run.data).name
    return f"{what}: {task}, {_NETWORKS.get(run.net, run.net)}"


def _remarks(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands beside the metrics: the rows that they are of, and the unit of the target."""
    found, rows = {}, document.get("test_rows")
    if document["accuracy"] is not None and rows:
        found["accuracy"] = of_rows(document["accuracy"], rows)
    errors = document.get("rmse_by_target") or []
    if len(errors) == 1 and errors[0] is not None:
        name = (document.get("target_names") or ["the target"])[0]
        found["rmse"] = f"{shown_number(errors[0])} in the unit of {name}"
    return found


def _chosen(document: Mapping[str, Any]) -> str:
    """Return why the run ended at its point, in a sentence; empty where that is not known."""
    reason, before = chosen_as(document), kept_by_the_fit(document)
    if not reason:
        return ""
    last = "" if before is None else f" The fit itself ended with {before:,}."
    return f"The point of this result is {reason}.{last}"


def _command(options: ReportOptions, document: Mapping[str, Any], out: Path) -> str:
    made = shlex.join(["bmrjax", "report", str(options.directory), "--out", str(out)])
    return f"{document['command']} && {made}" if document.get("command") else made


def _settings(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a run that were set, and the versions that it ran with."""
    found = {
        f"--{name.replace('_', '-')}": _shown(value)
        for name, value in document["config"].items()
        if name not in _UNSAID and value not in (None, False, [], "")
    }
    versions = document.get("versions")
    if isinstance(versions, Mapping):
        found["Versions of the run"] = ", ".join(f"{name} {v}" for name, v in versions.items())
    return found


def _shown(value: Any) -> str:
    if value is True:
        return "yes"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
