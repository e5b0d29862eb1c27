"""Files of the codec that nobody meant: damaged ones, and descriptions that ask for too much."""

import functools
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bmrjax import codec, zoo
from bmrjax.codec.arithmetic import ArithmeticWriter
from bmrjax.codec.array_records import KIND_BITS, KINDS, LAYOUT_BITS
from bmrjax.codec.compression_dictionary import PHRASES
from bmrjax.codec.container import CODERS, MAGIC, VERSION
from bmrjax.codec.describe_network import ARRAY_DTYPES
from bmrjax.codec.huffman import HuffmanWriter
from bmrjax.codec.integers import write_integer, write_integers
from bmrjax.codec.quantise import LARGEST_CODE, STEP_BITS

HEAD = len(MAGIC) + 5
SHARES = {"damaged": 0.2, "resealed": 0.35, "grammar": 0.45}
# The documented bounds on loading a file of n bytes, once the libraries are loaded.
SECONDS, SECONDS_PER_BYTE = 0.05, 60e-6
MEMORY, MEMORY_PER_BYTE = 64e6, 4096


def resealed(data: bytes) -> bytes:
    """Return damaged bytes with a checksum that fits."""
    body = data[HEAD:]
    return data[: len(MAGIC) + 1] + zlib.crc32(bytes([VERSION]) + body).to_bytes(4, "little") + body


def real_files() -> list[bytes]:
    """Return files of small networks, of each coder, layout and quantiser, and of each library."""
    from flax import nnx

    rng = np.random.default_rng(0)
    network = zoo.MLP(12, (6,), 3, key=jax.random.key(0))
    first = jnp.where(rng.random((6, 12)) < 0.3, network.layers[0].weight, 0)
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, first)
    scales = {"layers.0.weight": 0.1}
    few = codec.KMeans(4)
    options: list[dict[str, Any]] = [
        {"posterior_scale": scales},
        {"coder": "ans", "quantiser": few},
        {"coder": "huffman", "layout": codec.CSR(3), "quantiser": few},
        {"coder": "huffman", "layout": codec.Gaps()},
        {"layout": codec.Bitmap(), "dense": "float32"},
        {"layout": codec.CSR(), "coder": "ans"},
        {"posterior_scale": scales, "quantiser": codec.RelativeEntropy(bits=6)},
    ]
    files = [codec.encode(network, **each) for each in options]
    others = [
        zoo.LeNet5(key=jax.random.key(1)),
        zoo.MLP(100, (50, 20), 10, key=jax.random.key(2)),
        zoo.ResNet(3, 10, blocks=(1, 1), width=4, key=jax.random.key(3)),
        zoo.NNXMLP(8, (5, 5), 2, rngs=nnx.Rngs(0)),
        zoo.NNXViT(
            2, 3, image_size=8, patch=4, width=8, heads=2, hidden=8, depth=1, rngs=nnx.Rngs(0)
        ),
        eqx.nn.MLP(6, 2, 5, 1, key=jax.random.key(4)),
        _tied(jax.random.key(5)),
        nnx.Sequential(
            nnx.Conv(1, 2, (3, 3), rngs=nnx.Rngs(0)),
            nnx.BatchNorm(2, rngs=nnx.Rngs(0)),
            functools.partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2)),
            nnx.Dropout(0.1, rngs=nnx.Rngs(0)),
            nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0)),
        ),
    ]
    return files + [codec.encode(each) for each in others]


def _tied(key: Any) -> Any:
    parts = eqx.nn.Embedding(6, 4, key=key), eqx.nn.Linear(4, 6, key=key)
    return eqx.nn.Shared(parts, lambda p: p[1].weight, lambda p: p[0].weight)


def damaged(rng: np.random.Generator, data: bytes) -> bytes:
    """Return bytes with one to four random changes."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(found) or 1))
        kind = rng.integers(6)
        if kind == 0 and found:
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del found[at:]
        elif kind == 2 and found:
            found[at] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))]))
        elif kind == 3:
            end = min(len(found), at + int(rng.integers(1, 9)))
            found[at:end] = rng.bytes(end - at)
        elif kind == 4:
            found[at:at] = rng.bytes(int(rng.integers(1, 9)))
        else:
            end = min(len(found), at + int(rng.integers(1, 64)))
            found[at:at] = found[at:end]
    return bytes(found)


def file_of(text: str, code: bytes, coder: int = 0, extra: str = "") -> bytes:
    """Return a file with a checksum that fits, whatever is in it."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=PHRASES)
    packed = squeeze.compress((text + ("\n" + extra if extra else "")).encode()) + squeeze.flush()
    size, head = len(packed), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    body = bytes([coder, 10, *head, size]) + packed + code
    return resealed(MAGIC + bytes([VERSION]) + bytes(4) + body)


class Grammar:
    """Make descriptions that are read, and codes that fit them, with numbers at the limits.

    Args:
        rng: Decides everything.
    """

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self._shapes: list[list[int]] = []

    def file(self) -> bytes:
        """Return one file."""
        self._shapes = []
        tree, coder = self._tree(0), int(self.rng.integers(3))
        repeat = int(self.rng.choice([0, 0, 0, 3, 30, 300, 3000, 30000]))
        text = json.dumps(tree, separators=(",", ":"))
        if repeat and len(text) * repeat < 2**20:
            text = "[" + ",".join([text] * repeat) + "]"
        code = self._code(coder)
        if self.rng.random() < 0.3:
            code += bytes(int(10 ** self.rng.uniform(0, 5)))
        extra = "" if self.rng.random() < 0.9 else json.dumps(self._tree(0))
        return file_of(text, code, coder, extra)

    def _number(self) -> int:
        kind = self.rng.integers(4)
        if kind == 0:
            return int(self.rng.integers(4))
        if kind == 1:
            return int(self.rng.integers(1, 300))
        if kind == 2:
            return 2 ** int(self.rng.integers(0, 64)) - int(self.rng.integers(2))
        if self.rng.random() < 0.02:
            return 10 ** int(self.rng.integers(400))
        return int(10 ** self.rng.uniform(0, 7))

    def _shape(self) -> list[int]:
        kind = self.rng.integers(5)
        if kind == 0:
            shape = [self._number() for _ in range(self.rng.integers(0, 9))]
        elif kind == 1:
            shape = [0, self._number()][:: int(self.rng.choice([1, -1]))]
        elif kind == 2:  # about as many as a small file may have
            rows = int(10 ** self.rng.uniform(0, 6.3))
            shape = [rows, max(1, int(10 ** self.rng.uniform(4, 6.3)) // rows)]
        else:
            shape = [int(self.rng.integers(1, 2000)) for _ in range(self.rng.integers(1, 3))]
        self._shapes.append(shape)
        return shape

    def _tree(self, depth: int) -> Any:
        rng = self.rng
        kind = int(rng.integers(20 if depth < 6 else 6))
        if kind <= 3:
            node: dict[str, Any] = {"array": self._shape()}
            return node if rng.random() < 0.7 else {**node, "dtype": str(rng.choice(ARRAY_DTYPES))}
        if kind == 4:
            return [self._number(), "a", 1e300, None, True][int(rng.integers(5))]
        if kind == 5:
            return {"function": str(rng.choice(["relu", "tanh", "lax.max", "eval"]))}
        if kind == 6:
            return [self._tree(depth + 1) for _ in range(rng.integers(0, 5))]
        if kind == 7:
            return {"tuple": [self._tree(depth + 1) for _ in range(rng.integers(0, 4))]}
        if kind == 8:
            return {"dict": {f"k{i}": self._tree(depth + 1) for i in range(rng.integers(0, 4))}}
        if kind == 9:
            return {"state": self._tree(depth + 1)}
        if kind == 10:
            layer = {"dict": {"kernel": {"array": [1, 1]}, "bias": {"array": [1]}}}
            self._shapes += [[1, 1], [1]]
            count = int(10 ** rng.uniform(0, 3.2))
            return {
                "NNXMLP": {
                    "layers": [layer] * count, "activation": {"function": "relu"}, "dropout": 0.0,
                }
            }  # fmt: skip
        if kind == 11:
            count = int(10 ** rng.uniform(0, 2.2))
            held = {name: {"dict": {}} for name in ("patches", "class_token", "positions", "norm")}
            blocks = [self._tree(depth + 3) for _ in range(1)] * count
            heads = [1] * count
            rest = {"head": {"dict": {}}, "image_size": self._number(), "patch": self._number()}
            return {"NNXViT": {**held, "blocks": blocks, "heads": heads, **rest, "dropout": 0}}
        if kind == 12:
            return {"eqx.Linear": {
                "weight": {"array": self._shape()}, "bias": {"array": self._shape()},
                "in_features": self._number(), "out_features": self._number(), "use_bias": True,
            }}  # fmt: skip
        if kind == 13:
            layers = [{"eqx.Identity": {}}] * int(10 ** rng.uniform(0, 4))
            return {"eqx.Sequential": {"layers": {"tuple": layers}}}
        return self._named(kind, depth)

    def _named(self, kind: int, depth: int) -> Any:
        """Return what names functions and objects, and what is of Flax."""
        rng = self.rng
        if kind == 14:
            names = (
                "jnp.mean nnx.avg_pool nnx.Linear os:system numpy:save a.__init__:f equinox:__doc__"
            )
            return {str(rng.choice(["function", "enum"])): str(rng.choice(names.split()))}
        if kind == 15:
            options = {f"k{i}": self._tree(depth + 1) for i in range(rng.integers(0, 3))}
            function = {"function": "jnp.clip"} if rng.random() < 0.7 else self._tree(depth + 1)
            args = [self._tree(depth + 1) for _ in range(rng.integers(0, 3))]
            return {str(rng.choice(["partial", "tree partial"])): [function, args, options]}
        if kind == 16:
            count = int(10 ** rng.uniform(0, 3.5)) - 1
            parts = {str(i): self._leaf(i) for i in range(count)}
            return {
                str(rng.choice(["nnx.List", "nnx.Dict", "nnx.Linear"])): {"_length": count, **parts}
            }
        if kind == 17:  # objects that hold the one before once, twice, or often
            each = int(rng.choice([1, 2, 2, 30]))
            chain = [
                {"nnx.List": {str(j): {"same": i} for j in range(each)}}
                for i in range(int(10 ** rng.uniform(0, 3)))
            ]
            return [
                {"nnx.List": {}},
                *chain,
                *([{"state": {"array": []}}] if rng.random() < 0.5 else []),
            ]
        if kind == 18:
            self._shapes.append([2])
            words = {"array": [2], "dtype": "uint32"}
            return [{"key": ["threefry2x32", words]}] * int(10 ** rng.uniform(0, 2.5))
        shared = {
            "pytree": self._tree(depth + 1),
            "where": {"path": [0, "a"]},
            "get": {"paths": [[1], []]},
        }
        table = [[self._tree(depth + 1), self._tree(depth + 1)] for _ in range(rng.integers(0, 3))]
        return {"eqx.Shared": shared} if rng.random() < 0.5 else {"map": table}

    def _leaf(self, number: int) -> Any:
        if number % 3:
            return {"static": number} if number % 2 else {"dtype": "bfloat16"}
        self._shapes.append([1])
        return {"nnx.Param": {"value": {"array": [1]}, "metadata": {"dict": {"sharding": ["a"]}}}}

    def _code(self, coder: int) -> bytes:
        """Return bytes that begin as arrays of these shapes do, and then are anything."""
        rng = self.rng
        kind = rng.integers(4)
        if kind == 0:
            return rng.bytes(int(10 ** rng.uniform(0, 4)))
        if kind == 1:
            return bytes([int(rng.integers(256))]) * int(10 ** rng.uniform(0, 4))
        writer: Any = HuffmanWriter() if CODERS[coder] == "huffman" else None
        writer = writer or ArithmeticWriter(stack=CODERS[coder] == "ans")
        for shape in self._shapes[: int(rng.integers(1, 40))]:
            self._record(writer, shape)
        return writer.finish() + rng.bytes(int(rng.integers(0, 30)))

    def _record(self, writer: Any, shape: list[int]) -> None:
        rng = self.rng
        size = min(math.prod(shape), 2**31)
        kind = str(rng.choice(KINDS))
        writer.bits(np.array([KINDS.index(kind)]), KIND_BITS)
        if kind == "rising":
            write_integer(writer, size)
        elif kind in ("exact", "float16", "constant"):
            writer.bits(rng.integers(0, 256, int(rng.integers(1, 64))), 8)
        else:
            alphabet = int(rng.choice([1, 2, 40, 2 * LARGEST_CODE + 1]))
            if kind == "grid":
                writer.bits(np.array([int(rng.integers(2**STEP_BITS))]), STEP_BITS)
                for end in ((alphabet - 1) // 2, alphabet // 2):
                    write_integer(writer, end, LARGEST_CODE.bit_length())
            elif kind == "codebook":
                write_integer(writer, int(rng.integers(2)))
                write_integer(writer, alphabet // 2)
            layout = int(rng.integers(4))
            writer.bits(np.array([layout]), LAYOUT_BITS)
            rows = shape[0] if len(shape) > 1 else 1
            columns = size // max(rows, 1)
            if layout == 1 and max(rows, columns) < 10**5:  # a bitmap with lines that are all alike
                few, many = min(rows, columns), max(rows, columns)
                for count, most in ((few, many), (many, few)):
                    write_integers(writer, np.full(count, int(rng.integers(most + 1))), most)
            elif layout == 3:
                writer.bits(np.array([int(rng.integers(32))]), 5)
            write_integer(writer, int(rng.choice([size, size // 2, 1, min(10**5, size)])))


def cases(seed: int, count: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield files, each with the kind of its making and its number.

    Args:
        seed: Of all of them.
        count: How many.
    """
    files = real_files()
    kinds = list(SHARES)
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        kind = str(rng.choice(kinds, p=list(SHARES.values())))
        data = files[int(rng.integers(len(files)))]
        if kind == "grammar":
            data = Grammar(rng).file()
        else:
            data = damaged(rng, data)
            if kind == "resealed" and len(data) > HEAD:
                data = resealed(data)
        yield kind, number, data


def load(case: tuple[str, int, bytes]) -> str:
    """Decode one file; only a CodecError is an answer."""
    try:
        codec.decode(case[2])
    except codec.CodecError as error:
        message = str(error)
        if not message or "\n" in message or len(message) > 1000:
            raise AssertionError(f"no message of one line: {message!r:.200}") from None
        return "refused"
    return "a network"


def within(size: int, seconds: float, memory: float) -> bool:
    """Say whether loading a file of so many bytes kept to the bounds."""
    return (
        seconds <= SECONDS + SECONDS_PER_BYTE * size and memory <= MEMORY + MEMORY_PER_BYTE * size
    )
