"""Predict with networks that strangers may have made: an answer or one error, no abort, no hang."""

import functools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bmrjax import codec, zoo
from bmrjax.cli.compressed_network import CompressedNetwork
from bmrjax.codec.container import CODERS, unpack
from campaigns.child import in_children
from campaigns.codec_files import damaged, file_of, resealed
from campaigns.command import run_command, until

# Of processor time for one prediction, which compiles; a whole command may take as much as it was given.
SECONDS = 30
MEMORY = 2e9
FIELDS = ("padding", "kernel_size", "stride", "dilation", "groups", "patch", "image_size", "heads")


@functools.cache
def real_files() -> list[tuple[bytes, tuple[int, ...]]]:
    """Return files with what goes with them, and the shape of their inputs."""
    from flax import nnx

    keys = jax.random.split(jax.random.key(0), 4)
    vit = {"image_size": 8, "patch": 4, "width": 8, "heads": 2, "hidden": 8, "depth": 1}
    networks: list[tuple[Any, tuple[int, ...]]] = [
        (zoo.MLP(6, (5, 4), 3, key=keys[0]), (6,)),
        (zoo.LeNet5(key=keys[1]), (1, 28, 28)),
        (zoo.ViT(1, 3, **vit, key=keys[2]), (1, 8, 8)),
        (zoo.NNXMLP(6, (5, 5), 3, rngs=nnx.Rngs(0)), (6,)),
        (zoo.NNXViT(1, 3, **vit, rngs=nnx.Rngs(0)), (1, 8, 8)),
    ]
    found = []
    for network, shape in networks:
        extra = {
            "input_shape": list(shape), "input_mean": 0.0, "input_scale": 1.0,
            "num_classes": 10 if len(shape) == 3 and shape[1] == 28 else 3,
        }  # fmt: skip
        found.append((codec.encode(network, extra=extra), shape))
    return found


def changed(rng: np.random.Generator, tree: Any) -> Any:
    """Return a description with one to three values replaced."""
    tree = json.loads(json.dumps(tree))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for name, inner in list(items):
            places.append((node, name))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(tree)
    windows = [(node, name) for node, name in places if name in FIELDS]
    for _ in range(int(rng.integers(1, 4))):
        some = windows if windows and rng.random() < 0.5 else places
        node, name = some[int(rng.integers(len(some)))]
        value = node[name]
        while isinstance(value, dict | list) and len(value) and rng.random() < 0.8:
            node = value
            name = list(node)[0] if isinstance(node, dict) else int(rng.integers(len(node)))
            value = node[name]
        kind = rng.integers(5)
        if kind == 0 and isinstance(value, dict | list):
            other, at = places[int(rng.integers(len(places)))]
            node[name] = json.loads(json.dumps(other[at]))
        elif kind == 1 and isinstance(node, list):
            node.extend([value] * int(10 ** rng.uniform(0, 3)))
        else:
            exponent = int(rng.integers(0, 14 if rng.random() < 0.8 else 40))
            node[name] = int(rng.choice([-1, 1, 1, 1])) * 2**exponent
    return tree


def cases(seed: int, count: int) -> Iterator[tuple[int, bytes, tuple[int, ...]]]:
    """Yield files, each with its number and the shape of the inputs that it is given."""
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        data, shape = real_files()[int(rng.integers(len(real_files())))]
        if rng.random() < 0.15:
            yield number, resealed(damaged(rng, data)), shape
            continue
        held = unpack(data)
        text = json.dumps(changed(rng, json.loads(held.text)), separators=(",", ":"))
        code = held.code + bytes(int(10 ** rng.uniform(0, 4)))
        coder = CODERS.index(held.coder)
        yield number, file_of(text, code, coder, json.dumps(held.extra)), shape


def predict(case: tuple[int, bytes, tuple[int, ...]]) -> str:
    """Predict for three rows; only a CodecError is an answer beside numbers."""
    _, data, shape = case
    with tempfile.NamedTemporaryFile(suffix=".bmr") as file:
        file.write(data)
        file.flush()
        try:
            network = CompressedNetwork(Path(file.name))
        except codec.CodecError:
            return "refused"
        try:
            network.predict(np.ones((3, *shape), np.float32))
        except codec.CodecError:
            return "does not run"
    return "predicted"


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Predict with made-up files in children with limits.

    Args:
        seed: Of the files.
        count: How many.
        minutes: After which it ends early.
        keep: Folder for the files that broke a promise.
    """
    outcomes: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    worst = {"seconds": 0.0, "megabytes": 0.0}
    begin = time.time()
    for (number, data, _), cost in in_children(predict, until(cases(seed, count), minutes)):
        word = cost.outcome if cost.survived else "failed"
        outcomes[word] = outcomes.get(word, 0) + 1
        if cost.survived:
            worst["seconds"] = max(worst["seconds"], cost.seconds)
            worst["megabytes"] = max(worst["megabytes"], 1e-6 * cost.memory)
        if cost.survived and cost.seconds < SECONDS and cost.memory < MEMORY:
            continue
        failures.append(
            {"number": number, "bytes": len(data), "outcome": cost.outcome,
             "seconds": cost.seconds, "megabytes": 1e-6 * cost.memory}
        )  # fmt: skip
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}-{number}.bmr").write_bytes(data)
    return {
        "campaign": "predict", "seed": seed, "files": sum(outcomes.values()),
        "minutes": (time.time() - begin) / 60,
        "outcomes": outcomes, "worst": worst, "failures": failures,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(campaign, __doc__, files=5000)
