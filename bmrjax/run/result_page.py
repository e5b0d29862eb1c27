"""The page that explains a result; see `Result.report`."""

import contextlib
import itertools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from bmrjax.checks import check_key
from bmrjax.handlers import inference
from bmrjax.infer.arguments import Data, arguments, first_rows, length
from bmrjax.infer.posterior import guide_posteriors
from bmrjax.infer.tracing import sites_of
from bmrjax.report import FactList, Notes, Page, Section
from bmrjax.run.input_paths import input_paths
from bmrjax.run.page_coefficients import coefficients_section
from bmrjax.run.page_path import path_section, present_point
from bmrjax.run.page_predictions import calibration_section, point_metrics
from bmrjax.run.page_removals import agreement_section, removals_section
from bmrjax.run.page_words import LABELS, of_rows, shown_number
from bmrjax.run.path_costs import MOST_POINTS, path_costs
from bmrjax.run.path_rounds import path_rounds, removal_of_each
from bmrjax.structure.input_weights import input_weights

_PACKAGES = ("bmrjax", "jax", "numpyro", "equinox", "flax", "optax", "numpy")


@dataclass(frozen=True)
class RunContext:
    """What the command line knows of a run, and a result does not.

    Attributes:
        settings: Names and values.
        notes: Sentences about the numbers along the path.
        unit: What is kept or removed.
        cut: Cuts the networks of a result; `Result.compact` by default.
        anew: Whether the metrics that the run has taken are taken again, on the held-out data; else these
            are the data that it took them on.
        remarks: What stands beside a metric of the result, by the name of the metric, such as the number of
            rows that it was measured on.
        chosen: Why the result is at its point of the path, in a sentence.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    unit: str = "elements"
    cut: Callable[[Any], Mapping[str, Any]] | None = None
    anew: bool = True
    remarks: Mapping[str, str] = field(default_factory=dict)
    chosen: str = ""


def result_page(
    result: Any,
    *,
    data: Any = None,
    key: Array | None = None,
    inputs: Any = (),
    num_samples: int = 100,
    title: str = "What was kept, and what was removed",
    command: str = "",
    free_energy: Any = None,
    costs: bool = True,
    latency: bool = False,
    context: RunContext | None = None,
    doing: Callable[[str], Any] = lambda _: None,
) -> Page:
    """Return what a report on a result shows; see `Result.report` for the arguments.

    Args:
        result: A `Result`.
        data: Held-out data.
        key: PRNG key for `data`.
        inputs: Arguments of the program.
        num_samples: Posterior samples.
        title: Heading.
        command: That makes the report again.
        free_energy: A `FreeEnergyReport`.
        costs: Whether networks are cut, and counted.
        latency: Whether they are timed.
        context: What else is known of the run.
        doing: Is called with what is done next, in words.
    """
    of_run = RunContext() if context is None else context
    notes, given, remarks, unit = list(of_run.notes), data, dict(of_run.remarks), of_run.unit
    if not isinstance(inputs, tuple | list | Mapping):
        raise TypeError(
            "Result.report: inputs are the arguments of the program, a tuple such as (x[:2],) or a dict; got "
            f"{type(inputs).__name__}."
        )
    program = result.unpruned_model is not None and result.unpruned_guide is not None
    if data is not None:
        check_key(key, "Result.report", num_samples=num_samples)
        data = result._checked(data, "Result.report: data")
        check_targets(result, data)
    doing("measuring each point of the path")
    batch = _batch(result, given, inputs, notes) if program else None
    metrics = point_metrics(result, data, key, num_samples=num_samples, anew=of_run.anew)
    if not program:
        notes.append(
            "The result was loaded without its program, so that ΔF and costs are not known."
        )
    result = _with_own_metrics(result, metrics, data if of_run.anew else None, key, num_samples)
    if data is not None and "accuracy" in result.metrics:
        remarks.setdefault("accuracy", of_rows(result.metrics["accuracy"], length(data)))
    doing("comparing what rounds predicted with what was measured")
    rounds = path_rounds(result, batch)
    each = removal_of_each(result, rounds)
    found = {}
    if costs and batch is not None and result.path:
        found = _costs(result, batch, of_run.cut, latency=latency, notes=notes, doing=doing)
    doing("predicting held-out rows")
    sections = [
        path_section(result, metrics, found, unit=unit, chosen=of_run.chosen, note=" ".join(notes)),
        removals_section(result, rounds, each, metrics, unit=unit, leads=_leads(result, batch)),
        agreement_section(rounds, free_energy),
        calibration_section(result, data, key, num_samples=num_samples),
        None if batch is None else _coefficients(result, batch),
        findings_section(result.diagnose()),
        made_section(_settings(result) | dict(of_run.settings), command),
    ]
    return Page(
        title=title,
        lead=_lead(result, metrics, unit, remarks),
        figures=_figures(result, unit, remarks),
        sections=[section for section in sections if section is not None],
        version=_version("bmrjax"),
    )


def findings_section(findings: Sequence[Any]) -> Section:
    """Return what a diagnosis says.

    Args:
        findings: Each with a `code`, a `message` and an `advice`.
    """
    rows = [(finding.code, finding.message, finding.advice) for finding in findings]
    none = "The diagnosis found nothing that is wrong with this run."
    return Section("findings", "Findings", "", [Notes(rows, none)])


def made_section(settings: Mapping[str, str], command: str) -> Section:
    """Return settings, versions, and how to make it again.

    Args:
        settings: Names and values.
        command: Of a shell, or of Python; empty where it is not known.
    """
    versions = [(name, _version(name)) for name in _PACKAGES]
    blocks = [FactList([("Command", command)], code=True)] if command else []
    blocks.append(FactList([*settings.items(), ("Python", platform.python_version()), *versions]))
    return Section("made", "How it was made", "Settings and versions.", blocks)


def check_targets(result: Any, data: Data) -> None:
    """Raise ValueError for held-out data in which the program observes nothing."""
    model = result.unpruned_model if result.unpruned_model is not None else result.model
    observed: list[bool] = []

    def look(data: Data, params: Any) -> None:
        args, kwargs = arguments(data)
        sites = sites_of(model, args, kwargs, key=jax.random.key(0), values=params).values()
        observed.extend(s["type"] == "sample" and s["is_observed"] for s in sites)

    with inference():
        jax.eval_shape(look, data, dict(result.params))
    if not any(observed):
        raise ValueError(
            "Result.report: the held-out data have no targets, so nothing can be measured on them. Give them "
            "as to sparsify, such as data=(x, y); inputs alone go to inputs=(x,)."
        )


def _batch(result: Any, data: Any, inputs: Any, notes: list[str]) -> Data | None:
    """Return arguments of the program, with guides ready for use; None if it cannot be run."""
    given = data if data is not None else inputs
    named = dict(given) if isinstance(given, Mapping) else {}
    try:
        found = result._inputs(
            () if named else tuple(given), named, "report", program=result.unpruned_model
        )
    except ValueError:
        if given:
            raise
        notes.append(
            "ΔF and costs are not known without data: give held-out data, or inputs=(x,), to result.report."
        )
        return None
    # Enough for posteriors and costs, where rows do not depend on each other.
    return first_rows(found, min(2, length(found))) if result.by_rows and given else found


def _leads(result: Any, batch: Data | None) -> dict[str, np.ndarray]:
    """Return which weights lead from an input to an output, by the site of a network's first layer."""
    paths = input_paths(result.keep)
    if paths is not None:
        return {paths.site: paths.leads}
    args, kwargs = ((), {}) if batch is None else arguments(batch)
    found: dict[str, np.ndarray] = {}
    if kwargs or not args or not result.columns:
        return found
    # Networks whose input is not read by dense layers alone have none.
    with contextlib.suppress(ValueError, TypeError):
        for name, (network, example) in result._networks(*args).items():
            read = input_weights(network, *example)
            if len(read.names) == 1:
                found[f"{name}.{read.names[0]}"] = read.leads
    return found


def _costs(
    result: Any,
    batch: Data,
    cut: Any,
    *,
    latency: bool,
    notes: list[str],
    doing: Callable[[str], Any],
) -> dict[int, Any]:
    args, kwargs = arguments(batch)
    if cut is None:
        if kwargs or not args:
            return {}
        cut = lambda at: at.compact(*args)  # noqa: E731
    numbers, most = itertools.count(1), min(len(result.path), MOST_POINTS)

    def counted(at: Any) -> Mapping[str, Any]:
        doing(f"cutting networks to what they use, {next(numbers)} of {most}")
        return cut(at)

    try:
        here = present_point(result)
        always = len(result.path) - 1 if here is None else here
        found = path_costs(result, counted, always=always, with_latency=latency)
    except (ValueError, TypeError) as error:
        notes.append(
            f"The networks could not be cut to what they use: {' '.join(str(error).split())}"
        )
        return {}
    if found:
        notes.append("Bytes and FLOPs are those of the network that result.compact() returns.")
        if len(result.path) > MOST_POINTS:
            notes.append(f"They were measured at {len(found)} points.")
    return found


def _with_own_metrics(
    result: Any, metrics: list[dict[str, float]], data: Any, key: Any, num_samples: int
) -> Any:
    """Return the result with the metrics of its point; without data, put its own into `metrics`."""
    here = present_point(result)
    own = result.metrics
    if data is not None:
        own = metrics[here] if here is not None else {}
        own = own or result._evaluator().metrics(
            result.params, result.keep, data, key, num_samples=num_samples
        )
    elif here is not None:
        # The run took them from more samples than those of the path.
        metrics[here] = own = metrics[here] | own
    return replace(result, metrics=dict(own))


def _coefficients(result: Any, batch: Data) -> Section | None:
    args, kwargs = arguments(batch)
    try:
        posterior = guide_posteriors(
            result.unpruned_guide, result.params, args, kwargs, result.keep
        )
    except ValueError:  # a point estimate
        return None
    return coefficients_section(result, posterior)


def _lead(
    result: Any,
    metrics: Sequence[Mapping[str, float]],
    unit: str,
    remarks: Mapping[str, str],
) -> str:
    if not result.num_total:
        return "A fit without a criterion: nothing could be removed."
    text = f"{result.num_kept:,} of {result.num_total:,} {unit} are kept; {result.sparsity:.1%} were removed."
    if result.path:
        first = max(range(len(result.path)), key=lambda i: result.path[i].kept)
        dense = result.path[first]
        for name in ("accuracy", "rmse"):
            if name in result.metrics and name in metrics[first]:
                now, then = (shown_number(m[name], name) for m in (result.metrics, metrics[first]))
                word = {"accuracy": "accuracy", "rmse": "RMSE"}[name]
                beside = f" ({remarks[name]})" if name in remarks else ""
                text += f" Held-out {word} is {now}{beside}; it was {then} with {dense.kept:,}."
    return text


def _figures(result: Any, unit: str, remarks: Mapping[str, str]) -> list[tuple[str, str, str]]:
    found = []
    if result.num_total:
        found.append(
            (f"{unit.capitalize()} kept", f"{result.num_kept:,}", f"of {result.num_total:,}")
        )
        found.append(("Removed", f"{result.sparsity:.1%}", ""))
    if result.vfe is not None:
        found.append(("VFE per data point", shown_number(result.vfe / result.num_data), "nats"))
    for name, label in LABELS.items():
        if name in result.metrics:
            shown = shown_number(result.metrics[name], name)
            found.append((label, shown, remarks.get(name, "")))
    return found


def _settings(result: Any) -> dict[str, str]:
    facts, timing = result.facts, result.timing
    found = {
        "Data points": f"{result.num_data:,}",
        "Criterion": facts.get("criterion"),
        "Guide": facts.get("guide"),
        "Epochs": f"{len(result.history):,}" if result.history else None,
        "Points on the path": f"{len(result.path):,}" if result.path else None,
        "Steps skipped (not finite)": f"{result.num_skipped:,}" if result.num_skipped else None,
        "Seconds": shown_number(timing.get("seconds")) if timing else None,
        "Device": jax.devices()[0].device_kind,
    }
    found |= {name: _plain(value) for name, value in result.hyperparameters.items()}
    return {name: value for name, value in found.items() if value}


def _plain(value: Any) -> str:
    return shown_number(float(value)) if isinstance(value, int | float | np.number) else str(value)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
