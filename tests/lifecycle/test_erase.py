"""Erasing: the bytes are gone from every object, and from every version that can be opened."""

from __future__ import annotations

import gzip
import io
import itertools
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

import shardio
import shardio.lifecycle
import shardio_indexer
from shardio.errors import CommitConflictError, NotFoundError, ShardioError, StorageError
from shardio.metadata import naming
from shardio.storage import CacheOptions, connect
from tests.promises.places import PLACES, fresh
from tests.promises.stores import faultless, faulty
from tests.suites.errors import refused

PLANTED = b"PLANTED-" * 5
COMPRESSIONS = [None, "zstd", "gzip", "zlib"]


def record(n: int) -> bytes:
    return PLANTED if n == 17 else b"record %d " % n * 3


def made(url: str, compression: str | None = None, count: int = 60) -> str:
    with shardio.DatasetWriter(url, compression=compression, shard_bytes=500, block_bytes=200) as out:
        for n in range(count):
            out.write(record(n))
    return url


def holds(data: bytes) -> bool:
    """Tell whether bytes, or what they decompress to, hold the planted ones."""
    forms = [data]
    with_errors = (zstandard.ZstdError, OSError, EOFError, zlib.error, pa.ArrowInvalid)
    for decompress in (
        lambda: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
        lambda: gzip.decompress(data),
        lambda: zlib.decompress(data),
        lambda: b"".join(map(bytes, parquet.read_table(io.BytesIO(data))["of_whom"].to_pylist())),
    ):
        try:
            forms.append(decompress())
        except with_errors:
            continue
    return any(PLANTED in form for form in forms)


def holding(url: str) -> set[str]:
    store = connect(url)
    return {info.key for info in store.list("") if holds(store.get(info.key, max_bytes=1 << 30))}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("place", "compression"), [*itertools.product(PLACES, COMPRESSIONS), ("s3", None), ("s3", "zstd")]
)
def test_after_erase_and_gc_nothing_holds_the_bytes(place, compression, tmp_path, request):
    """Erasing MUST expire every earlier version, in the same commit."""
    if place == "s3":
        request.getfixturevalue("s3")
    url = made(fresh(place, tmp_path), compression)
    before = list(shardio.open(url))
    shardio.delete(url, [3, 30])
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"more")
    assert len(holding(url)) == 1
    report = shardio.erase(url, where=None, rows=[16])
    assert (report.deleted, report.version, report.expired_versions) == (1, 4, (1, 2, 3))
    assert {*report.pending_gc} >= holding(url), "it says what holds the bytes until gc"
    wanted = [*(r for k, r in enumerate(before) if k not in (3, 17, 30)), b"more"]
    assert list(shardio.open(url)) == wanted
    for number in (1, 2, 3):
        with pytest.raises(NotFoundError):
            shardio.open(url, version=number)
        with pytest.raises(NotFoundError):
            shardio.restore(url, number)
    shardio.gc(url, dry_run=False)
    assert holding(url) == set()
    assert list(shardio.open(url)) == wanted
    assert shardio.verify(url).ok
    assert PLANTED not in b"".join(shardio.open(url))


@pytest.mark.parametrize("place", PLACES)
def test_older_and_other_copies_that_compaction_made(place, tmp_path):
    """Shards before a compaction hold the record, and so do those of a compaction that was rolled back."""
    url = made(fresh(place, tmp_path), "zstd")
    for n in (1, 2):
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write(b"day %d" % n)
    before = list(shardio.open(url))
    assert shardio.compact(url, workers=1).version == 4
    assert shardio.restore(url, 1).version == 5
    assert shardio.restore(url, 3).version == 6
    assert shardio.compact(url, workers=1, compression=None, shard_bytes=900).version == 7
    assert len(holding(url)) == 3
    report = shardio.erase(url, [17])
    assert report.expired_versions == (1, 2, 3, 4, 5, 6, 7)
    assert {*report.pending_gc} >= holding(url)
    shardio.gc(url, dry_run=False)
    assert holding(url) == set()
    assert list(shardio.open(url)) == before[:17] + before[18:]


def test_tables_and_indexes_of_keys_go_too(tmp_path):
    """A table holds the bytes of the records once more."""
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url, {"n": "int64", "of_whom": "bytes"}, shard_bytes=700) as out:
        for n in range(60):
            out.write({"n": n, "of_whom": record(n)})
    shardio.build_table(url, features=["n", "of_whom"])
    shardio.build_keys(url, "n")
    shardio.build_keys(url, "of_whom")
    assert len(holding(url)) == 2, "a shard and a table"
    with refused(ValueError, "of_whom"):
        shardio.erase(url, keys=[17])
    with ThreadPoolExecutor(2) as executor:
        report = shardio.erase(url, keys=[17], feature="n", executor=executor)
    assert {*report.pending_gc} >= holding(url)
    shardio.gc(url, dry_run=False)
    assert holding(url) == set()
    assert [row["n"] for row in shardio.open(url)] == [*range(17), *range(18, 60)]
    for feature in ("n", "of_whom"):
        shardio.build_keys(url, feature)
    assert shardio.open(url).find([16, 18], feature="n").tolist() == [16, 17]
    with pytest.raises(NotFoundError):
        shardio.open(url).find(PLANTED, feature="of_whom")


def test_every_earlier_version_expires(tmp_path):
    """Also one that does not hold the record; its tag refuses the erasure."""
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url) as out:
        out.write(b"one")
    shardio.tag(url, "v1")
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(PLANTED)
    with refused(CommitConflictError, "'v1'"):
        shardio.erase(url, [1])
    assert shardio.open(url).version == 3
    # As the advice says.
    report = shardio.erase(url, [1], drop_tags=True)
    assert (report.expired_versions, report.dropped_tags) == ((1, 2, 3), {"v1": 1})
    assert shardio.tags(url) == {}
    shardio.gc(url, dry_run=False)
    assert holding(url) == set()
    assert list(shardio.open(url)) == [b"one"]


def test_a_cache_of_blocks_is_emptied(tmp_path):
    url = made(fresh("memory", tmp_path))
    cache = CacheOptions(tmp_path / "cache", max_bytes=1 << 26)

    def cached() -> bool:
        return any(PLANTED in path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())

    assert shardio.open(url, cache=cache).read([17]) == [PLANTED]
    if not cached():
        pytest.fail("nothing was cached, so this shows nothing")
    shardio.erase(url, [17], cache=cache)
    assert not cached()


def test_adopted_shards_are_refused_and_the_advice_works(tmp_path):
    made(str(tmp_path / "theirs"))
    (tmp_path / "files").mkdir()
    for path in (tmp_path / "theirs" / "data").glob("*.tfrecord"):
        shutil.copy(path, tmp_path / "files")
    for folder, options in (("in place", {}), ("beside", {"into": tmp_path / "into"})):
        shardio_indexer.adopt(tmp_path / "files", **options)
        url = options.get("into", tmp_path / "files")
        roots = (
            {} if folder == "in place" else {root: {} for root in shardio.log(url)[0].manifest.roots.values()}
        )
        before = {path: path.read_bytes() for path in (tmp_path / "files").glob("*.tfrecord")}
        position = list(shardio.open(url, allow_roots=roots)).index(PLANTED)
        with pytest.raises(StorageError) as caught:
            shardio.erase(url, [position])
        assert "shardio compact URL --adopted" in caught.value.advice
        shardio.compact(shardio.Address(url, allow_roots=roots), adopted=True, workers=1)
        report = shardio.erase(url, [position])
        assert {Path(copy).name for copy in report.external_copies} == {path.name for path in before}
        assert {*report.pending_gc} >= holding(str(url)) - {path.name for path in before}
        shardio.gc(url, dry_run=False)
        assert {path: path.read_bytes() for path in (tmp_path / "files").glob("*.tfrecord")} == before
        assert PLANTED not in list(shardio.open(url))
        assert holding(str(url)) == (holding(str(tmp_path / "files")) if folder == "in place" else set())


def test_erasing_own_records_beside_adopted_ones(tmp_path):
    """What is rewritten is found by its position, so shards of other roots are opened for it, too."""
    with shardio.DatasetWriter(tmp_path / "theirs") as out:
        out.write(b"theirs")
    (tmp_path / "files").mkdir()
    for path in (tmp_path / "theirs" / "data").glob("*.tfrecord"):
        shutil.copy(path, tmp_path / "files")
    url = tmp_path / "into"
    shardio_indexer.adopt(tmp_path / "files", into=url)
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(PLANTED)
        out.write(b"ours")
    roots = {root: {} for root in shardio.log(url)[0].manifest.roots.values()}
    shardio.erase(shardio.Address(url, allow_roots=roots), [1])
    shardio.gc(url, dry_run=False)
    assert holding(str(url)) == set()
    assert list(shardio.open(url, allow_roots=roots)) == [b"theirs", b"ours"]


@pytest.mark.parametrize("deed", ["erase", "compact"])
def test_a_split_without_live_records_goes_with_its_shards(deed, tmp_path):
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url) as out:
        out.write(b"stays", split="train")
        out.write(PLANTED, split="val")
    if deed == "compact":
        shardio.delete(url, [0], split="val")
        report = shardio.compact(url, workers=1)
    else:
        report = shardio.erase(url, [0], split="val")
    assert report.before == {"train": 1, "val": 0 if deed == "compact" else 1}
    assert report.after == {"train": 1}, "as the version says"


def test_all_records_of_a_shard_and_of_a_split(tmp_path):
    url = made(str(tmp_path / "ds"))
    shardio.erase(url, range(60))
    assert len(shardio.open(url)) == 0
    shardio.gc(url, dry_run=False)
    assert holding(url) == set()
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"new")
    assert list(shardio.open(url)) == [b"new"]


def test_records_that_are_deleted_already_are_erased_by_an_earlier_version(tmp_path):
    url = made(str(tmp_path / "ds"))
    shardio.delete(url, [17])
    report = shardio.erase(url, [17], version=1)
    assert (report.deleted, report.already_deleted, report.after) == (0, 1, {"train": 59})
    shardio.gc(url, dry_run=False)
    assert holding(url) == set()
    assert len(shardio.open(url)) == 59


def test_what_the_latest_version_no_longer_has(tmp_path):
    url = made(str(tmp_path / "ds"))
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new")
    with pytest.raises(CommitConflictError) as caught:
        shardio.erase(url, [17], version=1)
    assert "shardio gc URL --expire N" in caught.value.advice
    shardio.gc(url, expire=[1], dry_run=False)
    assert holding(url) == set()


def test_a_dry_run_and_options_that_make_no_sense(tmp_path):
    url = made(str(tmp_path / "ds"))
    report = shardio.erase(url, [17], dry_run=True)
    assert (report.version, report.deleted, report.expired_versions) == (None, 1, (1,))
    assert {*report.pending_gc} >= holding(url)
    assert report.to_dict()["expired_versions"] == [1]
    assert shardio.erase(url, []).version is None
    assert shardio.open(url).version == 1


@pytest.mark.parametrize("racer", ["append", "delete", "compact"])
@pytest.mark.parametrize("deed", ["erase", "compact"])
def test_races(racer, deed, tmp_path):
    """A commit that rewrites MUST fail with `CommitConflictError` where one of the old shards is not part of
    the latest version any more, or other rows of it are deleted than were read.
    """
    url = made(fresh("memory", tmp_path))
    before = list(shardio.open(url))
    done: list[str] = []

    def race(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key == naming.manifest_key(2) and not done:
            done.append(key)
            with faultless():
                if racer == "append":
                    with shardio.DatasetWriter(url, mode="append") as out:
                        out.write(b"more")
                elif racer == "delete":
                    shardio.delete(url, [16])
                else:
                    shardio.compact(url, workers=1)
        return ""

    def do():
        if deed == "erase":
            return shardio.erase(url, [17])
        return shardio.compact(url, workers=1)

    with faulty(race):
        if racer == "append":
            assert do().version == 3
        else:
            with pytest.raises(CommitConflictError):
                do()
    assert done
    left = before if deed == "compact" or racer != "append" else before[:17] + before[18:]
    wanted = {"append": [*left, b"more"], "delete": before[:16] + before[17:], "compact": before}[racer]
    assert list(shardio.open(url)) == wanted, "what was appended stays behind"
    assert shardio.verify(url).ok
    assert shardio.gc(url).unclaimed == {}, "what a refused rewrite stored is gone"
    if racer != "append":
        # Run again, as the advice says.
        position = wanted.index(before[17])
        assert shardio.erase(url, [position]).deleted == 1
        assert list(shardio.open(url)) == wanted[:position] + wanted[position + 1 :]


def test_a_failing_store_leaves_nothing_claimed(tmp_path):
    url = made(str(tmp_path / "ds"))

    def full(verb: str, key: str) -> str:
        return "before" if verb == "put_if_absent" and key.startswith("data/") else ""

    for do in (lambda: shardio.compact(url, workers=1), lambda: shardio.erase(url, [17])):
        with faulty(full), pytest.raises(ShardioError, match="made to fail"):
            do()
        assert shardio.open(url).version == 1
        assert shardio.gc(url).unclaimed == {}
        assert list((tmp_path / "ds").rglob(".shardio-tmp*")) == []
