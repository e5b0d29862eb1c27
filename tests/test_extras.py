"""Each optional dependency that is missing is one line, which says what to install."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
# What needs an extra, by its name.
CALLS = {
    "plots": "from bmrjax.plot.axes import new_figure; new_figure((1, 1))",
    "data (bundled)": "bmr.data.load_dataset('digits')",
    "data (images)": "bmr.data.load_dataset('mnist')",
    "arviz": "from bmrjax.run.data_tree import data_tree; call(data_tree)",
    "sklearn (regressor)": "bmr.SparseRegressor()",
    "sklearn (classifier)": "bmr.SparseClassifier()",
    "tensorboard": "bmr.callbacks.TensorBoard('logs')",
    "report": "bmr.report.write_page(bmr.report.Page('a', 'b', [], []), 'a.html')",
    "onnx": "import jax; net = bmr.zoo.MLP(2, (2,), 1, key=jax.random.key(0)); "
    "bmr.export.onnx(net, jax.numpy.ones(2), 'a.onnx')",
    "wandb": "bmr.callbacks.WeightsAndBiases(project='a')",
}
BLOCKED = (
    "matplotlib sklearn datasets PIL arviz arviz_stats xarray tensorboardX torch wandb jinja2 vl_convert "
    "jax2onnx onnx onnxruntime"
).split()
# Not imported by the package: pymdp's agents come from the user; the others are of developers.
NOT_IMPORTED = {"pymdp", "notebooks", "docs", "release", "dev"}
PROGRAM = """
import inspect, json, sys
import scipy.stats  # it asks torch, where there is an entry of that name
for name in {blocked}:
    sys.modules[name] = None
import bmrjax as bmr

def call(function):
    function(**dict.fromkeys(inspect.signature(function).parameters))

found = {{}}
for name, text in {calls}.items():
    try:
        exec(text)
    except ImportError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def test_every_extra_is_among_these():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {name.partition(" ")[0] for name in CALLS} | NOT_IMPORTED == extras.keys()


@pytest.mark.slow
def test_a_missing_package_is_one_line_that_says_what_to_install():
    text = PROGRAM.format(blocked=BLOCKED, calls=CALLS)
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert not run.returncode, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert found.keys() == CALLS.keys()
    for name, line in found.items():
        assert f"pip install 'bmrjax[{name.partition(' ')[0]}]'" in line
        assert "\n" not in line
