"""The arguments of a program, sorted by what the program does with them."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.handlers import log_density_shape
from bmrjax.infer.arguments import Batch, Constants, Data, arguments, first_rows, length
from bmrjax.infer.check_call import check_call
from bmrjax.infer.check_data import (
    NonFiniteDataError,
    check_data,
    lengths,
    parts_of_data,
    row_paths,
    table_paths,
)
from bmrjax.infer.init import at_start
from bmrjax.infer.row_sites import NEEDS_VALUES, check_on_batch
from bmrjax.infer.tracing import sites_of

# What a program raises that is given an array in place of a table.
_OF_PROGRAMS = (TypeError, ValueError, LookupError, AttributeError)


def program_data(
    model: Callable,
    data: Any,
    *,
    batch_size: int | None,
    static: Collection[str | int] = (),
    name: str = "data",
) -> Data:
    """Return the arguments of a program with their rows; see `check_data`.

    Where every step sees all data, an array whose values the program reads while it is traced (as
    `numpy.unique` does) reaches it as it is: arrays of integers first, all of them if that is not enough.
    A table, as of pandas, reaches a program that fails with the array of its values as it is, too.

    Args:
        model: NumPyro program.
        data: What the caller gave.
        batch_size: Data per step; None for all.
        static: Arguments that stay as they are.
        name: What the argument is called, for messages.

    Raises:
        TypeError: If the program does not take these arguments.
        ValueError: As `check_data`; and for values that are not finite, unless the program has a finite log
            density with them (it imputes them, say), and for a table whose rows cannot be taken.
    """
    check_call(model, data, name)
    load = partial(_sorted, model, data, batch_size=batch_size, name=name)
    tables = table_paths(data)
    try:
        return load(static=static)
    except NonFiniteDataError:
        raise
    except _OF_PROGRAMS as error:
        if not tables:
            raise
        first = error
    whole = partial(_sorted, model, data, static=[*static, *tables], name=name)
    try:
        found = whole(batch_size=None)
        finite = _is_finite(model, found)
    except _OF_PROGRAMS:
        first.add_note(
            f"{name}: the program gets {_listed(tables)} as an array, and fails with it as it is, too."
        )
        raise first from None
    if not finite:
        raise ValueError(f"{name}: with {_listed(tables)}, the log density is not finite.")
    if batch_size is not None and batch_size < length(found):
        raise ValueError(
            f"{name}: the program needs {_listed(tables)} as it is, of which minibatches cannot take rows. "
            "Fit with batch_size=None, or give the columns that it uses as arrays."
        ) from first
    return found


def _listed(tables: Mapping[str, str]) -> str:
    return ", ".join(f"the {kind} at '{path}'" for path, kind in tables.items())


def _sorted(
    model: Callable,
    data: Any,
    *,
    batch_size: int | None,
    static: Collection[str | int],
    name: str,
) -> Data:
    try:
        checked = check_data(data, name, static=static)
        paths = _paths_by_density(model, data, checked)
        if paths:
            checked = check_data(data, name, rows=paths, static=static)
    except NonFiniteDataError as error:
        checked = check_data(data, name, static=static, allow_non_finite=True)
        checked = _readable(model, data, checked, batch_size, static, name, allow_non_finite=True)
        if not _is_finite(model, checked):
            raise error from None
        return checked
    return _readable(model, data, checked, batch_size, static, name, allow_non_finite=False)


def _paths_by_density(model: Callable, data: Any, checked: Data) -> list[str]:
    """Return the paths of the arrays that are as long as the log densities, if others are counted as rows.

    Most arrays may be tables of groups, say, and only the observed values and an index one per data point.
    """
    found = lengths(data)
    if isinstance(data, Batch) or len(set(found.values())) < 2:
        return []
    shapes: list[tuple[int, ...]] = []

    def look(data: Data) -> None:
        for site in sites_of(at_start(model), *arguments(data)).values():
            if site["type"] == "sample" and site["is_observed"]:
                shapes.append(log_density_shape(site))

    try:
        jax.eval_shape(look, checked)
    except (TypeError, ValueError, IndexError):
        return []  # the check of the program reports what is wrong
    long = {shape[axis] for shape in shapes for axis in (0, -1) if shape}
    if length(checked) in long or not long & set(found.values()):
        return []
    rows = max(long & set(found.values()))
    return [path for path, size in found.items() if size == rows]


def _readable(
    model: Callable,
    data: Any,
    checked: Data,
    batch_size: int | None,
    static: Collection[str | int],
    name: str,
    *,
    allow_non_finite: bool,
) -> Data:
    rows = length(checked)
    if batch_size is not None and batch_size < rows:
        check_on_batch(model, first_rows(checked, batch_size), checked, name)
        return checked
    if isinstance(data, Batch):
        return data
    for kinds in ("", "iub", "iubfc"):
        if kinds:
            paths = set(row_paths(checked))
            with_rows = [part for part in parts_of_data(data)[1] if part.path in paths]
            whole = [p.path for p in with_rows if jnp.asarray(p.array).dtype.kind in kinds]
            found = check_data(
                data,
                name,
                rows=paths,
                static=[*static, *whole],
                allow_non_finite=allow_non_finite,
            )
        else:
            found = checked
        try:
            jax.eval_shape(lambda batch: _run(model, batch), found)
        except NEEDS_VALUES as error:
            last = error
            continue
        except (TypeError, ValueError, IndexError) as error:
            _explain_lengths(checked, error, name)
            raise
        try:
            jax.eval_shape(lambda batch: _observe(model, batch), found)
        except (TypeError, ValueError) as error:
            _explain_lengths(
                checked, error, name
            )  # other shapes are explained where they are checked
        if isinstance(found, Batch) and not found.rows:  # the data points are still as many
            constants = found.constants
            found = Batch((), Constants(constants.structure, constants.values, rows))
        return found
    raise ValueError(
        f"{name}: the program reads the value of something that is random or traced: "
        f"{str(last).splitlines()[0]}"
    )


def _run(model: Callable, batch: Data) -> None:
    sites_of(at_start(model), *arguments(batch))


def _observe(model: Callable, batch: Data) -> None:
    """Put the observed values and their distributions together, which fails for unequal lengths."""
    for site in sites_of(at_start(model), *arguments(batch)).values():
        if site["type"] == "sample" and site["is_observed"]:
            log_density_shape(site)


def _explain_lengths(data: Data, error: Exception, name: str) -> None:
    """Raise an error that names the lengths of the arguments, if they differ."""
    found = lengths(data)
    if len(set(found.values())) > 1:
        raise ValueError(
            f"{name}: the arrays have {found} rows, and the program fails with them: "
            f"{str(error).splitlines()[0]} Give arrays with one row per data point a common leading axis."
        ) from error


def _is_finite(model: Callable, data: Data) -> bool:
    def densities(data: Data) -> list[Any]:
        sites = sites_of(at_start(model), *arguments(data))
        return [
            jnp.all(jnp.isfinite(site["fn"].log_prob(site["value"])))
            for site in sites.values()
            if site["type"] == "sample" and site["is_observed"]
        ]

    return all(bool(each) for each in quick_jit(densities)(data))
