"""Compaction: the same records in the same order, in fewer shards; readers of older versions continue."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

import shardio
import shardio.lifecycle
from shardio.catalog import Catalog
from shardio.errors import NotFoundError
from shardio.storage import connect
from tests.promises.places import PLACES, copied


@pytest.fixture(scope="module")
def thirty_days(tmp_path_factory) -> Path:
    """Thirty days of two splits, with a schema that grew, and some deleted records."""
    url = tmp_path_factory.mktemp("made") / "ds"
    for day in range(30):
        schema = {"n": "int64", "text": "text"}
        if day >= 10:
            schema["more"] = shardio.Feature("int64", default=7)
        with shardio.DatasetWriter(url, schema, "zstd" if day % 2 else None, mode="append") as out:
            for k in range(6):
                value = {"n": 10 * day + k, "text": f"day {day}"}
                out.write({**value, "more": k} if day >= 10 else value, "train" if k % 3 else "val")
    shardio.delete(url, [1, 2, 50], split="train")
    return url


@pytest.fixture(params=PLACES)
def url(request, thirty_days, tmp_path) -> str:
    return copied(thirty_days, request.param, tmp_path)


def content(url: str, **options) -> dict[str, list[tuple[object, ...]]]:
    splits = shardio.open(url, "all", **options).splits
    return {
        split: [tuple(map(str, record.values())) for record in shardio.open(url, split, **options)]
        for split in splits
    }


def test_the_same_records_in_fewer_shards(url):
    before = content(url)
    dry = shardio.compact(url, dry_run=True)
    assert (dry.version, dry.shards_before, dry.dropped) == (None, 60, 3)
    assert shardio.open(url, "all").version == 31
    report = shardio.compact(url, compression="zstd", workers=1)
    # Two schemas, so two shards a split: the records keep the schema under which they were written.
    assert (report.version, report.shards_before, report.shards_after, report.records) == (32, 60, 4, 177)
    assert report.requests_after < report.requests_before
    assert report.bytes_after == shardio.open(url, "all").num_bytes
    assert content(url) == before == content(url, version=31)
    assert shardio.verify(url).ok
    assert len(shardio.log(url)[0].manifest.lists) == 1
    assert shardio.compact(url, workers=1).version is None, "nothing is left to gain"
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"n": 1000, "text": "late", "more": 1}, "val")
    assert shardio.compact(url, workers=1, compression="zstd").shards_after == 4
    assert content(url)["val"] == [*before["val"], ("1000", "late", "1")]
    shardio.gc(url, keep=1, dry_run=False)
    assert content(url)["train"] == before["train"]
    assert shardio.verify(url).ok


def test_what_compression_each_shard_has(url):
    before = content(url)
    report = shardio.compact(url, "val", workers=1)
    # Neighbours have different compressions here, so none can be merged as they are.
    assert report.version is None
    for compression in (None, "gzip", "zlib", "zstd"):
        assert shardio.compact(url, "val", compression=compression, workers=1).shards_after == 2
        assert content(url) == before
    assert shardio.verify(url).ok


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_and_sizes(workers, tmp_path):
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url, block_bytes=64) as out:
        for n in range(2000):
            out.write(b"record %d" % n)
    before = list(shardio.open(url))
    report = shardio.compact(url, shard_bytes=8000, block_bytes=1000, workers=workers)
    assert report.shards_before == 1
    # A large shard is cut, and no shard is much larger than was asked for.
    table = Catalog(connect(url)).table(shardio.log(url)[0])
    assert len(table) == report.shards_after > 5
    assert max(table.stored_bytes) <= 8000 + 1100
    assert sum(table.blocks) < 80
    assert list(shardio.open(url)) == before
    assert shardio.compact(url, shard_bytes=100_000, workers=workers).shards_after == 1
    assert list(shardio.open(url)) == before


@pytest.mark.sampled(2)
def test_on_an_executor(url):
    before = content(url)
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        assert shardio.compact(url, compression="zstd", executor=executor).shards_after == 4
    assert content(url) == before


def test_progress(url):
    seen, stored = [], shardio.open(url, "all").num_bytes
    shardio.compact(url, compression="zstd", workers=1, progress=seen.append)
    assert seen[-1].done == seen[-1].total == stored


def test_streams_and_readers_of_older_versions_go_on(url):
    ds = shardio.open(url, "train", version=31)
    stream = shardio.stream(ds, global_batch=8, seed=3, remainder="keep")
    whole = [n for batch in stream for n in batch["n"].tolist()]
    stream = shardio.stream(ds, global_batch=8, seed=3, remainder="keep")
    batches = iter(stream)
    found = [n for _ in range(4) for n in next(batches)["n"].tolist()]
    state = stream.state_dict()
    shardio.tag(url, "run")
    shardio.delete(url, [0, 1, 2], split="train")
    shardio.compact(url, compression="zstd", workers=1)
    shardio.gc(url, expire=[1, 2, 3], dry_run=False)
    rest = [n for batch in batches for n in batch["n"].tolist()]
    assert found + rest == whole
    again = shardio.stream(
        shardio.open(url, "train", version="run"), global_batch=8, seed=3, remainder="keep"
    )
    again.load_state_dict(state)
    assert [n for batch in again for n in batch["n"].tolist()] == rest


def test_a_split_of_deleted_records_goes(url):
    shardio.delete(url, range(60), split="val")
    assert shardio.compact(url, workers=1, compression="zstd").shards_after == 2
    assert set(shardio.open(url, "all").splits) == {"train"}


def test_options_that_make_no_sense(url, tmp_path):
    for options, match in (
        ({"shard_bytes": 0}, "shard_bytes=0"),
        ({"shard_bytes": True}, "shard_bytes must be an integer, found True"),
        ({"compression": "lz4"}, "lz4"),
        ({"workers": 0}, "workers=0"),
        ({"block_bytes": -1}, "block_bytes"),
        ({"split": "tain"}, "no split 'tain'"),
        ({"level": 99, "compression": "zstd"}, "level"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            shardio.compact(url, **options)
    with pytest.raises(NotFoundError):
        shardio.compact(tmp_path / "nothing")
    assert shardio.open(url, "all").version == 31


def test_diff(url):
    report = shardio.diff(url, 10, 12)
    assert (report.first, report.second, report.operations) == (10, 12, {11: "append", 12: "append"})
    train = report.splits["train"]
    assert (train.before, train.after, train.added, train.removed, len(train.shards_added)) == (
        40,
        48,
        8,
        0,
        2,
    )
    assert report.schema == {"more": (None, "int64")} or list(report.schema) == ["more"]
    back = shardio.diff(url, 12, 10)
    assert (back.splits["train"].added, back.splits["train"].removed) == (0, 8)
    report = shardio.diff(url, 30, 31)
    assert set(report.splits) == {"train"}
    assert (
        report.splits["train"].removed,
        sum(b for _, b in report.splits["train"].shards_changed.values()),
    ) == (3, 3)
    assert shardio.diff(url, 31).splits == {}
    shardio.restore(url, 30)
    assert shardio.diff(url, 30, 32).splits == {}
    shardio.rename_split(url, "val", "holdout")
    report = shardio.diff(url, 32, 33)
    assert (report.splits["val"].after, report.splits["holdout"].before) == (None, None)
    with shardio.DatasetWriter(url, mode="append", metadata={"day": 31}) as out:
        out.write({"n": 1, "text": "", "more": 1}, "train")
    shardio.tag(url, "v1", 33)
    report = shardio.diff(url, "v1")
    assert (report.metadata, report.tags) == ({"day": (None, 31)}, (("v1",), ()))
    assert report.to_dict()["operations"] == {"34": "append", "35": "tag"}
    shardio.compact(url, compression="zstd", workers=1)
    report = shardio.diff(url, 35, 36)
    assert report.rewritten
    assert report.splits["train"].added == report.splits["train"].removed == report.splits["train"].after
    with pytest.raises(NotFoundError):
        shardio.diff(url, 1, 99)
