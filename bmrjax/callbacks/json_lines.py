"""A log with a JSON object per line."""

import json
import math
from typing import Any

from bmrjax.callbacks.log_file import LogFile
from bmrjax.callbacks.records import Record, RunStart


class JSONLines(LogFile):
    """Write every record as one line of JSON: its fields, and its class as ``record``.

    NaN and infinite numbers, which JSON does not have, are written as null. A run that is resumed appends to
    the file, after removing the lines of epochs that are done again. To read the file, use
    ``pandas.read_json(path, lines=True)``.

    Args:
        path: Of the file, such as ``"run.jsonl"``. Missing folders are made.

    Raises:
        FileExistsError: When a run starts that is not resumed, and the file holds another log.
        ValueError: When a run is resumed, and the file is not such a log.

    Example:
        >>> import json, pathlib, tempfile
        >>> from bmrjax.callbacks import JSONLines, PointAdded
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> JSONLines(path)(PointAdded(epoch=3, num_epochs=9, index=0, vfe=1.5, kept=2, total=4))
        >>> line = json.loads(path.read_text())
        >>> line["record"], line["epoch"], line["vfe"]
        ('PointAdded', 3, 1.5)
    """

    def _write_record(self, record: Record) -> None:
        line = {"record": type(record).__name__, **_json(record.to_dict())}
        self._append(json.dumps(line, allow_nan=False) + "\n")

    def _remove_repeated(self, start: RunStart) -> None:
        kept = []
        for line in self._whole_lines().splitlines(keepends=True):
            value = json.loads(line)
            if not start.supersedes(value["record"], value):
                kept.append(line)
        self._replace("".join(kept))


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
