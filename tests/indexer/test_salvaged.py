"""What salvage left out is known: verification says so and is content, until something else changes."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
import zstandard

import shardio
import shardio_indexer
from shardio.cli import main
from tests.indexer.shards import tfrecord

PACKED = {"gz": gzip.compress, "zz": zlib.compress, "zst": zstandard.compress}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("cut", ["middle", "trailer"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.filterwarnings("ignore:.*one compressed stream")
def test_a_salvaged_stream_is_not_damaged_for_ever(tmp_path, capsys, kind, lines, cut, flip) -> None:
    """Whatever adoption left out of a stream, verify is content with the rest and lists it; exit code 0."""
    generator = random.Random(3)
    records = [generator.randbytes(generator.randrange(2000)).hex().encode() for _ in range(4000)]
    data = b"\n".join(records) if lines else tfrecord(records)
    packed = bytearray(PACKED[kind](data))
    place = len(packed) // 2 if cut == "middle" else len(packed) - 3
    if flip:
        packed[place] ^= 0x55
    else:
        del packed[place:]
    name = f"x.{'txt' if lines else 'tfrecord'}.{kind}"
    (tmp_path / name).write_bytes(packed)
    report = shardio_indexer.adopt(tmp_path / name, salvage=True)
    assert report.ok
    assert report.records > 500
    found = shardio.verify(tmp_path)
    assert (found.findings, found.good_records) == ((), report.records)
    assert {part.url for part in found.skipped} == {str(tmp_path / name)} or not report.skipped
    assert bool(found.skipped) == bool(report.skipped)
    assert main(["verify", str(tmp_path)]) == 0
    if report.skipped:
        assert "left out when the shards were adopted" in capsys.readouterr().err
    # A byte behind what was indexed: nothing of it is read, and it is not what was left out.
    packed[-1] ^= 1
    (tmp_path / name).write_bytes(packed)
    assert shardio.verify(tmp_path).damaged


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
