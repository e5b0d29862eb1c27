"""The result of a finished run, with the program that its options describe."""

import contextlib
import json
import math
import operator
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
from pydantic import TypeAdapter, ValidationError

from bmrjax.cli.build import build_programs
from bmrjax.cli.run_documents import RESULTS
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.errors import DamagedFileError
from bmrjax.run.load_result import load as load_result

# Of a layer, and layers of a network, in the options of a saved run.
LARGEST_WIDTH = 2**20


def loaded_run(directory: Path, document: dict[str, Any]) -> tuple[SparsifyOptions, Any]:
    """Return the options of a run, and its result with its program.

    Raises:
        FileNotFoundError: If the folder holds no saved result.
        DamagedFileError: If the options, or the result, are damaged or do not belong together.
    """
    where = directory / RESULTS
    run = _options_of(document, directory, where)
    result = load_result(directory / "model")
    shape, outputs = tuple(document["input_shape"]), document["outputs"]
    held = sum(array.size for array in jax.tree.leaves(result.params))
    widths = (math.prod(shape), *(run.hidden or ()), outputs)
    if run.net in ("mlp", "nnx-mlp") and sum(map(operator.mul, widths, widths[1:])) > held:
        raise DamagedFileError(
            f"{where}: the network that it describes is larger than the saved one."
        )
    model, guide = build_programs(run, shape, outputs, document["num_classes"])
    return run, replace(result, unpruned_model=model, unpruned_guide=guide)


def _options_of(document: dict[str, Any], directory: Path, where: Path) -> SparsifyOptions:
    """Return the options of a run; those of a network are bounded."""
    config = {
        k: v for k, v in document["config"].items() if k not in ("data_root", "log", "config")
    }
    unknown = sorted(set(config) - {field.name for field in fields(SparsifyOptions)})
    if unknown:
        raise DamagedFileError(f"{where}: this version of bmrjax has no option {unknown[:3]}.")
    try:
        run = TypeAdapter(SparsifyOptions).validate_json(
            json.dumps({**config, "out": str(directory)})
        )
    except ValidationError as error:
        one = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(str(part)[:60] for part in one["loc"])
        raise DamagedFileError(f"{where} is damaged: 'config.{name}': {one['msg']:.200}.") from None
    sizes = [run.depth, run.width, *(run.hidden or ())]
    if len(sizes) > 64 or not all(size is None or 1 <= size <= LARGEST_WIDTH for size in sizes):
        raise DamagedFileError(f"{where} is damaged: the sizes of the network are {sizes[:8]}.")
    return run


@contextlib.contextmanager
def of_a_whole_run(directory: Path) -> Iterator[None]:
    """Turn whatever a program raises on a run that does not fit it into one error.

    Args:
        directory: Folder of the run.

    Raises:
        DamagedFileError: With what was raised.
    """
    try:
        yield
    except (
        KeyError,
        IndexError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        TypeError,
    ) as error:
        if os.environ.get("BMRJAX_DEBUG"):
            raise
        text = " ".join(str(error).split())
        raise DamagedFileError(
            f"{directory}: the saved run does not fit its program ({type(error).__name__}: {text:.300}). "
            "Is it of another version of bmrjax, or changed by hand?"
        ) from None
