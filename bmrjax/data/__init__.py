"""Data sets by name, from files, from tables, or from arrays of your own."""

from bmrjax.data.dataset import Dataset as Dataset
from bmrjax.data.dataset import from_arrays as from_arrays
from bmrjax.data.dataset import split_rows as split_rows
from bmrjax.data.frames import from_csv as from_csv
from bmrjax.data.frames import from_frame as from_frame
from bmrjax.data.sources import load_dataset as load_dataset
