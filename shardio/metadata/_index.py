"""The sidecar index of one shard: a file of columns, see `_container`.

The columns are used in place, as views of the bytes given, so that processes which map the file share its
pages.  `parse_head` reads the *head* (all before `frame_stop`, the last column) and checks it whole;
`frame_stop` is checked by block, when the block is used.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Buffer, Compression, Framing, Limits, RecordCrc
from shardio.metadata._container import END, ColumnReader, ContainerKind, aligned, ending

# Columns of an index: dtype, and of what there is an item each.
COLUMNS = {
    "uuid": ("b16", "shard"),
    "framing": ("n8", "shard"),
    "record_crc": ("n8", "shard"),
    "compression": ("n8", "shard"),
    "stream": ("n8", "shard"),
    "stored_bytes": ("n63", "shard"),
    "decoded_bytes": ("n63", "shard"),
    "crc32c": ("n32", "shard"),
    "writer": ("text", "shard"),
    "gap_block": ("n63", "gap"),
    "gap_reason": ("text", "gap"),
    "block_stop": ("u64", "block"),
    "block_row_stop": ("u64", "block"),
    "block_decoded_bytes": ("u32", "block"),
    "block_crc32c": ("u32", "block"),
    "block_frames_crc32c": ("u32", "block"),
    "frame_stop": ("u32", "row"),
}
INDEX = ContainerKind(1, "shard index", COLUMNS, single="shard", tail="frame_stop", limit="index")
# Columns of numbers that stand for something, with all that they may be.
ENUMS: dict[str, Any] = {"framing": Framing, "compression": Compression, "record_crc": RecordCrc}
# What to do about an index that is damaged, gone or another's.
INDEX_ADVICE = (
    "`shardio repair` makes the index again; that of an adopted shard, `shardio adopt URL --update`"
)


@dataclass(frozen=True)
class IndexHead:
    """What the head of an index says, checked.

    Attributes:
        uuid: 16 bytes, the shard's.
        framing, record_crc, compression: of the shard.
        stored_bytes, crc32c: size and CRC-32C of the object.
        decoded_bytes, rows, blocks: totals.
        block_stop, block_row_stop: uint64[blocks], cumulative; of a stream `block_stop` counts decoded bytes.
        block_decoded_bytes, block_crc32c, block_frames_crc32c: uint32[blocks].
        frame_stop_offset: where the `frame_stop` column begins in the index file: the length of its head.
        head_sha256: SHA-256 of the head (32 bytes).
        frames_crc32c: CRC-32C of the `frame_stop` column.
        stream: the object is one compressed stream: blocks are cut from its decoded bytes.
        gaps: reason by block, for blocks without rows.
        writer: program that made it.
    """

    uuid: bytes
    framing: Framing
    record_crc: RecordCrc
    compression: Compression
    stored_bytes: int
    decoded_bytes: int
    rows: int
    crc32c: int
    block_stop: NDArray[np.uint64]
    block_row_stop: NDArray[np.uint64]
    block_decoded_bytes: NDArray[np.uint32]
    block_crc32c: NDArray[np.uint32]
    block_frames_crc32c: NDArray[np.uint32]
    frame_stop_offset: int
    head_sha256: bytes
    frames_crc32c: int
    stream: bool = False
    gaps: dict[int, str] = field(default_factory=dict)
    writer: str = ""

    @property
    def blocks(self) -> int:
        """Number of blocks, gaps included."""
        return len(self.block_stop)

    @property
    def listed_blocks(self) -> int:
        """Number of blocks as a list of shards counts them: a stream is one unit, however it is cut."""
        return min(self.blocks, 1) if self.stream else self.blocks

    @property
    def index_bytes(self) -> int:
        """Size of the whole index file."""
        return aligned(self.frame_stop_offset + 4 * self.rows) + len(END)

    @property
    def has_frame_checksums(self) -> bool:
        """Whether a record can be checked without its block: by the checksums of its frame in the object."""
        kinds = (self.framing, self.record_crc, self.compression)
        return kinds == (Framing.TFRECORD, RecordCrc.CRC32C, Compression.NONE)

    def block_bounds(self, block: int) -> tuple[int, int]:
        """Return the half-open byte range of a block in the object, of a stream in its decoded bytes."""
        return int(self.block_stop[block - 1]) if block else 0, int(self.block_stop[block])

    def block_rows(self, block: int) -> tuple[int, int]:
        """Return the half-open range of rows of a block."""
        return int(self.block_row_stop[block - 1]) if block else 0, int(self.block_row_stop[block])

    def runs(
        self, first: int, stop: int, *, most_bytes: int, most_rows: int, most_decoded: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Cut the blocks `first .. stop - 1` into runs `[first, stop)`, each of at least one block.

        Args:
            first, stop: of the blocks.
            most_bytes, most_rows, most_decoded: stored bytes, rows and decoded bytes of a run; None for any.
        """
        # Bisected as memoryviews: a look-up there costs a tenth of NumPy's.
        stops, row_stops = memoryview(self.block_stop), memoryview(self.block_row_stop)
        while first < stop:
            start_byte, start_row = (stops[first - 1], row_stops[first - 1]) if first else (0, 0)
            by_bytes = bisect_right(stops, start_byte + most_bytes, first, stop)
            by_rows = bisect_right(row_stops, start_row + most_rows, first, stop)
            end = max(first + 1, min(by_bytes, by_rows))
            if most_decoded is not None:
                decoded = np.cumsum(self.block_decoded_bytes[first:end], dtype=np.int64)
                end = first + max(1, int(np.searchsorted(decoded, most_decoded, side="right")))
            yield first, end
            first = end

    def blocks_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each row, int64."""
        return np.searchsorted(self.block_row_stop, rows.astype(np.uint64), side="right")

    def frame_stop_bounds(self, block: int) -> tuple[int, int]:
        """Return the half-open byte range of a block's part of `frame_stop`, in the index file."""
        first, stop = self.block_rows(block)
        return self.frame_stop_offset + 4 * first, self.frame_stop_offset + 4 * stop


def _broken(what: str, url: str | None, expected: object, found: object, **place: Any) -> FormatError:
    """Return the error of an index that is not as it was written."""
    return FormatError(what, url=url, expected=expected, found=found, advice=INDEX_ADVICE, **place)


def read_head_bytes(prefix: Buffer, *, url: str | None = None) -> int:
    """Return how many bytes of an index hold its directory (not its columns), from its first 24 bytes."""
    return ColumnReader(prefix, INDEX, url, INDEX_ADVICE).head_bytes()


def read_head_size(data: Buffer, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS) -> int:
    """Return how many bytes the head of an index has, from its directory; see `read_head_bytes`.

    Raises:
        FormatError, UnsupportedVersionError: the directory is damaged or newer.
    """
    reader = ColumnReader(data, INDEX, url, INDEX_ADVICE, limits)
    return reader.tail(reader.directory()).start


def parse_head(data: Buffer, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS) -> IndexHead:
    """Parse and check the head of an index; its columns become views of `data`.

    Args:
        data: the index from its first byte; the head at least, or more of it, or all.
        url: where it is, for messages.
        limits: upper bounds for blocks, records and the index.

    Raises:
        FormatError: the head is damaged or breaks a rule of the specification.
        UnsupportedVersionError: a newer shardio wrote it.
    """
    columns, entries = ColumnReader(data, INDEX, url, INDEX_ADVICE, limits).read()
    frames, facts = entries["frame_stop"], dict[str, Any]()
    for name, (dtype, per) in COLUMNS.items():
        if per == "shard" and dtype.startswith("n"):
            facts[name] = number = int(columns[name][0])
            if name in ENUMS and number not in set(ENUMS[name]):
                raise _broken(f"an index names no known {name}", url, list(ENUMS[name]), number)
        elif per == "block":
            facts[name] = columns[name]
    index = IndexHead(
        **facts | {name: kind(facts[name]) for name, kind in ENUMS.items()} | {"stream": facts["stream"] > 0},
        uuid=columns["uuid"].tobytes(),
        rows=frames.items,
        frame_stop_offset=frames.start,
        head_sha256=hashlib.sha256(memoryview(data)[: frames.start]).digest(),
        frames_crc32c=frames.crc32c,
        gaps=dict(zip(columns["gap_block"].tolist(), columns["gap_reason"], strict=True)),
        writer=columns["writer"][0],
    )
    for rule, expected, found in _violations(index, columns, limits):
        raise _broken(f"an index breaks a rule of the format: {rule}", url, expected, found)
    return index


# The closed world of an index: every byte of the shard belongs to exactly one block, every row to one.
# Each rule is a MUST of docs/format.md.

# The rule that is broken, what was expected, what was found.
Violation: TypeAlias = tuple[str, object, object]


def _violations(index: IndexHead, columns: dict[str, Any], limits: Limits) -> Iterator[Violation]:
    """Yield (rule, expected, found) for what is wrong by the rules that need no more than the head."""
    kinds = (index.framing.name, index.record_crc.name)
    if (index.record_crc is RecordCrc.ABSENT) is (index.framing is Framing.TFRECORD):
        yield "a record CRC kind is given for TFRECORD and only there", *kinds
    if int(columns["stream"][0]) > 1:
        yield "stream is 0 or 1", "0 or 1", int(columns["stream"][0])
    gaps = columns["gap_block"].tolist()
    if gaps != sorted(set(gaps)):
        yield "gaps ascend", "ascending", gaps[:8]
    if index.compression is Compression.ZLIB and not index.stream:
        yield "ZLIB occurs only as a stream", "stream", "no stream"
    if index.compression is Compression.NONE and index.stream:
        yield "a stream is compressed", "a compression", index.compression.name
    yield from _block_violations(index, limits)


def _block_violations(index: IndexHead, limits: Limits) -> Iterator[Violation]:
    stops = index.block_stop.astype(np.int64)
    rows, sizes = index.block_row_stop.astype(np.int64), stops.copy()
    rows[1:] -= rows[:-1].copy()
    sizes[1:] -= stops[:-1]
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
    if max(int(sizes.max()), int(decoded.max())) <= min(limits.block, limits.record):
        return
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


def check_index_end(index: IndexHead, end: Buffer, *, url: str | None = None) -> None:
    """Check the bytes of an index from the end of `frame_stop` to the end of the file.

    Args:
        index: its head.
        end: the bytes.
        url: where it is, for messages.

    Raises:
        FormatError: they are not zeros up to a multiple of 64 and "SHRDEND1".
    """
    start = index.frame_stop_offset + 4 * index.rows
    tail, wanted = bytes(end), ending(start)
    if tail != wanted:
        raise _broken(
            "an index does not end as the format says",
            url,
            f"{len(wanted) - len(END)} zeros and {END!r}",
            tail[:96],
            start=start,
            stop=start + len(end),
        )


def check_frames_part(
    index: IndexHead, block: int, part: NDArray[np.uint32], *, url: str | None = None
) -> None:
    """Check one block's part of `frame_stop`: its CRC, and that its frames fill the decoded block.

    Raises:
        FormatError: with the block and the byte range in the index file.
    """
    start, stop = index.frame_stop_bounds(block)

    def broken(what: str, expected: object, found: object) -> FormatError:
        return _broken(f"the index of block {block} {what}", url, expected, found, start=start, stop=stop)

    if 4 * len(part) != stop - start:
        raise broken("is cut short", f"{stop - start} bytes", f"{4 * len(part)} bytes")
    crc = kernels.crc32c(part)
    expected = int(index.block_frames_crc32c[block])
    if crc != expected:
        raise broken("does not match its checksum", f"{expected:#010x}", f"{crc:#010x}")
    if len(part):
        # An empty TFRECORD payload still has 16 bytes around it.
        least = {Framing.TFRECORD: 16, Framing.RAW: 0}.get(index.framing, 1)
        ends = part.astype(np.int64)
        smallest = int((ends[1:] - ends[:-1]).min(initial=ends[0]))
        if smallest < least:
            raise broken("holds a frame that is too small", f"at least {least} bytes", smallest)
        if int(part[-1]) != int(index.block_decoded_bytes[block]):
            raise broken(
                "does not end where the block does", int(index.block_decoded_bytes[block]), int(part[-1])
            )
