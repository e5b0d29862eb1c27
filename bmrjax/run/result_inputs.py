"""The arguments that the methods of a result take, checked."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bmrjax.infer.arguments import Data
from bmrjax.infer.check_data import check_data, column_names, lengths
from bmrjax.infer.init import auto_guides
from bmrjax.infer.within_handlers import within_handlers


def by_position_or_name(
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    name: str,
    rows: Collection[str] | None = None,
    program: Callable | None = None,
) -> Any:
    """Return the arguments of a program, given by position, by name, or in one dict or tuple as in the fit.

    Args:
        inputs: What was given by position.
        named: What was given by name.
        name: Of the method, for messages.
        rows: Paths of the arrays that have rows, in the form that the program was fitted on.
        program: What is called with them.

    Raises:
        TypeError: If some are given by position and some by name.
    """
    if inputs and named:
        raise TypeError(
            f"Result.{name}: give the program's arguments by position, or all of them by name as in the data "
            f"that it was fitted on; got {len(inputs)} by position and {sorted(named)} by name."
        )
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        fitted_by_name = {path.partition("/")[0] for path in rows or ()}
        if fitted_by_name & {*inputs[0]}:
            return dict(inputs[0])
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list) and rows:
        fitted = {*rows, *_in_the_other_form(rows, program)[0]}
        if fitted.isdisjoint(lengths(inputs)) and not fitted.isdisjoint(lengths(inputs[0])):
            return tuple(inputs[0])
    return dict(named) or inputs


def checked_data(
    data: Any,
    name: str,
    *,
    columns: tuple[str, ...] | None,
    rows: Collection[str] | None,
    program: Callable | None = None,
) -> Data:
    """Return arguments as the program takes them; see `check_data`.

    Args:
        data: What the caller gave.
        name: What it is called, for messages.
        columns: Names of the columns that the program was fitted on, if they are known.
        rows: Paths of the arrays that have rows, in the form that the program was fitted on.
        program: What is called with the arguments, by position or by name, whichever way it was fitted.

    Raises:
        ValueError: For a table with other columns, or the same ones in another order.
    """
    check_columns(data, name, columns)
    if rows is not None:
        others, names = _in_the_other_form(rows, program)
        given = {*lengths(data)} if isinstance(data, tuple | list | Mapping) else set()
        rows = {*rows, *others}
        if rows and given and not names and not rows & given:
            rows = None  # of a program that does not say what its arguments are called
    return check_data(data, name, rows=rows)


def check_columns(data: Any, name: str, columns: tuple[str, ...] | None) -> None:
    """Raise ValueError for a table with other columns than a program was fitted on, or in another order.

    Args:
        data: What the caller gave.
        name: What it is called, for messages.
        columns: Names of the columns that the program was fitted on, if they are known.
    """
    fitted_on = columns or ()
    has_tables = fitted_on and isinstance(data, tuple | list | Mapping)
    for path, found in column_names(data).items() if has_tables else ():
        if len(found) == len(fitted_on) and found != fitted_on:
            raise ValueError(
                f"{name}[{path}] has the columns {list(found)[:5]}, and the program was fitted on "
                f"{list(fitted_on)[:5]}, in this order. Write table[list(result.columns)]."
            )


def _in_the_other_form(
    rows: Collection[str], program: Callable | None
) -> tuple[set[str], list[str]]:
    """Return paths of arguments by position as those by name, and the other way round; and the names."""
    *_, called = within_handlers(program)
    try:
        parameters = {} if called is None else inspect.signature(called).parameters
    except (TypeError, ValueError):
        parameters = {}
    any_others = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    names = [] if any_others & {p.kind for p in parameters.values()} else list(parameters)
    others = {str(i): name for i, name in enumerate(names)}
    others |= {name: i for i, name in others.items()}
    parts = [path.partition("/") for path in rows]
    found = {f"{others[head]}{slash}{rest}" for head, slash, rest in parts if head in others}
    return found, names


def check_without_arguments(guide: Callable, program: Callable | None, name: str) -> None:
    """Raise ValueError where arguments are needed, and none were given.

    Args:
        guide: Of the result; an automatic one has to have met its program.
        program: What is called; the guide by default.
        name: Of the method, for messages.
    """
    if any(g.prototype_trace is None for g in auto_guides(guide)):
        raise ValueError(
            f"{name}: the guide of a loaded result has to see the program's arguments once. Give one "
            f"batch of them, result.{name}(..., x[:2])."
        )
    try:
        inspect.signature(guide if program is None else program).bind()
    except TypeError as error:
        raise ValueError(
            f"{name}: the program or its guide needs arguments ({error}). Give one batch of them, "
            f"result.{name}(..., x[:2])."
        ) from None
