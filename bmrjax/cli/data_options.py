"""Options that say what the data are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bmrjax.cli.option_texts import with_help


@with_help
@dataclass(kw_only=True)
class DataOptions:
    """What `bmrjax.data.load_dataset` takes."""

    data: str
    """digits, diabetes, mnist, fashion_mnist, cifar10; sine, sawtooth, square; or the path of a .npz or .csv
    file."""
    task: Literal["classification", "regression"] | None = None
    """For files: by default classification where the target is text, or whole numbers of few values."""
    target: str | None = None
    """For a .csv: name of the column to predict; the last one by default."""
    num_targets: int = 1
    """For a .csv: how many of the last columns are targets."""
    categories: tuple[str, ...] = ()
    """For a .csv: columns whose numbers are names of categories."""
    drop: tuple[str, ...] = ()
    """For a .csv: columns to leave out."""
    impute: bool = False
    """For a .csv: replace missing numbers by the median of their column."""
    split_seed: int = 0
    """Seed of the choice of rows held out for testing, where the data have no test split of their own."""
    data_root: Path | None = None
    """Folder with a folder for each data set; by default $BMRJAX_DATA, else the Hugging Face hub."""
