"""Options of the commands that look at what a run has saved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bmrjax.cli.option_texts import with_help


@with_help
@dataclass
class InfoOptions:
    """Print what a run reached."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    path: bool = False
    """List the points that can be restored."""


@with_help
@dataclass
class PredictOptions:
    """Predict with a saved run, or with a file that bmrjax compress wrote.

    Predictions are class probabilities, or means in the unit of the targets.
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, or the file."""
    data: Path
    """A .npy file, or a .npz file with an array x: raw inputs, in the unit of the training data; for a
    run on a .csv, another one with the same columns, by name. Or the name of a data set, whose held-out
    data are predicted and scored, as a .csv is that has the target too."""
    out: Path | None = None
    """Where to write the predictions, as .npy or .csv."""
    data_root: Path | None = None
    """For the name of a data set: folder with a folder for each data set."""
    num_samples: int = 100
    """Posterior samples; a file has one network."""
    seed: int = 0
    """Of the samples."""
    max_seconds: int = 600
    """Processor time that a file may take; it is run in a process of its own."""
    max_gigabytes: float = 8.0
    """Memory that it may take there."""


@with_help
@dataclass
class CheckOptions:
    """Verify the files of a run: its results, its model, and its checkpoints against their digests.

    Prints what there is, and a line for what is damaged; the status is 1 if anything is. Nothing is changed.
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, or of an ensemble."""


@with_help
@dataclass
class ReportOptions:
    """Write a page that explains a run: one file of HTML that needs no network.

    It shows the path of the run, what was removed at what price, calibration, findings and settings. Figures
    are those of the run; its data are read again for the calibration.

    Example: bmrjax report runs/digits --out digits.html
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path | None = None
    """Where to write the page; report.html in the folder of the run by default."""
    data_root: Path | None = None
    """For the name of a data set: folder with a folder per data set."""
    num_samples: int | None = None
    """Posterior samples of the calibration; as many as in the run by default."""
    costs: bool = True
    """Cut the network of each point to what it uses, for bytes and FLOPs: about a second each for a small
    network."""
    latency: bool = False
    """Time these networks too, on batches of 256."""


@with_help
@dataclass
class CompactOptions:
    """Print how much smaller a saved run's network becomes without what it does not use."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path | None = None
    """Where to write the smaller network's arrays, as .safetensors."""
    batch_sizes: tuple[int, ...] = (1, 256)
    """Sizes of a batch to time both networks on."""
    repeats: int = 50
    """Calls per timing; 0 for none."""


@with_help
@dataclass
class CompressOptions:
    """Write a saved run's network as a small file, and print what takes how much.

    Example: bmrjax compress runs/digits --out digits.bmr
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path
    """Where to write the file."""
    compact: bool = True
    """Leave out neurons, filters and inputs that do nothing."""
    quantiser: Literal["rate-distortion", "k-means", "uniform", "relative-entropy"] = (
        "rate-distortion"
    )
    """rate-distortion weighs bits against each weight's posterior width; relative-entropy codes a draw from
    the posterior."""
    rate: float | None = None
    """rate-distortion: nats that a bit is worth, 0.1 by default; more for a smaller file."""
    tolerance: float = 0.02
    """uniform, and weights without a posterior: largest error, relative to the layer's typical weight."""
    clusters: int = 64
    """k-means: how many."""
    seed: int = 0
    """relative-entropy: of the draw."""
    coder: Literal["range", "ans", "huffman"] = "range"
    """Entropy coder."""
    layout: Literal["smallest", "gaps", "bitmap", "csr"] = "smallest"
    """How to say where the weights are."""
    offset_bits: int = 5
    """csr: bits of an offset."""


@with_help
@dataclass
class ExportOptions:
    """Write a saved run's network for other programs, as an ONNX graph or a StableHLO program.

    The file takes a batch of raw inputs, in the unit of the training data, and returns class probabilities or
    targets in their unit, by the network at the posterior mean. It is checked before it has its name.

    Example: bmrjax export runs/digits --to onnx --out digits.onnx
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path
    """Where to write the file."""
    to: Literal["onnx", "stablehlo"] = "onnx"
    """onnx needs pip install 'bmrjax[onnx]'; stablehlo is for jax.export."""
    compact: bool = True
    """Leave out neurons, filters and inputs that do nothing. Other zeros make a file of bmrjax compress
    smaller, and no exported one smaller or faster."""
    int8: bool = False
    """onnx: store weights in eight bits where their posterior is wide enough."""
    batch: int | None = None
    """Rows per call; any number by default."""
