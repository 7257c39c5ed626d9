"""What salvage left out is known: verification says so and is content, until something else changes."""

from __future__ import annotations

import random

import shardio
import shardio_indexer
from tests.indexer.shards import tfrecord


def test_salvaged_shards_without_compression_say_what_was_left_out(tmp_path) -> None:
    data = bytearray(tfrecord([b"%d" % n for n in range(100)]))
    data[500] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(data)
    report = shardio_indexer.adopt(tmp_path, salvage=True)
    found = shardio.verify(tmp_path)
    assert found.ok
    places = [(part.start, part.stop) for part in report.skipped]
    assert [(part.start, part.stop) for part in found.skipped] == places
    assert found.to_dict()["skipped"][0]["kind"] == "skipped"


def test_a_gap_of_megabytes_is_read_over(tmp_path) -> None:
    records = [b"%d" % n * 200 for n in range(4000)]
    data = bytearray(tfrecord(records))
    middle = len(data) // 2
    data[middle:middle] = random.Random(4).randbytes(3 << 20)
    (tmp_path / "x.tfrecord").write_bytes(data)
    report = shardio_indexer.adopt(tmp_path, salvage=True)
    assert sum(part.stop - part.start for part in report.skipped) >= 3 << 20
    found = list(shardio.open(tmp_path, decode=False))
    assert len(found) == report.records >= 3990
    assert set(found) <= set(records)
