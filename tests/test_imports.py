"""What importing costs, and that every module can be imported first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bmrjax

# Imports the modules named on its command line, each first in a process of its own that has the libraries of
# others loaded. What would start threads is not loaded.
EACH_FIRST = """
import os, sys
import equinox, flax.nnx, jax, numpyro.infer.autoguide, optax, pandas, tyro
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            __import__(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def run(*words):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, timeout=600
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_every_module_can_be_imported_first():
    folder = Path(bmrjax.__file__).parent
    paths = [path.relative_to(folder.parent).with_suffix("") for path in folder.rglob("*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names = [name for name in names if name != "bmrjax.__main__"]
    assert len(names) > 400
    assert run("-W", "ignore", "-c", EACH_FIRST, *names).stdout == ""


def test_the_package_and_the_command_load_nothing_before_they_need_it():
    for words in ("import bmrjax", "import bmrjax.cli"):
        code = f"import sys; {words}; print(*{{'jax', 'numpyro', 'flax', 'pandas'}} & {{*sys.modules}})"
        assert run("-c", code).stdout.split() == []


def test_everything_public_is_there():
    for name in bmrjax.__all__:
        assert getattr(bmrjax, name) is not None
    assert set(bmrjax.__all__) <= set(dir(bmrjax))
    # A function is not hidden by the module that it comes from.
    assert callable(bmrjax.sparsify)
    assert callable(bmrjax.hyperparameter)
    with pytest.raises(AttributeError, match="No bmrjax attribute nothing_of_the_kind"):
        bmrjax.nothing_of_the_kind  # noqa: B018
