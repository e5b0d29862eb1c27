"""Networks for other programs: files that give what the network gives."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import export, zoo
from bmrjax.export.eight_bits import rounded

KEY = jax.random.key(0)


class Sum(nnx.Module):
    def __call__(self, x, y):
        return x + y


class RowByRow(nnx.Module):
    """A network that takes its rows one by one, so that it has to know how many there are."""

    def __call__(self, x):
        return jnp.stack([jnp.tanh(x[i]) for i in range(x.shape[0])])


class Scattered(eqx.Module):
    """A network whose operation the converter lacks, for any number of rows."""

    def __call__(self, x):
        _, which = jax.lax.top_k(x, 2)
        return jnp.zeros_like(x).at[which].set(jax.nn.softmax(x[:2]))


class Watched(nnx.Module):
    """A network that notes whether it was run operation by operation."""

    def __init__(self):
        self.compiled = nnx.static([])

    def __call__(self, x):
        self.compiled.append(isinstance(x, jax.core.Tracer))
        return x * 2


class Table(nnx.Module):
    """A network that runs on one sequence of three, where a batch of them is meant."""

    def __call__(self, tokens):
        return jnp.ones((30, 2))[tokens] + jnp.ones((3, 2))


def flax_network():
    network = nnx.Sequential(
        nnx.Conv(1, 3, (3, 3), rngs=nnx.Rngs(0)),
        nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
        nnx.relu,
        lambda x: x.reshape(x.shape[0], -1),
        nnx.Linear(108, 40, rngs=nnx.Rngs(1)),
        nnx.Dropout(0.5, rngs=nnx.Rngs(2)),
    )
    network.layers[1].mean[...] = jnp.arange(3.0)
    return network


def _networks():
    normal = lambda *shape: jax.random.normal(KEY, shape)  # noqa: E731
    yield "mlp", lambda: zoo.MLP(8, (6,), 3, key=KEY), normal(8)
    lenet = lambda: zoo.LeNet5(conv_features=(2, 3, 4), hidden=5, key=KEY)  # noqa: E731
    yield "lenet", lenet, normal(1, 28, 28)
    small = {"blocks": (1, 1), "width": 2, "small_images": True}
    resnet = lambda: eqx.nn.make_with_state(zoo.ResNet)(1, 3, key=KEY, **small)  # noqa: E731
    yield "resnet", resnet, normal(1, 8, 8)
    yield "flax", flax_network, normal(4, 6, 6, 1)


CASES = list(_networks())
IDS = [case[0] for case in CASES]


def expected(network, x):
    if isinstance(network, nnx.Module):
        return nnx.view(network, deterministic=True, use_running_average=True)(x)
    batched = bmr.structure.network_arrays.equinox_batched(network)
    return batched(x)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "build", "example"),
    [
        pytest.param(*case, id=case[0], marks=[pytest.mark.slow] if case[0] == "resnet" else [])
        for case in CASES
    ],
)
def test_stablehlo_runs_without_the_network(name, build, example, tmp_path):
    network = build()
    report = export.stablehlo(network, example, tmp_path / "n", repeats=1)
    program = export.load_stablehlo(tmp_path / "n")
    rows = jax.random.normal(jax.random.key(1), (5, *example.shape[name == "flax" :]))
    np.testing.assert_allclose(program(rows), expected(network, rows), atol=1e-5)
    assert report.size == (tmp_path / "n").stat().st_size
    assert "StableHLO" in repr(report)
    assert report.batch is None


@pytest.mark.parametrize(
    "names", [("mlp", "lenet", "flax"), pytest.param(("resnet",), marks=pytest.mark.slow)]
)
def test_onnx_runs_without_the_network(names, tmp_path):
    # In one test, because the converter takes seconds to load.
    pytest.importorskip("jax2onnx", reason="needs the extra onnx", exc_type=ImportError)
    import onnxruntime

    for name, build, example in (case for case in CASES if case[0] in names):
        network = build()
        report = export.onnx(network, example, tmp_path / "n.onnx", repeats=1)
        session = onnxruntime.InferenceSession(tmp_path / "n.onnx")
        rows = jax.random.normal(jax.random.key(1), (5, *example.shape[name == "flax" :]))
        (found,) = session.run(None, {"x": np.asarray(rows)})
        np.testing.assert_allclose(found, expected(network, rows), atol=1e-4)
        assert report.float32_size == report.size == (tmp_path / "n.onnx").stat().st_size
        assert report.error < 1e-4
    # The converter has functions of its own for some of JAX's, and nothing of them stays.
    assert jnp.cumsum(jnp.ones(3), 0)[-1] == 3
    if "mlp" not in names:
        return
    without_a_form_of_the_converter(tmp_path)
    eight_bits(tmp_path)


def without_a_form_of_the_converter(tmp_path):
    """Check networks whose layers the converter takes for other ones: of scalars, of whole numbers."""
    scalar, plain = (eqx.nn.MLP(5, size, 8, 1, key=KEY) for size in ("scalar", 3))
    for network, example, batch in (
        (scalar, jnp.linspace(-1, 1, 5), None),
        (plain, jnp.arange(5), 4),
        (plain, jnp.arange(5) > 2, None),
    ):
        assert (
            export.onnx(network, example, tmp_path / "n.onnx", batch=batch, repeats=0).error < 1e-5
        )


@pytest.mark.slow  # converting takes seconds; `make all-checks` runs it
def test_a_number_of_rows_is_proposed_where_it_helps_only(tmp_path):
    pytest.importorskip("jax2onnx", reason="needs the extra onnx", exc_type=ImportError)
    file = tmp_path / "n.onnx"
    with pytest.raises(ValueError, match=r"cannot be converted .*it can: batch=2"):
        export.onnx(RowByRow(), jnp.ones((2, 4)), file)
    assert export.onnx(RowByRow(), jnp.ones((2, 4)), file, batch=2, repeats=0).error < 1e-5
    with pytest.raises(ValueError, match=r"cannot be converted \((?!.*batch=)"):
        export.onnx(Scattered(), jnp.arange(4.0), file)


def test_a_number_of_rows_is_proposed_for_a_program(tmp_path):
    with pytest.raises(ValueError, match="any number of rows; give batch="):
        export.stablehlo(RowByRow(), jnp.ones((2, 4)), tmp_path / "n")


def test_a_network_is_compiled_to_be_compared(tmp_path):
    network = Watched()
    export.stablehlo(network, jnp.ones((2, 3)), tmp_path / "n", platforms=["cpu"], repeats=0)
    assert len(network.compiled) > 2
    assert all(network.compiled)


def eight_bits(tmp_path):
    """Check that rounding keeps to its bounds."""
    import onnxruntime

    network = zoo.MLP(40, (30, 20), 3, key=KEY)
    example = jax.random.normal(KEY, (40,))
    report = export.onnx(
        network, example, tmp_path / "n.onnx", int8=export.Int8(change=0.03), repeats=1
    )
    stored = {a.name: a.stored for a in report.arrays}
    assert stored["layers.0.weight"] == stored["layers.1.weight"] == "int8"
    assert stored["layers.2.weight"] == stored["layers.0.bias"] == "float32"
    assert 0 < report.change <= 0.03
    assert report.size < 0.5 * report.float32_size
    assert "eight bits per weight" in repr(report)
    (found,) = onnxruntime.InferenceSession(tmp_path / "n.onnx").run(
        None, {"x": np.asarray(example)[None]}
    )
    gap = np.abs(found[0] - network(example)).max() / np.abs(network(example)).max()
    assert gap == pytest.approx(report.change, rel=0.01)
    # A bound that nothing keeps leaves all in float32.
    tight = export.onnx(
        network, example, tmp_path / "n.onnx", int8=export.Int8(change=1e-9), repeats=0
    )
    assert {a.stored for a in tight.arrays} == {"float32"}
    # By the posterior: the layer that is known well is left.
    scales = {"layers.0.weight": 0.1, "layers.1.weight": 1e-5}
    posterior = export.onnx(
        network, example, tmp_path / "n.onnx", int8=export.Int8(scales), repeats=0
    )
    stored = {a.name: a for a in posterior.arrays}
    assert [stored[f"layers.{i}.weight"].stored for i in (0, 1)] == ["int8", "float32"]
    weight = np.asarray(network.layers[0].weight)
    values = rounded(weight, 0).values
    assert posterior.nats == pytest.approx(np.square(weight - values).sum() / 0.02, rel=1e-4)


def test_rounding_is_to_the_nearest_level_and_keeps_zeros():
    rng = np.random.default_rng(0)
    array = (rng.normal(size=(6, 50)) * (rng.random((6, 50)) < 0.5)).astype(np.float32)
    array[3] = 0
    for axis, values in ((0, array), (-1, array.T)):
        found = rounded(values, axis)
        step = np.abs(array).max(1) / 127
        assert (found.values[values == 0] == 0).all()
        gap = np.abs(found.values - values)
        assert (gap <= 0.5 * (step[:, None] if axis == 0 else step) + 1e-7).all()


def test_a_compacted_network_is_exported_small(tmp_path):
    network = zoo.MLP(6, (5,), 2, key=KEY)
    weight = network.layers[0].weight.at[1:3].set(0)
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, weight)
    small = bmr.compact(network, jnp.ones(6))
    report = export.stablehlo(small, jnp.ones(6), tmp_path / "n", repeats=0)
    assert {a.name: a.shape for a in report.arrays}["layers.0.weight"] == (3, 6)
    np.testing.assert_allclose(
        export.load_stablehlo(tmp_path / "n")(jnp.ones((1, 6)))[0], network(jnp.ones(6)), atol=1e-5
    )


def test_what_cannot_be_exported_is_told(tmp_path, monkeypatch):
    network = zoo.MLP(4, (3,), 2, key=KEY)
    with pytest.raises(TypeError, match="expected an Equinox module"):
        export.stablehlo(3, jnp.ones(4), tmp_path / "n")
    with pytest.raises(ValueError, match="does not run on"):
        export.stablehlo(network, jnp.ones(5), tmp_path / "n")
    with pytest.raises(ValueError, match="one row per data point"):
        export.stablehlo(Sum(), (jnp.ones((2, 1)), jnp.ones(())), tmp_path / "n")
    with pytest.raises(ValueError, match=r"differ .* nothing was written"):
        export.stablehlo(network, jnp.ones(4), tmp_path / "n", tolerance=-1.0)
    infinite = eqx.nn.Lambda(lambda x: jnp.log(x - 1))
    with pytest.raises(ValueError, match="outputs of the network on the example are not finite"):
        export.stablehlo(infinite, jnp.ones(4), tmp_path / "n")
    with pytest.raises(ValueError, match=r"does not run on 4 rows .*Its example has 3"):
        export.stablehlo(Table(), jnp.arange(3), tmp_path / "n", batch=4)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="nats and change must be positive"):
        export.Int8(nats=0)
    (tmp_path / "n").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"holds no program of export\.stablehlo"):
        export.load_stablehlo(tmp_path / "n")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        export.load_stablehlo(tmp_path / "missing")
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'bmrjax\[onnx\]'"):
        export.onnx(network, jnp.ones(4), tmp_path / "n")
