"""`bmrjax reduce`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


@dataclass
class Reduce:
    """Reduce a posterior in a folder of safetensors shards, piece by piece, and write its masks.

    Example: bmrjax reduce posterior --prior-scale 0.1 --criterion spike-slab --out masks

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
    criterion: Literal["spike-slab", "shrinkage"] = "spike-slab"
    """spike-slab learns how many of a layer's weights to include; shrinkage judges each by itself, against
    a normal around zero that is narrow."""
    alpha: float | None = None
    """spike-slab: prior count of included weights, 1 by default."""
    beta: float | None = None
    """spike-slab: prior count of excluded weights, 1 by default."""
    num_steps: int | None = None
    """spike-slab: fixed-point iterations, 4 by default."""
    variance: float | None = None
    """shrinkage: of the narrow normal, 1e-16 by default."""
    layers: Literal["tensors", "modules"] = "tensors"
    """What shares an inclusion probability: each tensor its own, or the tensors of a module, whose names
    differ after the last dot only."""
    workers: int | None = None
    """Threads; by default one more than there are cores."""
    progress: bool = True
    """Show a progress bar."""


def run_reduce(options: Reduce) -> None:
    """Reduce a folder of shards, and write its masks."""
    scales = _prior_scales(options.prior_scale)
    from bmrjax.streaming import reduce_folder
    from bmrjax.streaming.folder import read_folder

    layers = None
    if options.layers == "modules":
        pairs, _ = read_folder(options.directory)
        layers = {p.name: p.name.rpartition(".")[0] or p.name for p in pairs}
    report = reduce_folder(
        options.directory,
        options.out,
        _criterion(options),
        prior_scale=scales,
        layers=layers,
        workers=options.workers,
        progress=options.progress,
    )
    width = max(map(len, report.layers))
    for name, layer in report.layers.items():
        line = f"  {name:<{width}}  {layer.kept:,} of {layer.total:,} kept"
        if layer.reads > 1:
            line += f", {layer.reads} reads"
        if layer.unproven:
            line += f", {layer.unproven:,} within ±{layer.error_bound:.1e} nats of the bar"
        print(line)
    print(report)
    print(f"written to {options.out}")


def _criterion(options: Reduce) -> Any:
    from bmrjax import criteria

    slab = {"alpha": options.alpha, "beta": options.beta, "num_steps": options.num_steps}
    given = {name: value for name, value in slab.items() if value is not None}
    if options.criterion == "shrinkage":
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"{flags} goes with --criterion spike-slab.")
        return (
            criteria.Shrinkage()
            if options.variance is None
            else criteria.Shrinkage(options.variance)
        )
    if options.variance is not None:
        raise ValueError("--variance goes with --criterion shrinkage.")
    return criteria.SpikeAndSlab(**given)


def _prior_scales(words: tuple[str, ...]) -> float | dict[str, float]:
    """Return the scale, or patterns of names to scales."""
    if not words:
        raise ValueError("--prior-scale needs a number, such as 0.1.")
    found: dict[str, float] = {}
    for word in words:
        pattern, equals, number = word.rpartition("=")
        pattern = pattern if equals else "*"
        if pattern in found:
            raise ValueError(f"--prior-scale: two scales for '{pattern}'.")
        try:
            found[pattern] = float(number)
        except ValueError:
            raise ValueError(
                f"--prior-scale takes numbers, such as 0.1, or PATTERN=NUMBER, such as 'encoder.*=0.1'; got "
                f"{word!r}."
            ) from None
    return found
