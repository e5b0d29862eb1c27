"""Settings in proportion to the data, where a command leaves them out."""

from dataclasses import dataclass, replace
from typing import Any

from bmrjax.cli.sparsify_options import FLAT, SparsifyOptions, is_verified

# Up to so many rows, images are fitted as the bundled digits are.
_FEW_IMAGES = 10_000
# From so many rows on, a second hidden layer predicts better and ends with no more weights.
_MANY_ROWS = 5_000
# Standard deviation of a weight of a small network before anything is learned. On the validation rows of two
# splits, in nats per data point against .1: concrete .09 better, energy .16, yacht .16; boston, diabetes,
# wine and breast cancer within the noise.
_WIDE = 0.3


@dataclass(frozen=True)
class Proportions:
    """What a command may leave out.

    None is left as it is; as `steps_per_epoch` it stands for one pass over the data.
    """

    hidden: tuple[int, ...]
    num_epochs: int
    steps_per_epoch: int | None
    validation: float
    within: float = 0.0
    kl_warmup_epochs: int | None = None
    batch_size: int = 128
    criterion: str | None = "spike-and-slab"
    prior_scale: float | None = None
    stop_early: bool | None = None
    tolerance: float | None = None


def proportions_of(
    rows: int, input_shape: tuple[int, ...], *, net: str, method: str, num_epochs: int | None = None
) -> Proportions:
    """Return settings in proportion to the data.

    A table gets one hidden layer of 50 units, or two for many rows, and a prior that is wider than that of
    large networks. A weight is removed if its own evidence does not favour it, and rounds go on for as many
    epochs as they need. The threshold of a spike-and-slab posterior removed too little on some tables and
    too much on others; but with more columns than rows, it alone found the few that matter. Validation rows
    choose the point of the path: the point with the best VFE is sparser, and predicts worse, on little
    data. Large image sets and sequences get what suits their networks.

    Args:
        rows: Training rows, validation rows included.
        input_shape: Shape of one input.
        net: Name of the network.
        method: Name of the method.
        num_epochs: Epochs of the run, where they are given.
    """
    mlp, path, epochs = net in ("mlp", "nnx-mlp"), method == "bmr", num_epochs
    if mlp and len(input_shape) == 1:
        hidden, steps = ((50,), 100) if rows < _MANY_ROWS else ((50, 50), 200)
        if epochs is None:
            epochs = 200 if path else 100
        if not path:
            return Proportions(hidden, epochs, steps, 0.0, within=1.0, prior_scale=_WIDE)
        return Proportions(
            hidden,
            epochs,
            steps,
            validation=0.15,
            within=1.0,
            kl_warmup_epochs=_warm_up(epochs),
            criterion="shrinkage" if input_shape[0] <= rows else "spike-and-slab",
            prior_scale=_WIDE,
            stop_early=True,
            tolerance=1.0,
        )
    if mlp and len(input_shape) == 3 and rows <= _FEW_IMAGES:
        epochs = epochs or 60
        warm = _warm_up(epochs) if path else None
        return Proportions((100, 100), epochs, 200, 0.15 if path else 0.0, kl_warmup_epochs=warm)
    epochs = epochs or 50
    warm = _warm_up(epochs) if path else None
    return Proportions((400,) * 5, epochs, None, 0.0, kl_warmup_epochs=warm)


def _warm_up(epochs: int) -> int:
    """Return the epochs over which the divergence comes in, along a straight line.

    What `sparsify` does by default finds more where there is much to learn, and, under the criterion of
    tables, ends with more weights where there is not. Here, a point estimate says which of the two it is, and
    further fits follow; see `bmrjax.cli.colder`.
    """
    return min(epochs // 5, 20)


def in_proportion(
    options: SparsifyOptions, rows: int, input_shape: tuple[int, ...]
) -> SparsifyOptions:
    """Return the options with what was left out filled in; see `proportions_of`."""
    found = proportions_of(
        rows, input_shape, net=options.net, method=options.method, num_epochs=options.num_epochs
    )
    filled: dict[str, Any] = {
        name: value for name, value in vars(found).items() if getattr(options, name) is None
    }
    if options.prior == "log-uniform":
        # Its own default depends on the length of the run.
        filled.pop("kl_warmup_epochs", None)
    if options.prior not in FLAT:
        filled.pop("prior_scale", None)
        if "criterion" in filled:
            filled["criterion"] = "spike-and-slab"
    if options.method != "bmr" or options.prior in ("log-uniform", "spike-and-slab"):
        # Their criteria are others.
        filled.pop("criterion", None)
    if not is_verified(options):
        for name in ("stop_early", "tolerance"):
            filled.pop(name, None)
    return replace(options, **filled)


def proportion_line(given: SparsifyOptions, options: SparsifyOptions, rows: int) -> str:
    """Return what was chosen for the data, in one line.

    Args:
        given: The options as they came.
        options: The same, with what was left out filled in.
        rows: Training rows, validation rows included.
    """
    flags = []
    for name in vars(proportions_of(1, (1,), net="mlp", method="bmr")):
        value = getattr(options, name)
        if name == "within" and not options.validation:
            continue
        used = {
            "hidden": options.net in ("mlp", "nnx-mlp", "gru"),
        }.get(name, True)
        if getattr(given, name) is None and value is not None and used:
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
            flags.append(f"--{name.replace('_', '-')} {shown}")
    if not flags:
        return f"{rows:,} training rows"
    return f"{rows:,} training rows; in proportion: {' '.join(flags)}"
