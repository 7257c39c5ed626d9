"""What a file is: compression and framing, by its first bytes, then by its name."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Compression, Framing, is_tar_header
from shardio.sources import format_of_name, other_kind
from shardio_indexer._blocks import SalvageOptions
from shardio_indexer._compressed import decode_members, is_compressed
from shardio_indexer._tfrecord import head_fits

HEAD_BYTES = 64 << 10

# What `format=` may say, and the framing that it means.
FORMATS = {
    "tfrecord": Framing.TFRECORD,
    "tar": Framing.TAR_SAMPLE,
    "jsonl": Framing.LINES,
    "text": Framing.LINES,
    "codewithgpu": Framing.RAW,
    "mds": Framing.RAW,
}


class UnknownKindError(FormatError):
    """Neither the bytes nor the name of a file say what it is."""


class ShardKind(NamedTuple):
    """What a file is.

    Attributes:
        format: a key of `FORMATS`.
        compression: of the object.
    """

    format: str
    compression: Compression

    @property
    def framing(self) -> Framing:
        """The framing that the format means."""
        return FORMATS[self.format]


def sniff(head: bytes, name: str, wanted: str | None = None, *, strict: bool = True) -> ShardKind:
    """Return what a file is.

    Args:
        head: its first `HEAD_BYTES` bytes, or all of it.
        name: its name.
        wanted: the format, where the caller knows it.
        strict: a TFRECORD file must begin with a plausible length.

    Raises:
        FormatError: neither bytes nor name say what it is, or they contradict the caller.
    """
    if _framing_of(head) == "tfrecord":
        compression, decoded = Compression.NONE, head
    else:
        compression = is_compressed(head) or Compression.NONE
        decoded = _begin_of(head, compression)
        if compression is Compression.NONE and _is_zlib(head, name):
            compression, decoded = Compression.ZLIB, _begin_of(head, Compression.ZLIB)
    found = _framing_of(decoded)
    other = other_kind(name, head) if wanted is None and found is None else None
    if other is not None:
        raise UnknownKindError(f"this is {other.name}, which is not adopted", advice=other.way)
    kind = wanted or found or format_of_name(name)
    first = decoded[:12]
    if kind is None:
        raise UnknownKindError(
            "the kind of this file is unknown",
            expected="TFRecord, tar, or a name that says what it is",
            found=f"first bytes {first.hex(' ')}" if first else "an empty file",
            advice=f"name its format, one of {', '.join(FORMATS)}: "
            'scan=shardio_indexer.ScanOptions(format="tfrecord")',
        )
    # A damaged first length is the scanner's business; text and images are none of it.
    unlikely = len(first) < 12 or int.from_bytes(first[:8], "little") > DEFAULT_LIMITS.record
    if strict and kind == "tfrecord" and found is None and first and unlikely:
        raise FormatError(
            "this is not a TFRecord file",
            start=0,
            expected="a length and its CRC-32C",
            found=f"first bytes {first.hex(' ')}",
            advice='name its format, such as scan=shardio_indexer.ScanOptions(format="text"), '
            "or leave it out",
        )
    return ShardKind(kind, compression)


def _framing_of(decoded: bytes) -> str | None:
    if head_fits(decoded, "crc32c") or head_fits(decoded, "crc32"):
        return "tfrecord"
    return "tar" if is_tar_header(decoded[:512]) else None


def _begin_of(head: bytes, compression: Compression) -> bytes:
    """Return the beginning of what an object decodes to, as far as its first bytes tell."""
    if compression is Compression.NONE:
        return head
    decoded = b""
    try:
        for part in decode_members([head], compression, SalvageOptions()):
            if isinstance(part, bytes):
                decoded += part
            if len(decoded) >= HEAD_BYTES:
                break
    except FormatError:
        # The rest of the file is missing here; if more is wrong, the scan will say so.
        pass
    return decoded


def _is_zlib(head: bytes, name: str) -> bool:
    """Tell whether an object is a ZLIB stream: its two-byte header alone is a weak witness."""
    if len(head) < 2 or head[0] & 0x0F != 8 or head[0] >> 4 > 7 or (head[0] << 8 | head[1]) % 31:
        return False
    try:
        begin = zlib.decompressobj().decompress(head, HEAD_BYTES)
    except zlib.error:
        return False
    return _framing_of(begin) is not None or format_of_name(name) is not None
