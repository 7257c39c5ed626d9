"""Lookups in compressed shards: a block is decoded in few calls, and kept for the next within a bound."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest
import zstandard

import shardio
from shardio.metadata import parse_head
from tests.promises.places import PLACES, fresh
from tests.reader.test_frames_alone import key_of
from tests.suites.errors import refused

# Such bytes are stored as they are, so that a flipped bit is one of a record and decodes.
RECORDS = [random.Random(k).randbytes(k % 97) for k in range(400)]
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


def written(place: str, tmp_path: Path, **options) -> str:
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, **{"compression": "zstd", "block_bytes": 1000, **options}) as out:
        for record in RECORDS:
            out.write(record)
    return url


@EVERY_PLACE
@pytest.mark.parametrize("compression", ["zstd", "gzip"])
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_lookups_of_compressed_records(place, compression, block_bytes, tmp_path):
    """One by one and many at once, of several shards, repeated and in any order; whatever is kept; deleted
    ones are left out.
    """
    url = written(place, tmp_path, compression=compression, block_bytes=block_bytes, shard_bytes=5000)
    rows = random.Random(0).choices(range(400), k=100)
    for bound in (0, 3000, 1 << 20):
        ds = shardio.open(url, decoded_bytes=bound)
        assert ds.read(rows) == [RECORDS[row] for row in rows]
        assert [ds[row] for row in rows] == [RECORDS[row] for row in rows]
    shardio.delete(url, positions=[0, 7, 399])
    left = [record for k, record in enumerate(RECORDS) if k not in (0, 7, 399)]
    ds = shardio.open(url)
    assert [ds[k] for k in range(len(ds))] == ds.read(range(len(ds))) == left


@EVERY_PLACE
def test_a_block_is_decoded_once_for_its_neighbours(place, tmp_path):
    url = written(place, tmp_path)
    opened = {}
    for bound in (0, 1 << 20):
        ds = shardio.open(url, decoded_bytes=bound)
        assert [ds[k] for k in range(400)] == RECORDS
        opened[bound] = ds.stats["blocks_opened"]
    blocks = parse_head(shardio.storage.connect(url).get(key_of(url, ".shardidx"), max_bytes=1 << 20)).blocks
    assert opened == {0: 400, 1 << 20: blocks}
    with refused(ValueError, "decoded_bytes="):
        shardio.open(url, decoded_bytes=-1)


def test_a_reader_that_skips_damage_keeps_nothing(tmp_path):
    """What it leaves out must not depend on what it has read before."""
    url = written("memory", tmp_path)
    ds = shardio.open(url, on_error="skip")
    assert ds[50] == ds.read([50])[0] == RECORDS[50]
    opened = ds.stats["blocks_opened"]
    assert ds[50] == RECORDS[50]
    assert ds.stats["blocks_opened"] == opened + 1


def test_blocks_that_were_used_last_are_kept_within_the_bound(tmp_path):
    """Whether a block was kept shows in how many were opened."""
    url = fresh("local", tmp_path)
    with shardio.DatasetWriter(url, compression="zstd", block_bytes=1000) as out:
        for k in range(100):
            out.write(random.Random(k).randbytes(184))
    ds = shardio.open(url, decoded_bytes=4000)
    head = ds.source.pool.get(0).head
    block_rows = [head.block_rows(k)[0] for k in range(head.blocks)]

    def opened(*blocks):
        before = ds.stats["blocks_opened"]
        for block in blocks:
            assert ds[block_rows[block]] == random.Random(block_rows[block]).randbytes(184)
        return ds.stats["blocks_opened"] - before

    assert 950 < int(head.block_decoded_bytes[0]) < 1250
    assert opened(0, 1, 2, 0, 1, 2) == 3
    assert opened(0, 3, 0) == 1, "the block that was used last stays, though it was read first"
    assert opened(3, 1, 2, 3) == 2
    assert opened(0) == 1
    assert opened(1) + opened(2) + opened(3) + opened(0) <= 4


@pytest.mark.slow
def test_lookups_in_threads_and_in_children_forked_meanwhile(tmp_path):
    """What is kept is shared by threads; a child isn't stopped by a lock that another thread held."""
    ds = shardio.open(written("memory", tmp_path), decoded_bytes=5000)
    stop, errors = threading.Event(), []

    def look(seed):
        order = random.Random(seed)
        while not stop.is_set():
            row = order.randrange(400)
            if ds[row] != RECORDS[row]:
                errors.append(row)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                signal.alarm(300)
                os._exit([ds[row] for row in range(0, 400, 9)] != RECORDS[::9])
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


def test_blocks_of_one_record_are_one_file_for_zstd(tmp_path):
    url = written("local", tmp_path, block_bytes=1)
    plain = written("local", tmp_path / "plain", compression=None)
    with Path(url, key_of(url, ".zst")).open("rb") as file:
        found = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    assert found == Path(plain, key_of(plain, ".tfrecord")).read_bytes()
