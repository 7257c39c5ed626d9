"""Records in order: what was framed comes out again, of blocks that are right and no others."""

from __future__ import annotations

from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio.kernels import LookupColumns
from tests.format.plain import frame
from tests.kernels.differential import IMPLEMENTATIONS

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
        self.seen = bytearray(len(blocks))

    def lists(self, kernels: Any, *, verify: bool = True, fresh: bool = True) -> Any:
        if fresh:
            self.seen = bytearray(len(self.seen))
        columns = LookupColumns(**self.columns)
        return kernels.RecordLists(bytes(self.stored), columns, self.crcs if verify else None, self.seen)


@given(st.lists(st.lists(st.binary(max_size=40), max_size=5), min_size=1, max_size=5).filter(any), st.data())
def test_what_was_framed_comes_out_again(blocks, data) -> None:
    shard = Shard(blocks)
    edges = sorted(data.draw(st.lists(st.integers(0, len(shard.records)))))
    for kernels in IMPLEMENTATIONS:
        for verify in (True, False):
            one = shard.lists(kernels, verify=verify)
            found = [one.take(first, stop) for first, stop in zip([0, *edges], edges, strict=False)]
            assert found == [
                shard.records[first:stop] for first, stop in zip([0, *edges], edges, strict=False)
            ]
            assert one.opened == sum(shard.seen)
            assert one.take(0, len(shard.records)) == shard.records
            assert one.opened == sum(map(bool, blocks)), "a block without records is never opened"


@pytest.mark.parametrize("size", [1, 3, 7, 50, 9000, 140_000])
def test_lists_of_any_length(kernels, size) -> None:
    """Over the borders of blocks; records of all sizes, some beyond what is compared at once."""
    payloads = [bytes([k % 251]) * (size * k % 150_001 if k % 3 else size) for k in range(40)]
    shard = Shard([payloads[:11], payloads[11:12], payloads[12:]])
    for step in (1, 3, 40):
        one = shard.lists(kernels)
        assert [one.take(k, min(k + step, 40)) for k in range(0, 40, step)] == [
            payloads[k : k + step] for k in range(0, 40, step)
        ]
    assert one.take(5, 5) == []


def test_no_flipped_bit_gets_out(kernels) -> None:
    """A block whose bytes or stops do not match their checksum is never cut, its neighbours are."""
    shard = Shard()
    starts = np.cumsum([0, *shard.columns["block_sizes"].tolist()])
    for bit in range(0, 8 * len(shard.stored), 61):
        shard.stored[bit // 8] ^= 1 << bit % 8
        block = int(np.searchsorted(starts, bit // 8, "right")) - 1
        first, stop = shard.edges[block : block + 2]
        one = shard.lists(kernels)
        assert one.take(first, stop) is None
        assert one.take(first, first + 1) is None
        assert one.take(0, len(shard.records)) is None
        assert not shard.seen[block]
        assert one.take(0, first) == shard.records[:first]
        assert one.take(stop, len(shard.records)) == shard.records[stop:]
        assert len(shard.lists(kernels, verify=False).take(0, len(shard.records))) == len(shard.records)
        shard.stored[bit // 8] ^= 1 << bit % 8
    for bit in range(32 * len(shard.records)):
        shard.columns["frame_stops"][bit // 32] ^= 1 << bit % 32
        assert shard.lists(kernels, verify=False).take(0, len(shard.records)) is None
        shard.columns["frame_stops"][bit // 32] ^= 1 << bit % 32
    for name in COLUMNS:
        for block in range(len(BLOCKS)):
            shard.columns[name][block] ^= 1
            found = shard.lists(kernels).take(0, len(shard.records))
            assert (found is None) == bool(BLOCKS[block])
            shard.columns[name][block] ^= 1


def test_a_block_is_compared_once_and_with_all_that_compare(kernels) -> None:
    shard = Shard()
    one = shard.lists(kernels)
    assert one.take(0, 1) == shard.records[:1]
    assert (list(shard.seen), one.opened) == ([1, 0, 0, 0, 0], 1)
    shard.seen[4] = 1  # as another that shares it says
    shard.stored[:] = shard.stored[:-1] + b"?"
    one = shard.lists(kernels, fresh=False)
    assert one.take(0, len(shard.records)) == shard.records
    assert one.opened == 2


def test_frames_fill_their_block_although_the_checksum_agrees(kernels) -> None:
    """An index with the right checksums of wrong contents causes no read outside a block."""
    shard = Shard([[b"one", b"two"], [b"more"]])
    for wrong in ([19, 37, 20], [19, 39, 20], [15, 38, 20], [38, 38, 20], [23, 22, 20], [2**32 - 1, 38, 20]):
        bad = np.array(wrong, np.uint32)
        crcs = [crc32c.crc32c(part.tobytes()) for part in (bad[:2], bad[2:])]
        shard.columns |= {"frame_stops": bad, "frame_crcs": np.array(crcs, np.uint32)}
        assert shard.lists(kernels, verify=False).take(0, 3) is None
    shard = Shard([[b"one", b"two"], [b"more"]])
    for far in (18, 1 << 40, (1 << 63) - 1, (1 << 64) - 59):
        shard.columns["block_stops"] = np.array([38 + far, 58 + far], np.uint64)
        assert shard.lists(kernels).take(2, 3) is None


def test_an_index_that_changes_after_it_was_compared_leads_nowhere(kernels) -> None:
    """Mapped columns are others' to change: what was compared before is still never read past the buffer."""
    for wrong in ([15, 38], [19, 34], [19, 18], [19, 39], [2**32 - 1, 38]):
        shard = Shard([[b"one", b"two"]])
        one = shard.lists(kernels)
        assert one.take(0, 2) == [b"one", b"two"]
        shard.columns["frame_stops"][:] = wrong
        assert one.take(0, 2) is None
        assert shard.seen[0]


def test_what_is_not_there_is_said(kernels) -> None:
    shard = Shard()
    one = shard.lists(kernels)
    for first, stop, row in ((-1, 2, -1), (3, len(shard.records) + 1, len(shard.records))):
        with pytest.raises(IndexError, match=f"row {row} is out of range"):
            one.take(first, stop)
    for name in COLUMNS:
        short = shard.columns | {name: shard.columns[name][1:]}
        with pytest.raises(ValueError, match="columns"):
            kernels.RecordLists(shard.stored, LookupColumns(**short), shard.crcs, shard.seen)
    with pytest.raises(ValueError, match="one value for each block"):
        kernels.RecordLists(shard.stored, LookupColumns(**shard.columns), shard.crcs[1:], shard.seen)


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 9), st.binary(max_size=5))
def test_frames_that_follow_one_another_are_cut(payloads, skip, behind) -> None:
    frames = [frame(payload) for payload in payloads]
    stops = np.cumsum([len(each) for each in frames], dtype=np.int64)
    begin = int(stops[skip - 1]) if 0 < skip <= len(frames) else 0
    for kernels in IMPLEMENTATIONS:
        for table in (stops, stops.astype(np.uint32), stops.tolist()):
            whole = kernels.slice_frames(b"".join([*frames, behind]), table)
            assert whole == payloads
            if skip <= len(frames):
                rest = kernels.slice_frames(memoryview(b"".join(frames)), table[skip:], begin)
                assert rest == payloads[skip:]


@pytest.mark.parametrize(
    ("stops", "begin"),
    [([15], 0), ([16, 31], 0), ([16, 8], 0), ([65], 0), ([-1], 0), ([16], -1), ([16], 1), ([2**63 - 1], 0),
     ([-(2**63)], 0), ([16], 2**63 - 1), ([32], -(2**63))],
)  # fmt: skip
def test_what_is_no_frame_is_not_cut(kernels, stops, begin) -> None:
    """No combination of stops reaches outside of the buffer."""
    assert kernels.slice_frames(bytes(64), stops, begin) is None
    assert kernels.slice_frames(b"", [16]) is None
    assert kernels.slice_frames(b"", []) == []
    with pytest.raises(TypeError, match="stops"):
        kernels.slice_frames(bytes(64), [16.5])
