"""Lists of shards: merged as they grow, so that opening stays cheap, and never out of order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio.catalog import Catalog, StoredLists, Version, collect_garbage, commit_receipts
from shardio.errors import FormatError
from shardio.metadata import Receipt, ShardEntry, ShardTable, SplitReceipt, naming
from shardio.storage import connect
from tests.promises.places import fresh
from tests.promises.stores import Counting, FaultyStore, faulty


def shards(count: int, session: str = "auto.0123456789abcdef") -> ShardTable:
    attempt, session_id = naming.random_attempt(), naming.session_id(session)
    return ShardTable.from_entries(
        ShardEntry(
            split="train", key=naming.DataKey("train", session_id, 0, attempt, k).key(), uuid=bytes(16),
            stored_bytes=16, decoded_bytes=16, rows=1, blocks=1, crc32c=k, index_head_bytes=640,
            index_head_sha256=bytes(32),
        )
        for k in range(count)
    )  # fmt: skip


def append(catalog: Catalog, count: int, session: str | None = None) -> Version:
    """Commit as a writer does, of shards that were never written."""
    base = catalog.latest()
    session = session or f"auto.{naming.random_id()}"
    receipt = Receipt(
        session=session, task=0, attempt=naming.random_attempt(), complete=True, table=shards(count, session),
        splits={"train": SplitReceipt(count, 0)}, schema=None, metadata={}, mode="append",
        base_version=base.number if base else 0,
    )  # fmt: skip
    return commit_receipts(catalog, [receipt], mode="append")


@settings(max_examples=max(12, settings().max_examples // 10), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.data())
def test_merged_lists_keep_the_order(counts, data):
    """P7: whatever is appended, and whatever races are lost, shards stand in the order of their commits."""
    store = connect(fresh("memory", None))
    catalog, lists = Catalog(store), StoredLists(store)
    refs, wanted = (), []
    for count in counts:
        table = shards(count)
        wanted += table.key
        refs = lists.extend(catalog, refs, table, merge=data.draw(st.booleans()))
    assert [key for ref in refs for key in catalog.shards_of(ref).key] == wanted
    assert sum(ref.shards for ref in refs) == len(wanted)


def measure(appends: int, *, named: bool = False) -> tuple[int, int, int]:
    """Return the most lists, the requests of an open and the bytes of the manifest after so many appends.

    Args:
        appends: of one shard each.
        named: each under a session id of the caller's own.

    For 10,000 of them, which take a minute or two: `python -m tests.catalog.test_lists`.
    """
    url = fresh("memory", None)
    catalog = Catalog(connect(url))
    most = 0
    for k in range(appends):
        append(catalog, 1, f"day-{k:05d}" if named else None)
        most = max(most, len(catalog.latest().manifest.lists))
    shardio.open(url)  # everything is imported now
    counting = Counting()
    with faulty(counting):
        assert len(shardio.open(url)) == appends
    requests = [call for call in counting.calls if call[0] != "open"]
    size = connect(url).head(f"_shardio/manifests/{appends:020d}.manifest").size
    return most, len(requests), size


def test_an_open_takes_few_requests_after_many_appends():
    """Open stays under ten requests, and manifests do not grow."""
    most, requests, size = measure(150)
    assert most <= 1 + math.log(150, 8)
    assert 3 < requests < 10
    assert size < 1500


def test_a_list_is_not_merged_beyond_its_limits(monkeypatch):
    monkeypatch.setattr("shardio.catalog._lists.LIST_SHARDS", 10)
    store = connect(fresh("memory", None))
    catalog, lists = Catalog(store), StoredLists(store)
    refs = ()
    for _ in range(35):
        refs = lists.extend(catalog, refs, shards(1), merge=True)
    assert sum(ref.shards for ref in refs) == 35
    assert max(ref.shards for ref in refs) <= 10
    assert [ref.shards for ref in lists.extend(catalog, (), shards(25), merge=True)] == [10, 10, 5]
    monkeypatch.setattr("shardio.catalog._lists._LIST_BYTES", 700)
    refs = lists.extend(catalog, (), shards(10), merge=True)
    assert len(refs) > 1
    assert all(ref.size <= 700 or ref.shards == 1 for ref in refs)


def test_a_damaged_list_is_found_by_the_append_that_merges_it():
    url = fresh("memory", None)
    catalog = Catalog(connect(url))
    append(catalog, 3)
    (ref,) = catalog.latest().manifest.lists
    catalog.store.delete(ref.key)
    catalog.store.put_if_absent(ref.key, b"x" * ref.size)
    with pytest.raises(FormatError) as caught:
        append(catalog, 1)
    assert caught.value.url == catalog.store.url_of(ref.key)
    assert catalog.latest().number == 1


def test_gc_of_many_versions_reads_few_lists():
    """What the latest versions name explains what is stored; older lists have nothing to add."""
    url = fresh("memory", None)
    catalog = Catalog(connect(url))
    for _ in range(100):
        append(catalog, 1)
    for key in catalog.table(catalog.latest()).key:
        catalog.store.put_if_absent(key, b"shard")
    counting = Counting()
    shown = Catalog(FaultyStore(connect(url), counting))
    assert collect_garbage(shown).doomed == ()
    read = [key for verb, key in counting.calls if verb == "get" and "/lists/" in key]
    assert len(read) < 20


if __name__ == "__main__":
    for named in (False, True):
        most, requests, size = measure(10_000, named=named)
        print(f"{named=}: at most {most} lists, {requests} requests to open, {size} bytes of manifest")
