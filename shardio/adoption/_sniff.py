"""What a file is: by its first bytes, then by its name."""

from __future__ import annotations

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS
from shardio.sources import format_of_name, other_kind
from shardio_indexer._sniff import FORMATS, ShardKind, look_at


class UnknownKindError(FormatError):
    """Neither the bytes nor the name of a file say what it is."""


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
    found, compression, first = look_at(head, named=format_of_name(name) is not None)
    other = other_kind(name, head) if wanted is None and found is None else None
    if other is not None:
        raise UnknownKindError(f"this is {other.name}, which is not adopted", advice=other.way)
    kind = wanted or found or format_of_name(name)
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
