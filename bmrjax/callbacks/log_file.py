"""A log that a run may append to: not an earlier run's, and written so that it is never half there."""

from pathlib import Path

from bmrjax.callbacks.records import RunStart
from bmrjax.files import write_atomically


class LogFile:
    """A text file of which lines are appended, and which is replaced as a whole.

    The file is opened for each write and closed again, so that it is complete after every record.

    Args:
        path: Of the file; missing folders are made with the first write.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._ours = False

    def start(self, record: RunStart) -> None:
        """Take the file for a run.

        Raises:
            FileExistsError: If the run is not resumed and the file holds another log.
        """
        if not record.resumed and not self._ours and self.text():
            raise FileExistsError(
                f"{self.path} holds the log of an earlier run. Give resume=True to go on with that run, "
                "or another path."
            )
        self._ours = True

    def not_a_log(self) -> ValueError:
        """Return what to raise for a file that no run wrote."""
        return ValueError(f"{self.path} is not the log of a run; give another path.")

    def text(self) -> str:
        """Return what is in the file; nothing if there is none."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    def append(self, text: str) -> None:
        """Write at the end."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)

    def replace(self, text: str) -> None:
        """Write the whole file anew."""
        write_atomically(self.path, text)
