"""What writers make: shards of a size, splits, metadata, single shards; in bounded memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import random
import re
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio import kernels
from shardio.catalog import Catalog
from shardio.errors import CommitConflictError, FormatError, NotFoundError, StorageError
from shardio.storage import connect
from tests.format import plain
from tests.promises.places import PLACES, fresh
from tests.promises.stores import Counting, faulty
from tests.suites.errors import refused

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
COMPRESSIONS = [None, "zstd", "gzip", "zlib"]


@settings(max_examples=max(20, settings().max_examples // 10))
@given(
    st.lists(st.tuples(st.sampled_from(["train", "test", "a-b"]), st.binary(max_size=60)), max_size=40),
    st.sampled_from(COMPRESSIONS),
    st.integers(1, 200),
    st.integers(1, 600),
)
def test_what_is_written_is_read(records, compression, block_bytes, shard_bytes):
    url = fresh("memory", Path())
    with shardio.DatasetWriter(
        url, None, compression, block_bytes=block_bytes, shard_bytes=shard_bytes
    ) as out:
        for split, record in records:
            out.write(record, split)
    names = {split for split, _ in records}
    assert set(shardio.open(url, "all").splits) == names
    store = connect(url)
    for name in names:
        wanted = [record for split, record in records if split == name]
        ds = shardio.open(url, name)
        assert list(ds) == wanted
        # And by others, shard after shard.
        found = []
        for entry in Catalog(store).table(Catalog(store).load()).of_split(name):
            stored = store.get(entry.key, max_bytes=1 << 20)
            assert len(stored) == entry.stored_bytes
            found += plain.payloads(plain.decoded(stored, compression))
        assert found == wanted


@settings(max_examples=max(20, settings().max_examples // 10))
@given(
    st.lists(st.binary(max_size=60) | st.binary(max_size=60).map(bytearray), max_size=40),
    st.sampled_from(COMPRESSIONS),
    st.integers(1, 200),
    st.integers(1, 600),
    st.booleans(),
)
def test_many_at_once_are_what_they_are_one_by_one(records, compression, block_bytes, shard_bytes, lazily):
    """The same shards, block for block, from a list and from what is gone through once."""
    shards = []
    for many in (False, True):
        url = fresh("memory", Path())
        with shardio.DatasetWriter(
            url, None, compression, block_bytes=block_bytes, shard_bytes=shard_bytes
        ) as out:
            out.write(b"first", "train")
            if many:
                out.write_many(iter(records) if lazily else records)
            else:
                for record in records:
                    out.write(record)
        assert list(shardio.open(url)) == [b"first", *map(bytes, records)]
        store = connect(url)
        table = Catalog(store).table(Catalog(store).load()).of_split("train")
        shards.append([store.get(entry.key, max_bytes=1 << 20) for entry in table])
    assert shards[0] == shards[1]


@pytest.mark.parametrize("given", [0, 1, 1024, 1500])
def test_what_an_iterable_gave_before_its_error_is_taken(tmp_path, given):
    def some():
        for n in range(given):
            yield b"%d" % n
        raise RuntimeError("no more")

    with shardio.DatasetWriter(tmp_path / "d") as out:
        with refused(RuntimeError, "no more"):
            out.write_many(some())
        out.write(b"last")
    assert list(shardio.open(tmp_path / "d")) == [*(b"%d" % n for n in range(given)), b"last"]


def test_many_at_once_by_a_schema_and_where_one_is_refused(tmp_path):
    with shardio.DatasetWriter(tmp_path / "n", schema={"n": "int64"}) as out:
        out.write_many(({"n": n} for n in range(3000)), split="a")
        out.write_many([], split="none")
    assert shardio.open(tmp_path / "n", "all").splits == {"a": 3000}
    with shardio.DatasetWriter(tmp_path / "bytes") as out:
        with refused(TypeError, "bytes"):
            out.write_many([b"a", b"b", "c", b"d"])
        out.write_many([b"e"])
    assert list(shardio.open(tmp_path / "bytes")) == [b"a", b"b", b"e"]
    with refused(ValueError, "closed"):
        out.write_many([b"f"])


def test_a_zlib_shard_is_one_stream(tmp_path):
    """As TensorFlow's `compression_type="ZLIB"` takes it, which reads the first stream and no other."""
    records = [bytes(random.Random(k).choices(b"abcdefgh", k=3000)) for k in range(300)]
    with shardio.DatasetWriter(tmp_path, compression="zlib", shard_bytes=100_000, block_bytes=5000) as out:
        for record in records:
            out.write(record)
    ds = shardio.open(tmp_path)
    found = []
    for entry in ds.source.table:
        stored = (tmp_path / entry.key).read_bytes()
        stream = zlib.decompressobj()
        decoded = stream.decompress(stored)
        assert stream.eof
        assert not stream.unused_data
        found += plain.payloads(decoded)
        assert entry.key.endswith(".tfrecord.zz")
        assert (len(stored), kernels.crc32c(stored)) == (entry.stored_bytes, entry.crc32c)
        assert (len(decoded), 1) == (entry.decoded_bytes, entry.blocks)
    assert found == records
    assert 2 <= ds.num_shards <= 6
    with pytest.warns(UserWarning, match="one compressed stream"):
        assert ds.read([299, 5, 150]) == [records[k] for k in (299, 5, 150)]
    assert shardio.verify(tmp_path).ok
    path = tmp_path / ds.source.table.key[0]
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(damaged)
    with pytest.raises(FormatError):
        list(shardio.open(tmp_path))


@EVERY_PLACE
def test_shards_rotate_by_their_stored_bytes(place, tmp_path):
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, block_bytes=100, shard_bytes=1000) as out:
        for k in range(200):
            out.write(b"%03d" % k * 10)
    table = Catalog(connect(url)).table(Catalog(connect(url)).load())
    sizes = table.stored_bytes.tolist()
    assert len(sizes) > 5
    assert all(1000 <= size < 1100 for size in sizes[:-1])
    assert (table.rows[:-1] > 0).all()


def test_names_of_objects(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", None, "zstd", session="run-7", task=3) as out:
        out.write(b"x", "a-b")
    names = sorted(path.relative_to(tmp_path / "ds").as_posix() for path in (tmp_path / "ds").rglob("*.*"))
    (receipt,) = [name for name in names if name.startswith("_shardio/sessions/run-7/00003-")]
    attempt = receipt.removesuffix(".receipt")[-8:]
    # The first 5 bytes of the SHA-256 of the session's name, as base32.
    session = base64.b32encode(hashlib.sha256(b"run-7").digest()[:5]).decode().lower()
    data = f"data/a-b-{session}{attempt}-3-0000.tfrecord.zst"
    assert names[-2:] == [data, f"{data}.shardidx"]
    assert re.fullmatch("[a-z2-7]{8}", attempt)
    assert "_shardio/manifests/00000000000000000001.manifest" in names


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_names_of_shards_have_at_most_40_characters(compression, tmp_path):
    with shardio.DatasetWriter(tmp_path, compression=compression, session="s" * 64) as out:
        out.write(b"x")
    (name,) = [path.name for path in (tmp_path / "data").iterdir() if path.suffix != ".shardidx"]
    assert len(name) <= 40


@EVERY_PLACE
def test_every_object_gets_a_new_name(place, tmp_path):
    """Every object but the hint MUST get a name never used before and MUST NOT be overwritten."""
    url = fresh(place, tmp_path)
    counting = Counting()
    with faulty(counting):
        for mode in ("create", "append", "overwrite", "append"):
            with shardio.DatasetWriter(url, mode=mode, block_bytes=20, shard_bytes=50) as out:
                for k in range(10):
                    out.write(b"%d" % k)
    created = [key for verb, key in counting.calls if verb == "put_if_absent"]
    assert len(created) == len(set(created)) > 20
    assert {key for verb, key in counting.calls if verb == "overwrite"} == {"_shardio/latest"}
    assert not [key for verb, key in counting.calls if verb == "delete"]


@EVERY_PLACE
def test_a_shard_is_stored_in_one_call(place, tmp_path):
    """A shard MUST be stored in one call, whole."""
    url = fresh(place, tmp_path)
    counting = Counting()
    with faulty(counting):
        with shardio.DatasetWriter(url, block_bytes=20, shard_bytes=10_000) as out:
            for k in range(100):
                out.write(b"%d" % k)
            early = [key for verb, key in counting.calls if verb == "put_if_absent"]
        stored = [
            key for verb, key in counting.calls if verb == "put_if_absent" and key.endswith(".tfrecord")
        ]
    assert early == []
    assert len(stored) == 1


def test_memory_stays_within_a_few_blocks(tmp_path):
    """Memory stays within a few blocks a split, whatever the size of a shard."""
    record = np.random.default_rng(1).bytes(1000)
    out = shardio.DatasetWriter(tmp_path / "ds", shard_bytes=1 << 30)
    for _ in range(1000):
        out.write(record)
    tracemalloc.start()
    try:
        for _ in range(30_000):
            out.write(record)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        out.abort()
    assert peak < 1 << 20, "30 MB were written"


def test_metadata_is_kept_and_grows(tmp_path):
    url = fresh("memory", tmp_path)
    steps = [
        ("create", {"a": 1, "ü": [None, {"x": 1.5}]}),
        ("append", {"a": 2, "b": 3}),
        ("overwrite", {"c": 4}),
    ]
    for mode, metadata in steps:
        with shardio.DatasetWriter(url, mode=mode, metadata=metadata):
            pass
    assert [shardio.open(url, version=k).metadata for k in (1, 2, 3)] == [
        {"a": 1, "ü": [None, {"x": 1.5}]},
        {"a": 2, "b": 3, "ü": [None, {"x": 1.5}]},
        {"c": 4},
    ]


def test_schemas_grow_and_overwrite_begins_anew(tmp_path):
    url = fresh("memory", tmp_path)
    grown = {"a": "int64", "b": shardio.Feature("int64", default=7)}
    for mode, schema, record in (
        ("create", {"a": "int64"}, {"a": 1}),
        ("append", grown, {"a": 2, "b": 2}),
        ("append", {"a": "int64"}, {"a": 3}),
    ):
        with shardio.DatasetWriter(url, schema, mode=mode) as out:
            out.write(record)
        numbers = Catalog(connect(url)).table(Catalog(connect(url)).load()).schema
        assert len(numbers) == out.version
    assert [int(record["a"]) for record in shardio.open(url)] == [1, 2, 3]
    assert [int(record["b"]) for record in shardio.open(url, version=2)] == [7, 2]
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"bytes again")
    assert list(shardio.open(url)) == [b"bytes again"]


def test_the_spool_goes_where_it_is_told(tmp_path):
    spool = tmp_path / "spool" / "deep"
    out = shardio.DatasetWriter(fresh("memory", tmp_path), spool_dir=spool)
    out.write(b"wren")
    assert len(list(spool.iterdir())) == 1
    out.close()
    assert list(spool.iterdir()) == []
    local = shardio.DatasetWriter(tmp_path / "ds")
    local.write(b"wren")
    assert len(list((tmp_path / "ds" / "data").iterdir())) == 1
    local.close()
    assert {path.suffix for path in (tmp_path / "ds" / "data").iterdir()} == {".tfrecord", ".shardidx"}


def test_what_a_writer_knows_afterwards(tmp_path):
    out = shardio.DatasetWriter(tmp_path / "ds")
    assert (out.version, out.digest, out.written) == (None, None, {})
    out.write(b"wren")
    out.close()
    out.close()
    assert (out.version, out.digest) == (1, shardio.open(tmp_path / "ds").digest)
    assert out.written == {"train": 1}


@EVERY_PLACE
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_one_shard(compression, place, tmp_path):
    url = fresh(place, tmp_path) + ".tfrecord"
    with shardio.ShardWriter(url, compression=compression, block_bytes=50) as out:
        for k in range(20):
            out.write(b"%d" % k)
    assert list(shardio.open_shard(url)) == [b"%d" % k for k in range(20)]
    with refused(ValueError, "closed"):
        out.write(b"late")
    with (
        pytest.raises(CommitConflictError),
        shardio.ShardWriter(url) as again,
    ):
        again.write(b"other")
    lookup = pytest.warns(UserWarning, match="stream") if compression == "zlib" else contextlib.nullcontext()
    with lookup:
        assert shardio.open_shard(url)[19] == b"19"


def test_a_shard_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "x.tfrecord"
    with pytest.raises(RuntimeError), shardio.ShardWriter(path) as out:
        out.write(b"wren")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    out = shardio.ShardWriter(path)
    out.write(b"wren")
    with pytest.warns(ResourceWarning, match="dropped before it was closed"):
        del out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["before", "half"])
def test_a_shard_that_cannot_be_stored_leaves_no_index(fault, tmp_path):
    """An index alone would stand in the way of the next try."""
    for at in range(2):
        path = tmp_path / f"{at}.tfrecord"
        with (
            faulty(Counting(at, fault)),
            pytest.raises(StorageError),
            shardio.ShardWriter(path, spool_dir=tmp_path / "spool") as out,
        ):
            out.write(b"wren")
        assert [p.name for p in tmp_path.iterdir() if p.is_file() and not p.name.startswith(".shardio")] == []
        with shardio.ShardWriter(path) as out:
            out.write(b"wren")
        assert list(shardio.open_shard(path)) == [b"wren"]
        for name in (f"{at}.tfrecord", f"{at}.tfrecord.shardidx"):
            (tmp_path / name).unlink()


def test_somebody_elses_index_is_not_removed(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(b"another's")
    with pytest.raises(CommitConflictError), shardio.ShardWriter(tmp_path / "x.tfrecord") as out:
        out.write(b"wren")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tfrecord"]
    (tmp_path / "y.tfrecord.shardidx").write_bytes(b"another's")
    with pytest.raises(CommitConflictError), shardio.ShardWriter(tmp_path / "y.tfrecord") as out:
        out.write(b"wren")
    assert (tmp_path / "y.tfrecord.shardidx").read_bytes() == b"another's"
    assert not (tmp_path / "y.tfrecord").exists()


@pytest.mark.parametrize("block_bytes", [1, 16, 57, 58, 59, 60, 61, 300])
def test_blocks_are_cut_alike_however_records_come(block_bytes):
    """`write` decides by itself where nothing is to be decided; its shards are those of `write_encoded`."""
    made = []
    for way in ("write", "write_encoded"):
        url = fresh("memory", Path())
        with shardio.DatasetWriter(url, block_bytes=block_bytes) as out:
            for number in range(100):
                getattr(out, way)(bytes(number % 7))
        source = shardio.open(url).source
        heads = [source.pool.get(number).head for number in range(len(source.table))]
        made.append([(head.block_stop.tolist(), head.block_crc32c.tolist(), head.crc32c) for head in heads])
    assert made[0] == made[1]


def shards_of(ds) -> list[int]:
    return ds.source.table.live_rows.tolist()


@settings(max_examples=max(20, settings().max_examples // 10))
@given(
    st.lists(st.tuples(st.sampled_from(["train", "test"]), st.binary(max_size=60)), max_size=40),
    st.integers(1, 7),
    st.sampled_from(COMPRESSIONS),
    st.integers(1, 200),
)
def test_records_into_a_number_of_shards(records, shards, compression, block_bytes):
    """In their order, as equal as can be, whatever the size of a block."""
    url = fresh("memory", Path())
    with shardio.DatasetWriter(url, None, compression, shards=shards, block_bytes=block_bytes) as out:
        for split, record in records:
            out.write(record, split)
    for name in {split for split, _ in records}:
        wanted = [record for split, record in records if split == name]
        ds = shardio.open(url, name)
        assert list(ds) == wanted
        edges = [len(wanted) * k // shards for k in range(shards + 1)]
        assert shards_of(ds) == [size for size in np.diff(edges).tolist() if size]
    assert not records or shardio.verify(url).ok


@EVERY_PLACE
def test_a_number_of_shards_is_added_or_takes_the_place_of_others(place, tmp_path):
    url = fresh(place, tmp_path)
    for mode, shards, wanted in (
        ("create", 3, [33, 33, 34]),
        ("append", 2, [33, 33, 34, 50, 50]),
        ("overwrite", 4, [25] * 4),
    ):
        with shardio.DatasetWriter(url, {"n": "int64"}, "zstd", mode, shards=shards) as out:
            for n in range(100):
                out.write({"n": n})
        assert sorted(shards_of(shardio.open(url))) == sorted(wanted)
        assert [int(record["n"]) for record in shardio.open(url)][-100:] == list(range(100))


def test_shards_are_cut_in_bounded_memory(tmp_path):
    record = bytes(range(250)) * 4
    tracemalloc.start()
    try:
        with shardio.DatasetWriter(tmp_path, shards=4) as out:
            for _ in range(50_000):
                out.write(record)
            out.close()
            most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert shards_of(shardio.open(tmp_path)) == [12_500] * 4
    assert most < 16 << 20


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shards": 0}, "between 1 and"),
        ({"shards": True}, "shards must be an integer, found True"),
        ({"shards": 2.0}, "shards must be an integer, found 2.0"),
        ({"shards": 10**7}, "between 1 and"),
        ({"shards": 2, "shard_bytes": 1000}, "give one of them"),
        ({"shards": 2, "session": "s"}, "shard_bytes="),
        ({"shards": 2, "session": "s", "task": 1, "commit": False}, "write_dataset"),
    ],
)
def test_a_number_of_shards_that_cannot_be_kept_is_refused(options, error, tmp_path):
    with pytest.raises(TypeError if "integer" in error else ValueError, match=error):
        shardio.DatasetWriter(tmp_path / "ds", **options)
    assert not (tmp_path / "ds").exists()


@EVERY_PLACE
def test_a_spool_file_that_is_swept_away(place, tmp_path):
    """Jobs that clean temporary folders do that; it was the system's own error, without advice."""
    url, spool = fresh(place, tmp_path), tmp_path / "spool"
    with (
        refused(StorageError, "spool_dir="),
        shardio.DatasetWriter(url, spool_dir=spool) as out,
    ):
        for number in range(100):
            out.write(b"%d" % number)
        for path in spool.iterdir():
            path.unlink()
    with pytest.raises(NotFoundError):
        shardio.open(url)
    assert not [info.key for info in connect(url).list() if info.key.startswith("data/")]


def test_stored_bytes_count_what_an_earlier_attempt_stored(tmp_path):
    small = {"session": "s", "task": 0, "commit": False, "block_bytes": 50, "shard_bytes": 120}
    records = [b"%d" % k * 8 for k in range(60)]
    with pytest.raises(RuntimeError), shardio.DatasetWriter(tmp_path / "ds", **small) as out:
        out.write_many(records[:30])
        raise RuntimeError
    with shardio.DatasetWriter(tmp_path / "ds", **small) as out:
        out.write_many(records[sum(out.written.values()) :])
    shardio.commit(tmp_path / "ds", session="s", tasks=1)
    shardio.gc(tmp_path / "ds", dry_run=False)  # a shard that no receipt had acknowledged
    assert list(shardio.open(tmp_path / "ds")) == records
    shards = [path.stat().st_size for path in (tmp_path / "ds" / "data").glob("*.tfrecord")]
    assert out.stored_bytes == sum(shards)


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
def test_a_disk_that_takes_less_than_it_is_given(tmp_path, monkeypatch, compression):
    """Short writes are legal: the rest is written by the next call."""
    monkeypatch.setattr(os, "writev", lambda number, parts: os.write(number, bytes(parts[0])[:700]))
    records = [os.urandom(5000) for _ in range(60)]
    with shardio.DatasetWriter(tmp_path / "ds", compression=compression, block_bytes=9000) as out:
        out.write_many(records)
    monkeypatch.undo()
    assert list(shardio.open(tmp_path / "ds")) == records
    assert shardio.verify(tmp_path / "ds").ok


def test_a_small_task_leaves_one_receipt(tmp_path):
    """What the receipt of the whole task acknowledges has none of its own; a shard before it has."""
    for session, count in (("one", 3), ("two", 40)):
        with shardio.DatasetWriter(
            tmp_path / session, session=session, commit=False, shard_bytes=2000, block_bytes=1000
        ) as out:
            for _ in range(count):
                out.write(b"x" * 100)
        receipts = sorted((tmp_path / session / "_shardio" / "sessions" / session).iterdir())
        shards = len(list((tmp_path / session / "data").glob("*.tfrecord")))
        assert len(receipts) == shards, "one for each shard that was closed, and one for the task"
        assert (shards == 1) == (session == "one")


def test_work_of_killed_attempts_is_continued_by_each_of_several(tmp_path):
    """Receipts of several attempts are one chain: each shard is taken over once, in order."""
    url = str(tmp_path / "d")

    def killed(stop: int) -> None:
        """Write up to a record in a process that ends by itself once a shard of its own is safe."""
        out = shardio.DatasetWriter(url, session="s", shard_bytes=1000, block_bytes=500)
        safe = out.written["train"]
        for number in range(safe, stop):
            out.write(b"%05d" % number + b"x" * 100)
        while out.written["train"] == safe:
            time.sleep(0.01)
        os._exit(0)

    for stop in (30, 60, 90):
        child = os.fork()
        if child == 0:
            try:
                killed(stop)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with shardio.DatasetWriter(url, session="s", shard_bytes=1000, block_bytes=500) as out:
        assert out.written["train"] >= 39, "a shard of each attempt at least"
        for number in range(out.written["train"], 100):
            out.write(b"%05d" % number + b"x" * 100)
    assert [record[:5] for record in shardio.open(url)] == [b"%05d" % number for number in range(100)]


def test_a_named_session_whose_receipts_cannot_be_stored_leaves_no_shard(tmp_path):
    """P4: no rerun could find them."""
    root = tmp_path / "d"
    sessions = root / "_shardio" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "s").write_bytes(b"a file where a folder should be")
    out = shardio.DatasetWriter(root, session="s", shard_bytes=1000, block_bytes=500)
    with pytest.raises(StorageError):
        while True:
            out.write(b"x" * 100)
    assert list((root / "data").rglob("*.*")) == []
