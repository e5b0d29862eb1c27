"""The progress bar: a widget in a notebook that has widgets, text everywhere else."""

import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():
    # A notebook without ipywidgets gets the text bar, which is as good; importing need not complain.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm as tqdm
