"""JSON documents of runs, read with a schema: what is damaged is one error, before anything uses it."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from bmrjax.errors import DamagedFileError
from bmrjax.run.digests import DIGEST, document_digest
from bmrjax.run.stored_file import read_bytes

LARGEST = 2**53

Count = Annotated[int, Field(ge=0, le=LARGEST)]
WholeNumber = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
# JSON has no other word for a number that is not finite; some documents write NaN, as Python does.
Number = float | None
Name = Annotated[str, Field(max_length=10_000)]


def read_document(
    path: Path, schema: TypeAdapter[Any], *, format: int | None = None
) -> dict[str, Any]:
    """Read a JSON document, if it is whole and what its schema says.

    Args:
        path: Of the file.
        schema: Of the document; names beyond it are kept only if it says so.
        format: What it must have under this name.

    Returns:
        The document, without its digest.

    Raises:
        DamagedFileError: If it is no JSON, nested more than 200 deep, lacks a value or has one of another
            type or beyond its bounds, or is not what its digest says.
    """
    data = read_bytes(path)
    try:
        plain = json.loads(data)
        if not isinstance(plain, dict):
            raise DamagedFileError(f"{path} is damaged: it holds no JSON object.")
        if format is not None and plain.get("format") != format:
            raise DamagedFileError(
                f"{path} has format {plain.get('format')!r:.60}; this version of bmrjax reads format "
                f"{format}."
            )
        intact = DIGEST not in plain or plain[DIGEST] == document_digest(plain)
        found = schema.validate_json(data, strict=True)
    except ValidationError as error:
        raise DamagedFileError(f"{path} is damaged or cut short: {_first(error)}.") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path} is damaged or cut short ({error!s:.200}).") from None
    if not intact:
        raise DamagedFileError(
            f"{path} is not what was written: its digest differs. Take a copy, or run again."
        )
    return {name: value for name, value in found.items() if name != DIGEST}


def _first(error: ValidationError) -> str:
    """Return the first thing that is wrong, and where."""
    one = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:60] for part in one["loc"][:8])
    return f"'{where}': {one['msg']:.200}" if where else f"{one['msg']:.200}"
