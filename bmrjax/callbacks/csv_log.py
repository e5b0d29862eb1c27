"""A table with a row per epoch."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bmrjax.callbacks.log_file import LogFile
from bmrjax.callbacks.records import EpochEnd, Record, RunStart
from bmrjax.callbacks.scalars import flat_fields


class CSV(LogFile):
    """Write a row for each `EpochEnd`, under a header with the names of its fields.

    Sparsity per layer and held-out metrics have a column each, such as ``sparsity_per_layer/w`` and
    ``metrics/nll``. The header is the same for the whole run, except that metrics which are measured for the
    first time later add their columns at the end, empty in earlier rows. Numbers are written in full
    precision; NaN and infinity as ``nan`` and ``inf``. For an ensemble, the column ``member`` tells
    members apart. A run that is resumed appends, after removing the rows of epochs that are done again.
    ``pandas.read_csv(path)`` reads the file. Other records are not written; `JSONLines` writes all.

    Args:
        path: Of the file, such as ``"run.csv"``. Missing folders are made.

    Raises:
        FileExistsError: When a run starts that is not resumed, and the file holds another log.
        ValueError: When a run is resumed, and the file is not such a log.

    Example:
        >>> import pathlib, tempfile
        >>> from bmrjax.callbacks import CSV, EpochEnd
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.csv"
        >>> CSV(path)(
        ...     EpochEnd(
        ...         epoch=1, num_epochs=9, vfe=1.5, kept=2, total=4, rate=1.0, steps=10,
        ...         skipped_steps=0, seconds=0.1, compile_seconds=0.0,
        ...     )
        ... )
        >>> print(path.read_text().strip())
        epoch,num_epochs,vfe,kept,total,rate,steps,skipped_steps,seconds,compile_seconds
        1,9,1.5,2,4,1.0,10,0,0.1,0.0
    """

    def __init__(self, path: str | Path):
        super().__init__(path)
        self._columns: list[str] | None = None

    def _write_record(self, record: Record) -> None:
        if not isinstance(record, EpochEnd):
            return
        row = {name: value for name, value in flat_fields(record).items() if value is not None}
        if self._columns is None:
            self._columns = self._read()[0]
        new = [name for name in row if name not in self._columns]
        if new:
            _, rows = self._read()
            self._write([*self._columns, *new], rows)
        self._append(_lines([[row.get(name, "") for name in self._columns]]))

    def _remove_repeated(self, start: RunStart) -> None:
        columns, rows = self._read()

        def repeated(row: Mapping[str, str]) -> bool:
            member = row.get("member")
            place = {"epoch": int(row["epoch"]), "member": int(member) if member else None}
            return start.supersedes("EpochEnd", place)

        if columns:
            self._write(columns, [row for row in rows if not repeated(row)])

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        table = list(csv.reader(io.StringIO(self._whole_lines(), newline="")))
        columns = table[0] if table else []
        if columns and "epoch" not in columns:
            raise self._not_a_log()
        return columns, [dict(zip(columns, row, strict=True)) for row in table[1:]]

    def _write(self, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
        cells = [[row.get(name, "") for name in columns] for row in rows]
        self._replace(_lines([columns, *cells]))
        self._columns = columns


def _lines(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
