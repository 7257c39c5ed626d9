"""Records at random: what is returned is what was written, however shard and index are damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardio.kernels import crc32c
from tests.format.plain import frame
from tests.kernels.differential import IMPLEMENTATIONS
from tests.suites.errors import refused

# Two of one size in a block, an empty one, and one that is a block of its own.
BLOCKS = [[b"wren", b"tits", b""], [b"robin" * 40], [b"a", b"goldcrest"]]
RECORDS = [record for block in BLOCKS for record in block]


def made(kernels: Any, *, checksums: bool = True) -> tuple[bytearray, dict[str, np.ndarray], Any]:
    blocks = [[frame(record) for record in block] for block in BLOCKS]
    shard = bytearray(b"".join(piece for block in blocks for piece in block))
    ends = [np.cumsum([len(piece) for piece in block]).astype(np.uint32) for block in blocks]
    columns = {
        "frame_stops": np.concatenate(ends),
        "block_stops": np.cumsum([part[-1] for part in ends]).astype(np.uint64),
        "block_row_stops": np.cumsum([len(part) for part in ends]).astype(np.uint64),
        "block_sizes": np.array([part[-1] for part in ends], np.uint32),
        "frame_crcs": np.array([crc32c(part) for part in ends], np.uint32),
    }

    def lookup(seen: bytearray | None = None) -> Any:
        index = kernels.ShardIndex(**columns)
        return kernels.MappedRecords(bytes(shard), index, seen or bytearray(3), alone=checksums)

    return shard, columns, lookup


def test_records_are_found_in_any_order(kernels) -> None:
    _, _, lookup = made(kernels)
    rows = [5, 0, 3, 3, 2, 1, 4]
    one = lookup()
    assert [one.record(row) for row in rows] == [RECORDS[row] for row in rows]
    assert lookup().records(rows) == [RECORDS[row] for row in rows]
    assert lookup().records([]) == []
    for row in (-1, 6, 1 << 40):
        with pytest.raises(IndexError):
            one.record(row)
        with pytest.raises(IndexError):
            one.records([0, row])


def test_a_batch_is_checked_as_its_records_are(kernels) -> None:
    """Before any of it is looked at, all of its rows must be there; one that is wrong is none of it."""
    shard, _, lookup = made(kernels)
    shard[14] ^= 1
    one = lookup()
    assert one.records([3, 0]) is None
    assert one.records([3, 1, 3]) == [RECORDS[3], RECORDS[1], RECORDS[3]]
    with pytest.raises(IndexError):
        one.records([0, 6])
    # Blocks that were compared are cut, and others compared, in one batch.
    assert lookup(bytearray([0, 1, 0])).records([3, 5, 3, 1]) == [RECORDS[k] for k in (3, 5, 3, 1)]


def test_a_batch_of_many_bytes(kernels) -> None:
    """Beyond 128 KiB the kernel prepares memory for it."""
    payload = bytes(range(256)) * 300
    whole = frame(payload)
    ends = np.array([len(whole)], np.uint32)
    index = kernels.ShardIndex(
        np.arange(1, 41, dtype=np.uint64) * len(whole),
        np.arange(1, 41, dtype=np.uint64),
        np.tile(ends, 40),
        np.full(40, crc32c(ends), np.uint32),
        frame_stops=np.tile(ends, 40),
    )
    one = kernels.MappedRecords(whole * 40, index, bytearray(40), alone=True)
    assert one.records(range(39, -1, -1)) == [payload] * 40


def test_without_checksums_only_blocks_that_were_compared_are_cut(kernels) -> None:
    _, _, lookup = made(kernels, checksums=False)
    one = lookup(bytearray([0, 1, 0]))
    assert [one.record(row) for row in range(6)] == [None, None, None, RECORDS[3], None, None]
    assert one.records([3, 0]) is None


def test_a_damaged_frame_is_never_returned_and_its_neighbours_are(kernels) -> None:
    """P5: every byte of a shard, changed: the one record that it belongs to is not returned."""
    shard, columns, lookup = made(kernels)
    sizes = [len(record) + 16 for record in RECORDS]
    owners = np.repeat(np.arange(len(RECORDS)), sizes)
    for place, owner in enumerate(owners.tolist()):
        shard[place] ^= 0x10
        one = lookup()
        expected = [None if row == owner else RECORDS[row] for row in range(6)]
        assert [one.record(row) for row in range(6)] == expected
        shard[place] ^= 0x10
    assert columns["frame_stops"].size == 6


def test_a_frame_of_another_length_is_found(kernels) -> None:
    """P7: frames that change places keep both checksums of their own."""
    shard, _, lookup = made(kernels)
    shard[:56] = shard[40:56] + shard[:40]
    one = lookup()
    assert [one.record(row) for row in range(3)] == [None, None, None]


def test_a_damaged_index_is_never_believed(kernels) -> None:
    for name in ("frame_stops", "frame_crcs"):
        for bit in (0, 7, 31):
            _, columns, lookup = made(kernels)
            for item in range(columns[name].size):
                columns[name][item] ^= np.uint32(1 << bit)
                one = lookup()
                assert all(one.record(row) in (None, RECORDS[row]) for row in range(6))
                block = item if columns[name].size == 3 else (item > 2) + (item > 3)
                first = [0, 3, 4][block]
                assert one.record(first) is None
                columns[name][item] ^= np.uint32(1 << bit)


@pytest.mark.parametrize("stop", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_an_index_that_changes_while_it_is_mapped_leads_nowhere(kernels, stop) -> None:
    """Its columns were compared once; then another program writes to the file."""
    _, columns, lookup = made(kernels)
    one = lookup()
    assert one.record(3) == RECORDS[3]
    columns["block_stops"][0] = stop
    assert one.record(3) is None


def test_columns_that_do_not_fit_each_other_are_refused() -> None:
    for kernels in IMPLEMENTATIONS:
        for name in ("frame_stops", "block_sizes"):
            _, columns, _ = made(kernels)
            columns[name] = columns[name][:-1]
            with refused(ValueError, "expected"):
                kernels.ShardIndex(**columns)


def test_blocks_are_compared_once(kernels) -> None:
    shard, _, lookup = made(kernels)
    seen = bytearray(3)
    one = lookup(seen)
    assert one.places([3]) is None, "the block was not compared"
    assert one.compare([2, 0, 2]) == -1
    assert (list(seen), one.opened) == ([1, 0, 1], 2)
    starts, stops = one.places([5, 0, 4]).tolist()
    found = [bytes(shard[a:b]) for a, b in zip(starts, stops, strict=True)]
    assert found == [RECORDS[5], RECORDS[0], RECORDS[4]]
    with pytest.raises(IndexError):
        one.places([6])
    with pytest.raises(IndexError):
        one.compare([3])


def test_the_first_block_that_is_not_right_is_named(kernels) -> None:
    shard, columns, _ = made(kernels)
    crcs = np.zeros(3, np.uint32)
    crcs[1] = crc32c(bytes(shard[56:272]))
    one = kernels.MappedRecords(
        bytes(shard), kernels.ShardIndex(**columns, block_crcs=crcs), bytearray(3), alone=False
    )
    assert [one.compare([1, 2, 0]), one.compare([1]), one.compare([0])] == [2, -1, 0]
