"""The sidecar index: round trip, every rule broken once, every bit."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError, UnsupportedVersionError
from shardio.format import Compression, Framing, Limits, RecordCrc
from shardio.kernels import crc32c
from shardio.metadata import (
    IndexBuilder,
    check_frames_part,
    check_index_end,
    parse_head,
    read_head_bytes,
    read_head_size,
)
from tests.metadata.crafted import columns_of, header_of, index_of

FRAMES = st.lists(st.lists(st.integers(16, 200), min_size=1, max_size=6), max_size=6)
BLOCKS = [[20, 16, 30], [16], [100, 17]]
COLUMNS = columns_of(BLOCKS)


def check_whole(data: bytes, **options) -> None:
    head = parse_head(data, **options)
    frames = np.frombuffer(data, "<u4", head.rows, head.frame_stop_offset)
    for block in range(head.blocks):
        first, stop = head.block_rows(block)
        check_frames_part(head, block, frames[first:stop])
    check_index_end(head, data[head.frame_stop_offset + 4 * head.rows :])


def broken(match: str, header=None, columns=None, *, error=FormatError, **options) -> None:
    """Assert that an index is refused by the rule named."""
    columns = COLUMNS if columns is None else columns
    data = index_of(header_of(columns) if header is None else header, columns, **options)
    with pytest.raises(error, match=match) as caught:
        check_whole(data)
    if error is FormatError:
        assert type(caught.value) is FormatError


@given(blocks=FRAMES, kind=st.sampled_from([Compression.NONE, Compression.ZSTD, Compression.GZIP]))
def test_what_is_built_is_read(blocks, kind):
    def build(frames=None):
        builder = IndexBuilder(uuid=bytes(range(16)), compression=kind, writer="me", frames=frames)
        for k, sizes in enumerate(blocks):
            decoded = sum(sizes)
            builder.add_block(
                stored_bytes=decoded if kind is Compression.NONE else 5 + k,
                decoded_bytes=decoded,
                crc32c=k,
                frame_stop=np.cumsum(sizes).astype(np.uint32),
            )
        builder.crc32c = crc32c(b"wren")
        return builder

    builder = build()
    finished = builder.finish()
    # Wherever the ends of frames are kept, and wherever the index goes.
    for other in (build(), build(io.BytesIO())):
        file = io.BytesIO()
        stored = other.finish_to(file)
        assert (stored.data, stored.head.head_sha256) == (b"", finished.head.head_sha256)
        assert file.getvalue() == finished.data
    assert build(io.BytesIO()).finish().data == finished.data
    check_whole(finished.data)
    head = parse_head(finished.data)
    assert (head.frame_stop_offset, head.index_bytes) == (finished.head.frame_stop_offset, len(finished.data))
    assert (head.uuid, head.compression, head.writer) == (bytes(range(16)), kind, "me")
    assert (head.rows, head.blocks) == (sum(map(len, blocks)), len(blocks))
    assert head.decoded_bytes == sum(map(sum, blocks))
    assert head.stored_bytes == builder.stored_bytes
    assert head.block_decoded_bytes.tolist() == [sum(sizes) for sizes in blocks]
    assert head.crc32c == crc32c(b"wren")
    for k, sizes in enumerate(blocks):
        a, b = head.frame_stop_bounds(k)
        assert np.frombuffer(finished.data[a:b], "<u4").tolist() == np.cumsum(sizes).tolist()
    # The same by hand, from the specification alone.
    assert len(finished.data) % 8 == 0
    assert finished.data[: finished.head.frame_stop_offset] == finished.data[: head.frame_stop_offset]


@given(blocks=FRAMES)
def test_the_head_alone_is_enough_to_begin(blocks):
    data = index_of(header_of(columns_of(blocks)), columns_of(blocks))
    head = parse_head(data)
    again = parse_head(memoryview(data)[: head.frame_stop_offset])
    assert again.rows == head.rows
    header_bytes = read_head_bytes(data[:24])
    assert header_bytes <= head.frame_stop_offset
    assert read_head_size(data[:header_bytes]) == head.frame_stop_offset


def test_columns_are_views_of_the_bytes_given():
    data = index_of(header_of(COLUMNS), COLUMNS)
    head = parse_head(data)
    assert head.block_stop.base is not None
    assert np.shares_memory(head.block_stop, np.frombuffer(data, np.uint8))


def test_an_index_begins_and_ends_as_it_must():
    """A file MUST begin with `SHRDCOL1` and its kind and end with `SHRDEND1`, and padding MUST be zeros."""
    broken("wrong first bytes", magic=b"SHRDCOL2")
    broken("does not end", end=b"SHRDEND2")
    broken("does not end", end=b"SHRDEND1\0")
    broken("does not end", end=b"")
    broken("bytes that are not zero|does not end", padding=b"\1")


def changed(k: int, at: int, value):
    """Return an edit of one field of one entry of the directory."""

    def edit(entries) -> None:
        entries[k][at] = value

    return edit


FACTS = (
    "uuid", "framing", "record_crc", "compression", "stream", "stored_bytes", "decoded_bytes", "crc32c",
    "writer", "gap_block", "gap_reason",
)  # fmt: skip
NAMES = [*FACTS, *COLUMNS]


def test_the_columns_of_an_index():
    """Columns MUST be in the order of their table, each at most once, each with a dtype of the table.

    `frame_stop` MUST be there, as the last column. A reader MUST compare the CRC-32C of the directory before
    it uses any of it, and that of a column before it uses that column.
    """
    names = tuple(COLUMNS)
    broken("end with column frame_stop", names=names[:5])
    broken("another order", names=(*names[1:], names[0]))
    broken("is there twice", names=names, edit=lambda entries: entries.append(entries[-1]))
    for k, name in enumerate(NAMES):
        for at, value, match in (
            (1, "u99", "another dtype"),
            (3, 7, "another (length|size)"),
            (4, 3, "another size"),
        ):
            broken(f"column {name} .*{match}", edit=changed(k, at, value))
        if name != "frame_stop":
            broken(f"column {name} .*does not match its checksum", edit=changed(k, 2, 1))


def test_versions_and_columns_that_are_not_known():
    """A reader MUST refuse with `UnsupportedVersionError` a newer format version, or a column that it does
    not know, unless its name begins with `x_`.
    """
    for version in (2, (1 << 32) - 1):
        # What a newer version may know is not called damage.
        data = index_of(header_of(COLUMNS, version=version, framing=9, compression=77), COLUMNS)
        with pytest.raises(UnsupportedVersionError) as caught:
            parse_head(data, url="u")
        assert caught.value.advice == "upgrade shardio to read it"
    broken("names no format version", header_of(COLUMNS, version=0))
    with pytest.raises(UnsupportedVersionError):
        parse_head(index_of(header_of(COLUMNS), COLUMNS, edit=changed(3, 0, "teleport")))
    other = {"x_note": np.arange(3, dtype="<u4"), **COLUMNS}
    check_whole(index_of(header_of(COLUMNS), other))
    broken("end with column frame_stop", columns={**COLUMNS, "x_note": np.arange(3, dtype="<u4")})


def test_kinds():
    """Framing, compression and record CRC kind MUST be known; the record CRC kind MUST be given for
    `TFRECORD` and for nothing else.
    """
    for field, value in (("framing", 0), ("framing", 5), ("compression", 0), ("compression", 9)):
        broken(f"no known {field}", header_of(COLUMNS, **{field: value}))
    broken("no known record_crc", header_of(COLUMNS, record_crc=4))
    broken("record CRC kind is given", header_of(COLUMNS, record_crc=0))
    broken("record CRC kind is given", header_of(COLUMNS, framing=Framing.RAW))


def test_zlib():
    """`ZLIB` MUST occur only as a stream, and a stream MUST be compressed."""
    broken("only as a stream", header_of(COLUMNS, compression=Compression.ZLIB))


def test_totals():
    """The last `block_stop` MUST be the stored size, of a stream the decoded size; the last `block_row_stop`
    the number of rows, and the sum of `block_decoded_bytes` the decoded size.
    """
    broken("stops at the stored size", header_of(COLUMNS, stored_bytes=198))
    broken("add up to the decoded size", header_of(COLUMNS, decoded_bytes=198))
    longer = {**COLUMNS, "frame_stop": np.append(COLUMNS["frame_stop"], np.uint32(200)).astype("<u4")}
    broken("stops at the number of rows", header_of(COLUMNS), longer)
    nothing = columns_of([])
    broken("stops at the stored size", header_of(nothing, stored_bytes=1), nothing)
    broken("add up", header_of(nothing, decoded_bytes=1), nothing)
    stream = {"stream": 1, "compression": Compression.ZLIB}
    check_whole(index_of(header_of(COLUMNS, stored_bytes=3, **stream), COLUMNS))
    broken("stops at the decoded size", header_of(COLUMNS, decoded_bytes=198, **stream))


def with_column(name: str, values: list[int]) -> dict[str, np.ndarray]:
    return {**COLUMNS, name: np.array(values, COLUMNS[name].dtype)}


@pytest.mark.parametrize("kind", [Compression.NONE, Compression.ZSTD, Compression.GZIP])
def test_block_stops_increase(kind):
    """`block_stop` MUST strictly increase; only empty `RAW` records let it stand still."""
    for stops in ([66, 66, 199], [100, 80, 199], [0, 82, 199]):
        columns = with_column("block_stop", stops)
        broken("strictly ascending", header_of(columns, compression=kind), columns)
    # Sums that wrap round 2^64 to something plausible.
    for stops in ([1 << 62, 1 << 63, 199], [1 << 63, (1 << 63) + 5, 199], [(1 << 64) - 1, 5, 199]):
        columns = with_column("block_stop", stops)
        broken("no block stops after|ascending", header_of(columns, compression=kind), columns)


def test_empty_raw_records_let_the_stop_stand_still():
    columns = columns_of([[0], [0, 5], [0]])
    check_whole(index_of(header_of(columns, framing=Framing.RAW, record_crc=0), columns))


def test_rows_and_gaps():
    """Rows MUST NOT decrease from block to block; blocks without rows MUST be exactly the gaps that the
    index lists, ascending.
    """
    columns = with_column("block_row_stop", [3, 2, 6])
    broken("do not decrease", header_of(columns), columns)
    for rows in ([1 << 62, 1 << 63, 6], [(1 << 64) - 1, 3, 6]):
        columns = with_column("block_row_stop", rows)
        broken("no block stops after|do not decrease", header_of(columns), columns)
    # Steps of 2^62 come round to 6 after four of them; each by itself ascends.
    wrapped = columns_of([[16], [16], [16], [16], [16, 16]])
    wrapped["block_row_stop"] = np.array([1 << 62, 1 << 63, 3 << 62, 0, 6], "<u8")
    broken("no block stops after", header_of(wrapped), wrapped)
    columns = with_column("block_row_stop", [3, 3, 6])
    broken("exactly the gaps", header_of(columns), columns)
    gapped = columns_of([[20], [], [16]])
    gapped["block_stop"] = np.array([20, 29, 45], "<u8")
    gapped["block_decoded_bytes"] = np.array([20, 9, 16], "<u4")
    for blocks in ([], [0], [1, 2], [3]):
        broken("exactly the gaps", header_of(gapped, gaps=dict.fromkeys(blocks, "x")), gapped)
    for blocks in ([1, 0], [2, 1]):
        broken("gaps ascend", header_of(gapped, gaps=dict.fromkeys(blocks, "x")), gapped)


def test_a_gap_is_read():
    builder = IndexBuilder(uuid=bytes(16), framing=Framing.TAR_SAMPLE)
    builder.add_block(stored_bytes=50, decoded_bytes=50, crc32c=1, frame_stop=np.array([50], np.uint32))
    builder.add_gap(stored_bytes=9, decoded_bytes=9, crc32c=2, reason="end of the archive")
    data = builder.finish().data
    check_whole(data)
    head = parse_head(data)
    assert head.gaps == {1: "end of the archive"}
    assert (head.rows, head.blocks, head.record_crc) == (1, 2, RecordCrc.ABSENT)
    only = IndexBuilder(uuid=bytes(16))
    only.add_gap(stored_bytes=9, decoded_bytes=9, crc32c=2, reason="damage")
    check_whole(only.finish().data)


def test_an_index_that_no_reader_would_take_is_not_made():
    """A writer MUST NOT store what it would refuse to read."""
    frame = np.arange(1, 11, dtype=np.uint32) * 16
    size = len(index_of_blocks(Limits(), 3, frame))
    data = index_of_blocks(Limits(index=size), 3, frame)
    parse_head(data, limits=Limits(index=size))
    for limits in (Limits(index=size - 1), Limits(index=3 * (28 + 40) - 1)):
        with pytest.raises(FormatError) as caught:
            index_of_blocks(limits, 3, frame)
        assert caught.value.advice
        with pytest.raises(FormatError):
            parse_head(data, limits=limits)
    with pytest.raises(FormatError):
        index_of_blocks(Limits(items=2), 3, frame)


def index_of_blocks(limits: Limits, blocks: int, frame: np.ndarray) -> bytes:
    builder = IndexBuilder(uuid=bytes(16), limits=limits)
    for _ in range(blocks):
        builder.add_block(stored_bytes=160, decoded_bytes=160, crc32c=1, frame_stop=frame)
        builder.add_gap(stored_bytes=9, decoded_bytes=9, crc32c=2, reason="damage")
    return builder.finish().data


def test_a_stream_is_read():
    builder = IndexBuilder(uuid=bytes(16), compression=Compression.ZLIB)
    builder.add_block(stored_bytes=50, decoded_bytes=50, crc32c=1, frame_stop=np.array([50], np.uint32))
    builder.mark_stream(stored_bytes=12, crc32c=99)
    head = parse_head(builder.finish().data)
    assert (head.stored_bytes, head.crc32c, head.decoded_bytes) == (12, 99, 50)
    assert (head.stream, head.block_bounds(0)) == (True, (0, 50))


def test_sizes_agree_without_compression():
    """Without compression, and in a stream, a block's part of `block_stop` MUST be as long as its decoded
    size.
    """
    columns = columns_of(BLOCKS, stored=[66, 17, 116])
    broken("stored and decoded sizes agree", header_of(columns), columns)
    check_whole(index_of(header_of(columns, compression=Compression.ZSTD), columns))


def with_frames(stops: list[int], blocks: list[int]) -> dict[str, np.ndarray]:
    frames = np.array(stops, "<u4")
    parts = np.split(frames, np.cumsum(blocks)[:-1])
    crcs = np.array([crc32c(part.tobytes()) for part in parts], "<u4")
    return {**COLUMNS, "frame_stop": frames, "block_frames_crc32c": crcs}


@pytest.mark.parametrize(
    ("stops", "match"),
    [
        ([20, 36, 66, 16, 100, 116], "is not the last"),
        ([20, 36, 66, 16, 100, 118], "does not end where the block does"),
        ([20, 35, 66, 16, 100, 117], "too small"),
        ([20, 20, 66, 16, 100, 117], "too small"),
        ([36, 20, 66, 16, 100, 117], "too small"),
        ([15, 36, 66, 16, 100, 117], "too small"),
        ([20, 36, 66, 16, 4_000_000_000, 117], "too small"),
    ],
)
def test_frames_of_a_block(stops, match):
    """Within a block `frame_stop` MUST increase by at least an empty frame, and end at the block's decoded
    size.
    """
    columns = with_frames(stops, [3, 1, 2])
    match = match.replace("is not the last", "does not end where the block does")
    broken(match, header_of(columns), columns)


def test_a_part_of_frame_stop_is_checked_before_it_is_used():
    """A reader MUST check the head whole before it uses any of it, and each block's part of `frame_stop`
    before it uses that part.
    """
    head = parse_head(index_of(header_of(COLUMNS), COLUMNS))
    part = COLUMNS["frame_stop"][:3]
    check_frames_part(head, 0, part)
    for wrong in (part + np.uint32(1), part[:2], np.append(part, np.uint32(70)), part[:0]):
        with pytest.raises(FormatError) as caught:
            check_frames_part(head, 0, wrong.astype("<u4"), url="i")
        assert (caught.value.url, caught.value.start, caught.value.stop) == ("i", *head.frame_stop_bounds(0))


@pytest.mark.parametrize("build", [lambda: columns_of(BLOCKS), lambda: columns_of([])], ids=["rows", "empty"])
def test_every_flipped_bit_is_found(build):
    columns = build()
    data = index_of(header_of(columns, writer="me"), columns)
    check_whole(data)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            check_whole(bytes(damaged))


@pytest.mark.parametrize("columns", [1 << 31, (1 << 32) - 1, 1000, 257, 200])
def test_a_directory_longer_than_the_file_is_refused(columns):
    """A directory MUST have at most 256 columns."""
    data = bytearray(index_of(header_of(COLUMNS), COLUMNS))
    data[16:20] = columns.to_bytes(4, "little")
    with pytest.raises(FormatError, match="more than it may" if columns > 256 else "cut short"):
        parse_head(bytes(data))


@given(st.binary(max_size=300))
def test_garbage_is_a_format_error(data):
    with pytest.raises(FormatError):
        parse_head(data)
    count = len(data) // 56
    prefix = b"SHRDCOL1" + struct.pack("<III", 1, 1, count)
    body = prefix + crc32c(prefix + data[: 56 * count]).to_bytes(4, "little") + data
    with pytest.raises(FormatError):
        parse_head(body + bytes(64))


def test_limits_of_blocks():
    """A length MUST be checked against its limit, and against what is left, before anything is allocated."""
    limits = Limits(block=150, record=120, index=2000)
    check_whole(index_of(header_of(COLUMNS), COLUMNS), limits=limits)
    several = columns_of([[100, 51]])
    with pytest.raises(FormatError):
        parse_head(index_of(header_of(several), several), limits=limits)
    for kind in (Compression.ZSTD, Compression.GZIP):
        small = columns_of([[100, 51]], stored=[50])
        with pytest.raises(FormatError):
            parse_head(index_of(header_of(small, compression=kind), small), limits=limits)
    one = columns_of([[(1 << 20) + 121]])
    with pytest.raises(FormatError):
        parse_head(index_of(header_of(one), one), limits=limits)
    many = columns_of([[16] * 9] * 40)
    with pytest.raises(FormatError):
        parse_head(index_of(header_of(many), many), limits=limits)


@pytest.mark.parametrize("shift", range(1, 8))
def test_columns_are_aligned_wherever_the_bytes_lie(shift):
    """What was read over a network may be at any address, and callers need not care."""
    data = index_of(header_of(COLUMNS), COLUMNS)
    head = parse_head(memoryview(bytes(shift) + data)[shift:])
    assert memoryview(head.block_stop).tolist() == COLUMNS["block_stop"].tolist()
    assert memoryview(head.block_row_stop).tolist() == COLUMNS["block_row_stop"].tolist()
