"""`bmrjax predict` on files that strangers made: one line, soon, whatever they ask for."""

import json
import re
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest
from campaigns.codec_files import file_of

from bmrjax import codec, zoo
from bmrjax.cli import main, network_cost
from bmrjax.cli.network_cost import BATCH_NUMBERS, MOST_ROWS, affordable_rows

EXTRA = '{"input_shape":[1,8,8],"input_mean":0.0,"input_scale":1.0,"num_classes":4}'


def conv(padding=0, kernel=1):
    two = '{"tuple":[1,1]}'
    pad = f'{{"tuple":[{{"tuple":[{padding},{padding}]}},{{"tuple":[{padding},{padding}]}}]}}'
    return (
        '{"eqx.Conv2d":{"num_spatial_dims":2,"weight":{"array":[1,1,1,1]},"bias":{"array":[1,1,1]},'
        f'"in_channels":1,"out_channels":1,"kernel_size":{{"tuple":[{kernel},1]}},"stride":{two},'
        f'"padding":{pad},"dilation":{two},"groups":1,"use_bias":true,"padding_mode":"ZEROS"}}}}'
    )


def sequence(*layers):
    return '{"eqx.Sequential":{"layers":{"tuple":[' + ",".join(layers) + "]}}}"


def call(function, **options):
    """Return a layer that calls a function with numbers for options."""
    return f'{{"eqx.Lambda":{{"fn":{{"partial":[{{"function":"{function}"}},[],{json.dumps(options)}]}}}}}}'


WIDE = call("jnp.repeat", repeats=2**20, axis=0)
LAYER = '{"eqx.Lambda":{"fn":{"function":"jnp.tanh"}}}'
HOSTILE = {
    "a padding of 2^16": (conv(2**16), "a window or a padding of more than 4096 places"),
    "a padding of 2^39": (conv(2**39), "a window or a padding of more than 4096 places"),
    "a window of 2^20": (conv(kernel=2**20), "a window or a padding of more than 4096 places"),
    "9,000 layers": (sequence(*[LAYER] * 9000), "can pay for|9,001 modules"),
    "2,000 layers": (sequence(*[LAYER] * 2000), "2,001 modules"),
    "paddings that add up": (sequence(*[conv(4000)] * 4), "arrays of [0-9,]+ numbers for one row"),
    "a sort of 2^26 numbers": (
        sequence(WIDE, call("jnp.sort")),
        "as much as [0-9,]+ additions for one row",
    ),
    "a median of as many": (sequence(WIDE, call("jnp.median")), "as much as [0-9,]+ additions"),
    "many operations on as many": (
        sequence(WIDE, *[call("jnp.tanh")] * 200),
        "as much as 13,[0-9,]+ additions for one row",
    ),
    "no classes": (conv(), r"outputs are \(1, 8, 8\) for 4 classes"),
    "3,000 axes": (
        sequence(
            '{"eqx.Lambda":{"fn":{"partial":[{"function":"jnp.tile"},[],{"reps":{"tuple":['
            + ",".join(["1"] * 3000)
            + "]}}]}}}"
        ),
        "arrays with 3,00[0-9] axes; at most 32 are run",
    ),
    "a type that gives a warning": (
        sequence('{"eqx.Lambda":{"fn":{"function":"jnp.int64"}}}'),
        "its outputs are int32",
    ),
    "what steers a terminal": (
        '{"a\\nb\\u001b[31m\\u202e":{"x":1}}',
        r"no class 'a b\\x1b\[31m\\u202e'",
    ),
}
UNITS = {"input_shape": [4], "input_mean": 0.0, "input_scale": 1.0, "num_classes": 4}
NO_UNITS = "without its data's shape and units"
TARGETS = {"num_classes": None, "target_mean": 0.0, "target_scale": 1.0}
EXTRAS = {
    "a table": ({"table": [{"name": "a"}]}, "reads inputs from .npy or .npz"),
    "a scale of 0": ({"input_scale": 0}, NO_UNITS),
    "a scale that float32 has as 0": ({"input_scale": 1e-320}, "too large for float32"),
    "a negative scale": ({"input_scale": [1, 1, 1, -1]}, NO_UNITS),
    "a text": ({"input_mean": "5"}, NO_UNITS),
    "texts": ({"input_mean": ["5"] * 4}, NO_UNITS),
    "a truth value": ({"input_mean": True}, NO_UNITS),
    "a mean for each row": ({"input_mean": [[0.0] * 4] * 3}, NO_UNITS),
    "2^70": ({"input_mean": 2**70}, NO_UNITS),
    "40 axes": ({"input_shape": [1] * 40}, NO_UNITS),
    "no list": ({"input_shape": "4"}, NO_UNITS),
    "no scale of the targets": ({"num_classes": None, "target_mean": 0.0}, NO_UNITS),
    "targets of another shape": ({**TARGETS, "target_mean": [0.0] * 7}, "does not fit outputs"),
    "targets by row": ({**TARGETS, "target_mean": [[0.0] * 4] * 3}, "does not fit outputs"),
    "a text for targets": ({**TARGETS, "target_scale": "1"}, "does not fit outputs"),
    "inputs beyond float32": ({"input_scale": 1e-40}, "too large for float32"),
    "outputs beyond float64": (
        {**TARGETS, "target_mean": 3e38, "target_scale": 3e38},
        None,
    ),
}


@pytest.fixture
def inputs(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 1, 8, 8)))
    return path


@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_network_asks_for_is_bounded(tmp_path, inputs, capsys, text, message):
    (tmp_path / "f.bmr").write_bytes(file_of(text, bytes(200), extra=EXTRA))
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path / "f.bmr"), "--data", str(inputs)])
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert re.search(message, line), line


@pytest.mark.parametrize(("extra", "message"), EXTRAS.values(), ids=EXTRAS.keys())
def test_what_goes_with_a_network_is_checked(tmp_path, capsys, extra, message):
    text = sequence('{"eqx.Lambda":{"fn":{"function":"tanh"}}}')
    (tmp_path / "f.bmr").write_bytes(file_of(text, b"", extra=json.dumps({**UNITS, **extra})))
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    data = tmp_path / ("x.csv" if "table" in extra else "x.npy")
    words = ["predict", str(tmp_path / "f.bmr"), "--data", str(data)]
    if message is None:
        main(words)
        assert capsys.readouterr().err == ""
        return
    with pytest.raises(SystemExit, match="2"):
        main(words)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line


def test_only_what_compress_stores_is_used(tmp_path):
    extra = {**UNITS, "class_names": ["a"], "target_names": 5}
    network = zoo.MLP(4, (3,), 4, key=jax.random.key(0))
    codec.save_network(network, tmp_path / "f.bmr", extra=extra)
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    words = ["predict", str(tmp_path / "f.bmr"), "--data", str(tmp_path / "x.npy")]
    main([*words, "--out", str(tmp_path / "p.csv")])
    assert (tmp_path / "p.csv").read_text().startswith("predicted,class 0,class 1,class 2,class 3")


@pytest.mark.parametrize("outputs", [1, 2])
def test_predictions_that_are_not_finite_are_said(tmp_path, capsys, outputs):
    network = zoo.MLP(4, (3,), outputs, key=jax.random.key(0))
    network = eqx.tree_at(
        lambda n: n.layers[-1].bias, network, np.full(outputs, np.nan, np.float32)
    )
    shape = [[0.5] * outputs] if outputs > 1 else [[0.5]]
    extra = {**UNITS, **TARGETS, "target_mean": shape}
    codec.save_network(network, tmp_path / "f.bmr", extra=extra)
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path / "f.bmr"), "--data", str(tmp_path / "x.npy")])
    message = f"{3 * outputs} of {3 * outputs} predictions are not finite"
    assert message in capsys.readouterr().err


def test_what_a_loop_is_unrolled_to_counts():
    def run(x):
        return jax.lax.scan(lambda c, _: (c + 1, None), x, length=10**6, unroll=10**5)[0]

    with pytest.raises(codec.CodecError, match="operations and arrays"):
        affordable_rows(run, (4,), np.float32)


def test_tracing_ends_where_it_takes_long(tmp_path, inputs, capsys, monkeypatch):
    """A padding by copies is a loop of Python, of as many rounds as it adds copies."""
    monkeypatch.setattr(network_cost, "TRACING_SECONDS", 0.2)
    text = sequence(call("jnp.pad", pad_width=2**24, mode="wrap"))
    (tmp_path / "f.bmr").write_bytes(file_of(text, b"", extra=EXTRA))
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path / "f.bmr"), "--data", str(inputs)])
    assert "takes more than 0.2 s to trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "least", "most"),
    [
        (lambda x: x @ jax.numpy.ones((100, 50)), 5e3, 2e4),
        (jax.numpy.sort, 1e3, 1e4),
        (lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, length=100)[0], 1e4, 2e4),
        (lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 50), (1, 1), "SAME"), 5e3, 1e4),
    ],
)
def test_work_is_about_that_of_the_operations(run, least, most):
    jaxpr = jax.make_jaxpr(run)(jax.ShapeDtypeStruct((1, 100), np.float32))
    assert least <= network_cost._counted(jaxpr.jaxpr)[3] <= most


def test_large_networks_are_within_the_work():
    """The products of a ViT-L/16 for 224 x 224 pixels, and those of a ResNet-152 as one convolution."""

    def run(x, weight, image, kernel):
        for _ in range(24):
            x = (x @ weight)[:, :1024]
        return x, jax.lax.conv(image, kernel, (1, 1), "SAME")

    shapes = (197, 1024), (1024, 12 * 1024), (1, 64, 224, 224), (400, 64, 3, 3)
    jaxpr = jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes))
    work = network_cost._counted(jaxpr.jaxpr)[3]
    assert 5e9 < work < network_cost.MOST_WORK


@pytest.mark.parametrize(("width", "rows"), [(500, BATCH_NUMBERS // 1008**2), (100, MOST_ROWS)])
def test_wide_arrays_take_fewer_rows_at_once(width, rows):
    run = jax.vmap(lambda x: jax.numpy.pad(x, ((0, 0), (width, width), (width, width))))
    assert affordable_rows(run, (1, 8, 8), np.float32) == rows


SCRIPT = "from bmrjax.cli import script; script()"


def command(*arguments, code=SCRIPT):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


def test_the_command_has_limits(tmp_path, inputs):
    network = zoo.MLP(4, (3,), 4, key=jax.random.key(0))
    extra = {"input_shape": [4], "input_mean": 0.0, "input_scale": 1.0, "num_classes": 4}
    codec.save_network(network, tmp_path / "f.bmr", extra=extra)
    np.save(inputs, np.ones((3, 4)))
    words = ["predict", tmp_path / "f.bmr", "--data", inputs, "--out", tmp_path / "p.npy"]
    found = command(*words)
    assert (found.returncode, found.stderr) == (0, "")
    assert np.load(tmp_path / "p.npy").shape == (3, 4)
    found = command(*words, "--max-seconds", 1)
    assert found.returncode == 2
    assert "took more than 1 s of processor time" in found.stderr
    assert found.stderr.count("\n") == 1
    found = command("predict", tmp_path / "none.bmr", "--data", inputs)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1


LIMITED = """
import os, sys
from bmrjax.cli.limited import run_limited

def run():
    kind = sys.argv[1]
    print("noise of a library" * 50, file=sys.stderr)
    if kind == "abort":
        os.abort()
    if kind == "memory":
        try:
            bytearray(2**31)
        except MemoryError:
            raise SystemExit(7)
    if kind == "spin":
        while True:
            pass

run_limited(run, what="the network in f", seconds=1, gigabytes=1)
print("after")
"""


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("fine", 0, "noise of a library"),
        ("abort", 2, "the network in f ended its process (SIGABRT): it needs more than 1 GB"),
        ("memory", 7, "noise of a library"),
        ("spin", 2, "the network in f took more than 1 s of processor time"),
    ],
)
def test_a_child_that_blows_up_is_one_line(kind, code, message):
    found = command(kind, code=LIMITED)
    assert found.returncode == code
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
    assert ("after" in found.stdout) == (code == 0)
