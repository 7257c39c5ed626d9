"""The closed world of an index: every byte of the shard belongs to exactly one block, every row to one.

Kept apart from the parser so that the rules can be read as a list.  Each is a MUST of docs/format.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shardio.errors import FormatError
from shardio.format import Compression, Framing, RecordCrc
from shardio.metadata._features import INDEX_ADVICE, INDEX_FEATURES, check_version
from shardio.metadata._wire import parse
from shardio.v1.index_pb2 import ShardIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.format import Limits
    from shardio.metadata._index import IndexHead

__all__ = ["check_head", "parse_header"]

# The rule that is broken, what was expected, what was found.
Violation: TypeAlias = tuple[str, object, object]


def parse_header(data: bytes, *, url: str | None, limits: Limits) -> ShardIndex:
    """Return the header's message; its CRC has been compared."""
    header = parse(ShardIndex, data, what="header of an index", url=url, limits=limits)
    # Before anything else, for a newer version may know other kinds.
    check_version(
        header.format_version, header.critical_features, INDEX_FEATURES, what="shard index", url=url
    )
    for name, kind in (("framing", Framing), ("compression", Compression), ("record_crc", RecordCrc)):
        value = getattr(header, name)
        if value not in set(kind):
            raise FormatError(f"an index names no known {name}", url=url, expected=list(kind), found=value)
    return header


def check_head(index: IndexHead, header: ShardIndex, *, url: str | None, limits: Limits) -> None:
    """Check every rule that needs no more than the head.

    Raises:
        FormatError: names the rule, what was expected and what was found.
    """
    for rule, expected, found in _violations(index, header, limits):
        raise FormatError(
            f"an index breaks a rule of the format: {rule}",
            url=url,
            expected=expected,
            found=found,
            advice=INDEX_ADVICE,
        )


def _violations(index: IndexHead, header: ShardIndex, limits: Limits) -> Iterator[Violation]:
    """Yield (rule, expected, found) for what is wrong."""
    if len(index.uuid) != 16:
        yield "the shard's UUID has 16 bytes", 16, len(index.uuid)
    if index.index_bytes > limits.index:
        yield "the index is within its limit", limits.index, index.index_bytes
    features = list(header.critical_features)
    if features != sorted(set(features)):
        yield "critical features are sorted, each once", sorted(set(features)), features
    if (index.record_crc is RecordCrc.ABSENT) is (index.framing is Framing.TFRECORD):
        yield (
            "a record CRC kind is given for TFRECORD and only there",
            index.framing.name,
            index.record_crc.name,
        )
    for feature, needed in _needed_features(index):
        if needed != (feature in index.features):
            yield f"critical feature {feature!r} stands exactly where it is needed", needed, not needed
    if index.compression is Compression.ZLIB and not index.stream:
        yield "ZLIB occurs only as a stream", "stream", "no stream"
    if index.compression is Compression.NONE and index.stream:
        yield "a stream is compressed", "a compression", index.compression.name
    yield from _block_violations(index, limits)


def _needed_features(index: IndexHead) -> list[tuple[str, bool]]:
    return [
        ("gaps", bool(index.gaps)),
        ("record_crc32", index.record_crc is RecordCrc.CRC32),
        ("record_unchecked", index.record_crc is RecordCrc.UNCHECKED),
    ]


def _block_violations(index: IndexHead, limits: Limits) -> Iterator[Violation]:
    stops = index.block_stop.astype(np.int64)
    rows = np.diff(index.block_row_stop.astype(np.int64), prepend=0)
    sizes = np.diff(stops, prepend=0)
    decoded = index.block_decoded_bytes.astype(np.int64)
    last_stop = int(stops[-1]) if len(stops) else 0
    last_row = int(index.block_row_stop[-1]) if len(stops) else 0
    end = index.decoded_bytes if index.stream else index.stored_bytes
    if last_stop != end:
        size = "decoded size of a stream" if index.stream else "stored size"
        yield f"the last block stops at the {size}", end, last_stop
    if last_row != index.rows:
        yield "the last block stops at the number of rows", index.rows, last_row
    if int(decoded.sum()) != index.decoded_bytes:
        yield "the blocks add up to the decoded size", index.decoded_bytes, int(decoded.sum())
    if not len(stops):
        return
    # What is over 2^63 would come out negative, and sizes could wrap round to something plausible.
    if int(index.block_stop.max()) > last_stop or int(index.block_row_stop.max()) > last_row:
        yield "no block stops after the last one", (last_stop, last_row), "later"
    if int(rows.min()) < 0:
        yield "rows do not decrease from block to block", "ascending", "descending"
    empty_allowed = index.framing is Framing.RAW
    if int(sizes.min()) < (0 if empty_allowed else 1):
        yield "blocks stop in strictly ascending order", "ascending", "not ascending"
    without_rows = [int(block) for block in np.flatnonzero(rows == 0)]
    if without_rows != sorted(index.gaps):
        yield "blocks without rows are exactly the gaps", sorted(index.gaps), without_rows
    uncompressed = index.compression is Compression.NONE or index.stream
    if uncompressed and not np.array_equal(sizes, decoded):
        yield "without compression stored and decoded sizes agree", "equal", "different"
    # A block of many records is within the block limit; a block of one may be as large as a record.
    many = rows > 1
    for name, values in (("stored", sizes), ("decoded", decoded)):
        cap = int(values[many].max(initial=0))
        if cap > limits.block:
            yield f"a block of several records has at most {limits.block} {name} bytes", limits.block, cap
        single = int(values[rows == 1].max(initial=0))
        if single > limits.record + _SINGLE_EXTRA:
            yield f"a block of one record has at most a record's {name} bytes", limits.record, single
        gap = int(values[rows == 0].max(initial=0))
        if name == "decoded" and index.compression is not Compression.NONE and gap > limits.block:
            yield "a compressed gap is within the block limit", limits.block, gap


# Frame heads and tails, and what an incompressible record may grow by.
_SINGLE_EXTRA = 1 << 20
