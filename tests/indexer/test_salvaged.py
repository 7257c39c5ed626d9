"""What salvage left out is known: verification says so and is content, until something else changes."""

from __future__ import annotations

import random

import pytest

import shardio
import shardio_indexer
from shardio.errors import CorruptRecordError
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


def test_a_conversion_stops_at_the_first_damage_or_skips_all(tmp_path) -> None:
    """Rows count the readable records; damage of unknown length has a place in bytes alone."""
    frame = len(tfrecord([b"00"]))
    data = bytearray(tfrecord([b"%02d" % n for n in range(50)]))
    data[10 * frame + 13] ^= 1  # of the payload
    data[20 * frame] ^= 1  # of the length
    file = tmp_path / "x.tfrecord"
    file.write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        shardio.convert_dataset(file, tmp_path / "raise", workers=1)
    error = caught.value
    assert (error.url, error.row, error.start, error.stop) == (str(file), 10, 10 * frame, 11 * frame)
    report = shardio.convert_dataset(file, tmp_path / "skip", workers=1, on_error="skip")
    assert report.records == {"train": 48}
    places = [(bad.row, bad.start, bad.stop) for bad in report.skipped]
    assert places == [(None, row * frame, (row + 1) * frame) for row in (10, 20)]


def test_nothing_behind_damage_is_read() -> None:
    def pieces():
        data = bytearray(tfrecord([b"wren", b"robin"]))
        data[0] ^= 1
        yield bytes(data)
        pytest.fail("the file was read on")

    with pytest.raises(CorruptRecordError):
        list(shardio_indexer.iterate_payloads(pieces()))
