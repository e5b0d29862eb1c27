"""`bmrjax predict` on files that strangers made: one line, soon, whatever they ask for."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from campaigns.codec_files import file_of

from bmrjax import codec, zoo
from bmrjax.cli import main
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


LAYER = '{"eqx.Lambda":{"fn":{"function":"jnp.tanh"}}}'
HOSTILE = {
    "a padding of 2^16": (conv(2**16), "a window or a padding of more than 4096 places"),
    "a padding of 2^39": (conv(2**39), "a window or a padding of more than 4096 places"),
    "a window of 2^20": (conv(kernel=2**20), "a window or a padding of more than 4096 places"),
    "9,000 layers": (sequence(*[LAYER] * 9000), "can pay for|9,001 modules"),
    "2,000 layers": (sequence(*[LAYER] * 2000), "2,001 modules"),
    "paddings that add up": (sequence(*[conv(4000)] * 4), "arrays of [0-9,]+ numbers for one row"),
    "no classes": (conv(), r"outputs are \(1, 8, 8\) for 4 classes"),
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
