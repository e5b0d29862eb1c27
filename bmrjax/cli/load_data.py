"""The data that a command names."""

from bmrjax.cli.data_options import DataOptions
from bmrjax.data import load_dataset
from bmrjax.data.dataset import Dataset


def load_data(options: DataOptions) -> Dataset:
    """Return the data set that the options name."""
    return load_dataset(
        options.data,
        data_root=options.data_root,
        task=options.task,
        num_targets=options.num_targets,
        target=options.target,
        categories=options.categories,
        drop=options.drop,
        impute=options.impute,
        seed=options.split_seed,
    )
