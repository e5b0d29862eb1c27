"""What every test file shares."""

import contextlib
import gc
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import platformdirs
import pytest
from callback_fixtures import logged, members, plain  # noqa: F401 - of several files of tests
from jax._src.interpreters import mlir
from jax._src.lru_cache import LRUCache

from bmrjax.backend import compile_cache, quick_compile
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


# The version whose internals `quick_lowering` knows; with another one, tests lower as users do.
JAX_OF_QUICK_LOWERING = "0.10.2"


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


@pytest.fixture
def all_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no operation to NumPy, where a test counts what is compiled."""
    if jax.__version__ == JAX_OF_QUICK_LOWERING:
        import quick_eager

        monkeypatch.setattr(quick_eager.pjit, "_pjit_call_impl_python", quick_eager._compile)


def pytest_configure(config: pytest.Config) -> None:
    """Make the many small programs of the tests cheap."""
    # Tracing makes many objects that live: with Python's thresholds, a tenth of the time goes into looking at
    # them again and again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # A long fit is worth the compiler's time here too; but most have some hundred steps.
    quick_compile._DEFAULT.update(
        xla_backend_optimization_level=3, xla_cpu_use_fusion_emitters=True
    )
    loop._STEPS_OF_A_FIT = 500
    _keep_compiled()
    mlir.make_ir_context = _ir_context
    if jax.__version__ == JAX_OF_QUICK_LOWERING:  # it reaches into JAX
        import quick_eager
        import quick_lowering

        quick_lowering.install()
        quick_eager.install()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but the first cases of a test to `make all-checks`, where it says so."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("first_cases")
        if marker is not None and item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > marker.args[0]:
                item.add_marker("slow")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported out of the search for garbage."""
    gc.freeze()


# An operation on an array of a new shape takes 24 ms of a core: 15 of them are compilation and 4 the making
# of MLIR's context. From the folder and with a context that is there, it takes 6.


def _keep_compiled() -> None:
    """Keep compiled programs on disk, from run to run: ``BMRJAX_TEST_CACHE`` or a folder of the user's.

    JAX knows a program by its text, the versions and the flags, so a change of the code is compiled anew.
    All workers of xdist share the folder; processes that a test starts have one beside it.
    """
    root = os.environ.get("BMRJAX_TEST_CACHE") or platformdirs.user_cache_dir(
        "bmrjax-tests", appauthor=False
    )
    folder = Path(root) / compile_cache.processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written
        folder = Path(tempfile.mkdtemp(prefix="bmrjax-tests-"))
    for kept, most_bytes in ((folder / "here", 2**30), (folder / "processes", 2**28)):
        kept.mkdir(exist_ok=True)
        if "PYTEST_XDIST_WORKER" not in os.environ:
            _drop_oldest(kept, most_bytes)
    settings = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_traceback_in_locations_limit": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    jax.config.update("jax_compilation_cache_dir", str(folder / "here"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "processes")
    LRUCache.put = _put


def _put(cache: Any, key: str, value: bytes) -> None:
    """Write an entry whole: JAX writes in place, and another worker may be reading."""
    entry = Path(str(cache.path)) / f"{key}-cache"
    with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
        file.write(value)
    os.replace(file.name, entry)


def _drop_oldest(folder: Path, most_bytes: int) -> None:
    """Where files take more than `most_bytes`, delete those written first, down to half of that."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run has renamed or deleted it
            found.append((path.stat(), path))
    left = sum(stat.st_size for stat, _ in found)
    if left <= most_bytes:
        return
    for stat, path in sorted(found, key=lambda each: each[0].st_mtime):
        if left <= most_bytes // 2:
            return
        path.unlink(missing_ok=True)
        left -= stat.st_size


class _Context(threading.local):
    """The context that programs of a thread are lowered in, and for how many more."""

    context: Any = None
    left = 0


_context = _Context()
_make_ir_context = mlir.make_ir_context


def _ir_context() -> Any:
    """Return MLIR's context of this thread; a new one now and then, because it holds all constants."""
    if not _context.left:
        _context.context, _context.left = _make_ir_context(), 200
    _context.left -= 1
    return _context.context


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of image data sets that ``BMRJAX_DATA`` names; skip where there is none."""
    root = os.environ.get("BMRJAX_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("set BMRJAX_DATA to a folder of data sets to run this test")
    return Path(root)


@pytest.fixture
def python_s_own_handler():
    """Ctrl-C as in a program of its own; a test may run where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
