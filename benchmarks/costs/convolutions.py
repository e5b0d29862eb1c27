"""Convolutions of training on a CPU: XLA's own, every other form, and the one that bmrjax chooses.

    python -m benchmarks.costs.convolutions

For each layer the convolution itself, and its gradients by the input and by the kernels. Forms are timed in
turns; of each the least of several times counts, in milliseconds by the clock. The last column is what the
choice takes, as a part of what XLA's takes.

Then whole networks: the gradient of a loss on a batch, and the outputs for a batch, as they are and with the
convolutions chosen, in turns, by the clock and in CPU time of all threads. In a program, other operations
want their arrays in another order, so whole networks gain less than their layers.
"""

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.common import networks, options
from benchmarks.common.rows import Rows, environment, table
from bmrjax.backend.convolution_forms import FORMS, Convolution, possible_forms
from bmrjax.backend.jaxprs import bind_one
from bmrjax.backend.quick_convolutions import form_of, in_form, with_quick_convolutions

# Batch, channels, image, kernels, taps, stride, padding.
LAYERS: dict[str, tuple[int, int, int, int, int, int, str]] = {
    "LeNet-5, 1st": (128, 1, 32, 6, 5, 1, "VALID"),
    "LeNet-5, 2nd": (128, 6, 14, 16, 5, 1, "VALID"),
    "LeNet-5, 3rd": (128, 16, 5, 120, 5, 1, "VALID"),
    "LeNet-5-Caffe, 1st": (128, 1, 28, 20, 5, 1, "VALID"),
    "LeNet-5-Caffe, 2nd": (128, 20, 12, 50, 5, 1, "VALID"),
    "wide LeNet-5, 1st": (128, 3, 32, 18, 5, 1, "VALID"),
    "wide LeNet-5, 2nd": (128, 18, 14, 48, 5, 1, "VALID"),
    "wide LeNet-5, 3rd": (128, 48, 5, 360, 5, 1, "VALID"),
    "tutorial, 3 to 32": (64, 3, 32, 32, 3, 1, "SAME"),
    "tutorial, 32 to 64": (64, 32, 16, 64, 3, 1, "SAME"),
    "5x5, 32 to 64": (64, 32, 14, 64, 5, 1, "SAME"),
    "5x5, 64 to 64": (64, 64, 14, 64, 5, 1, "VALID"),
    "ResNet-20, stem": (128, 3, 32, 16, 3, 1, "SAME"),
    "ResNet-20, 16": (128, 16, 32, 16, 3, 1, "SAME"),
    "ResNet-20, 16 to 32": (128, 16, 32, 32, 3, 2, "SAME"),
    "ResNet-20, 64": (128, 64, 8, 64, 3, 1, "SAME"),
    "ResNet-18, 64": (8, 64, 32, 64, 3, 1, "SAME"),
    "ResNet-18, 256": (8, 256, 8, 256, 3, 1, "SAME"),
    # The rule was made with those above and with the networks, one of its bounds with the next fourteen. The
    # last seven had no part in it.
    "batch 32, 1 to 32": (32, 1, 28, 32, 3, 1, "VALID"),
    "batch 32, 32 to 64": (32, 32, 26, 64, 3, 1, "VALID"),
    "batch 64, 1 to 10": (64, 1, 28, 10, 5, 1, "VALID"),
    "batch 64, 10 to 20": (64, 10, 12, 20, 5, 1, "VALID"),
    "batch 4, 3 to 6": (4, 3, 32, 6, 5, 1, "VALID"),
    "batch 4, 6 to 16": (4, 6, 14, 16, 5, 1, "VALID"),
    "batch 512, 1 to 6": (512, 1, 32, 6, 5, 1, "VALID"),
    "batch 512, 6 to 16": (512, 6, 14, 16, 5, 1, "VALID"),
    "batch 256, 8 to 16": (256, 8, 14, 16, 3, 1, "SAME"),
    "batch 32, 64 to 128": (32, 64, 16, 128, 3, 2, "SAME"),
    "batch 16, 128": (16, 128, 16, 128, 3, 1, "SAME"),
    "batch 16, 32, 7x7": (16, 32, 28, 32, 7, 1, "SAME"),
    "batch 64, 64 to 192, 5x5": (64, 64, 8, 192, 5, 1, "SAME"),
    "batch 64, 48 to 128": (64, 48, 14, 128, 3, 1, "VALID"),
    "batch 16, 64 to 96": (16, 64, 16, 96, 3, 1, "SAME"),
    "batch 50, 80": (50, 80, 8, 80, 3, 1, "VALID"),
    "batch 100, 3 to 24": (100, 3, 28, 24, 5, 1, "SAME"),
    "batch 100, 24 to 40": (100, 24, 14, 40, 5, 1, "VALID"),
    "batch 256, 2 to 8": (256, 2, 20, 8, 3, 1, "SAME"),
    "batch 256, 5 to 12": (256, 5, 18, 12, 4, 1, "VALID"),
    "batch 20, 12 to 30": (20, 12, 24, 30, 5, 2, "VALID"),
}
# The shape of an image, and images in a batch.
NETWORKS: dict[str, tuple[tuple[int, int, int], int]] = {
    "LeNet-5": ((1, 28, 28), 128),
    "LeNet-5-Caffe": ((1, 28, 28), 128),
    "wide LeNet-5": ((3, 32, 32), 128),
    "ResNet-18": ((3, 32, 32), 8),
    "3×3, 32 and 64": ((1, 28, 28), 32),
    "3×3, 16 to 64": ((3, 32, 32), 64),
    "5×5, 10 and 20": ((1, 28, 28), 64),
}
PLAIN = {
    "3×3, 32 and 64": (3, (32, 64), "VALID"),
    "3×3, 16 to 64": (3, (16, 32, 64), "SAME"),
    "5×5, 10 and 20": (5, (10, 20), "VALID"),
}
KINDS = ("forward", "by input", "by kernels")


def operation(layer: tuple[int, int, int, int, int, int, str], kind: str) -> Any:
    """Return the equation of a layer's convolution, or of one of its gradients."""
    n, channels, size, kernels, taps, stride, padding = layer
    x, w = jnp.zeros((n, channels, size, size)), jnp.zeros((kernels, channels, taps, taps))

    def forward(x: Any, w: Any) -> Any:
        return jax.lax.conv(x, w, (stride, stride), padding)

    def gradient(x: Any, w: Any, y: Any) -> Any:
        if kind == "by input":
            return jax.vjp(lambda x: forward(x, w), x)[1](y)
        return jax.vjp(lambda w: forward(x, w), w)[1](y)

    if kind == "forward":
        jaxpr = jax.make_jaxpr(forward)(x, w)
    else:
        jaxpr = jax.make_jaxpr(gradient)(x, w, jax.eval_shape(forward, x, w))
    return [e for e in jaxpr.jaxpr.eqns if e.primitive.name == "conv_general_dilated"][-1]


def calls(eqn: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the operation compiled in each form that it has; XLA's own is called ``xla``."""
    names = possible_forms(Convolution.of(eqn))
    others = {name: jax.jit(functools.partial(in_form, name, eqn)) for name in names}
    return {"xla": jax.jit(lambda x, w: bind_one(eqn, (x, w))), **others}


def least_times(eqn: Any, repeats: int) -> dict[str, float]:
    """Return the least time of each form, in milliseconds."""
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(v.aval.shape), jnp.float32) for v in eqn.invars]
    forms, least = calls(eqn), {}
    expected = jax.block_until_ready(forms["xla"](*args))
    for name, call in forms.items():
        gap = float(jnp.abs(call(*args) - expected).max() / jnp.abs(expected).max())
        if gap > 1e-3:
            raise RuntimeError(f"The form {name!r} differs by {gap:.1e} of the largest number.")
        least[name] = float("inf")
    for _ in range(repeats):
        for name, call in forms.items():
            begin = time.perf_counter()
            jax.block_until_ready(call(*args))
            least[name] = min(least[name], 1e3 * (time.perf_counter() - begin))
    return least


def measure(name: str, kind: str, repeats: int) -> dict[str, Any]:
    """Return the row of a layer and a kind of convolution."""
    eqn = operation(LAYERS[name], kind)
    least = least_times(eqn, repeats)
    chosen = form_of(Convolution.of(eqn)) or "xla"
    return {"layer": name, "kind": kind, "ms": least, "chosen": chosen, **environment()}


def plain_network(
    shape: tuple[int, int, int], taps: int, channels: tuple[int, ...], padding: str
) -> eqx.nn.Sequential:
    """Return convolutions with ReLU and max pooling, and a hidden layer of 50, as in many tutorials."""
    keys = iter(jax.random.split(jax.random.key(0), len(channels) + 2))
    layers: list[Any] = []
    for before, after in itertools.pairwise((shape[0], *channels)):
        layer = eqx.nn.Conv2d(before, after, taps, padding=padding, key=next(keys))
        layers += [layer, eqx.nn.Lambda(jax.nn.relu), eqx.nn.MaxPool2d(2, 2)]
    features = eqx.nn.Sequential([*layers, eqx.nn.Lambda(jnp.ravel)])
    (width,) = eqx.filter_eval_shape(features, jnp.zeros(shape)).shape
    hidden = [eqx.nn.Linear(width, 50, key=next(keys)), eqx.nn.Lambda(jax.nn.relu)]
    return eqx.nn.Sequential([*features, *hidden, eqx.nn.Linear(50, 10, key=next(keys))])


def network_programs(name: str, kind: str) -> dict[str, Callable[[], Any]]:
    """Return what computes a network's gradient or outputs on a batch, by the form of its convolutions."""
    shape, rows = NETWORKS[name]
    if name == "wide LeNet-5":
        network = networks.classifier_of("lenet5", shape, 10, 0)
    elif name in PLAIN:
        network = plain_network(shape, *PLAIN[name])
    else:
        network = networks.build(name)
    network, *state = network if isinstance(network, tuple) else (network,)
    arrays, rest = eqx.partition(network, eqx.is_array)
    x = jax.random.normal(jax.random.key(1), (rows, *shape))
    labels = jnp.arange(rows) % 10

    def outputs(arrays: Any, x: Any) -> Any:
        network = eqx.combine(arrays, rest)
        if not state:
            return jax.vmap(network)(x)
        axes = {"in_axes": (0, None), "out_axes": (0, None), "axis_name": "batch"}
        return jax.vmap(network, **axes)(x, *state)[0]

    def loss(arrays: Any, x: Any) -> Any:
        log_probs = jax.nn.log_softmax(outputs(arrays, x))
        return -jnp.mean(jnp.take_along_axis(log_probs, labels[:, None], 1))

    function = outputs if kind == "outputs" else jax.grad(loss)
    forms = {"xla": function, "chosen": with_quick_convolutions(function)}
    programs = {n: jax.jit(f).trace(arrays, x).lower().compile() for n, f in forms.items()}
    a, b = (jax.tree.leaves(program(arrays, x)) for program in programs.values())
    gap = optax.global_norm([x - y for x, y in zip(a, b, strict=True)]) / optax.global_norm(a)
    if gap > 1e-3:
        raise RuntimeError(f"{name}: the {kind} differ by {gap:.1e} of their norm.")
    return {n: functools.partial(program, arrays, x) for n, program in programs.items()}


def measure_network(name: str, kind: str, repeats: int) -> dict[str, Any]:
    """Return the row of a network."""
    programs = network_programs(name, kind)
    ms: dict[str, list[float]] = {n: [] for n in programs}
    cpu: dict[str, list[float]] = {n: [] for n in programs}
    for _ in range(repeats):
        for n, call in programs.items():
            begin, begin_cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            ms[n].append(1e3 * (time.perf_counter() - begin))
            cpu[n].append(1e3 * (time.process_time() - begin_cpu))
    middle = {n: statistics.median(times) for n, times in ms.items()}
    return {
        "network": name,
        "kind": kind,
        "ms": middle,
        "cpu_ms": {n: statistics.median(times) for n, times in cpu.items()},
        **environment(),
    }


def network_table(rows: list[dict[str, Any]]) -> str:
    """Return the times of whole networks."""
    lines = []
    for row in rows:
        (shape, size), ms, cpu = NETWORKS[row["network"]], row["ms"], row["cpu_ms"]
        times = [f"{by[n]:.1f}" for by in (ms, cpu) for n in ("xla", "chosen")]
        ratios = [f"{by['chosen'] / by['xla']:.2f}" for by in (ms, cpu)]
        of = f"{size} × {'×'.join(map(str, shape))}"
        lines.append(
            [row["network"], of, row["kind"], *times[:2], ratios[0], *times[2:], ratios[1]]
        )
    header = ["network", "batch", "", "XLA's, ms", "chosen, ms", "ratio"]
    return table([*header, "XLA's, CPU ms", "chosen, CPU ms", "ratio, CPU"], lines)


def write_table(rows: Rows) -> None:
    """Write the times of all forms, and those of whole networks."""
    names = ["xla", *FORMS]
    lines = []
    for row in rows.rows:
        if "network" in row:
            continue
        ms = row["ms"]
        times = [f"{ms[name]:.2f}" if name in ms else "–" for name in names]
        ratio = ms[row["chosen"]] / ms["xla"]
        lines.append([row["layer"], row["kind"], *times, row["chosen"], f"{ratio:.2f}"])
    layers = table(["layer", "", *names, "chosen", "its time / XLA's"], lines)
    whole = network_table([row for row in rows.rows if "network" in row])
    rows.write_table(f"{layers}\n\nWhole networks, medians:\n\n{whole}")


def main() -> None:
    """Time all layers."""
    parser = options.parser(__doc__, "convolutions", seeds=None, report=True)
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=list(LAYERS), help="all")
    parser.add_argument(
        "--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS), help="all"
    )
    parser.add_argument("--repeats", type=int, default=15, help="times of each form: 15")
    args: argparse.Namespace = options.parse(parser)
    rows = Rows(args.out)
    jobs = [("layer", name, kind) for name in args.layers for kind in KINDS]
    jobs += [("network", name, kind) for name in args.networks for kind in ("gradient", "outputs")]
    for of, name, kind in () if args.report else jobs:
        rows.rows = [r for r in rows.rows if (r.get(of), r["kind"]) != (name, kind)]
        measured = measure if of == "layer" else measure_network
        rows.add(measured(name, kind, args.repeats))
        print(f"{name}, {kind}: {rows.rows[-1]['ms']}", flush=True)
    names = [*LAYERS, *NETWORKS]
    rows.rows.sort(
        key=lambda row: ("network" in row, names.index(row.get("layer", row.get("network"))))
    )
    rows.save()
    write_table(rows)


if __name__ == "__main__":
    main()
