"""Runs of Weights & Biases."""

from typing import Any

from bmrjax.callbacks.records import Record, RunEnd, RunStart
from bmrjax.callbacks.scalars import scalars_of


class WeightsAndBiases:
    """Log the numbers of records to a run of Weights & Biases, over epochs.

    Numbers of epochs are under their own names, such as ``vfe`` and ``metrics/nll``; those of rounds and
    points of the path are under ``round/`` and ``path/``; the result is in the run's summary, under
    ``result/``. All members of an ensemble go to one run, with the prefix ``member-0/``, ``member-1/``, … To
    go on with the same run after ``Checkpoints(..., resume=True)``, give the ``id`` and ``resume`` of
    ``wandb.init``.

    Args:
        run: A run that is open, which stays open. By default, one is opened when the fit starts, and
            closed when it ends.
        **init: Arguments of ``wandb.init`` for that, such as ``project="mnist"`` or ``mode="offline"``.

    Raises:
        ImportError: If the package wandb is not installed.
        TypeError: For a run together with arguments of ``wandb.init``.

    Example:
        ``bmr.sparsify(program, data, key=key, callbacks=[bmr.callbacks.WeightsAndBiases(project="mnist")])``

        With a stand-in for ``wandb.init(...)``:

        >>> import bmrjax as bmr
        >>> class Run:
        ...     summary = {}
        ...
        ...     def log(self, numbers):
        ...         print(numbers)
        ...
        ...     def define_metric(self, *names, **options):
        ...         pass
        >>> log = bmr.callbacks.WeightsAndBiases(Run())  # for sparsify(..., callbacks=[log])
        >>> log(bmr.callbacks.PointAdded(epoch=3, num_epochs=9, index=0, vfe=1.5, kept=2, total=4))
        {'epoch': 3, 'path/vfe': 1.5, 'path/kept': 2, 'path/mask_cost': 0.0, 'path/sparsity': 0.5}
    """

    def __init__(self, run: Any = None, **init: Any):
        if run is None:
            try:
                import wandb  # pyright: ignore[reportMissingImports]
            except ImportError:
                raise ImportError(
                    "WeightsAndBiases needs the package wandb. Install it by "
                    "pip install 'bmrjax[wandb]'."
                ) from None
            self._open = wandb.init
        elif init:
            raise TypeError(
                f"WeightsAndBiases: {', '.join(sorted(init))} would open a run, and one is given; give "
                "either of the two."
            )
        self._run: Any = run
        self._init, self._close = init, run is None
        self._members: set[int | None] = set()

    def __call__(self, record: Record) -> None:
        """See `Callback`."""
        prefix = "" if record.member is None else f"member-{record.member}/"
        if isinstance(record, RunStart):
            self._start(record, prefix)
            return
        values = {f"{prefix}{tag}": value for tag, value in scalars_of(record).items()}
        if not isinstance(record, RunEnd):
            self._run.log({f"{prefix}epoch": record.epoch, **values})
            return
        self._run.summary.update({**values, f"{prefix}result/reason": record.reason})
        self._members.discard(record.member)
        if self._close and not self._members:
            self._run.finish(exit_code=int(record.reason != "finished"))
            self._run = None

    def _start(self, record: RunStart, prefix: str) -> None:
        if self._run is None:
            self._run = self._open(**self._init)
        self._members.add(record.member)
        self._run.define_metric(f"{prefix}epoch", hidden=True)
        self._run.define_metric(f"{prefix}*", step_metric=f"{prefix}epoch")
