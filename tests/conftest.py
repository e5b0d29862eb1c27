"""What every test file shares."""

import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

from bmrjax.backend import quick_compile
from bmrjax.infer import loop

# Most of the time of these tests is compilation, a third of it kernels that XLA would fuse. Parts of a
# program that are compiled side by side are a quarter more work, and the tests run side by side already. The
# notebooks run with the compiler's defaults. XLA stops at a flag that it does not know: these are those
# of the version in constraints.txt.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)

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


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs on disk, and look for garbage less often."""
    # Tracing makes many objects that live: with Python's thresholds, a tenth of the time goes into looking at
    # them again and again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    _keep_compiled(config)


def _keep_compiled(config: pytest.Config) -> None:
    """Keep compiled programs on disk for the whole run: many tests compile the same ones.

    Each worker of xdist has a folder of its own, because JAX writes entries in place; processes that a
    test starts share it. It is gone when the run ends.
    """
    folder = tempfile.mkdtemp(prefix="bmrjax-compiled-")
    config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    # A long fit is worth the compiler's time here too; but most have some hundred steps.
    quick_compile._DEFAULT.update(
        xla_backend_optimization_level=3, xla_cpu_use_fusion_emitters=True
    )
    loop._STEPS_OF_A_FIT = 500
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of image data sets that ``BMRJAX_DATA`` names; skip where there is none."""
    root = os.environ.get("BMRJAX_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("set BMRJAX_DATA to a folder of data sets to run this test")
    return Path(root)
