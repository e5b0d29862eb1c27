"""Options of `bmrjax reduce`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bmrjax.cli.option_texts import with_help


@with_help
@dataclass
class ReduceOptions:
    """Reduce a posterior in a folder of safetensors shards, piece by piece, and write its masks.

    Example: bmrjax reduce posterior --prior-scale 0.1 --criterion spike-and-slab --out masks

    The posterior may be made elsewhere, and larger than memory. Each tensor of weights is a pair NAME.loc
    and NAME.scale (or NAME.variance, or NAME.precision) in one of the files or in two.
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder with the .safetensors files."""
    out: Path
    """New folder: a file for each file with means, with a NAME.keep for each NAME.loc, and
    reduction.json."""
    prior_scale: tuple[str, ...]
    """Standard deviation of the prior that the posterior was fitted under, as 0.1; or by tensor, the first
    pattern that fits, as 'encoder.*=0.1' '*=1.0'."""
    criterion: Literal["spike-and-slab", "shrinkage"] = "spike-and-slab"
    """spike-and-slab learns how many of a layer's weights to include; shrinkage judges each by itself,
    against a normal around zero that is narrow."""
    alpha: float | None = None
    """spike-and-slab: prior count of included weights, 1 by default."""
    beta: float | None = None
    """spike-and-slab: prior count of excluded weights, 1 by default."""
    num_steps: int | None = None
    """spike-and-slab: fixed-point iterations, 4 by default."""
    variance: float | None = None
    """shrinkage: of the narrow normal, 1e-16 by default."""
    layers: Literal["tensors", "modules"] = "tensors"
    """What shares an inclusion probability: each tensor its own, or the tensors of a module, whose names
    differ after the last dot only."""
    workers: int | None = None
    """Threads; by default one more than there are cores."""
    progress: bool = True
    """Show on a terminal what goes on, and how long it will take."""
