"""The command `bmrjax sparsify`."""

import shutil
from pathlib import Path
from typing import Any

from bmrjax.cli.build import (
    build_criterion,
    build_mesh,
    build_optimizer,
    build_programs,
    build_schedule,
    num_outputs,
)
from bmrjax.cli.documents import write_json
from bmrjax.cli.options import OURS, PLOTS, Sparsify, check_options, config_of, kl_warmup_of
from bmrjax.cli.report import document_of, summary_of, write_plots


def run_sparsify(options: Sparsify) -> None:
    """Fit, reduce, and write the folder of the run."""
    out = options.out
    check_options(options)
    import jax

    from bmrjax import NonFiniteError, sparsify
    from bmrjax.data import load

    found = load(
        options.data,
        data_root=options.data_root,
        task=options.task,
        num_targets=options.num_targets,
    )
    model, guide = build_programs(options, found.input_shape, num_outputs(found), found.num_classes)
    schedule, mesh = build_schedule(options), build_mesh(options)
    # An earlier run goes only when the new one has its data and its program.
    if options.overwrite:
        remove_run(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "run.json", config_of(options))
    train, validation = split_off(found.train, options)
    test: Any = found.test
    size = min(options.batch_size, len(train[0]))
    steps = options.steps_per_epoch or max(len(train[0]) // size, 1)
    try:
        result = sparsify(
            model,
            train,
            key=jax.random.key(options.seed),
            num_epochs=options.epochs,
            criterion=build_criterion(options, found.input_shape, num_outputs(found)),
            schedule=schedule,
            guide=guide,
            optimizer=build_optimizer(options),
            estimator=options.estimator,
            matmul_dtype=options.matmul_dtype,
            mesh=mesh,
            batch_size=options.batch_size,
            steps_per_epoch=options.steps_per_epoch,
            kl_warmup=kl_warmup_of(options) * steps,
            held_out=test,
            eval_samples=5 if options.method != "map" else 1,
            # With validation data the point is chosen, and measured, below.
            final_samples=options.samples if options.method != "map" and not validation else 1,
            directory=out,
            resume=options.resume,
            progress=options.progress,
        )
    except NonFiniteError as error:
        error.result.save(out / "last_good")
        raise FloatingPointError(f"{error} It is saved in {out / 'last_good'}.") from None
    if validation is not None:
        choose_key, test_key = jax.random.split(jax.random.key(options.seed + 1))
        result = result.most_predictive(choose_key, validation, num_samples=options.samples)
        result.metrics = result.evaluate(test_key, test, num_samples=options.samples)
    document = document_of(options, found, result)
    result.save(out / "model")
    write_json(out / "results.json", document)
    write_plots(result, out)
    print(summary_of(document))
    print(f"results, model and plots in {out}")


def split_off(train: Any, options: Sparsify) -> tuple[Any, Any]:
    """Return what to train on, and the validation data or None."""
    import numpy as np

    if options.validation is None:
        return train, None
    rows = len(train[0])
    size = round(options.validation * rows)
    if not 1 <= size < rows:
        raise ValueError(
            f"--validation {options.validation} keeps {size} of {rows} rows out; it must leave some on "
            "both sides."
        )
    order = np.random.default_rng(options.seed).permutation(rows)
    kept, held = order[size:], order[:size]
    return tuple(part[kept] for part in train), tuple(part[held] for part in train)


def remove_run(out: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for name in (*OURS, *(f"{plot}.png" for plot in PLOTS)):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
