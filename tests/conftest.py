"""What every test file shares."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

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


@pytest.fixture(scope="module")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep compiled programs on disk, for files that repeat one run many times."""
    folder = tmp_path_factory.mktemp("compiled")
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    old = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()
    yield folder
    for name, value in old.items():
        jax.config.update(name, value)
    reset_cache()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of image data sets that ``BMRJAX_DATA`` names; skip where there is none."""
    root = os.environ.get("BMRJAX_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("set BMRJAX_DATA to a folder of data sets to run this test")
    return Path(root)
