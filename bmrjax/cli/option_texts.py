"""The docstrings of options as their texts in `--help`."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import docstring_parser
import tyro

_Options = TypeVar("_Options", bound=type)

# Of what may be left out, `--help` names the kind: that it may be None is what its text explains.
_OPTIONAL = {
    int | None: "INT",
    float | None: "FLOAT",
    str | None: "STR",
    Path | None: "PATH",
    tuple[int, ...] | None: "INT [INT ...]",
}


def with_help(options: _Options) -> _Options:
    """Make each docstring of an attribute one paragraph of the help.

    By itself, tyro keeps the line breaks of the source, and adds "(default: None)" to texts that say what
    happens by default, and "(default: )" where there is nothing.

    Args:
        options: A dataclass whose attributes have docstrings.

    Returns:
        The same class.
    """
    for each in docstring_parser.parse_from_object(options).params:
        hint = options.__annotations__.get(each.arg_name)
        if hint is None or each.description is None:
            continue
        settings: dict[str, Any] = {"help": " ".join(each.description.split())}
        if getattr(options, each.arg_name, ...) in (None, ()):
            settings["help_behavior_hint"] = ""
        if hint in _OPTIONAL:
            settings["metavar"] = _OPTIONAL[hint]
        options.__annotations__[each.arg_name] = Annotated[hint, tyro.conf.arg(**settings)]
    return options
