"""Event files of TensorBoard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bmrjax.callbacks.records import Record, RunEnd, RunStart
from bmrjax.callbacks.scalars import scalars_of


class TensorBoard:
    """Write scalars over epochs for TensorBoard, with `tensorboardX` or else PyTorch's writer.

    Numbers of epochs are under their own names, such as ``vfe`` and ``metrics/nll``; those of rounds, points
    of the path and the result under ``round/``, ``path/`` and ``result/``. Members of an ensemble write to
    the folders ``member-0``, ``member-1``, … A resumed run adds an event file, and TensorBoard hides the
    earlier values of epochs that are done again.

    Args:
        directory: Folder of the event files.

    Raises:
        ImportError: If neither package is installed.

    Example:
        ``bmr.sparsify(program, data, key=key, callbacks=[bmr.callbacks.TensorBoard("logs/first")])``, and
        then ``tensorboard --logdir logs``.

        >>> import pathlib, tempfile
        >>> import bmrjax as bmr
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> log = bmr.callbacks.TensorBoard(folder)  # for sparsify(..., callbacks=[log])
        >>> log(bmr.callbacks.RunStart(epoch=0, num_epochs=9, total=4))
        >>> log(bmr.callbacks.PointAdded(epoch=3, num_epochs=9, index=0, vfe=1.5, kept=2, total=4))
        >>> log(bmr.callbacks.RunEnd(epoch=9, num_epochs=9, vfe=1.5, kept=2, total=4, reason="finished"))
        >>> [path.name.split(".")[0] for path in folder.rglob("events*")]
        ['events']
    """

    def __init__(self, directory: str | Path):
        self._directory = Path(directory)
        self._make_writer = _writer_class()
        self._writers: dict[int | None, Any] = {}

    def __call__(self, record: Record) -> None:
        """See `Callback`."""
        member = record.member
        if isinstance(record, RunStart):
            folder = self._directory if member is None else self._directory / f"member-{member}"
            first = record.epoch + 1 if record.resumed else None
            self._writers[member] = self._make_writer(str(folder), purge_step=first)
            return
        writer = self._writers[member]
        for tag, value in scalars_of(record).items():
            writer.add_scalar(tag, value, record.epoch)
        if isinstance(record, RunEnd):
            self._writers.pop(member).close()


def _writer_class() -> Callable[..., Any]:
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        pass
    else:
        return SummaryWriter
    try:
        from torch.utils.tensorboard import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "TensorBoard: event files need the package tensorboardX. Install it by "
            "pip install 'bmrjax[tensorboard]'."
        ) from None
    return SummaryWriter
