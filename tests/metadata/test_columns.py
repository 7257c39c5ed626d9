"""Lists of many shards: what is read is what was written, in little memory."""

from __future__ import annotations

import functools
import tracemalloc

import numpy as np
import pytest

from shardio.errors import FormatError, UnsafeNameError
from shardio.metadata import ShardEntry, ShardTable, pack_list, parse_list
from tests.metadata.crafted import list_of

MANY = 10_000


@functools.cache
def many(count: int = MANY) -> ShardTable:
    """Return shards of two splits with names of several lengths, some of which say more than others."""
    rng = np.random.default_rng(0)
    return ShardTable.from_entries(
        ShardEntry(
            split="test" if k % 7 == 0 else "train", key=f"data/{'x' * (k % 3)}{k}", uuid=rng.bytes(16),
            stored_bytes=k << 20, decoded_bytes=k, rows=k % 300, blocks=1, crc32c=k, index_head_bytes=700,
            index_head_sha256=rng.bytes(32), etag="etag" if k % 1000 == 5 else "", root=int(k % 1000 == 5),
        )
        for k in range(count)
    )  # fmt: skip


@pytest.mark.parametrize("number", [0, 5000, MANY - 1])
def test_one_wrong_name_among_many(number):
    keys = [f"data/{k:06d}" for k in range(MANY)]
    for name, error in (("data//x", UnsafeNameError), (keys[1], FormatError), ("data/\0", UnsafeNameError)):
        wrong = [*keys[:number], name, *keys[number + 1 :]]
        if wrong != keys:
            with pytest.raises(error):
                parse_list(list_of(MANY, key=wrong))


def test_a_shard_takes_little_memory():
    """10^6 shards take less than 100 MB in each process."""
    data = pack_list(many())[0]
    tracemalloc.start()
    try:
        table, _ = parse_list(data)
        assert table.row_stops()[-1] == table.sum("rows")
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 100 * len(table)
