"""`bmrjax inspect`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bmrjax.cli.build import build_criterion, build_programs, criterion_of, num_outputs
from bmrjax.cli.check_options import check_options
from bmrjax.cli.inspect_options import InspectOptions
from bmrjax.cli.load_data import load_data
from bmrjax.cli.proportion import in_proportion
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.data.numpy_file import read_arrays
from bmrjax.run.inspect_program import inspect

# Of the program that a run would fit; a folder is not needed for that.
_NOWHERE = Path("-")


def run_inspect(options: InspectOptions) -> None:
    """Print which sites of a program would be judged, and why."""
    if options.batch_size is not None and options.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {options.batch_size}.")
    given: dict[str, Any] = {"sites": options.sites or None}
    if options.program is None:
        program, data, more = _of_data(options)
    else:
        program, data, more = _of_a_user(options, options.program)
    found = inspect(program, data, **given, **more)
    print(found)
    latent = [site for site in found if not (site.observed or site.auxiliary)]
    print(f"{len(found.judged)} of {len(latent)} latent sites would be judged")


def _of_data(options: InspectOptions) -> tuple[Callable, Any, dict[str, Any]]:
    """Return the program that `bmrjax sparsify` would fit, its data, and its settings."""
    names = ("net", "hidden", "method", "prior", "criterion", "batch_size", "data")
    shared = {name: getattr(options, name) for name in names}
    run = SparsifyOptions(out=_NOWHERE, **shared)
    check_options(run)
    found = load_data(options)
    run = in_proportion(run, len(found.train[0]), found.input_shape)
    outputs = num_outputs(found)
    program, guide = build_programs(run, found.input_shape, outputs, found.num_classes)
    criterion = build_criterion(run, found.input_shape, outputs)
    settings = {"guide": guide, "criterion": criterion, "batch_size": run.batch_size}
    return program, found.train, settings


def _of_a_user(options: InspectOptions, place: str) -> tuple[Callable, Any, dict[str, Any]]:
    """Return a user's program, its data, and the settings that were given."""
    for name in ("net", "hidden", "method", "prior"):
        if getattr(options, name) != getattr(InspectOptions, name):
            raise ValueError(f"--{name} makes a program, and --program is one; give either.")
    program = program_at(place)
    if options.data.endswith(".npz"):
        path = Path(options.data)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        data: Any = read_arrays(path)
    else:
        data = load_data(options).train
    settings: dict[str, Any] = {"batch_size": options.batch_size or 128}
    if options.criterion is not None:
        settings["criterion"] = criterion_of(options.criterion)
    return program, data, settings


def program_at(place: str) -> Callable:
    """Return the program of a place such as ``model.py:program`` or ``package.module:program``.

    Raises:
        ValueError: Unless it names a module or a file, and a function in it.
        FileNotFoundError: If there is no such file.
        ImportError: If the module cannot be imported.
    """
    where, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier():
        raise ValueError(
            f"--program takes FILE.py:NAME or package.module:NAME, such as model.py:program; got {place!r}."
        )
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise FileNotFoundError(f"--program: there is no file {path}.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        # As `python FILE` has it, so that the file finds its neighbours.
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = importlib.import_module(where)
    program = getattr(module, name, None)
    if program is None:
        raise ValueError(f"--program: {where} has no function {name}.")
    return program
