"""Frames out of runs of a file: what is taken is what was written, however shard and index are damaged."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.kernels import crc32c
from tests.format.plain import frame
from tests.kernels.differential import IMPLEMENTATIONS

# Two of one size in a block, an empty one, and one that is a block of its own.
BLOCKS = [[b"wren", b"tits", b""], [b"robin" * 40], [b"a", b"goldcrest"]]
RECORDS = [record for block in BLOCKS for record in block]


class Shard:
    """A shard and its index, to be damaged."""

    def __init__(self, kernels: Any, blocks: list[list[bytes]] = BLOCKS) -> None:
        frames = [[frame(record) for record in block] for block in blocks]
        ends = [np.cumsum([len(piece) for piece in block]).astype(np.uint32) for block in frames]
        self.kernels = kernels
        self.data = bytearray(b"".join(piece for block in frames for piece in block))
        self.columns = {
            "frame_stops": np.concatenate(ends),
            "block_stops": np.cumsum([part[-1] for part in ends]).astype(np.uint64),
            "block_row_stops": np.cumsum([len(part) for part in ends]).astype(np.uint64),
            "block_sizes": np.array([part[-1] for part in ends], np.uint32),
            "frame_crcs": np.array([crc32c(part) for part in ends], np.uint32),
        }

    def runs(self, *, checksums: bool = True) -> Any:
        index = self.kernels.ShardIndex(**self.columns)
        seen = bytearray(self.columns["frame_crcs"].size)
        return self.kernels.MappedRecords(self.data, index, seen, alone=checksums)

    def take(self, rows: list[int], *, near: int = 0, checksums: bool = True, extra: int = 0) -> Any:
        """Return the payloads of rows, read into the memory where they are put; None where that fails."""
        found = self.runs(checksums=checksums).find(np.array(rows, np.int64), near)
        if found is None:
            return None
        read = b"".join(self.data[a:b] for a, b in zip(found.begins, found.ends, strict=True))
        memory = np.zeros(len(read) + extra, np.uint8)
        memory[: len(read)] = np.frombuffer(read, np.uint8)
        out = memory[: int(found.lengths.sum())]
        data, places = memory[: len(read)], found.places
        if not self.kernels.take_frames(data, places, found.lengths, out, verify=checksums):
            return None
        edges = np.concatenate([[0], np.cumsum(found.lengths)]).tolist()
        return [bytes(out[a:b]) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("near", [0, 20, 1 << 40])
def test_rows_that_ascend_are_taken(kernels, near) -> None:
    shard = Shard(kernels)
    for rows in ([0], [5], [0, 1, 2, 3, 4, 5], [1, 3, 5], [2, 4], [0, 2, 3]):
        assert shard.take(rows, near=near) == [RECORDS[row] for row in rows]
        assert shard.take(rows, near=near, checksums=False) == [RECORDS[row] for row in rows]


def test_runs_are_what_lies_together(kernels) -> None:
    """Each byte is read once, and nothing between runs."""
    runs = Shard(kernels).runs()
    found = runs.find(np.array([0, 1, 3, 5], np.int64), 0)
    assert found.begins.tolist() == [0, 56, 56 + 216 + 17]
    assert found.ends.tolist() == [40, 56 + 216, 56 + 216 + 17 + 25]
    assert found.first.tolist() == [0, 2, 3]
    assert found.places.tolist() == [0, 20, 40, 256]
    assert found.lengths.tolist() == [4, 4, 200, 9]
    found = runs.find(np.array([0, 1, 3, 5], np.int64), 16)
    assert found.begins.tolist() == [0, 56 + 216 + 17]
    assert found.places.tolist() == [0, 20, 56, 272]


@pytest.mark.parametrize("rows", [[], [1, 1], [1, 0], [-1], [6], [0, 1 << 40], [-(1 << 63), 0]])
def test_rows_that_do_not_ascend_are_not_found(kernels, rows) -> None:
    assert Shard(kernels).runs().find(np.array(rows, np.int64), 0) is None


def test_a_damaged_frame_is_never_taken(kernels) -> None:
    """P5: every byte of a shard, changed: only what does not have its record is taken."""
    shard = Shard(kernels)
    owners = np.repeat(np.arange(len(RECORDS)), [len(record) + 16 for record in RECORDS])
    for place, owner in enumerate(owners.tolist()):
        shard.data[place] ^= 0x10
        others = [row for row in range(6) if row != owner]
        assert shard.take([owner]) is None
        assert shard.take([0, 1, 2, 3, 4, 5]) is None
        assert shard.take(others, near=1 << 20) == [RECORDS[row] for row in others]
        shard.data[place] ^= 0x10


def test_a_frame_of_another_length_is_found(kernels) -> None:
    """P7: frames that change places keep both checksums of their own."""
    shard = Shard(kernels)
    shard.data[:56] = shard.data[40:56] + shard.data[:40]
    for rows in ([0], [1], [2], [1, 2]):
        assert shard.take(rows) is None


def test_a_damaged_index_is_never_believed(kernels) -> None:
    for name in ("frame_stops", "frame_crcs"):
        for bit in (0, 7, 31):
            shard = Shard(kernels)
            column = shard.columns[name]
            for item in range(column.size):
                column[item] ^= np.uint32(1 << bit)
                block = item if column.size == 3 else (item > 2) + (item > 3)
                assert shard.runs().find(np.array([[0, 3, 4][block]], np.int64), 0) is None
                for row in range(6):
                    assert shard.take([row]) in (None, [RECORDS[row]])
                column[item] ^= np.uint32(1 << bit)


@pytest.mark.parametrize("stop", [0, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("name", ["block_stops", "block_row_stops", "frame_stops"])
def test_an_index_that_changes_while_it_is_mapped_leads_nowhere(kernels, name, stop) -> None:
    """Its columns were compared once; then another program writes to the file."""
    shard = Shard(kernels)
    runs, every = shard.runs(), np.arange(6)
    assert runs.find(every, 0) is not None
    shard.columns[name][1] = np.array(stop, np.uint64).astype(shard.columns[name].dtype)
    found = runs.find(every, 0)
    if found is not None:
        assert found.begins.min() >= 0
        assert found.ends.max() <= len(shard.data)
        assert (found.places + found.lengths + 16).max() <= (found.ends - found.begins).sum()


def test_an_index_that_says_more_than_the_shard_has(kernels) -> None:
    shard = Shard(kernels)
    del shard.data[-1:]
    assert shard.runs().find(np.array([3], np.int64), 0) is not None
    assert shard.runs().find(np.array([4], np.int64), 0) is None


@pytest.mark.parametrize(
    ("starts", "lengths"), [([0], [5]), ([1], [4]), ([-1], [4]), ([0], [-1]), ([1 << 62], [0])]
)
def test_a_frame_outside_names_itself(kernels, starts, lengths) -> None:
    with pytest.raises(IndexError, match="frame 0"):
        kernels.take_frames(bytes(20), starts, lengths, np.zeros(max(0, lengths[0]), np.uint8), verify=False)


def test_what_is_given_fits_together(kernels) -> None:
    data = frame(b"wren")
    with pytest.raises(ValueError, match="as many starts"):
        kernels.take_frames(data, [0, 0], [4], np.zeros(4, np.uint8), verify=False)
    with pytest.raises(ValueError, match="out: expected uint8 of shape \\(4"):
        kernels.take_frames(data, [0], [4], np.zeros(5, np.uint8), verify=False)
    assert kernels.take_frames(data, [], [], np.zeros(0, np.uint8), verify=False)


def test_columns_that_do_not_fit_each_other_are_refused(kernels) -> None:
    for name in ("frame_stops", "block_sizes"):
        shard = Shard(kernels)
        shard.columns[name] = shard.columns[name][:-1]
        with pytest.raises(ValueError, match="expected"):
            shard.runs()


@given(st.data())
def test_implementations_agree_on_any_rows(data) -> None:
    blocks = data.draw(
        st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=6)
    )
    shards = [Shard(kernels, blocks) for kernels in IMPLEMENTATIONS]
    many = sum(map(len, blocks))
    rows = data.draw(st.lists(st.integers(-1, many), max_size=many + 2))
    rows = data.draw(st.sampled_from([rows, sorted(set(rows) & set(range(many)))]))
    near = data.draw(st.integers(0, 100))
    change = data.draw(st.none() | st.tuples(st.integers(0, len(shards[0].data) - 1), st.integers(1, 255)))
    for shard in shards:
        if change is not None:
            shard.data[change[0]] ^= change[1]
    found = [shard.runs().find(np.array(rows, np.int64), near) for shard in shards]
    plain = [None if each is None else [column.tolist() for column in each] for each in found]
    assert all(each == plain[0] for each in plain)
    taken = [shard.take(rows, near=near) for shard in shards]
    assert all(each == taken[0] for each in taken)
    if taken[0] is not None:
        assert taken[0] == [[record for block in blocks for record in block][row] for row in rows]
