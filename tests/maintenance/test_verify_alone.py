"""Single shards: with an index of any kind, and without one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import shardio
from shardio import kernels
from shardio.format import Compression, Framing, RecordCrc
from tests.maintenance.made import adopted, flip, index_of, make_dataset, payloads, rewrite, shards

BLOCKS = [payloads(5), payloads(7), payloads(3)]


def kinds(report: shardio.maintenance.VerifyReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_a_shard_of_a_dataset_by_itself(tmp_path: Path) -> None:
    (shard,) = shards(make_dataset(tmp_path / "ds", {"train": payloads(30)}, compression="gzip"))
    report = shardio.verify(shard)
    assert report.ok
    assert report.indexed
    assert (report.records, report.good_records, report.version) == (30, 30, None)
    with pytest.raises(ValueError, match="single shard"):
        shardio.verify(shard, version=1)


def test_an_index_whose_shard_is_gone(tmp_path: Path) -> None:
    (shard,) = shards(make_dataset(tmp_path / "ds", {"train": payloads(30)}))
    shard.unlink()
    with pytest.raises(shardio.errors.NotFoundError):
        shardio.verify(shard)


def frames(count: int) -> bytes:
    return kernels.encode_frames(payloads(count))[0]


def test_without_an_index_the_search_goes_on_after_a_wrong_payload(tmp_path: Path) -> None:
    path = tmp_path / "plain.tfrecord"
    path.write_bytes(frames(50))
    assert shardio.verify(path).ok
    stops = kernels.encode_frames(payloads(50))[1]
    for row in (10, 20, 49):
        flip(path, int(stops[row]) - 5)
    report = shardio.verify(path)
    assert not report.indexed
    assert [(f.kind, f.row, f.row_stop, f.stop) for f in report.findings] == [
        ("record", row, row + 1, int(stops[row])) for row in (10, 20, 49)
    ]
    assert (report.records, report.good_records) == (50, 47)


def test_without_an_index_the_search_continues_behind_a_wrong_length(tmp_path: Path) -> None:
    path = tmp_path / "plain.tfrecord"
    path.write_bytes(frames(50))
    stops = kernels.encode_frames(payloads(50))[1]
    for row in (10, 11, 12):
        flip(path, int(stops[row - 1]) + 2)
    flip(path, int(stops[29]) + 20)
    report = shardio.verify(path)
    # How many records the first gap held is not known, so the number of the second is not.
    assert [(finding.row, finding.row_stop, finding.stop) for finding in report.findings] == [
        (10, None, int(stops[12])),
        (None, None, int(stops[30])),
    ]
    assert report.good_records == 46


def test_without_an_index_a_cut_is_found_within_a_record(tmp_path: Path) -> None:
    path = tmp_path / "plain.tfrecord"
    path.write_bytes(frames(3)[:-1])
    (finding,) = shardio.verify(path).findings
    assert (finding.kind, finding.row, finding.stop) == ("record", 2, len(frames(3)) - 1)


def test_an_empty_file_is_a_shard_without_records(tmp_path: Path) -> None:
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    report = shardio.verify(tmp_path / "empty.tfrecord")
    assert report.ok
    assert report.records == 0


def test_a_foreign_file_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    assert shardio.verify(tmp_path / "photo.jpg").damaged


@pytest.mark.parametrize("stream", [Compression.GZIP, Compression.ZLIB])
def test_a_stream(tmp_path: Path, stream: Compression) -> None:
    path = adopted(tmp_path, BLOCKS, stream=stream)
    report = shardio.verify(path)
    assert report.ok
    assert report.good_records == 15
    original = path.read_bytes()
    for place in range(0, len(original), 3):
        flip(path, place)
        assert shardio.verify(path).damaged, place
        rewrite(path, original)
    for cut in (0, 10, len(original) - 1):
        rewrite(path, original[:cut])
        assert kinds(shardio.verify(path))[0] == "size"


def test_a_gap_is_checked_and_holds_no_rows(tmp_path: Path) -> None:
    path = adopted(tmp_path, BLOCKS, gap_after=b"the end of something")
    report = shardio.verify(path)
    assert report.ok
    assert report.good_records == 15
    flip(path, path.stat().st_size - 3)
    report = shardio.verify(path)
    assert kinds(report) == ["block"]
    assert report.good_records == 15


def test_lines_end_where_the_index_says(tmp_path: Path) -> None:
    path = adopted(tmp_path, [[b"one\n", b"two\n"], [b"three\n", b"four"]], framing=Framing.LINES)
    assert shardio.verify(path).ok
    path = adopted(tmp_path, [[b"one\n", b"two "], [b"three\n", b"four"]], framing=Framing.LINES)
    (finding,) = shardio.verify(path).findings
    assert (finding.kind, finding.row) == ("record", 1)


@pytest.mark.parametrize(
    ("blocks", "how", "place", "good"),
    [
        ([[b"one", b"two"], [b"three", b""]], {"framing": Framing.RAW}, 1, 2),
        (BLOCKS, {"record_crc": RecordCrc.UNCHECKED}, 30, 10),
    ],
    ids=["raw", "checksums that are not to be trusted"],
)
def test_records_without_checksums_rely_on_their_block(tmp_path: Path, blocks, how, place, good) -> None:
    path = adopted(tmp_path, blocks, **how)
    assert shardio.verify(path).ok
    flip(path, place)
    report = shardio.verify(path)
    assert kinds(report) == ["block"]
    assert report.good_records == good


def test_a_frame_that_disagrees_with_the_index(tmp_path: Path) -> None:
    """The index and every checksum of blocks may be right, and a record's own still not be."""
    path = adopted(tmp_path, [[b"abcd", b"efgh"]])
    data = bytearray(path.read_bytes())
    longer = struct.pack("<Q", 5)
    data[20:32] = longer + struct.pack("<I", kernels.mask_crc(kernels.crc32c(longer)))
    (tmp_path / "other").mkdir()
    raw = adopted(tmp_path / "other", [[bytes(data)]], framing=Framing.RAW)
    assert shardio.verify(raw).ok
    block = bytes(data)
    from shardio.metadata import IndexBuilder

    builder = IndexBuilder(uuid=bytes(16))
    builder.add_block(
        stored_bytes=len(block),
        decoded_bytes=len(block),
        crc32c=kernels.crc32c(block),
        frame_stop=kernels.encode_frames([b"abcd", b"efgh"])[1],
    )
    builder.crc32c = kernels.crc32c(block)
    rewrite(path, block)
    rewrite(index_of(path), builder.finish().data)
    (finding,) = shardio.verify(path).findings
    assert (finding.kind, finding.row) == ("record", 1)
    assert finding.message == "a record has another length than the index says"
    assert (finding.expected, finding.found) == ("4 bytes", "5 bytes")


def test_a_checksum_of_the_whole_that_no_part_explains(tmp_path: Path) -> None:
    from shardio.metadata import IndexBuilder

    block, stops = kernels.encode_frames([b"abcd"])
    builder = IndexBuilder(uuid=bytes(16))
    builder.add_block(
        stored_bytes=len(block), decoded_bytes=len(block), crc32c=kernels.crc32c(block), frame_stop=stops
    )
    builder.crc32c = 5
    path = tmp_path / "x.tfrecord"
    path.write_bytes(block)
    index_of(path).write_bytes(builder.finish().data)
    assert kinds(shardio.verify(path)) == ["checksum"]


def test_a_checksum_of_the_index_column_that_no_part_explains(tmp_path: Path) -> None:
    path = adopted(tmp_path, BLOCKS)
    data = bytearray(index_of(path).read_bytes())
    directory = 24 + 56 * int.from_bytes(data[16:20], "little")
    data[directory - 20] ^= 1  # the checksum in the last entry
    crc = kernels.crc32c(data[24:directory], kernels.crc32c(data[:20]))
    data[20:24] = struct.pack("<I", crc)
    rewrite(index_of(path), bytes(data))
    (finding,) = shardio.verify(path).findings
    assert finding.kind == "index"
    assert "column frame_stop" in finding.message
