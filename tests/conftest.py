"""What every test file shares."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

# The same examples on every run, and no deadline: the first example compiles.
hypothesis.settings.register_profile("bmrjax", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("bmrjax")


@pytest.fixture(scope="module")
def strict_promotion() -> Iterator[None]:
    """Make silent broadcasting over ranks and silent dtype promotion errors.

    For a whole file: ``pytestmark = pytest.mark.usefixtures("strict_promotion")``.
    """
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """Switch on double precision for one test."""
    with jax.enable_x64(new_val=True):
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of image data sets that ``BMRJAX_DATA`` names; skip where there is none."""
    root = os.environ.get("BMRJAX_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("set BMRJAX_DATA to a folder of data sets to run this test")
    return Path(root)
