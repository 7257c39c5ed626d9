"""Columns read from the bytes of a message: what protobuf reads, and of many shards in little memory."""

from __future__ import annotations

import functools
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError, UnsafeNameError
from shardio.metadata import ShardEntry, ShardTable, parse_list, seal_list
from shardio.metadata._columns import MessageColumns
from shardio.metadata.naming import are_plain_keys, check_foreign_key, check_key
from shardio.v1.manifest_pb2 import ShardList
from tests.metadata.crafted import list_message, sealed

MANY = 10_000
MESSAGES = st.builds(
    ShardList,
    key=st.lists(st.text(max_size=3) | st.sampled_from(["data/a", "data/b"]), max_size=9),
    rows=st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 200), max_size=9),
    crc32c=st.lists(st.integers(0, (1 << 32) - 1), max_size=9),
    shard_uuid=st.binary(max_size=20),
)


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_fields_are_those_that_protobuf_reads(messages):
    """A field may lie in pieces: protobuf reads two messages, one after another, as one."""
    data = b"".join(message.SerializeToString() for message in messages)
    wanted, found = ShardList.FromString(data), MessageColumns(ShardList, data, 100)
    assert found.numbers("rows").tolist() == list(wanted.rows)
    assert found.numbers("crc32c").tolist() == list(wanted.crc32c)
    assert found.blob("shard_uuid") == wanted.shard_uuid
    assert found.count("key") == len(wanted.key)
    texts = found.texts("key")
    assert (texts.decode().split("\0") if isinstance(texts, bytes) and wanted.key else list(texts)) == list(
        wanted.key
    )


def test_numbers_that_are_not_packed():
    data = b"\x58\x05\x58\xac\x02" + ShardList(rows=[7]).SerializeToString()
    assert MessageColumns(ShardList, data, 100).numbers("rows").tolist() == [5, 300, 7]


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


def test_many_shards():
    table = many()
    again, _ = parse_list(seal_list(table)[0])
    entries = list(table)
    assert list(again) == entries
    assert [again[k] for k in (-1, 4097, 0, 255, 256)] == [entries[k] for k in (-1, 4097, 0, 255, 256)]
    assert list(pickle.loads(pickle.dumps(again))) == entries
    for split in ("train", "test"):
        assert list(again.of_split(split)) == [each for each in entries if each.split == split]
    whole = ShardTable.concatenate([again, many(3), again.of_split("test")])
    assert list(whole) == [*entries, *entries[:3], *entries[::7]]
    assert whole.rows.tolist() == [each.rows for each in whole]
    assert whole.row_stops().tolist() == np.cumsum(whole.rows).tolist()
    assert whole.key[MANY - 1 : MANY + 1] == [entries[-1].key, entries[0].key]
    assert whole.has_doubles()
    assert not again.has_doubles()
    assert list(again.with_schema(3).take([5000, 2])) == [
        ShardEntry(**{**vars(entries[k]), "schema": 3}) for k in (5000, 2)
    ]


@pytest.mark.parametrize("number", [0, 5000, MANY - 1])
def test_one_wrong_name_among_many(number):
    keys = [f"data/{k:06d}" for k in range(MANY)]
    for name, error in (("data//x", UnsafeNameError), (keys[1], FormatError), ("data/\0", UnsafeNameError)):
        wrong = [*keys[:number], name, *keys[number + 1 :]]
        if wrong != keys:
            with pytest.raises(error):
                parse_list(sealed(list_message(MANY, key=wrong)))


def test_a_shard_takes_little_memory():
    """10^6 shards take less than 100 MB in each process."""
    data = seal_list(many())[0]
    tracemalloc.start()
    try:
        table, _ = parse_list(data)
        assert table.row_stops()[-1] == table.sum("rows")
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 100 * len(table)


@given(
    st.lists(
        st.text("ab/.=-\\ é:", max_size=12) | st.sampled_from(["a" * 256, "a/" * 7 + "a", "a/" * 8 + "a"])
    )
)
def test_plain_keys_are_keys_of_both_kinds(keys):
    if keys and are_plain_keys("\0".join(keys).encode()):
        for key in keys:
            assert check_key(key) == check_foreign_key(key) == key
