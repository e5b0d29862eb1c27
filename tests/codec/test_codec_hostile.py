"""Bytes that are no network: one clear error, soon, and in little memory."""

import time
import tracemalloc
import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bmrjax import codec, zoo
from bmrjax.codec.container import MAGIC, VERSION, Container, pack, unpack
from bmrjax.structure import named_arrays
from bmrjax.zoo import flax_forms

HEAD = len(MAGIC) + 5


def resealed(data):
    """Return damaged bytes with a checksum that fits."""
    body = data[HEAD:]
    return data[: len(MAGIC) + 1] + zlib.crc32(bytes([VERSION]) + body).to_bytes(4, "little") + body


def files():
    rng = np.random.default_rng(0)
    network = zoo.MLP(12, (6,), 3, key=jax.random.key(0))
    first = jnp.where(rng.random((6, 12)) < 0.3, network.layers[0].weight, 0)
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, first)
    scales = {"layers.0.weight": 0.1}
    options = {
        "range": {"posterior_scale": scales},
        "ans": {"coder": "ans", "quantiser": codec.KMeans(4)},
        "huffman": {"coder": "huffman", "layout": codec.CSR(3), "quantiser": codec.KMeans(4)},
        "huffman gaps": {"coder": "huffman", "layout": codec.Gaps()},
        "bitmap": {"layout": codec.Bitmap(), "dense": "float32"},
        "drawn": {"posterior_scale": scales, "quantiser": codec.RelativeEntropy(bits=6)},
    }
    return {name: codec.encode(network, **each) for name, each in options.items()}


FILES = files()


def damaged(rng, data):
    """Return bytes that were flipped, cut, or written over at a random place."""
    found = bytearray(data)
    kind = rng.integers(4)
    at = int(rng.integers(len(found)))
    if kind == 0:
        found[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del found[at:]
    elif kind == 2:
        found[at] = int(rng.integers(256))
    else:
        end = min(len(found), at + int(rng.integers(1, 9)))
        found[at:end] = rng.integers(0, 256, end - at, dtype=np.uint8).tobytes()
    return bytes(found)


@pytest.mark.parametrize("name", FILES)
def test_damage_is_found(name):
    rng = np.random.default_rng(1)
    for _ in range(1000):
        data = damaged(rng, FILES[name])
        if data != FILES[name]:
            with pytest.raises(codec.CodecError, match=r"^\S.*\.$"):
                codec.decode(data)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", FILES)
def test_damage_under_a_good_checksum_is_an_error_or_a_network(name):
    rng = np.random.default_rng(2)
    longest, refused = 0.0, 0
    tracemalloc.start()
    for _ in range(400):
        data = damaged(rng, FILES[name])
        if len(data) <= HEAD:
            continue
        begin = time.process_time()
        try:
            codec.decode(resealed(data))
        except codec.CodecError:
            refused += 1
        longest = max(longest, time.process_time() - begin)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 10
    assert longest < 1
    assert peak < 64e6


def test_random_bytes_are_refused():
    rng = np.random.default_rng(3)
    for size in (0, 1, 8, 11, 12, 13, 200):
        with pytest.raises(codec.CodecError, match="no network of the codec"):
            codec.decode(rng.bytes(size))
    for _ in range(300):
        with pytest.raises(codec.CodecError):
            codec.decode(resealed(MAGIC + bytes([VERSION]) + rng.bytes(4) + rng.bytes(200)))


def made_up(text, code=b"", coder="range", extra=None):
    return pack(Container(coder, 10, text, extra, code))


def flax_vit(heads="[]", image_size=8, patch=4, dropout=0):
    parts = ("patches", "class_token", "positions", "norm", "head")
    held = ",".join(f'"{part}":{{"dict":{{}}}}' for part in parts)
    return (
        f'{{"NNXViT":{{{held},"blocks":[],"heads":{heads},"image_size":{image_size},"patch":{patch},'
        f'"dropout":{dropout}}}}}'
    )


MADE_UP = {
    "os.system": ('{"os.system":{"command":"true"}}', "no class 'os.system'"),
    "function": ('{"function":"eval"}', "'function' does not fit"),
    "fields": ('{"eqx.Identity":{"evil":1}}', "another version"),
    "huge": ('{"array":[1000000,1000000]}', "can pay for"),
    "many": ("[" + ",".join(['{"array":[900000]}'] * 9) + "]", "can pay for"),
    "an axis without numbers": ('{"array":[0,1073741824]}', "can pay for"),
    "rows without numbers": ('{"array":[134217728,0]}', "can pay for"),
    "many of them": ("[" + ",".join(['{"array":[33554432,0]}'] * 1000) + "]", "can pay for"),
    "an axis of 2^40": ('{"array":[0,1099511627776]}', "can pay for"),
    "2^40 numbers": ('{"array":[1099511627776]}', "can pay for"),
    "400 digits": ("1" * 400, "a number like 2[*][*]1325"),
    "a long key": ('{"dict":{"' + "k" * 200 + '":0}}', "'dict' does not fit"),
    "many arrays": ("[" + ",".join(['{"array":[]}'] * 60000) + "]", "can pay for"),
    "many values": ("[" + ",".join(["0"] * 500000) + "]", "can pay for"),
    "many modules": ("[" + ",".join(['{"eqx.Identity":{}}'] * 50000) + "]", "can pay for"),
    "many states": ("[" + ",".join(['{"state":{"array":[]}}'] * 40000) + "]", "can pay for"),
    "negative": ('{"array":[-5]}', "not a shape"),
    "truth": ('{"array":[true]}', "not a shape"),
    "type": ('{"array":[5],"dtype":"object"}', "not a type"),
    "deep": ("[" * 70 + "]" * 70, "nested too deeply"),
    "very deep": ("[" * 100_000, "damaged"),
    "a number": ("1" + "0" * 50, "has a number like"),
    "digits": ("1" * 5000, "damaged"),
    "text": ('"' + "a" * 1100 + '"', "long text"),
    "nan": ("NaN", "not a number"),
    "nothing": ("", "damaged"),
    "empty": ("{}", "expected one name"),
    "flax": ('{"NNXMLP":{"layers":[{"dict":{}}],"activation":null,"dropout":0}}', "no NNXMLP"),
    "no flax": (
        '{"NNXMLP":{"layers":[],"activation":{"function":"relu"},"dropout":0}}',
        "no NNXMLP",
    ),
    "flax vit": (flax_vit(), "no NNXViT"),
    "flax vit's heads": (flax_vit(heads="[1,1]"), "0 blocks with"),
    "flax vit's dropout": (flax_vit(dropout=2), "dropout of 2"),
    "flax vit's patches": (flax_vit(image_size=1000000), "patches of 4 in images"),
    "selected": ('{"NNXSelectInputs":{"network":3,"indices":null}}', "is of none"),
    "state": ('{"state":"a"}', "is of none"),
    "tuple": ('{"tuple":3}', "does not fit"),
    "another module": (
        '{"function":"os:system"}',
        "os:system in it.*may name only what is allowed",
    ),
    "a file of NumPy": ('{"function":"numpy:save"}', "may name only what is allowed"),
    "a file of JAX": ('{"function":"jnp.save"}', "does not fit"),
    "dunder": ('{"function":"equinox.nn:Linear.__init__"}', "no function"),
    "dunder module": ('{"__builtins__:eval":{}}', "no class"),
    "path": ('{"path":["__class__"]}', "does not fit"),
    "paths": ('{"paths":[]}', "does not fit"),
    "enum": ('{"enum":"lax.Precision.NONE"}', "no member of an enumeration"),
    "partial": ('{"partial":[3,[],{}]}', "does not fit"),
    "partial of a module": ('{"partial":[{"tuple":[]},[],{}]}', "not a function"),
    "keyword": ('{"partial":[{"function":"relu"},[],{"a b":1}]}', "does not fit"),
    "window": (
        '{"partial":[{"function":"nnx.avg_pool"},[],{"window_shape":[100000]}]}',
        "more than 4096 places",
    ),
    "a window of lax": (
        '{"partial":[{"function":"lax.reduce_window"},[],{"window_dimensions":{"tuple":[1073741824]}}]}',
        "more than 4096 places",
    ),
    "a dilation of lax": (
        '{"partial":[{"function":"lax.conv_general_dilated"},[],{"lhs_dilation":[1073741824]}]}',
        "more than 4096 places",
    ),
    "same": ('[{"same":0}]', "does not fit"),
    "inside itself": ('{"nnx.List":{"0":{"same":0}}}', "does not fit"),
    "flax attribute": ('{"nnx.List":{"__class__":1}}', "does not fit"),
    "flax internals": ('{"nnx.List":{"_pytree__nodes":1}}', "does not fit"),
    "flax variable": ('{"nnx.Param":{"other":1}}', "does not fit"),
    "key": ('{"key":["threefry2x32",{"array":[3],"dtype":"uint32"}]}', "does not fit"),
    "map": ('{"map":[[1]]}', "does not fit"),
    "number": ('{"array":[2],"as":"number"}', "not an array of NumPy"),
    "a class as options": ('{"nnx.Rngs":3}', "does not fit"),
    "doubled": (
        '["x",{"nnx.List":{}},'
        + ",".join(f'{{"nnx.List":{{"0":{{"same":{i}}},"1":{{"same":{i}}}}}}}' for i in range(60))
        + "]",
        "can pay for",
    ),
    "doubled, with a state": (
        '[{"nnx.List":{}},'
        + ",".join(f'{{"nnx.List":{{"0":{{"same":{i}}},"1":{{"same":{i}}}}}}}' for i in range(9))
        + ',{"state":{"array":[]}}]',
        "can pay for",
    ),
    "tens of thousands of tuples": ("[" + ",".join(['{"tuple":[]}'] * 40_000) + "]", "can pay for"),
    "a state of thousands of modules": (
        '{"state":[' + ",".join(['{"eqx.Identity":{}}'] * 2000) + "]}",
        "can pay for",
    ),
    "chained": (
        '[{"nnx.List":{}},'
        + ",".join(f'{{"nnx.List":{{"0":{{"same":{i}}}}}}}' for i in range(80))
        + "]",
        "nested too deeply",
    ),
}


@pytest.mark.parametrize("case", MADE_UP)
def test_made_up_descriptions_are_refused(case):
    text, match = MADE_UP[case]
    with pytest.raises(codec.CodecError, match=match):
        codec.decode(made_up(text))


def test_transformers_of_files_are_copies_of_one_small_network(monkeypatch):
    built = []
    sizes = {"image_size": 8, "patch": 4, "width": 8, "heads": 2, "hidden": 8}
    network = zoo.NNXViT(1, 3, **sizes, depth=2, dropout=0.5, rngs=nnx.Rngs(0))
    data = codec.encode(network)

    def spy(*args, **kwargs):
        built.append(whole(*args, **kwargs))
        return built[-1]

    whole = zoo.NNXViT
    monkeypatch.setattr(flax_forms, "NNXViT", spy)
    monkeypatch.setattr(flax_forms, "_smallest", {})
    found = [codec.decode(data) for _ in range(2)]
    assert nnx.graphdef(found[0]) == nnx.graphdef(network)
    # Each place drops activations of its own.
    keys = {jax.random.key_data(x.rngs.key[...]).tobytes() for x in _dropouts(found[0])}
    assert len(keys) == len(list(_dropouts(network))) == 5
    with pytest.raises(codec.CodecError, match="no NNXViT"):
        codec.decode(made_up(flax_vit(image_size=16384, patch=16384)))
    assert len(built) == 1
    assert sum(a.size for a in named_arrays(built[0]).values()) < 100


def _dropouts(network):
    return [each for _, each in nnx.iter_modules(network) if isinstance(each, nnx.Dropout)]


def test_a_network_made_in_a_traced_function_stays_there(monkeypatch):
    monkeypatch.setattr(flax_forms, "_smallest", {})
    network = zoo.NNXMLP(3, (4,), 2, rngs=nnx.Rngs(0))
    data = codec.encode(network)
    x = jnp.ones((1, 3))
    inside = jax.jit(lambda x: codec.decode(data)(x))(x)
    np.testing.assert_allclose(codec.decode(data)(x), inside, rtol=1e-5)


def test_a_small_file_cannot_ask_for_much():
    begin = time.process_time()
    data = made_up('{"array":[1048576]}', code=b"\xff" * 120)
    tracemalloc.start()
    with pytest.raises(codec.CodecError):
        codec.decode(data, max_parameters=10**5)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    bomb = MAGIC + bytes([VERSION]) + bytes(4) + b"\0\1"
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(b"a" * 10**8) + squeeze.flush()
    size = bytes([len(packed) & 127 | 128, len(packed) >> 7 & 127 | 128, len(packed) >> 14])
    with pytest.raises(codec.CodecError, match="too long"):
        codec.decode(resealed(bomb + size + packed))
    with pytest.raises(codec.CodecError, match="longer description"):
        codec.decode(resealed(bomb + b"\xff\xff\xff\x07"))
    assert time.process_time() - begin < 3


def test_versions_and_types_are_told():
    data = FILES["range"]
    with pytest.raises(codec.CodecError, match="version 9; this bmrjax reads version 1"):
        codec.decode(data[: len(MAGIC)] + b"\x09" + data[len(MAGIC) + 1 :])
    with pytest.raises(TypeError, match=r"codec\.load"):
        codec.decode("file.bmr")
    with pytest.raises(codec.CodecError, match="are allowed"):
        codec.decode(data, max_parameters=10)
    assert unpack(bytearray(data)) == unpack(data)


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "n.bmr"
    path.write_bytes(b"old")

    def fail(*args):
        raise OSError("no space left")

    network = zoo.MLP(2, (2,), 2, key=jax.random.key(0))
    with monkeypatch.context() as patch:
        patch.setattr("bmrjax.files.os.fsync", fail)
        with pytest.raises(OSError, match="no space"):
            codec.save_network(network, path)
    assert [p.name for p in tmp_path.iterdir()] == ["n.bmr"]
    assert path.read_bytes() == b"old"
    with pytest.raises(codec.CodecError, match="no network"):
        codec.load_network(path)
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(codec.CodecError, match="too large"):
        codec.load_network(path, max_parameters=10**4)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        codec.load_network(tmp_path / "missing.bmr")


def test_allowed_modules_give_what_is_their_own():
    # This module has imported zlib and json's like, which are no part of it.
    for name in ("time", "time.sleep", "pytest.exit", "zlib.crc32", "jnp.save", "MAGIC", "missing"):
        text = f'{{"function":"{__name__}:{name}"}}'
        with pytest.raises(codec.CodecError, match="of its own|of no class|no function"):
            codec.decode(made_up(text), allow=(__name__,))
    text = f'{{"function":"{__name__}:damaged"}}'
    assert codec.decode(made_up(text), allow=(__name__,)) is damaged
    with pytest.raises(codec.CodecError, match="cannot be imported here"):
        codec.decode(made_up('{"function":"no_such_package:f"}'), allow=("no_such_package",))


def test_functions_that_files_may_name_only_compute():
    from bmrjax.codec.library_names import library_functions

    words = "save load file open write call debug print option config dlpack buffer string".split()
    for name in library_functions():
        last = name.replace(":", ".").split(".")[-1]
        assert not any(word in last for word in words), name
