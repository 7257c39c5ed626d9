"""Lookups read and check the frame of their own record alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio.errors import CorruptBlockError, FormatError
from shardio.metadata import parse_head
from tests.promises.places import PLACES, fresh

RECORDS = [bytes([k]) * (100 + k % 7) for k in range(200)]


def written(place: str, tmp_path: Path, **options) -> str:
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, block_bytes=4096, **options) as out:
        for record in RECORDS:
            out.write(record)
    return url


def key_of(url: str, end: str) -> str:
    (key,) = [info.key for info in shardio.storage.connect(url).list("data/") if info.key.endswith(end)]
    return key


def changed(url: str, key: str, place: int) -> None:
    store = shardio.storage.connect(url)
    data = bytearray(store.get(key, max_bytes=1 << 20))
    data[place] ^= 1
    store.delete(key)
    store.put_if_absent(key, bytes(data))


@pytest.mark.parametrize("place", PLACES)
def test_a_lookup_finds_damage_of_its_own_record(place, tmp_path):
    """P5: a damaged record is told by a lookup of it, one at a time and many at once.

    Every byte returned is in a block whose stored bytes matched `block_crc32c` before decoding, or in a frame
    that was checked alone: of uncompressed `TFRECORD` frames with CRC-32C a reader MAY do that instead, and
    then MUST compare the frame's length with `frame_stop`, and both checksums of the frame.
    """
    url = written(place, tmp_path)
    ds = shardio.open(url)
    at = ds.locate(61)
    changed(url, key_of(url, ".tfrecord"), at.start + 20)
    for ask in (lambda ds: ds[61], lambda ds: ds.read([3, 61]), lambda ds: ds.read([61, 60, 61])):
        again = shardio.open(url)
        again.read([0, 199])  # what is fetched remotely before frames are fetched alone
        with pytest.raises(CorruptBlockError) as caught:
            ask(again)
        assert caught.value.start <= at.start < caught.value.stop
    # Its neighbours are right, and may be read.
    other = shardio.open(url)
    other[199]
    assert other[60] == RECORDS[60]
    assert other.read([60, 62]) == [RECORDS[60], RECORDS[62]]


def test_a_damaged_end_of_a_frame_is_told(tmp_path):
    """P21: nothing is fetched by an end that is not right, which may be far behind the shard's."""
    url = written("memory", tmp_path)
    key = key_of(url, ".shardidx")
    head = parse_head(shardio.storage.connect(url).get(key, max_bytes=1 << 20))
    row = head.block_rows(1)[0]
    changed(url, key, head.frame_stop_offset + 4 * row + 3)
    ds = shardio.open(url)
    assert ds[0] == RECORDS[0]  # from now on frames could be fetched alone
    for asked in (row, row + 1):
        with pytest.raises(FormatError) as caught:
            ds[asked]
        assert (caught.value.row, caught.value.start) == (row, head.frame_stop_bounds(1)[0])
    assert ds[0] == RECORDS[0]


@pytest.mark.parametrize("index", ["written", "adopted"])
def test_bytes_fetched_for_a_lookup(index, tmp_path):
    """Frames alone are fetched once their shard is known: at most 1.2 times the record, over many."""
    url = written("memory", tmp_path)
    if index == "adopted":
        store, url = shardio.storage.connect(url), fresh("memory", tmp_path)
        data = store.get(key_of(store.url, ".tfrecord"), max_bytes=1 << 20)
        shardio.storage.connect(url).put_if_absent("others.tfrecord", data)
        assert shardio_indexer.adopt(url).ok
    ds = shardio.open(url)
    ds[0]
    rows = np.random.default_rng(0).permutation(200).tolist()
    size, before = sum(map(len, RECORDS)), ds.stats["bytes_read"]
    assert [ds[row] for row in rows] == [RECORDS[row] for row in rows]
    assert size <= ds.stats["bytes_read"] - before <= 1.2 * size
    before = ds.stats["bytes_read"]
    assert ds.read(rows) == [RECORDS[row] for row in rows]
    assert size <= ds.stats["bytes_read"] - before <= 1.2 * size
