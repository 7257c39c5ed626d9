"""Records in order: what was framed comes out again, of blocks that are right and no others."""

from __future__ import annotations

import itertools
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import CorruptBlockError
from tests.format.plain import frame
from tests.suites.errors import refused

# Of several sizes: without a record, of one, of some, and of more bytes than are compared at once.
BLOCKS = [[b"one", b"", b"three"], [], [b"x" * 1000], [b"", b""], [bytes([k]) * 900 for k in range(9)]]
COLUMNS = ["frame_crcs", "block_sizes"]


class Shard:
    """A shard of some blocks, what its index says of it, and which of them were compared."""

    def __init__(self, blocks: list[list[bytes]] = BLOCKS) -> None:
        frames = [[frame(payload) for payload in block] for block in blocks]
        stored = [b"".join(block) for block in frames]
        stops = [np.cumsum([len(each) for each in block], dtype=np.uint32) for block in frames]
        self.records = [payload for block in blocks for payload in block]
        self.edges = np.cumsum([0, *map(len, blocks)]).tolist()
        self.stored = bytearray(b"".join(stored))
        self.crcs = np.array([crc32c.crc32c(block) for block in stored], np.uint32)
        self.columns = {
            "frame_stops": np.concatenate([np.empty(0, np.uint32), *stops]),
            "block_stops": np.cumsum([len(block) for block in stored]).astype(np.uint64),
            "block_row_stops": np.cumsum([len(block) for block in blocks]).astype(np.uint64),
            "block_sizes": np.array([len(block) for block in stored], np.uint32),
            "frame_crcs": np.array([crc32c.crc32c(part.tobytes()) for part in stops], np.uint32),
        }

    def read(self, kernels: Any, first: int, stop: int, **options: Any) -> Any:
        """Read rows out of the shard, its first bytes behind others."""
        verify, whole = options.pop("verify", True), options.pop("whole", True)
        columns = dict(self.columns)
        frames = None if whole else columns.pop("frame_stops")
        index = kernels.ShardIndex(**columns, block_crcs=self.crcs if verify else None)
        block = int(np.searchsorted(self.edges[1:], first, "right"))
        start = int(columns["block_stops"][block - 1]) if block else 0
        part = None if frames is None else memoryview(frames[self.edges[block] :].tobytes())
        return index.read_rows(first, stop, b"before" + self.stored, 6 + start, part, **options)


@given(st.lists(st.lists(st.binary(max_size=40), max_size=5), min_size=1, max_size=5).filter(any), st.data())
def test_what_was_framed_comes_out_again(kernels, blocks, data) -> None:
    shard = Shard(blocks)
    first = data.draw(st.integers(0, len(shard.records) - 1))
    stop = data.draw(st.integers(first + 1, len(shard.records)))
    options = {"verify": data.draw(st.booleans()), "whole": data.draw(st.booleans())}
    assert shard.read(kernels, first, stop, as_bytes=True, **options) == shard.records[first:stop]
    places = shard.read(kernels, first, stop, as_bytes=False, **options)
    stored = b"before" + shard.stored
    assert [stored[a:b] for a, b in places.T.tolist()] == shard.records[first:stop]
    if data.draw(st.booleans()):
        shard.stored[data.draw(st.integers(0, len(shard.stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert shard.read(kernels, first, stop, as_bytes=True) in (None, shard.records[first:stop])


@pytest.mark.parametrize("size", [1, 3, 7, 50, 9000, 140_000])
def test_rows_of_any_length(kernels, size) -> None:
    """Over the borders of blocks; blocks of all sizes, some of which are compared without the GIL."""
    payloads = [bytes([k % 251]) * (size * k % 150_001 if k % 3 else size) for k in range(40)]
    shard = Shard([payloads[:11], payloads[11:12], payloads[12:]])
    for step in (1, 3, 40):
        found = [shard.read(kernels, k, min(k + step, 40), as_bytes=True) for k in range(0, 40, step)]
        assert found == [payloads[k : k + step] for k in range(0, 40, step)]


def test_no_flipped_bit_gets_out(kernels) -> None:
    """P5: rows of a block whose bytes or stops don't match their checksum aren't read, its neighbours are."""
    shard = Shard()
    starts = np.cumsum([0, *shard.columns["block_sizes"].tolist()])

    def read(first: int, stop: int, **options: Any) -> Any:
        return shard.read(kernels, first, stop, as_bytes=True, **options) if first < stop else []

    for bit in range(0, 8 * len(shard.stored), 61):
        shard.stored[bit // 8] ^= 1 << bit % 8
        block = int(np.searchsorted(starts, bit // 8, "right")) - 1
        first, stop = shard.edges[block : block + 2]
        assert read(first, stop) is read(first, first + 1) is read(0, len(shard.records)) is None
        assert read(0, first) == shard.records[:first]
        assert read(stop, len(shard.records)) == shard.records[stop:]
        assert len(read(0, len(shard.records), verify=False)) == len(shard.records)
        shard.stored[bit // 8] ^= 1 << bit % 8
    for bit in range(32 * len(shard.records)):
        shard.columns["frame_stops"][bit // 32] ^= 1 << bit % 32
        assert read(0, len(shard.records), verify=False) is None
        shard.columns["frame_stops"][bit // 32] ^= 1 << bit % 32
    for name in COLUMNS:
        for block in range(len(BLOCKS)):
            shard.columns[name][block] ^= 1
            found = read(0, len(shard.records))
            assert (found is None) == (bool(BLOCKS[block]) or name == "frame_crcs")
            shard.columns[name][block] ^= 1


def test_a_block_is_compared_unless_it_was_before(kernels) -> None:
    shard = Shard()
    checked = np.zeros(5, np.uint8)
    assert shard.read(kernels, 0, 1, checked=checked, as_bytes=True) == shard.records[:1]
    assert checked.tolist() == [1, 0, 0, 0, 0]
    checked[4] = 1  # as another thread that shares it says
    shard.stored[:] = shard.stored[:-1] + b"?"
    assert shard.read(kernels, 0, len(shard.records), checked=checked, as_bytes=True) == shard.records
    assert checked.all()
    assert shard.read(kernels, 0, len(shard.records), as_bytes=True) is None


def test_frames_fill_their_block_although_the_checksum_agrees(kernels) -> None:
    """An index with the right checksums of wrong contents causes no read outside a block."""
    shard = Shard([[b"one", b"two"], [b"more"]])
    for wrong in ([19, 37, 20], [19, 39, 20], [15, 38, 20], [38, 38, 20], [23, 22, 20], [2**32 - 1, 38, 20]):
        bad = np.array(wrong, np.uint32)
        crcs = [crc32c.crc32c(part.tobytes()) for part in (bad[:2], bad[2:])]
        shard.columns |= {"frame_stops": bad, "frame_crcs": np.array(crcs, np.uint32)}
        assert shard.read(kernels, 0, 3, verify=False, as_bytes=True) is None
    shard = Shard([[b"one", b"two"], [b"more"]])
    for far in (18, 1 << 40, (1 << 63) - 59):
        shard.columns["block_stops"] = np.array([38, 58 + far], np.uint64)
        assert shard.read(kernels, 2, 3, as_bytes=True) is None


def test_no_rows_are_read_beyond_what_is_given(kernels) -> None:
    shard = Shard()
    for first, stop in ((-1, 2), (3, len(shard.records) + 1), (2, 2)):
        assert shard.read(kernels, first, stop, as_bytes=True) is None
    index = kernels.ShardIndex(**shard.columns)
    for buffer, start in ((bytes(shard.stored), 1), (bytes(shard.stored), -1), (b"", 0), (b"", 1 << 62)):
        assert index.read_rows(0, len(shard.records), buffer, start, as_bytes=False) is None
    for name in COLUMNS:
        short = shard.columns | {name: shard.columns[name][1:]}
        with refused(ValueError, "columns"):
            kernels.ShardIndex(**short, block_crcs=shard.crcs)
    with refused(ValueError, "columns"):
        kernels.ShardIndex(**shard.columns, block_crcs=shard.crcs[1:])


def opened(kernels: Any, shard: Shard, number: int, *, whole: bool, verify: bool = True) -> Any:
    """Open a block with the index's part of it, or with one that comes with it, somewhere in a buffer."""
    columns = dict(shard.columns)
    stops = columns.pop("frame_stops")
    first, last = shard.edges[number : number + 2]
    crcs = shard.crcs if verify else None
    begin = int(columns["block_stops"][number - 1]) if number else 0
    stop = int(columns["block_stops"][number])
    if whole:
        index = kernels.ShardIndex(**columns, frame_stops=stops, block_crcs=crcs)
        return index.open_block(number, bytes(shard.stored), begin)
    index = kernels.ShardIndex(**columns, block_crcs=crcs, decode=lambda stored, size: bytes(stored))
    buffer = memoryview(b"before" + shard.stored[begin:stop] + b"behind")
    return index.open_block(number, buffer, 6, memoryview(stops[first:last].tobytes()))


@pytest.mark.parametrize("whole", [True, False])
def test_a_block_is_opened_and_cut(kernels, whole) -> None:
    shard = Shard()
    for number, (first, last) in enumerate(itertools.pairwise(shard.edges)):
        block = opened(kernels, shard, number, whole=whole)
        assert (len(block), block.first_row) == (last - first, first)
        wanted = shard.records[first:last]
        assert [block.payload(row) for row in range(first, last)] == wanted
        assert block.payloads(range(first, last)) == wanted
        assert block.payloads(np.arange(first, last)[::-1].copy()) == wanted[::-1]
        assert block.places(last, first).size == 0
        starts, stops = block.places(0, 100).tolist()
        found = [bytes(block.buffer[a:b]) for a, b in zip(starts, stops, strict=True)]
        assert found == wanted
        frames = np.diff(block.edges.astype(int)).tolist()
        assert frames == [len(record) + 16 for record in wanted]
        for row in (first - 1, last):
            with pytest.raises(IndexError):
                block.payload(row)
            with pytest.raises(IndexError):
                block.payloads(np.array([row]))
    for number in (-1, len(BLOCKS)):
        with refused(IndexError, "block"):
            kernels.ShardIndex(**shard.columns).open_block(number, b"")


@pytest.mark.parametrize("whole", [True, False])
def test_a_block_with_a_flipped_bit_is_not_opened(kernels, whole) -> None:
    shard = Shard()
    starts = np.cumsum([0, *shard.columns["block_sizes"].tolist()])
    for bit in range(0, 8 * len(shard.stored), 61):
        shard.stored[bit // 8] ^= 1 << bit % 8
        block = int(np.searchsorted(starts, bit // 8, "right")) - 1
        assert opened(kernels, shard, block, whole=whole) is None
        assert opened(kernels, shard, block, whole=whole, verify=False) is not None
        shard.stored[bit // 8] ^= 1 << bit % 8
    for bit in range(32 * len(shard.records)):
        shard.columns["frame_stops"][bit // 32] ^= 1 << bit % 32
        block = int(np.searchsorted(shard.edges, bit // 32, "right")) - 1
        assert opened(kernels, shard, block, whole=whole, verify=False) is None
        shard.columns["frame_stops"][bit // 32] ^= 1 << bit % 32


def test_a_block_is_in_its_buffer_and_fills_it(kernels) -> None:
    """No combination of what is given reaches outside of the buffer."""
    shard = Shard([[b"one", b"two"]])
    columns = dict(shard.columns)
    index = kernels.ShardIndex(**columns)
    for buffer, start in ((bytes(shard.stored), 1), (bytes(shard.stored), -1), (b"", 0), (b"", 1 << 62)):
        assert index.open_block(0, buffer, start) is None
    for part in (b"", bytes(4), bytes(12), b"bytes"):
        assert index.open_block(0, bytes(shard.stored), 0, part) is None
    for wrong in ([19, 37], [19, 39], [15, 38], [38, 38], [23, 22], [2**32 - 1, 38]):
        bad = np.array(wrong, np.uint32)
        crc = np.array([crc32c.crc32c(bad.tobytes())], np.uint32)
        one = kernels.ShardIndex(**columns | {"frame_stops": bad, "frame_crcs": crc})
        assert one.open_block(0, bytes(shard.stored)) is None
    del columns["frame_stops"]
    assert kernels.ShardIndex(**columns).open_block(0, bytes(shard.stored)) is None


def test_what_decodes_to_another_size_is_not_opened(kernels) -> None:
    shard = Shard([[b"one", b"two"], []])
    for size in (37, 39):
        index = kernels.ShardIndex(**shard.columns, decode=lambda stored, _, size=size: bytes(size))
        assert index.open_block(0, bytes(shard.stored)) is None
        assert len(index.open_block(1, bytes(shard.stored), 38)) == 0, "of no record nothing is decoded"

    def refuse(stored: Any, size: int) -> Any:
        raise CorruptBlockError(f"{len(stored)} bytes for {size}")

    with pytest.raises(CorruptBlockError):
        kernels.ShardIndex(**shard.columns, decode=refuse).open_block(0, memoryview(shard.stored))


def test_lines_are_cut_before_their_endings(kernels) -> None:
    lines = [b"one\n", b"two\r\n", b"\n", b"\r\n", b"\r", b"last\r"]
    stops = np.cumsum([len(line) for line in lines], dtype=np.uint32)
    index = kernels.ShardIndex(
        np.array([stops[-1]], np.uint64),
        np.array([len(lines)], np.uint64),
        stops[-1:],
        np.array([crc32c.crc32c(stops.tobytes())], np.uint32),
        frame_stops=stops,
        bounds=(0, -1, 1),
    )
    block = index.open_block(0, b"".join(lines))
    assert [block.payload(row) for row in range(6)] == [b"one", b"two", b"", b"", b"\r", b"last\r"]
    assert index.read_rows(0, 6, b"".join(lines), 0, as_bytes=True) is None, "each ending is looked at"
    starts, stops = block.places(1, 3).tolist()
    assert (starts, stops) == ([4, 9], [7, 9])
