"""The folder of a run: what belongs to it, and whether a command may go on with it."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bmrjax.cli.config_file import NOT_OF_THE_RUN
from bmrjax.cli.proportion import Proportions
from bmrjax.cli.run_documents import read_options
from bmrjax.cli.sparsify_options import SparsifyOptions


@dataclass(frozen=True)
class FurtherFit:
    """A further fit of a table, which a command makes where the first one underfits.

    Args:
        folder: Name of its folder within that of the run.
        temperature: Of its likelihood.
        slowly: Whether the divergence comes in as in `sparsify` by default, and not along a straight line.
    """

    folder: str
    temperature: float
    slowly: bool = False


# In the order in which they are made: one at temperature 1 with another warm-up, one from scratch at the
# temperature that predicted best in docs/howto/temperature.md, and those that go on from it, as in `anneal`.
SLOWLY, COLDER = FurtherFit("slow-warm-up", 1.0, slowly=True), FurtherFit("colder", 0.25)
WARMER = (FurtherFit("warmer-0.5", 0.5), FurtherFit("warmer-1", 1.0))
REFITS = (SLOWLY, COLDER, *WARMER)

PLOTS = ("learning_curves", "sparsity_per_layer", "path")
# What a run writes to its folder, and all that --overwrite deletes, in this order: what says whose it is goes
# last.
OURS = (
    "results.json",
    "model",
    "last_good",
    "checkpoints",
    "points",
    *(refit.folder for refit in REFITS),
    "run.toml",
    "run.json",
)
# Held while a command fits and writes; the fit inside holds the folder by the lock of every run.
COMMAND_LOCK = ".bmrjax-command-lock"
# The options, as --config reads them.
CONFIG = "run.toml"
# The page that `bmrjax report` writes there.
PAGE = "report.html"
# What may differ between a run and its continuation.
FREE = (*NOT_OF_THE_RUN, "data_root", "num_samples", "num_epochs", "mesh")
# What the end of its name says about a log: JSON lines, or a table.
LOGS = (".jsonl", ".csv")


def check_folder(options: SparsifyOptions) -> None:
    """Refuse a folder that is taken, or a run in it that had other options."""
    out = options.out
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file; give a folder.")
    _check_log(options)
    present = [name for name in OURS if (out / name).exists()]
    if not present:
        return
    # `model` and `checkpoints` are common names: without a record of a run they are not ours.
    if not {"run.json", "results.json"} & set(present):
        raise ValueError(f"{out} holds {present[0]}, which no run wrote; give another --out.")
    if not options.resume and not options.overwrite:
        raise ValueError(f"{out} holds a run. Give --resume, --overwrite or another --out.")
    if options.resume and (out / "run.json").is_file():
        before, now = read_options(out), config_of(options)
        # What is left out is taken from the run.
        free = {*FREE, *_left_out(options)}
        changed = [k for k in now if k not in free and before.get(k) != now[k]]
        if changed:
            differences = ", ".join(f"--{k.replace('_', '-')} was {before.get(k)}" for k in changed)
            raise ValueError(f"--resume goes on with the options that the run had: {differences}.")


def _check_log(options: SparsifyOptions) -> None:
    """Refuse a log of an unknown kind, or one that would delete what the run in --out did not write."""
    log = options.log
    if log is None:
        return
    if log.suffix not in LOGS:
        raise ValueError(f"--log: the name must end in {' or '.join(LOGS)}, got {log}.")
    if log.exists() and not options.resume:
        record = options.out / "run.json"
        before = read_options(options.out) if record.is_file() else {}
        if not options.overwrite or before.get("log") != str(log):
            raise ValueError(f"--log: {log} exists already; give another file.")


def resumed(options: SparsifyOptions) -> SparsifyOptions:
    """Return the options of a run that goes on, with what was left out taken from the run."""
    if not options.resume or not (options.out / "run.json").is_file():
        return options
    before = read_options(options.out)
    filled: dict[str, Any] = {k: before.get(k) for k in _left_out(options)}
    if filled.get("hidden") is not None:
        filled["hidden"] = tuple(filled["hidden"])
    return replace(options, **filled)


def config_of(options: SparsifyOptions) -> dict[str, Any]:
    """Return the options as JSON, to compare with those of a run that goes on."""
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}


def _left_out(options: SparsifyOptions) -> list[str]:
    """Return what is in proportion to the data and was left out."""
    return [each.name for each in fields(Proportions) if getattr(options, each.name) is None]
