"""A log that a run may append to: not an earlier run's, and written so that it is never half there."""

import abc
from pathlib import Path

from bmrjax.callbacks.records import Record, RunStart
from bmrjax.files import write_atomically


class LogFile(abc.ABC):
    """A callback that appends lines to a text file, and goes on with the file of a run that is resumed.

    The file is opened for each write and closed again, so that it is complete after every record. A subclass
    says what it writes of a record, and how the lines of epochs that are done again are found.

    Args:
        path: Of the file; missing folders are made with the first write.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self._ours = False

    def __call__(self, record: Record) -> None:
        """See `Callback`."""
        if isinstance(record, RunStart):
            self._start(record)
        self._write_record(record)

    @abc.abstractmethod
    def _write_record(self, record: Record) -> None:
        """Append what belongs into the log of a record, if anything does."""

    @abc.abstractmethod
    def _remove_repeated(self, start: RunStart) -> None:
        """Remove what a resumed run reports again.

        Raises:
            ValueError: Or KeyError or TypeError, if the file holds something else than a log.
        """

    def _start(self, record: RunStart) -> None:
        """Take the file for a run.

        Raises:
            FileExistsError: If the run is not resumed and the file holds another log.
            ValueError: If it is resumed, and the file is not a log.
        """
        if not record.resumed and not self._ours and self._text():
            raise FileExistsError(
                f"{self._path} holds the log of an earlier run. Give checkpoints=bmr.Checkpoints(directory, "
                "resume=True) to go on with that run, or another path."
            )
        self._ours = True
        if record.resumed:
            try:
                self._remove_repeated(record)
            except (ValueError, KeyError, TypeError):
                raise self._not_a_log() from None

    def _not_a_log(self) -> ValueError:
        """Return what to raise for a file that no run wrote."""
        return ValueError(f"{self._path} is not the log of a run; give another path.")

    def _text(self) -> str:
        """Return what is in the file; nothing if there is none."""
        return self._path.read_text(encoding="utf-8") if self._path.exists() else ""

    def _whole_lines(self) -> str:
        """Return what is in the file, without the part of a line that a killed process may leave."""
        text = self._text()
        return text[: text.rfind("\n") + 1]

    def _append(self, text: str) -> None:
        """Write at the end."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)

    def _replace(self, text: str) -> None:
        """Write the whole file anew, if that changes it."""
        if text != self._text():
            write_atomically(self._path, text)
