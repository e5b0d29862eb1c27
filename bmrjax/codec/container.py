"""The file: a magic number, a version, a checksum, the description of the network, the coded numbers."""

import json
import zlib
from dataclasses import dataclass
from typing import Any

from bmrjax.codec.budget import CHARACTER, Budget
from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.compression_dictionary import PHRASES

MAGIC = b"BMRJ"
VERSION = 1
CODERS = ("range", "ans", "huffman")
# A description of more characters than this is not one.
LONGEST_DESCRIPTION = 2**20
_HEAD = len(MAGIC) + 1 + 4


@dataclass(frozen=True)
class Container:
    """What a file holds.

    Attributes:
        coder: One of `CODERS`.
        parameters: Floating-point numbers of the original network.
        text: The description of the network; see `description`.
        extra: What else goes with it, as JSON.
        code: The coded numbers.
    """

    coder: str
    parameters: int
    text: str
    extra: Any
    code: bytes


def pack(container: Container) -> bytes:
    """Return the bytes of a container."""
    text = container.text
    if container.extra is not None:
        text += "\n" + json.dumps(container.extra, separators=(",", ":"))
    if len(text) > LONGEST_DESCRIPTION:
        raise CodecError(
            f"encode: the description of the network has {len(text):,} characters; at most "
            f"{LONGEST_DESCRIPTION:,} can be read."
        )
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=PHRASES)
    packed = squeeze.compress(text.encode()) + squeeze.flush()
    body = bytes([CODERS.index(container.coder)]) + _varint(container.parameters)
    body += _varint(len(packed)) + packed + container.code
    return MAGIC + bytes([VERSION]) + _checksum(body) + body


def unpack(data: bytes, budget: Budget | None = None) -> Container:
    """Read the bytes of a container.

    Args:
        data: The bytes.
        budget: Pays for the description; by default it may have any length up to its limit.

    Raises:
        CodecError: If they are none, of another version, damaged, or declare more than there is.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f"decode takes bytes, got {type(data).__name__}; codec.load_network reads a file."
        )
    data = bytes(data)
    if len(data) < _HEAD + 3 or data[: len(MAGIC)] != MAGIC:
        raise CodecError("these bytes are no network of the codec, or only a part of one.")
    if data[len(MAGIC)] != VERSION:
        raise CodecError(
            f"the file is of version {data[len(MAGIC)]}; this bmrjax reads version {VERSION}."
        )
    body = data[_HEAD:]
    if data[len(MAGIC) + 1 : _HEAD] != _checksum(body):
        raise CodecError("the file is damaged or cut short: its checksum does not fit.")
    if body[0] >= len(CODERS):
        raise CodecError("the file names a coder that there is not.")
    parameters, at = _read_varint(body, 1)
    size, at = _read_varint(body, at)
    if size > len(body) - at:
        raise CodecError("the file declares a longer description than there is.")
    text = _expanded(body[at : at + size])
    if budget is not None:
        budget.charge(CHARACTER, len(text))
    text, _, extra = text.partition("\n")
    try:
        found = json.loads(extra) if extra else None
    except (ValueError, RecursionError) as error:
        raise CodecError(f"what belongs to the network is damaged: {error}") from None
    return Container(CODERS[body[0]], parameters, text, found, body[at + size :])


def _expanded(packed: bytes) -> str:
    """Return a description, never more than its limit."""
    expand = zlib.decompressobj(-15, zdict=PHRASES)
    try:
        text = expand.decompress(packed, LONGEST_DESCRIPTION + 1).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise CodecError(f"the description of the network is damaged: {error}") from None
    if len(text) > LONGEST_DESCRIPTION or not expand.eof or expand.unused_data:
        raise CodecError("the description of the network is damaged or too long.")
    return text


def _checksum(body: bytes) -> bytes:
    return zlib.crc32(bytes([VERSION]) + body).to_bytes(4, "little")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 6]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise CodecError("the file is damaged: a number in it does not end.")
