"""Networks to bytes and back."""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bmrjax.backend.entry_point import not_after_fork
from bmrjax.codec.arithmetic import ArithmeticReader, ArithmeticWriter
from bmrjax.codec.array_records import ArrayRow, RecordReader, RecordWriter
from bmrjax.codec.budget import Budget
from bmrjax.codec.build_network import Builder
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.container import Container, pack, unpack
from bmrjax.codec.describe_network import Describer, Hole
from bmrjax.codec.file_report import FileReport
from bmrjax.codec.flax_objects import is_flax_object
from bmrjax.codec.huffman import HuffmanReader, HuffmanWriter
from bmrjax.codec.layouts import Bitmap, Layout
from bmrjax.codec.quantise import Mixture, Quantiser, Uniform
from bmrjax.codec.rate_distortion import RateDistortion
from bmrjax.codec.relative_entropy import RelativeEntropy
from bmrjax.codec.scales import only_network, posterior_scales
from bmrjax.run.result import Result
from bmrjax.structure import Compact
from bmrjax.structure.no_network import no_network

Coder = Literal["range", "ans", "huffman"]
# Numbers of a decoded network at most: 128 MiB in float32.
MAX_PARAMETERS = 2**25


@not_after_fork
def encode(
    network: Any,
    *,
    inputs: tuple[Any, ...] = (),
    posterior_scale: Mapping[str, Any] | None = None,
    quantiser: Quantiser | RelativeEntropy | None = None,
    layout: Layout | None = None,
    coder: Coder = "range",
    dense: Literal["float16", "float32"] = "float16",
    extra: Any = None,
) -> bytes:
    """Return a sparse network as few bytes.

    Weights are quantised, their places and values are entropy-coded, and all that a decoder needs is in
    the bytes: structure, code, checksum. Zeros stay zeros. Quantised are matrices and what has more axes,
    and what has a posterior; other floating-point arrays are float16 where that is exact to a
    thousandth, else float32, and all others are exact.

    Args:
        network: An Equinox network, an (Equinox module, State) pair, or a Flax NNX module, whose classes and
            functions can be imported or are registered; what `compact` returned; or a `Result` with
            one random module.
        inputs: For a result: one batch of its program's arguments, without the targets.
        posterior_scale: Path of an array, such as ``"layers.0.weight"``, to the posterior standard deviation
            of its weights; see `posterior_scales`. A result brings them. For what `compact` returned, those
            of the network as it was.
        quantiser: `RateDistortion`, `Uniform`, `KMeans`, `Mixture`, or `RelativeEntropy`. By default
            `RateDistortion` where there is a posterior, `Uniform` elsewhere.
        layout: `Gaps`, `Bitmap`, `CSR` or `Dense`; by default the smallest for each array.
        coder: ``"range"``, ``"ans"``, or ``"huffman"`` as in the paper.
        dense: ``"float32"`` to leave arrays that are not quantised as they are.
        extra: Plain values that go with the network, as JSON has them; `inspect_file` returns them.

    Returns:
        The bytes of a file, which `decode` reads.

    Raises:
        CodecError: For a network that no file can hold; the message names the part.
        TypeError: For what is not a network.
        ValueError: For options that do not fit together.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(64, (32,), 10, key=jax.random.key(0))
        >>> data = codec.encode(network, quantiser=codec.KMeans(16))
        >>> codec.decode(data).layers[0].weight.shape, codec.inspect_file(data).ratio > 6
        ((32, 64), True)

    References:
        Federici, Ullrich and Welling (2017), section 3, for layout=CSR() and coder="huffman".
    """
    if coder not in ("range", "ans", "huffman"):
        raise ValueError(f"encode: coder must be 'range', 'ans' or 'huffman', got {coder!r}.")
    if dense not in ("float16", "float32"):
        raise ValueError(f"encode: dense must be 'float16' or 'float32', got {dense!r}.")
    if isinstance(layout, Bitmap) and coder == "huffman":
        raise ValueError("encode: a Bitmap needs probabilities; take coder='range' or 'ans'.")
    network, scales, original = _resolved(network, inputs, posterior_scale)
    module, state = network if isinstance(network, tuple) else (network, None)
    describer = Describer(state)
    text = describer.text(module)
    # Refuses what could not be read.
    Builder(text, allow=describer.names.modules)
    writer: Any = HuffmanWriter() if coder == "huffman" else ArithmeticWriter(stack=coder == "ans")
    _write(describer, RecordWriter(writer, layout, dense), scales, quantiser)
    parameters = sum(h.size * (1 + ("complex" in h.dtype)) for h in describer.holes if h.fractional)
    container = Container(coder, original or parameters, text, extra, writer.finish())
    return _long_enough(container, describer.names.modules)


def _long_enough(container: Container, allow: Iterable[Any]) -> bytes:
    """Return the bytes of a container, with zeros at their end if they could not pay for what is in it.

    Args:
        container: What the file holds.
        allow: The modules that it names: objects of a class of Flax cost more to make, and which classes are
            is known only once they are looked up.

    Raises:
        CodecError: If no decoder could read it.
    """
    data = pack(container)
    budget = Budget()
    _read_arrays(unpack(data, budget), budget, max_parameters=2**62, allow=allow)
    missing = budget.least_size() - len(data)
    if missing <= 0:
        return data
    return pack(replace(container, code=container.code + bytes(missing)))


def _resolved(
    network: Any, inputs: tuple[Any, ...], posterior_scale: Mapping[str, Any] | None
) -> tuple[Any, dict[str, np.ndarray], int | None]:
    """Return the network itself, posterior scales by path, and the numbers it had before."""
    import equinox as eqx

    if isinstance(network, Result):
        if posterior_scale is None:
            posterior_scale = posterior_scales(network, *inputs)
        network = only_network(network, *inputs)[1]
    scales = {name: np.asarray(s, np.float64) for name, s in (posterior_scale or {}).items()}
    original = None
    if isinstance(network, Compact):
        original = network.before.bytes // 4
        scales = network.cut(scales)
        network = network.network
    first = network[0] if isinstance(network, tuple) and len(network) == 2 else network
    if not isinstance(first, eqx.Module) and not is_flax_object(network):
        raise no_network("encode", network, ", what compact returned, or a result")
    return network, scales, original


def _write(
    describer: Describer,
    records: RecordWriter,
    scales: dict[str, np.ndarray],
    quantiser: Quantiser | RelativeEntropy | None,
) -> None:
    """Write all arrays, those quantised that are to be."""
    names = [hole.name for hole in describer.holes]
    _check_scales(describer.holes, scales)
    assigned = quantiser.assignments if isinstance(quantiser, Mixture) else {}
    chosen = {}
    for hole, array in zip(describer.holes, describer.arrays, strict=True):
        if "float" not in hole.dtype or not hole.size:
            continue
        vector = sum(n > 1 for n in hole.shape) < 2
        if vector and hole.name not in scales and hole.name not in assigned:
            continue
        chosen[hole.name] = array.astype(np.float32)
        if not np.isfinite(chosen[hole.name]).all():
            raise CodecError(f"encode: '{hole.name}' has values that are not finite.")
    if len(set(names)) < len(names):
        raise CodecError(
            "encode: two arrays of the network have the same path; rename keys with dots in them."
        )
    drawn = isinstance(quantiser, RelativeEntropy)
    if drawn or quantiser is None:
        rest = {name: array for name, array in chosen.items() if not drawn or name not in scales}
        coarse = Uniform() if drawn else RateDistortion()
        found = coarse(rest, {} if drawn else scales) if rest else {}
    else:
        found = quantiser(chosen, scales)
    for part, (hole, array) in enumerate(zip(describer.holes, describer.arrays, strict=True)):
        if hole.name in found:
            records.quantised(found[hole.name])
        elif hole.name in chosen and isinstance(quantiser, RelativeEntropy):
            there = chosen[hole.name] != 0
            spread = np.broadcast_to(scales[hole.name], there.shape)[there]
            coded = quantiser.code(chosen[hole.name][there], spread, part=part)
            records.drawn(there, coded)
        else:
            records.plain(array)


def _check_scales(holes: list[Hole], scales: dict[str, np.ndarray]) -> None:
    shapes = {hole.name: hole.shape for hole in holes}
    for name, scale in scales.items():
        if name not in shapes:
            raise CodecError(
                f"encode: posterior_scale has '{name}', and the network has no such array; its arrays start "
                f"with {list(shapes)[:3]}."
            )
        if scale.shape not in ((), shapes[name]) or not (np.isfinite(scale) & (scale >= 0)).all():
            raise CodecError(
                f"encode: posterior_scale['{name}'] must be finite numbers from 0, shaped "
                f"{shapes[name]}; got shape {scale.shape}."
            )


def _read(
    data: bytes, max_parameters: int, allow: Iterable[Any] | None
) -> tuple[Container, Builder, list[np.ndarray], list[ArrayRow]]:
    budget = Budget(len(data)) if isinstance(data, Sized) else None
    container = unpack(data, budget)
    return container, *_read_arrays(container, budget, max_parameters=max_parameters, allow=allow)


def _read_arrays(
    container: Container,
    budget: Budget | None,
    *,
    max_parameters: int,
    allow: Iterable[Any] | None,
) -> tuple[Builder, list[np.ndarray], list[ArrayRow]]:
    builder = Builder(container.text, budget, allow)
    total = sum(hole.extent for hole in builder.holes)
    if total > max_parameters:
        raise CodecError(
            f"the file declares {total:,} numbers, and {max_parameters:,} are allowed. A larger network "
            "needs a larger max_parameters."
        )
    reader: Any
    if container.coder == "huffman":
        reader = HuffmanReader(container.code, budget=budget)
    else:
        reader = ArithmeticReader(container.code, stack=container.coder == "ans", budget=budget)
    records = RecordReader(reader, len(container.code))
    found = [records.read(hole) for hole in builder.holes]
    return builder, [array for array, _ in found], [row for _, row in found]


@not_after_fork
def decode(data: bytes, *, max_parameters: int = MAX_PARAMETERS, allow: Iterable[Any] = ()) -> Any:
    """Return the network that `encode` made bytes of.

    It is safe on any bytes: no code of the file runs, and what a file may cost is bounded by its size before
    memory is taken. Once the libraries are loaded, a file takes at most 50 ms of processor time and 60 µs for
    each of its bytes, and at most 64 MB of memory and 4096 bytes for each. What the network costs when it is
    called is not bounded; see `bmrjax predict` for a process with limits.

    A file names the classes and functions of its network. Those of Equinox's and Flax's layers, of bmrjax,
    and functions of JAX that only compute are known; anything else must be allowed.

    Args:
        data: What `encode` returned.
        max_parameters: Refuse a network with more numbers.
        allow: What else the file may name: packages and modules, by name or as objects, and classes and
            functions. A package stands for all that it defines. Nothing of it is called on loading, but
            its modules are imported, and the network may call its functions later: allow what you
            would let the file call.

    Returns:
        The network, or a pair of it and its state, with all weights as they were quantised. Of what
        `compact` returned, the smaller network.

    Raises:
        CodecError: For bytes that are cut short, damaged, made up, of another version, or too large, and
            for a network with a class or a function that is not allowed.
        TypeError: For anything but bytes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bmrjax import codec, zoo
        >>> network = zoo.MLP(8, (4,), 2, key=jax.random.key(0))
        >>> again = codec.decode(codec.encode(network))
        >>> bool(jnp.allclose(again(jnp.ones(8)), network(jnp.ones(8)), atol=0.02))
        True
        >>> codec.decode(codec.encode(network), max_parameters=10)
        Traceback (most recent call last):
            ...
        bmrjax.codec.codec_error.CodecError: the file declares 46 numbers, and 10 are allowed. ...
    """
    return open_bytes(data, max_parameters=max_parameters, allow=allow).network


@dataclass(frozen=True)
class Opened:
    """What the bytes of a network hold.

    Attributes:
        network: See `decode`.
        extra: What was written with it.
        modules: How many modules it has.
    """

    network: Any
    extra: Any
    modules: int


def open_bytes(
    data: bytes, *, max_parameters: int = MAX_PARAMETERS, allow: Iterable[Any] = ()
) -> Opened:
    """Return the network that `encode` made bytes of, and its extra values, for the price of one.

    Args:
        data: What `encode` returned.
        max_parameters: See `decode`.
        allow: See `decode`.

    Raises:
        CodecError: As `decode`.
    """
    container, builder, arrays, _ = _read(data, max_parameters, allow)
    try:
        network = builder.build(arrays)
    except CodecError:
        raise
    except Exception as error:  # whatever the libraries make of odd values where they expect others
        text = " ".join(str(error).split())
        raise CodecError(f"the description of the network is of none: {text:.500}") from None
    return Opened(network, container.extra, builder.modules)


@not_after_fork
def inspect_file(data: bytes, *, max_parameters: int = MAX_PARAMETERS) -> FileReport:
    """Return what the bytes of a network take, array by array.

    Args:
        data: What `encode` returned.
        max_parameters: See `decode`.

    Returns:
        Sizes, ratio, and a table by ``print``.

    Raises:
        CodecError: As `decode`.

    Example:
        >>> import jax
        >>> from bmrjax import codec, zoo
        >>> print(codec.inspect_file(codec.encode(zoo.MLP(8, (4,), 2, key=jax.random.key(0)))))
        array ...
        description ...
    """
    container, builder, _, rows = _read(data, max_parameters, None)
    # Unlike the arrays' parts, which are shares of one code, this is what it is to the byte.
    return FileReport(
        size=len(data),
        original=4 * container.parameters,
        coder=container.coder,
        description=len(data) - len(container.code),
        rows=rows,
        extra=container.extra,
        names=tuple(builder.foreign),
    )
