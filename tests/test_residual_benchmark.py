"""The residual network of two libraries, and the table of what it loses; nothing is trained or pruned."""

import argparse
from importlib import import_module

import jax
import numpy as np
import pytest

residual = pytest.importorskip(
    "benchmarks.trained.residual", reason="the benchmarks are not part of this distribution"
)
rows_ = import_module("benchmarks.common.rows")
SIZE = argparse.Namespace(blocks=1, width=4, epochs=1)


def tensors() -> dict[str, np.ndarray]:
    """Random tensors of ResNet-8 by torchvision's names."""
    rng = np.random.default_rng(0)
    found = {"conv1.weight": (4, 3, 3, 3), "fc.weight": (10, 16), "fc.bias": (10,)}
    norms = {"bn1": 4}
    for stage, (ins, out) in enumerate([(4, 4), (4, 8), (8, 16)], 1):
        name = f"layer{stage}.0"
        found |= {
            f"{name}.conv1.weight": (out, ins, 3, 3),
            f"{name}.conv2.weight": (out, out, 3, 3),
        }
        norms |= {f"{name}.bn1": out, f"{name}.bn2": out}
        if stage > 1:
            found[f"{name}.downsample.0.weight"] = (out, ins, 1, 1)
            norms[f"{name}.downsample.1"] = out
    for name, size in norms.items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.{part}"] = (size,)
    arrays = {name: rng.uniform(0.5, 1.5, shape) for name, shape in found.items()}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    counters = {f"{name}.num_batches_tracked": np.array(7) for name in norms}
    return arrays | counters


def test_tensors_go_to_equinox_and_back():
    given = tensors()
    pair = residual.network_of(given, SIZE)
    back = residual.tensors_of(pair, list(given))
    assert set(back) == {name for name in given if not name.endswith("num_batches_tracked")}
    for name, array in back.items():
        np.testing.assert_array_equal(array, given[name], err_msg=name)


def test_likelihood_is_that_of_the_outputs():
    given = tensors() | {"fc.weight": np.zeros((10, 16), np.float32)}
    given["fc.bias"] = np.log(np.arange(1, 11, dtype=np.float32))
    x = np.asarray(jax.random.normal(jax.random.key(0), (3, 3, 32, 32)))
    found = residual.nll(residual.network_of(given, SIZE), x, np.array([0, 4, 9]))
    expected = -np.mean(np.log(np.array([1, 5, 10]) / 55))
    assert found == pytest.approx(expected, rel=1e-5)


def test_table_has_a_line_a_method_and_a_column_a_share(tmp_path):
    rows = rows_.Rows(tmp_path)
    for seed, accuracy in enumerate([0.5, 0.7]):
        about = {"network": "ResNet-8", "seed": seed, "nll": 1.0, "flops": 0.2, "parameters": 9}
        for after in ("", "2 passes"):
            dense = {"method": "dense", "after": after, "accuracy": 0.9, "target": 1.0}
            rows.rows.append(about | dense)
            for target in residual.TARGETS:
                row = {"method": "ours", "after": after, "target": target, "cpu_s": 3.0}
                rows.rows.append(about | row | {"accuracy": accuracy})
    residual.write_table(rows)
    text = (tmp_path / "table.md").read_text()
    assert "ResNet-8, 2 seeds." in text
    assert "As it is; dense 0.900 ± 0.000 / 1.00 ± 0.00:" in text
    lines = [line for line in text.splitlines() if line.startswith("| ours")]
    assert len(lines) == 2  # as it is, and after training
    assert lines[0].count("0.600 ± 0.100 / 1.00 ± 0.00 at 20%") == len(residual.TARGETS)
    assert "After 2 passes of training; dense" in text
