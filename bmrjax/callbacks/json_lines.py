"""A log with a JSON object per line."""

import json
import math
from pathlib import Path
from typing import Any

from bmrjax.callbacks.log_file import LogFile
from bmrjax.callbacks.records import Record, RunStart


class JSONLines:
    """Write every record as one line of JSON: its fields, and its class as ``record``.

    NaN and infinite numbers, which JSON does not have, are written as null. A run that is resumed appends to
    the file, after removing the lines of epochs that are done again. To read the file, use
    ``pandas.read_json(path, lines=True)``.

    Args:
        path: Of the file, such as ``"run.jsonl"``. Missing folders are made.

    Raises:
        FileExistsError: When a run starts that is not resumed, and the file holds another log.
        ValueError: When a run is resumed, and the file is no such log.

    Example:
        >>> import json, pathlib, tempfile
        >>> from bmrjax.callbacks import JSONLines, PointAdded
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> JSONLines(path)(PointAdded(epoch=3, num_epochs=9, index=0, vfe=1.5, kept=2, total=4))
        >>> line = json.loads(path.read_text())
        >>> line["record"], line["epoch"], line["vfe"]
        ('PointAdded', 3, 1.5)
    """

    def __init__(self, path: str | Path):
        self._file = LogFile(path)

    def __call__(self, record: Record) -> None:
        """See `Callback`."""
        if isinstance(record, RunStart):
            self._file.start(record)
            if record.resumed:
                self._remove_repeated(record)
        line = {"record": type(record).__name__, **_json(record.to_dict())}
        self._file.append(json.dumps(line, allow_nan=False) + "\n")

    def _remove_repeated(self, start: RunStart) -> None:
        lines = self._file.text().splitlines(keepends=True)
        # A process that was killed while it wrote leaves a part of a line.
        whole = [line for line in lines if line.endswith("\n")]
        try:
            values = [json.loads(line) for line in whole]
            repeated = [start.supersedes(value["record"], value) for value in values]
        except (ValueError, KeyError, TypeError):
            raise self._file.not_a_log() from None
        kept = [line for line, again in zip(whole, repeated, strict=True) if not again]
        if len(kept) < len(lines):
            self._file.replace("".join(kept))


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
