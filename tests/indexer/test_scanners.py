"""Scanners: their runs are the bytes, each once, and their frames do not depend on how the bytes arrived."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.format import DEFAULT_LIMITS, Compression, Framing, Limits, RecordCrc
from shardio.metadata import IndexBuilder, parse_head
from shardio_indexer._blocks import BlockCutter, SalvageOptions
from shardio_indexer._compressed import decode_members
from shardio_indexer._lines import LineFramer
from shardio_indexer._tar import TarFramer
from shardio_indexer._tfrecord import TFRecordFramer
from tests.indexer.shards import frames_of, members, read_tfrecord, samples_of, scan, tar, tfrecord
from tests.suites.errors import refused

PAYLOADS = st.lists(st.binary(max_size=300), max_size=30)
NAMES = st.text(
    st.characters(blacklist_characters="./\0", blacklist_categories=("Cs",)), min_size=1, max_size=60
)
SAMPLES = st.lists(
    st.tuples(
        st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        st.dictionaries(
            st.sampled_from(["jpg", "cls", "seg.png", "json", "txt"]), st.binary(max_size=1500), min_size=1
        ),
    ),
    max_size=8,
    unique_by=lambda sample: sample[0],
)


def cut(framer, data: bytes, cuts: list[int], block_bytes: int = 64 << 10) -> bytes:
    """Feed bytes in pieces and return the index."""
    index = IndexBuilder(
        uuid=bytes(16),
        framing=framer.framing,
        record_crc=framer.record_crc,
    )
    cutter = BlockCutter(index, block_bytes=block_bytes, limits=DEFAULT_LIMITS)
    edges = [0, *sorted(cuts), len(data)]
    fed = []
    for a, b in itertools.pairwise(edges):
        for run in framer.feed(data[a:b]):
            fed.append(bytes(run.data))
            cutter.add(run)
    for run in framer.end():
        fed.append(bytes(run.data))
        cutter.add(run)
    cutter.finish()
    assert b"".join(fed) == data
    return index.finish().data


def framers(salvage: bool):
    wanted = SalvageOptions(enabled=salvage)
    return [lambda: TFRecordFramer(salvage=wanted), lambda: TarFramer(salvage=wanted), LineFramer]


@settings(max_examples=max(30, settings().max_examples // 5))
@given(PAYLOADS, SAMPLES, st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 3000))
def test_where_frames_end_does_not_depend_on_the_pieces(payloads, samples, cuts, block_bytes) -> None:
    """The index of a shard is the same however its bytes arrive."""
    archive = tar(
        [(f"{key}.{extension}", content) for key, parts in samples for extension, content in parts.items()]
    )
    for make, data in zip(
        framers(salvage=False), (tfrecord(payloads), archive, b"\n".join(payloads)), strict=True
    ):
        places = [place % (len(data) + 1) for place in cuts]
        whole = cut(make(), data, [], block_bytes)
        assert cut(make(), data, places, block_bytes) == whole
        assert cut(make(), data, list(range(0, len(data), 611)), block_bytes) == whole


@settings(max_examples=max(30, settings().max_examples // 5))
@given(
    PAYLOADS,
    st.binary(min_size=1, max_size=40),
    st.integers(0, 5000),
    st.lists(st.integers(0, 5000), max_size=5),
)
def test_salvage_does_not_depend_on_the_pieces(payloads, noise, place, cuts) -> None:
    data = bytearray(tfrecord(payloads))
    place %= len(data) + 1
    data[place : place + len(noise)] = noise
    stored = bytes(data)
    make = framers(salvage=True)[0]
    whole = cut(make(), stored, [])
    assert cut(make(), stored, [c % (len(stored) + 1) for c in cuts]) == whole


def test_damage_that_goes_on_in_the_next_piece_is_one_damage() -> None:
    """Zeros over a length make a frame of the wrong end; where bytes are cut behind it changes nothing."""
    data = bytearray(tfrecord([bytes(size) for size in (0, 90, 300, 128)]))
    data[437:440] = bytes(3)
    stored = bytes(data)
    make = framers(salvage=True)[0]
    whole = cut(make(), stored, [])
    for place in (*range(0, len(stored), 7), *range(425, 460)):
        assert cut(make(), stored, [place]) == whole, place


@settings(max_examples=max(30, settings().max_examples // 5))
@given(PAYLOADS)
def test_tfrecords_are_those_of_an_independent_reader(payloads) -> None:
    data = tfrecord(payloads)
    head, frames = frames_of(scan(data).index.data)
    assert [data[a + 12 : b - 4] for a, b in frames] == list(read_tfrecord(data)) == payloads
    assert head.stored_bytes == len(data)


@settings(max_examples=max(30, settings().max_examples // 5))
@given(SAMPLES, st.sampled_from([0, 1, 2]))
def test_tar_samples_are_those_of_tarfile(samples, tar_format) -> None:
    """Pax and GNU long names, ustar where it can; keys in folders, keys and extensions with dots."""
    from shardio.format import read_sample

    pairs = [
        (f"{key}.{extension}", content) for key, parts in samples for extension, content in parts.items()
    ]
    try:
        data = tar(pairs, tar_format)
    except ValueError:  # ustar holds no long names
        return
    scanned = scan(data, "x.tar")
    _, frames = frames_of(scanned.index.data)
    found = []
    for a, b in frames:
        key, parts = read_sample(data[a:b])
        found.append({"__key__": key, **{name: data[a:b][c:d] for name, (c, d) in parts.items()}})
    assert found == samples_of(data)


def test_a_record_longer_than_a_piece() -> None:
    data = tfrecord([b"a", bytes(33 << 20), b"b"])
    assert cut(TFRecordFramer(), data, list(range(0, len(data), 1 << 20))) == cut(TFRecordFramer(), data, [])
    broken = bytearray(data)
    broken[20 << 20] ^= 1
    scanned = scan(bytes(broken), salvage=True)
    assert scanned.index.head.rows == 2
    assert [gap.reason for gap in scanned.skipped] == ["damage: payload crc"]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_members_that_hold_whole_frames_are_blocks(kind) -> None:
    parts = [tfrecord([b"a" * n, b"b"]) for n in (10, 2000, 0)]
    scanned = scan(members(parts, kind))
    head, _ = frames_of(scanned.index.data)
    assert (head.blocks, head.rows, head.stream) == (3, 6, False)
    assert head.compression is (Compression.GZIP if kind == "gzip" else Compression.ZSTD)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "zlib"])
def test_members_that_cut_frames_are_a_stream(kind) -> None:
    data = tfrecord([bytes(100)] * 50)
    stored = members([data[:333], data[333:]], kind)
    scanned = scan(stored)
    head, frames = frames_of(scanned.index.data)
    assert head.stored_bytes == len(stored)
    assert head.decoded_bytes == len(data)
    assert len(frames) == 50
    assert scanned.index.head.listed_blocks == 1, "a stream is one unit to plans"


def test_a_member_too_large_to_decode_for_each_record_is_a_stream() -> None:
    data = tfrecord([bytes(1 << 20)] * 5)
    assert parse_head(scan(members([data], "gzip")).index.data).stream
    one = tfrecord([bytes(6 << 20)])
    assert not parse_head(scan(members([one], "gzip")).index.data).stream


def test_zstandard_frames_without_a_size_are_a_stream() -> None:
    import zstandard

    frame = zstandard.ZstdCompressor(write_content_size=False).compress(tfrecord([b"a"]))
    assert parse_head(scan(frame).index.data).stream


def test_skippable_frames_and_empty_members_are_gaps() -> None:
    """Skippable zstd frames and an empty last gzip member hold no records; they are gaps, no damage."""
    skippable = b"\x52\x2a\x4d\x18" + struct.pack("<I", 7) + b"comment"
    scanned = scan(skippable + members([tfrecord([b"a"]), tfrecord([b"b"])], "zstd") + skippable)
    head, _ = frames_of(scanned.index.data)
    assert head.gaps == {0: "skippable frame", 3: "skippable frame"}
    assert scanned.skipped == ()
    scanned = scan(members([tfrecord([b"a"]), b""], "gzip"))
    assert parse_head(scanned.index.data).gaps == {1: "empty member"}


def test_lines_in_members_are_blocks_even_without_a_last_line_feed() -> None:
    scanned = scan(members([b"a\nb\n", b"c"], "gzip"), "x.txt.gz")
    head, frames = frames_of(scanned.index.data)
    assert (head.blocks, len(frames), head.framing) == (2, 3, Framing.LINES)
    assert scanned.notes["the last line has no line feed"] == 1


def test_a_compressed_tar_has_its_end_in_a_gap() -> None:
    scanned = scan(members([tar([("a.txt", b"1"), ("b.txt", b"2")])], "gzip"), "x.tar.gz")
    head, frames = frames_of(scanned.index.data)
    assert len(frames) == 2
    assert head.stream
    assert list(head.gaps.values()) == ["end of the tar archive"]


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd", "zlib"])
def test_an_empty_file_is_an_empty_shard(kind) -> None:
    scanned = scan(members([b""], kind))
    assert (scanned.index.head.rows, scanned.skipped) == (0, ())
    parse_head(scanned.index.data)


def test_crc32_of_zlib_is_recognised_and_indexable_with_a_flag() -> None:
    """Writers that used zlib's CRC-32 are named, and indexed when asked."""
    data = tfrecord([b"one", b"two"], zlib.crc32)
    with refused(ValueError, "record_crc="):
        scan(data)
    with pytest.raises(ValueError, match="CRC-32 where"):
        scan(data, salvage=True)
    head = parse_head(scan(data, record_crc="crc32").index.data)
    assert head.record_crc is RecordCrc.CRC32


def test_checksums_that_were_left_out() -> None:
    data = tfrecord([b"one", b"two"], lambda _: 0)
    with pytest.raises(ValueError, match="a TFRECORD frame is damaged: length crc"):
        scan(data)
    scanned = scan(data, record_crc="none")
    assert parse_head(scanned.index.data).record_crc is RecordCrc.UNCHECKED
    assert scanned.index.head.rows == 2


def test_trust_does_not_look_at_payloads() -> None:
    data = bytearray(tfrecord([b"one", b"two"]))
    data[13] ^= 1
    scanned = scan(bytes(data), trust=True)
    assert scanned.index.head.rows == 2
    assert parse_head(scanned.index.data).record_crc is RecordCrc.CRC32C


def test_blocks_are_cut_before_the_frame_that_does_not_fit() -> None:
    scanned = scan(tfrecord([bytes(84)] * 10 + [bytes(400)] + [b""]), block_bytes=250)
    head, _ = frames_of(scanned.index.data)
    assert np.diff(head.block_row_stop.astype(int), prepend=0).tolist() == [2, 2, 2, 2, 2, 1, 1]


def test_a_record_over_the_limit_is_refused() -> None:
    limits = Limits(record=1000)
    for data, name in ((tfrecord([bytes(1001)]), "x.tfrecord"), (bytes([65]) * 2000, "x.txt")):
        with refused(ValueError, "limit"):
            scan(data, name, limits=limits)


def test_decoded_pieces_are_bounded() -> None:
    stored = members([bytes(50 << 20)], "gzip")
    sizes = [
        len(part)
        for part in decode_members([stored], Compression.GZIP, DEFAULT_LIMITS)
        if isinstance(part, bytes)
    ]
    assert sum(sizes) == 50 << 20
    assert max(sizes) <= 1 << 20
