"""Blocks: whatever goes in comes out, and nothing else does."""

from __future__ import annotations

import gzip
import os
import struct
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given, strategies as st

from shardio import kernels
from shardio.errors import CorruptBlockError
from shardio.format import (
    Block,
    BlockBuilder,
    Compression,
    Limits,
    _compression,
    check_block,
    decompress,
    payload_bounds,
)
from shardio.format._compression import Compressor
from shardio.format._framing import Framing
from tests.format import plain
from tests.suites.errors import refused

KINDS = [Compression.NONE, Compression.ZSTD, Compression.GZIP]
NAMES = {Compression.ZSTD: "zstd", Compression.GZIP: "gzip"}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
COMPRESSED = pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
PAYLOADS = st.lists(st.binary(max_size=40) | st.integers(0, 300).map(bytes), max_size=30)


def build(payloads: list[bytes], kind: Compression, **options) -> list[Block]:
    builder = BlockBuilder(compression=kind, **options)
    blocks = [builder.add(payload) for payload in payloads]
    return [block for block in (*blocks, builder.flush()) if block is not None]


def reopened(block: Block, kind: Compression) -> list[bytes]:
    check_block(block.stored, block.crc32c)
    decoded = bytes(decompress(block.stored, kind, block.decoded_bytes))
    ends = np.array([0, *block.frame_stop], np.int64)
    starts, stops = payload_bounds(Framing.TFRECORD, ends[:-1], ends[1:])
    return [decoded[start:stop] for start, stop in zip(starts, stops, strict=True)]


@EVERY_KIND
@given(payloads=PAYLOADS, target=st.integers(1, 300))
def test_what_goes_in_comes_out(kind, payloads, target):
    blocks = build(payloads, kind, block_bytes=target)
    assert [payload for block in blocks for payload in reopened(block, kind)] == payloads


@EVERY_KIND
@given(payloads=PAYLOADS, target=st.integers(1, 300))
def test_the_stored_bytes_are_plain_tfrecord_to_others(kind, payloads, target):
    """A writer MUST write `TFRECORD` frames."""
    stored = b"".join(block.stored for block in build(payloads, kind, block_bytes=target))
    assert plain.payloads(plain.decoded(stored, NAMES.get(kind))) == payloads


@EVERY_KIND
@given(payloads=PAYLOADS, target=st.integers(1, 300))
def test_blocks_hold_whole_frames_up_to_the_target(kind, payloads, target):
    """A block MUST hold whole frames."""
    for block in build(payloads, kind, block_bytes=target):
        decoded = plain.decoded(block.stored, NAMES.get(kind))
        frames = len(plain.payloads(decoded))
        assert frames == len(block.frame_stop)
        assert block.decoded_bytes == len(decoded) == int(block.frame_stop[-1])
        assert block.decoded_crc32c == kernels.crc32c(decoded)
        assert block.decoded_bytes <= target or frames == 1
        assert block.crc32c == kernels.crc32c(block.stored)


@given(payloads=PAYLOADS, target=st.integers(1, 300))
def test_cuts_depend_on_payloads_and_target_alone(payloads, target):
    cuts = [[len(b.frame_stop) for b in build(payloads, kind, block_bytes=target)] for kind in KINDS]
    assert cuts[0] == cuts[1] == cuts[2]


def test_a_record_that_fits_exactly_stays_in_its_block():
    assert len(build([b"1234", b"1234"], Compression.NONE, block_bytes=40)) == 1
    assert len(build([b"1234", b"1234"], Compression.NONE, block_bytes=39)) == 2


def test_an_empty_builder_has_no_block():
    assert build([], Compression.ZSTD) == []


def test_what_waits_is_counted():
    builder = BlockBuilder(block_bytes=40)
    builder.add(b"1234")
    assert builder.rows == 1
    assert builder.add(b"12345") is not None
    assert builder.rows == 1
    builder.flush()
    assert builder.rows == 0


@pytest.mark.parametrize("block_bytes", [16, 64, 1000])
def test_a_record_over_the_limit_is_refused_and_nothing_is_taken(block_bytes):
    builder = BlockBuilder(block_bytes=block_bytes, limits=Limits(record=100, block=1000))
    builder.add(b"first")
    with pytest.raises(ValueError, match="101 bytes is over the limit of 100 bytes"):
        builder.add(bytes(101))
    builder.add(bytes(100))
    builder.add(b"last")


@EVERY_KIND
def test_a_target_over_the_limit_is_refused(kind):
    with refused(ValueError, "block_bytes="):
        BlockBuilder(compression=kind, block_bytes=1001, limits=Limits(block=1000))
    with refused(ValueError, "block_bytes="):
        BlockBuilder(compression=kind, block_bytes=0)


@COMPRESSED
def test_what_does_not_compress_stays_within_a_readers_limit(kind):
    limits = Limits(block=1 << 20)
    target = (1 << 20) - (1 << 12)
    random = [os.urandom(1000) for _ in range(2000)]
    for level in [1, 19] if kind is Compression.ZSTD else [0, 1, 9]:
        blocks = build(random, kind, block_bytes=target, level=level, limits=limits)
        assert max(len(block.stored) for block in blocks) <= limits.block
    with refused(ValueError, "block_bytes"):
        BlockBuilder(compression=kind, block_bytes=target + 1, limits=limits)


@pytest.mark.parametrize("level", [None, -5, 1, 3, 19, 22])
def test_zstandard_frames_are_as_promised(level):
    """A Zstandard block MUST be one frame that declares its content size, has a window of at most 8 MiB and
    uses no dictionary.
    """
    data = os.urandom(1 << 10) * (9 << 10)
    stored = Compressor(Compression.ZSTD, level).compress(data)
    header = zstandard.get_frame_parameters(stored)
    assert (header.content_size, header.dict_id) == (len(data), 0)
    assert header.window_size <= 8 << 20
    assert zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False) == data


@pytest.mark.parametrize("level", [None, 0, 1, 9])
def test_gzip_blocks_are_one_member(level):
    """A gzip block MUST be one member."""
    stored = Compressor(Compression.GZIP, level).compress(b"wren" * 1000)
    decoder = zlib.decompressobj(31)
    assert decoder.decompress(stored) == b"wren" * 1000
    assert decoder.eof
    assert decoder.unused_data == b""
    # No time, no name: the same records make the same bytes.
    assert stored[4:8] == bytes(4)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (Compression.ZSTD, 23),
        (Compression.ZSTD, -101),
        (Compression.GZIP, 10),
        (Compression.GZIP, -1),
        (Compression.NONE, 1),
    ],
)
def test_a_level_that_does_not_exist_is_refused(kind, level):
    with pytest.raises(ValueError, match=f"compression level {level}"):
        Compressor(kind, level)


@EVERY_KIND
def test_every_flipped_bit_of_a_block_is_found(kind):
    """A reader MUST compare the CRC-32C of a block's stored bytes before it decodes them."""
    (block,) = build([b"wren", b"", b"robin"], kind)
    for bit in range(8 * len(block.stored)):
        damaged = bytearray(block.stored)
        damaged[bit // 8] ^= 1 << bit % 8
        with refused(CorruptBlockError, "checksum") as caught:
            check_block(damaged, block.crc32c)
        assert caught.value.expected == f"CRC-32C {block.crc32c:#010x}"


def decoded_whole(stored: bytes, kind: Compression, size: int) -> bytes:
    return bytes(decompress(stored, kind, size))


@EVERY_KIND
def test_a_block_that_lies_about_its_size_is_refused(kind):
    """A reader MUST refuse a block that does not decode to the declared number of bytes from all of its
    stored bytes.
    """
    (block,) = build([b"wren", b"robin"], kind)
    stored, size = block.stored, block.decoded_bytes
    assert kernels.crc32c(decoded_whole(stored, kind, size)) == block.decoded_crc32c
    for declared in (0, size - 1, size + 1, 2 * size, 1 << 20):
        with pytest.raises(CorruptBlockError):
            decoded_whole(stored, kind, declared)
    for cut in range(len(stored)):
        with pytest.raises(CorruptBlockError):
            decoded_whole(stored[:cut], kind, size)
    for more in (b"\0", stored, b"garbage"):
        with pytest.raises(CorruptBlockError):
            decoded_whole(stored + more, kind, size)


@COMPRESSED
def test_only_one_frame_or_member_is_a_block(kind):
    """Two frames that add up to the declared size are still not one block."""
    compressor = Compressor(kind)
    stored = compressor.compress(b"wren") + compressor.compress(b"robin")
    for size in (4, 9):
        with pytest.raises(CorruptBlockError):
            decoded_whole(stored, kind, size)


def test_a_frame_without_a_size_is_refused():
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(b"wren" * 100)
    with pytest.raises(CorruptBlockError) as caught:
        decoded_whole(stored, Compression.ZSTD, 400)
    assert caught.value.found == "no declared size"


def crafted_zstd(content_size: int, window_log: int | None, blocks: int) -> bytes:
    """A Zstandard frame by hand: RFC 8878, section 3.1.1; each block repeats one byte 128 KiB times."""
    head = b"\x28\xb5\x2f\xfd"
    if window_log is None:
        head += bytes([0xE0]) + struct.pack("<Q", content_size)
    else:
        head += bytes([0xC0, (window_log - 10) << 3]) + struct.pack("<Q", content_size)
    body = b"".join(
        struct.pack("<I", (k == blocks - 1) | 1 << 1 | (128 << 10) << 3)[:3] + b"\0" for k in range(blocks)
    )
    return head + body


def test_a_lying_zstandard_header_is_refused_before_anything_is_allocated():
    """A reader MUST refuse a Zstandard frame that declares another size than the index, or a window over the
    limit, before it allocates.
    """
    assert decoded_whole(crafted_zstd(128 << 10, 17, 1), Compression.ZSTD, 128 << 10) == bytes(128 << 10)
    for size in (1 << 31, 1 << 63, (1 << 64) - 3):
        with pytest.raises(CorruptBlockError):
            decoded_whole(crafted_zstd(size, 17, 1), Compression.ZSTD, 128 << 10)
    with pytest.raises(CorruptBlockError):
        decoded_whole(crafted_zstd(128 << 10, 24, 1), Compression.ZSTD, 128 << 10)
    # More comes out than the header says.
    with pytest.raises(CorruptBlockError):
        decoded_whole(crafted_zstd(128 << 10, 17, 2), Compression.ZSTD, 128 << 10)


def test_a_block_with_a_dictionary_is_named():
    words = zstandard.train_dictionary(2000, [b"wren %d robin" % n * 9 for n in range(500)])
    stored = zstandard.ZstdCompressor(dict_data=words).compress(b"wren" * 100)
    with pytest.raises(CorruptBlockError):
        decompress(stored, Compression.ZSTD, 400)


def test_a_caller_may_raise_the_window():
    stored = crafted_zstd(128 << 10, 24, 1)
    wide = Limits(zstd_window=16 << 20)
    assert len(decompress(stored, Compression.ZSTD, 128 << 10, limits=wide)) == 128 << 10


def gzip_answer(stored: bytes, size: int) -> bytes | str:
    """Return what a gzip block decodes to, or what is wrong with it."""
    try:
        return bytes(decompress(memoryview(stored), Compression.GZIP, size))
    except CorruptBlockError as error:
        return str(error)


@pytest.mark.parametrize("level", [0, 6])
@pytest.mark.parametrize("decoded", [b"", b"w", bytes(range(48)), b"wren, robin, " * 9], ids=len)
def test_gzip_is_read_with_isal_as_without(monkeypatch, decoded, level):
    """P5: each bit of a member, changed, and each of its beginnings: one answer from both."""
    whole = Compressor(Compression.GZIP, level).compress(decoded)
    flipped = [
        whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
        for place in range(len(whole))
        for bit in range(8)
    ]
    cut = [whole[:stop] for stop in range(len(whole))]
    cases = [whole, *flipped, *cut, whole + b"\0", whole + whole]
    assert _compression._isal() is not None
    found = [gzip_answer(case, size) for case in cases for size in (len(decoded), len(decoded) + 1)]
    assert found[0] == decoded
    monkeypatch.setattr(_compression, "_isal", lambda: None)
    assert found == [gzip_answer(case, size) for case in cases for size in (len(decoded), len(decoded) + 1)]


def test_a_gzip_bomb_is_stopped_at_the_declared_size():
    stored = gzip.compress(bytes(50 << 20), 9)
    with pytest.raises(CorruptBlockError) as caught:
        decoded_whole(stored, Compression.GZIP, 1000)
    assert caught.value.found is not None
    assert "1001 bytes" in str(caught.value.found)


def test_unchecked_blocks_are_still_measured():
    (block,) = build([b"wren"], Compression.NONE)
    with pytest.raises(CorruptBlockError):
        decompress(block.stored[:-1], Compression.NONE, block.decoded_bytes)


def test_without_compression_nothing_is_copied():
    stored = memoryview(b"x" * 100)
    assert decompress(stored, Compression.NONE, 100) is stored
