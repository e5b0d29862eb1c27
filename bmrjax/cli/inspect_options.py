"""Options of `bmrjax inspect`."""

from dataclasses import dataclass

from bmrjax.cli.data_options import DataOptions
from bmrjax.cli.option_texts import with_help
from bmrjax.cli.sparsify_options import CriterionName, Method, NetName, PriorName


@with_help
@dataclass(kw_only=True)
class InspectOptions(DataOptions):
    """List the sites of a program: which of them would be judged, and why. Nothing is fitted.

    Example: bmrjax inspect --data patients.csv --target outcome

    Example: bmrjax inspect --program model.py:program --data data.npz

    Without --program, it is the one that bmrjax sparsify would fit to these data. In Python: bmrjax.inspect.
    """

    program: str | None = None
    """A NumPyro program of your own, as FILE.py:NAME or package.module:NAME. The arrays of an .npz file are
    its arguments by name; other data are given as inputs and targets. The file is run."""
    sites: tuple[str, ...] = ()
    """Names of the sites that are to be judged; by default a rule decides, which the table explains."""
    batch_size: int | None = None
    """Rows per step; 128 by default."""
    net: NetName = "mlp"
    """Network, as for bmrjax sparsify."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers, as for bmrjax sparsify."""
    method: Method = "bmr"
    """As for bmrjax sparsify."""
    prior: PriorName = "flat"
    """Prior of the weights, as for bmrjax sparsify."""
    criterion: CriterionName | None = None
    """What would judge, as for bmrjax sparsify; spike-and-slab for a program of your own."""
