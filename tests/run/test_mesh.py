"""Runs that are spread over devices: the same as on one."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.cli.build import build_mesh
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.infer.placement import Placement

SCRIPT = Path(__file__).parents[1] / "mesh_run.py"
BOTH = {"data": 4, "model": 2}


def start(cases, **environment):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(cases)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read(process):
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, error[-4000:]
    return [json.loads(line[5:]) for line in out.splitlines() if line.startswith("CASE ")]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Cases from one process with eight devices."""
    folder = tmp_path_factory.mktemp("moved")
    cases = {
        "data": ["layout", {"data": 8}],
        "model": ["layout", {"model": 8}],
        "reduced": ["reduction", {"model": 8}],
        "reduced on one": ["reduction", {}],
        "iterated": ["from_iterator", {}],
        "moved": ["moved", {"model": 8}, BOTH, str(folder / "a")],
    }
    return dict(zip(cases, read(start(list(cases.values()))), strict=True))


@pytest.fixture(scope="module")
def whole():
    """A run on one device, and over eight."""
    return dict(zip(("one", "both"), read(start([["same", {}], ["same", BOTH]])), strict=True))


def assert_same(a, b):
    # Sums of another order differ in the last bits, and training carries that on.
    assert a["keep"] == b["keep"]
    np.testing.assert_allclose(a["vfe"], b["vfe"], rtol=1e-5)
    for name, value in a["params"].items():
        np.testing.assert_allclose(value, b["params"][name], rtol=1e-4, atol=1e-4, err_msg=name)
    for name, value in a["metrics"].items():
        np.testing.assert_allclose(value, b["metrics"][name], rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_spread_run_is_that_of_one_device(whole):
    kept = sum(map(sum, whole["one"]["keep"].values()))
    total = sum(map(len, whole["one"]["keep"].values()))
    assert kept < 0.7 * total  # rounds were taken
    assert_same(whole["one"], whole["both"])
    assert [each["compilations"] for each in whole.values()] == [1, 1]


def test_no_step_compiles_again(found):
    assert [found[name]["compilations"] for name in ("iterated", "moved")] == [1, 1]


def test_batches_from_an_iterator_and_a_checkpoint_go_over_other_devices(found):
    assert_same(found["moved"], found["iterated"])


def test_data_axis_adds_one_sum_of_gradients(found):
    ((kind, shapes),) = found["data"]["collectives"]
    assert kind == "all-reduce"
    assert [32, 24] in shapes  # a weight's gradient
    assert [] in shapes  # the loss


def test_model_axis_moves_activations_only(found):
    shapes = [s for _, shapes in found["model"]["collectives"] for s in shapes]
    assert shapes
    # 48 data a batch; what is shaped as a parameter, or a part of one, stays where it is.
    assert all(not s or 48 in s for s in shapes), shapes


def test_parted_state_is_divided_by_the_devices(found):
    whole = {name: (size, part) for name, _, size, part in found["model"]["arrays"]}
    divided = {name for name, (size, part) in whole.items() if part * 8 == size}
    entire = {name for name, (size, part) in whole.items() if part == size}
    assert divided | entire == set(whole)
    # Scalars, counters, keys, and the last layer's four biases.
    sizes = [whole[name][0] for name in entire]
    assert max(sizes) <= 16
    assert sum(sizes) < 0.02 * sum(size for size, _ in whole.values())
    # Posterior, moments of the optimiser, masks of one byte an element.
    for part in ("].params[", ".mu", ".nu"):
        assert any(part in name for name in divided), part
    assert any(name.startswith("[1]") and whole[name][0] == 768 for name in divided)


def test_reduction_moves_scalars_only(found):
    """A cumulative sum would gather each mask on all devices, in a time quadratic in its size."""
    collectives = found["reduced"]["collectives"]
    assert collectives
    assert {kind for kind, _ in collectives} == {"all-reduce"}
    sizes = [dims for _, shapes in collectives for dims in re.findall(r"\w+\[([\d,]*)\]", shapes)]
    assert set(sizes) == {""}


def test_reduction_reads_parts_of_posterior_and_prior(found):
    arrays = {name: (size, part) for name, size, part in found["reduced"]["arrays"]}
    weights = [both for both in arrays.values() if both[0] == 768]
    # Mean and standard deviation, of the posterior and of the prior.
    assert weights == [(768, 96)] * 4
    assert all(part * 8 == size for size, part in arrays.values() if size % 8 == 0)


def test_reduction_that_ends_among_ties_is_that_of_one_device(found):
    masks = found["reduced"]["keep"]
    assert masks == found["reduced on one"]["keep"]
    gone = {name: mask.count(False) for name, mask in masks.items()}
    assert sum(gone.values()) == 19  # 2 % of 932
    assert sum(gone[name] for name in gone if name.endswith("bias")) == 19


@pytest.mark.slow
def test_two_processes_are_one_run(whole, tmp_path):
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port.getsockname()[1]}"
    environment = {"MESH_DEVICES": "1", "MESH_ADDRESS": address}
    cases = [["same", {"data": 2}, str(tmp_path)]]
    pair = [start(cases, MESH_PROCESS=str(i), **environment) for i in (0, 1)]
    # Each waits for the other, also when it ends.
    with ThreadPoolExecutor() as threads:
        ((first,), (second,)) = threads.map(read, pair)
    assert_same(first, second)
    assert_same(first, whole["one"])
    assert len(list((tmp_path / "points").iterdir())) == first["points"]


@pytest.mark.slow
def test_one_device_mesh_changes_nothing():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    network = bmr.zoo.MLP(3, [4], 2, key=jax.random.key(0))
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    a, b = (
        bmr.sparsify(
            program,
            (x, (x[:, 0] > 0).astype(int)),
            key=jax.random.key(1),
            num_epochs=2,
            criterion=None,
            options=bmr.FitOptions(mesh=mesh),
            progress=False,
        )
        for mesh in (None, jax.make_mesh((1,), ("data",)))
    )
    jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


def test_bad_meshes_are_told():
    mesh = jax.make_mesh((1,), ("batch",))
    with pytest.raises(ValueError, match=r"axes \['batch'\].*'data'.*'model'"):
        Placement(mesh)
    with pytest.raises(TypeError, match="jax.make_mesh"):
        Placement({"data": 2})
    x = np.zeros((8, 3), np.float32)
    network = bmr.zoo.MLP(3, [4], 2, key=jax.random.key(0))
    program = bmr.programs.classifier(network, bmr.priors.Flat())
    with pytest.raises(ValueError, match="ensemble: members share one device"):
        bmr.ensemble(
            program,
            (x, np.zeros(8, int)),
            keys=jax.random.split(jax.random.key(0), 2),
            options=bmr.FitOptions(mesh=jax.make_mesh((1,), ("data",))),
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data", "'data' is not data=N or model=N"),
        ("rows=2", "'rows=2' is not"),
        ("data=0", "'data=0' is not"),
        ("data=2,data=2", "names data twice"),
        ("data=4000,model=2", r"asks for 8000 devices, and there are \d+ .*device_count=8000"),
    ],
)
def test_meshes_of_the_command_line_that_cannot_be(text, message):
    with pytest.raises(ValueError, match=message):
        build_mesh(SparsifyOptions(data="digits", out=Path("runs"), mesh=text))


def test_mesh_of_the_command_line():
    assert build_mesh(SparsifyOptions(data="digits", out=Path("runs"))) is None
    mesh = build_mesh(SparsifyOptions(data="digits", out=Path("runs"), mesh="data=1, model=1"))
    assert dict(mesh.shape) == {"data": 1, "model": 1}
