"""`bmrjax reduce`."""

from typing import Any

from bmrjax import criteria
from bmrjax.cli.reduce_options import ReduceOptions
from bmrjax.streaming import reduce_folder
from bmrjax.streaming.folder import read_folder


def run_reduce(options: ReduceOptions) -> None:
    """Reduce a folder of shards, and write its masks."""
    scales = _prior_scales(options.prior_scale)

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
            line += f", {layer.unproven:,} within ±{layer.error_bound:.1e} nats of the threshold"
        print(line)
    print(report)
    print(f"written to {options.out}")


def _criterion(options: ReduceOptions) -> Any:
    slab = {"alpha": options.alpha, "beta": options.beta, "num_steps": options.num_steps}
    given = {name: value for name, value in slab.items() if value is not None}
    if options.criterion == "shrinkage":
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"{flags} goes with --criterion spike-and-slab.")
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
