"""Options of a run as a TOML file: one that a run writes, or one written by hand."""

import difflib
import json
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bmrjax.cli.sparsify_options import SparsifyOptions

# Where a run writes to and how it is started, which are not of the run itself.
NOT_OF_THE_RUN = ("out", "config", "resume", "overwrite", "progress", "log")


def config_path(arguments: Sequence[str]) -> Path | None:
    """Return the file that ``--config`` names among the words of a command, or None."""
    path = None
    for word, after in zip(arguments, [*arguments[1:], None], strict=True):
        if word == "--config" and after is not None:
            path = Path(after)
        elif word.startswith("--config="):
            path = Path(word.partition("=")[2])
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Return the options in a file, by their names in Python.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not TOML, or for an unknown option, or a value of another kind.
    """
    # Takes as long as all else that a refused option loads.
    from pydantic import TypeAdapter, ValidationError

    if not path.is_file():
        raise FileNotFoundError(f"--config: there is no file {path}.")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config: {path} is not TOML: {error}.") from None
    hints = typing.get_type_hints(SparsifyOptions)
    options: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in hints or name == "config":
            near = difflib.get_close_matches(name, hints, 1)
            hint = f" Is it {near[0]}?" if near else ""
            raise ValueError(f"--config: {path} has {key}, which is no option of sparsify.{hint}")
        try:
            options[name] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            what = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise ValueError(f"--config: {path}: {key} = {value!r}: {what['msg']}.") from None
    return options


def config_text(given: SparsifyOptions, filled: SparsifyOptions, *, version: str) -> str:
    """Return the text of a run's file: what was given, and as comments what followed from the data.

    Args:
        given: The options as they came.
        filled: The same, with those in proportion to the data filled in.
        version: Of bmrjax.
    """
    lines = [
        f"# Options of a run of bmrjax {version}.",
        "# To fit it again: bmrjax sparsify --config FILE --out FOLDER",
        *(f"{name} = {_toml(value)}" for name, value in _changed(given).items()),
    ]
    rest = {name: value for name, value in _changed(filled).items() if name not in _changed(given)}
    if rest:
        lines += ["", "# In proportion to the data, unless given:"]
        lines += [f"# {name} = {_toml(value)}" for name, value in rest.items()]
    return "\n".join(lines) + "\n"


def with_former(given: SparsifyOptions, former: Mapping[str, Any]) -> SparsifyOptions:
    """Return options with those of an earlier file, where they are at their defaults."""
    changed = {**former, **_changed(given)}
    rest = {name: getattr(given, name) for name in NOT_OF_THE_RUN}
    return SparsifyOptions(**{**changed, **rest})


def _changed(options: SparsifyOptions) -> dict[str, Any]:
    """Return what is not at its default, of the run itself."""
    return {
        field.name: value
        for field in fields(options)
        if field.name not in NOT_OF_THE_RUN
        and (value := getattr(options, field.name)) != field.default
    }


def _toml(value: Any) -> str:
    """Return a plain value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    # Strings of TOML are those of JSON, but for one character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
