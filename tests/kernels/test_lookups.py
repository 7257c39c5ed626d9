"""Rows gathered by their index: what is returned is what was written, however shard and index are damaged."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardio.kernels import crc32c
from shardio.reader import ENTRY, READS_FILES, ShardFrames, find_in_shards, gather
from tests.format.plain import frame

# Two of one size in a block, an empty one, and one that is a block of its own.
BLOCKS = [[b"wren", b"tits", b""], [b"robin" * 40], [b"a", b"goldcrest"]]
RECORDS = [record for block in BLOCKS for record in block]


class Shard:
    """A shard, the columns of its index, and what gathers its rows."""

    def __init__(self, blocks: list[list[bytes]] = BLOCKS) -> None:
        frames = [[frame(record) for record in block] for block in blocks]
        self.stored = bytearray(b"".join(piece for block in frames for piece in block))
        ends = [np.cumsum([len(piece) for piece in block]).astype(np.uint32) for block in frames]
        self.frame_stop = np.concatenate(ends)
        self.head = SimpleNamespace(
            rows=len(self.frame_stop),
            blocks=len(blocks),
            block_stop=np.cumsum([part[-1] for part in ends]).astype(np.uint64),
            block_row_stop=np.cumsum([len(part) for part in ends]).astype(np.uint64),
            block_decoded_bytes=np.array([part[-1] for part in ends], np.uint32),
            block_frames_crc32c=np.array([crc32c(part) for part in ends], np.uint32),
        )

    def frames(self, path: Path | None = None, *, verify: bool = True) -> ShardFrames:
        """Return what gathers rows: of a map, or of a file."""
        name = None if path is None else bytes(path) + b"\0"
        if path is not None:
            path.write_bytes(self.stored)
        mapped = memoryview(bytes(self.stored)) if path is None else None
        head: Any = self.head
        return ShardFrames(mapped, len(self.stored), head, self.frame_stop, verify=verify, path=name)


def gathered(frames: ShardFrames, rows: list[int]) -> list[bytes] | None:
    """Return rows as streams and batches gather them."""
    entries, ways = np.empty(len(rows), ENTRY), np.empty(len(rows), np.int32)
    shards, places = np.array([frames.address], np.uint64), np.arange(len(rows))
    if find_in_shards(shards, np.zeros(len(rows), np.int64), np.array(rows), places, entries, ways) >= 0:
        return None
    values, offsets, wrong = gather(entries, ways, shards, as_bytes=False)
    assert (
        gather(entries, ways, shards, as_bytes=True)[0]
        == [bytes(values[a:b]) for a, b in itertools.pairwise(offsets.tolist())]
        or wrong
    )
    return None if wrong else [bytes(values[a:b]) for a, b in itertools.pairwise(offsets.tolist())]


def found(frames: ShardFrames, row: int) -> bytes | None:
    """Return a record, the same in every way."""
    record = frames.record(row)
    wanted = None if record is None else [record]
    assert frames.records(np.array([row])) == gathered(frames, [row]) == wanted
    return record


@pytest.fixture(params=["map", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where rows are: in a map, or in a file."""
    if request.param == "file" and not READS_FILES:
        pytest.skip("rows are not read from files here")
    return tmp_path / "shard" if request.param == "file" else None


def test_records_are_found_in_any_order(place) -> None:
    rows = [5, 0, 3, 3, 2, 1, 4]
    frames = Shard().frames(place)
    assert [found(frames, row) for row in rows] == [RECORDS[row] for row in rows]
    assert frames.records(np.array(rows)) == gathered(frames, rows) == [RECORDS[row] for row in rows]
    assert frames.records(np.array([], np.int64)) == []
    for row in (-1, 6, 1 << 40):
        assert found(frames, row) is None
        assert frames.records(np.array([0, row])) is None


def test_many_records_of_many_bytes(place) -> None:
    """Some are copied without the GIL."""
    payloads = [bytes([k]) * (k * 3001) for k in range(60)]
    frames = Shard([payloads[:20], payloads[20:]]).frames(place)
    rows = np.arange(59, -1, -1)
    assert frames.records(rows) == gathered(frames, rows.tolist()) == payloads[::-1]


def test_a_damaged_frame_is_never_returned_and_its_neighbours_are(place) -> None:
    """P5: every byte of a shard, changed: the one record that it belongs to is not returned."""
    shard = Shard()
    owners = np.repeat(np.arange(len(RECORDS)), [len(record) + 16 for record in RECORDS])
    for at, owner in enumerate(owners.tolist()):
        if place is not None and at % 7:
            continue
        shard.stored[at] ^= 0x10
        frames = shard.frames(place)
        assert [found(frames, row) for row in range(6)] == [
            None if row == owner else RECORDS[row] for row in range(6)
        ]
        assert frames.records(np.array([owner - 1 if owner else 1, owner])) is None
        assert None not in [found(shard.frames(place, verify=False), row) for row in range(6)]
        shard.stored[at] ^= 0x10


def test_a_frame_of_another_length_is_found(place) -> None:
    """P7: frames that change places keep both checksums of their own."""
    shard = Shard()
    shard.stored[:56] = shard.stored[40:56] + shard.stored[:40]
    assert [found(shard.frames(place), row) for row in range(3)] == [None, None, None]


def test_a_file_that_was_cut_or_is_gone(tmp_path) -> None:
    shard, path = Shard(), tmp_path / "shard"
    frames = shard.frames(path)
    path.write_bytes(shard.stored[:100])
    assert [found(frames, row) for row in range(6)] == [*RECORDS[:3], None, None, None]
    path.unlink()
    assert found(frames, 0) is None


def test_a_damaged_index_is_never_believed() -> None:
    for name in ("frame_stop", "block_frames_crc32c"):
        for bit in (0, 7, 31):
            shard = Shard()
            column = shard.frame_stop if name == "frame_stop" else getattr(shard.head, name)
            for item in range(column.size):
                column[item] ^= np.uint32(1 << bit)
                frames = shard.frames()
                assert all(found(frames, row) in (None, RECORDS[row]) for row in range(6))
                block = item if column.size == 3 else (item > 2) + (item > 3)
                assert found(frames, [0, 3, 4][block]) is None
                column[item] ^= np.uint32(1 << bit)


@pytest.mark.parametrize("stop", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_an_index_that_changes_while_it_is_mapped_leads_nowhere(stop) -> None:
    """Its columns were compared once; then another program writes to the file."""
    shard = Shard()
    frames = shard.frames()
    assert found(frames, 3) == RECORDS[3]
    shard.head.block_stop[0] = stop
    assert found(frames, 3) is None
