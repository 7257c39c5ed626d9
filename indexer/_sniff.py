"""What the first bytes of a file say: its framing and compression."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Compression, Framing, is_tar_header
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


class Look(NamedTuple):
    """What the first bytes of a file say.

    Attributes:
        format: "tfrecord" or "tar", or None where they do not say.
        compression: of the object.
        first: the first bytes of what it decodes to.
    """

    format: str | None
    compression: Compression
    first: bytes


def look_at(head: bytes, *, named: bool) -> Look:
    """Return what the first bytes of a file say.

    Args:
        head: its first `HEAD_BYTES` bytes, or all of it.
        named: its name says what it is, so that the two bytes with which ZLIB begins are no accident.
    """
    if _framing_of(head) == "tfrecord":
        compression, decoded = Compression.NONE, head
    else:
        compression = is_compressed(head) or Compression.NONE
        decoded = _begin_of(head, compression)
        if compression is Compression.NONE and _is_zlib(head, named=named):
            compression, decoded = Compression.ZLIB, _begin_of(head, Compression.ZLIB)
    return Look(_framing_of(decoded), compression, decoded[:12])


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
        for part in decode_members([head], compression, DEFAULT_LIMITS):
            if isinstance(part, bytes):
                decoded += part
            if len(decoded) >= HEAD_BYTES:
                break
    except FormatError:
        # The rest of the file is missing here; if more is wrong, the scan will say so.
        pass
    return decoded


def _is_zlib(head: bytes, *, named: bool) -> bool:
    """Tell whether an object is a ZLIB stream: its two-byte header alone is a weak witness."""
    if len(head) < 2 or head[0] & 0x0F != 8 or head[0] >> 4 > 7 or (head[0] << 8 | head[1]) % 31:
        return False
    decompressor = zlib.decompressobj()
    try:
        begin = decompressor.decompress(head, HEAD_BYTES)
    except zlib.error:
        return False
    if _framing_of(begin) is not None:
        return True
    # A few bytes of text may begin like a stream, but they do not end like one.
    ends_early = len(head) < HEAD_BYTES and not decompressor.eof and not decompressor.unconsumed_tail
    return named and not ends_early
