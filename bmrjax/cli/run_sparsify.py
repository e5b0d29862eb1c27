"""The command `bmrjax sparsify`."""

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bmrjax import __version__
from bmrjax.callbacks.records import Record, RunStart
from bmrjax.cli.build import (
    build_callbacks,
    build_criterion,
    build_mesh,
    build_network,
    build_optimizer,
    build_programs,
    build_schedule,
    num_outputs,
)
from bmrjax.cli.check_options import check_lengths
from bmrjax.cli.colder import fit_colder, may_be_colder
from bmrjax.cli.config_file import config_text, read_config, with_former
from bmrjax.cli.documents import write_json
from bmrjax.cli.load_data import load_data
from bmrjax.cli.proportion import in_proportion, proportion_line
from bmrjax.cli.refit_folders import check_refits
from bmrjax.cli.run_folder import (
    COLDER,
    COMMAND_LOCK,
    CONFIG,
    OURS,
    PAGE,
    PLOTS,
    SLOWLY,
    FurtherFit,
    check_folder,
    config_of,
    resumed,
)
from bmrjax.cli.run_report import document_of, summary_of, write_plots
from bmrjax.cli.sparsify_options import SparsifyOptions, kl_warmup_epochs_of
from bmrjax.cli.underfits import underfit_findings
from bmrjax.cli.waiting import saying, waiting
from bmrjax.data import split_rows
from bmrjax.data.dataset import MANY_ROWS, Dataset
from bmrjax.errors import CallbackError, FitWarning, NonFiniteError
from bmrjax.files import make_folder, write_atomically
from bmrjax.run.checkpoint_options import Checkpoints
from bmrjax.run.choose_point import ChosenPoint, choose_point
from bmrjax.run.continued import prepared
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.held_out import HeldOut
from bmrjax.run.result import Result
from bmrjax.run.sparsify import sparsify
from bmrjax.run_lock import RunLock

# The weights that read the inputs, in an mlp.
FIRST_LAYER = "net.layers.0.weight"
# The exit status of a run whose predictions do not depend on the inputs.
CONSTANT = 3


def run_sparsify(options: SparsifyOptions) -> None:
    """Fit, reduce, and write the folder of the run.

    Raises:
        SystemExit: With status 3, after everything is written, if the predictions do not depend on the
            inputs.
    """
    out, typed = options.out, options
    options = resumed(options)

    found = load_data(options)
    given, rows = options, len(found.train[0])
    options = in_proportion(options, rows, found.input_shape)
    check_lengths(options)
    assert options.batch_size is not None
    assert options.num_epochs is not None
    for note in found.notes:
        print(f"note: {note}.")
    print(proportion_line(given, options, rows))
    model, guide = build_programs(options, found.input_shape, num_outputs(found), found.num_classes)
    schedule, mesh = build_schedule(options), build_mesh(options)
    make_folder(out)
    # One command at a time, and none beside a run that was started from Python.
    with RunLock(out, COMMAND_LOCK):
        RunLock(out).release()
        # What was there may have changed while the data were read.
        check_folder(typed)
        if options.resume or options.overwrite:
            check_refits(out, resume=options.resume)
        _fit(typed, options, found, model, guide, schedule=schedule, mesh=mesh)


def _fit(
    typed: SparsifyOptions,
    options: SparsifyOptions,
    found: Dataset,
    model: Any,
    guide: Any,
    *,
    schedule: Any,
    mesh: Any,
) -> None:
    """Run the fit and write the folder, which is this command's own."""
    out, rows = options.out, len(found.train[0])
    assert options.batch_size is not None
    num_epochs = options.num_epochs
    assert num_epochs is not None
    # An earlier run goes only when the new one has its data and its program.
    if options.overwrite:
        remove_run(out)
        if options.log is not None:
            options.log.unlink(missing_ok=True)
    if options.resume and (out / CONFIG).is_file():
        typed = with_former(typed, read_config(out / CONFIG))
    if not options.resume:
        write_options(typed, options)

    def keep_options(record: Record) -> None:
        # Once the run goes on: a refused --resume changes nothing.
        if isinstance(record, RunStart) and options.resume:
            write_options(typed, options)

    stratify = found.num_classes is not None and rows <= MANY_ROWS
    train, validation = split_off(found.train, options, stratify=stratify)
    test: Any = found.test
    size = min(options.batch_size, len(train[0]))
    steps = options.steps_per_epoch or max(len(train[0]) // size, 1)
    held_out = HeldOut(test, final_samples=options.num_samples)
    if options.method == "map":
        held_out = HeldOut(test, samples=1, final_samples=1)

    def fit(fitted: FurtherFit, callbacks: list[Any], start: Result | None = None) -> ChosenPoint:
        # A fit that goes on from another one takes half as long.
        epochs = num_epochs if start is None else max(num_epochs // 2, 1)
        warm_up = None if fitted.slowly else kl_warmup_epochs_of(options) * steps
        checkpoints = Checkpoints(out / fitted.folder, resume=options.resume)
        if start is not None:
            checkpoints = prepared(checkpoints, start)
        with warnings.catch_warnings():
            # These are of the point where the fit ended; what is found at the point chosen is printed below.
            warnings.simplefilter("ignore", FitWarning)
            result = sparsify(
                model,
                train,
                key=jax.random.key(options.seed),
                num_epochs=epochs,
                criterion=build_criterion(options, found.input_shape, num_outputs(found)),
                schedule=schedule,
                guide=guide,
                optimizer=build_optimizer(options),
                batch_size=options.batch_size,
                steps_per_epoch=options.steps_per_epoch,
                # With validation data, the points of the path are measured below.
                held_out=None if validation or test is None else held_out,
                checkpoints=checkpoints,
                callbacks=callbacks,
                progress=options.progress,
                options=FitOptions(
                    estimator=options.estimator,
                    start=start,
                    temperature=fitted.temperature,
                    matmul_dtype=options.matmul_dtype,
                    mesh=mesh,
                    kl_warmup=warm_up if start is None else 0,
                ),
            )
        if validation is None:
            return ChosenPoint(result, np.zeros(0))
        with waiting("comparing the points of the path", wanted=options.progress):
            return choose_point(
                result,
                train,
                validation,
                test,
                jax.random.key(options.seed + 1),
                num_samples=options.num_samples or 100,
                within=options.within or 0.0,
                first_layer=FIRST_LAYER,
            )

    compared: dict[str, Any] = {}
    try:
        first = FurtherFit("", options.temperature or 1.0)
        choice = fit(first, [keep_options, *build_callbacks(options)])
        if may_be_colder(options, rows, found.input_shape):
            choice, compared = fit_colder(
                choice,
                lambda refit, start: fit(refit, [], start),
                options,
                build_network(options, found.input_shape, num_outputs(found)),
                train,
                validation,
                found.num_classes,
                slowly=_may_be_slow(typed, options),
            )
    except NonFiniteError as error:
        error.result.save(out / "last_good")
        raise FloatingPointError(f"{error} It is saved in {out / 'last_good'}.") from None
    except CallbackError as error:
        error.result.save(out / "last_good")
        raise OSError(f"--log: {error.__cause__}. The run can go on with --resume.") from None
    result = choice.result
    result.columns, result.class_names = found.columns, found.class_names
    with saying(wanted=options.progress) as say:
        say("measuring what was reached")
        document = document_of(options, found, result) | compared
        document["findings"] = [*underfit_findings(document), *document["findings"]]
        document["validation_rows"] = 0 if validation is None else len(validation[0])
        document["fit_kept"] = choice.fit_kept
        if compared:
            document["seconds"] = sum(fit["seconds"] for fit in compared["temperatures"]["fits"])
        say("saving the model")
        result.save(out / "model")
        write_json(out / "results.json", document)
        say("drawing plots")
        note = write_plots(result, out, train[0][:2])
    if note:
        print(note, file=sys.stderr)
    print(summary_of(document))
    print(f"results, model and plots in {out}; bmrjax report {out} makes one page of them")
    if any(finding["code"] == "constant" for finding in document["findings"]):
        raise SystemExit(CONSTANT)


def _may_be_slow(typed: SparsifyOptions, options: SparsifyOptions) -> bool:
    """Say whether a further fit may have another warm-up; a run that goes on makes the fits that it made."""
    if options.resume and (options.out / SLOWLY.folder).is_dir():
        return True
    older = options.resume and (options.out / COLDER.folder).is_dir()
    # A warm-up that was given is every fit's.
    return typed.kl_warmup_epochs is None and not older


def split_off(train: Any, options: SparsifyOptions, *, stratify: bool = False) -> tuple[Any, Any]:
    """Return what to train on, and the validation data or None.

    Args:
        train: Inputs and targets.
        options: With the fraction and the seed.
        stratify: Whether the targets are labels, each of which is kept out in proportion.
    """
    if not options.validation:
        return train, None
    rows = len(train[0])
    size = round(options.validation * rows)
    if not 1 <= size < rows:
        raise ValueError(
            f"--validation {options.validation} keeps {size} of {rows} rows out; it must leave some on "
            "both sides."
        )
    labels = train[1] if stratify else None
    kept, held = split_rows(rows, options.validation, options.seed, labels=labels)
    return tuple(part[kept] for part in train), tuple(part[held] for part in train)


def write_options(typed: SparsifyOptions, options: SparsifyOptions) -> None:
    """Write the options of a run, for --resume to compare with, and as a file for --config.

    Args:
        typed: As they came; those of a run that goes on, with what it was given before.
        options: The same, with those in proportion to the data filled in.
    """
    write_json(options.out / "run.json", config_of(options))
    text = config_text(typed, options, version=__version__)
    write_atomically(options.out / CONFIG, text)


def remove_run(out: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for name in (*OURS, PAGE, *(f"{plot}.png" for plot in PLOTS)):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
