"""Files without an index: read in order, in constant memory, and never ended quietly."""

from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given, strategies as st

from shardio.errors import CorruptRecordError, FormatError
from shardio.format import Compression, Limits, decode_stream, sniff_compression
from shardio_indexer import iterate_payloads
from tests.format import plain
from tests.format.test_blocks import crafted_zstd
from tests.suites.errors import refused

PAYLOADS = [b"wren", b"", b"robin" * 100, bytes(300)]
DECODED = b"".join(map(plain.frame, PAYLOADS))


def zstd(data: bytes, **options) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


HALF = len(DECODED) // 2
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
# What decodes to nothing, and is whole.
SKIPPED = (SKIPPABLE,)
# As one whole, and as members that cut records in two.
STORED = {
    Compression.NONE: [DECODED],
    Compression.GZIP: [
        gzip.compress(DECODED, mtime=0),
        gzip.compress(DECODED[:HALF]) + gzip.compress(b"") + gzip.compress(DECODED[HALF:]),
    ],
    Compression.ZLIB: [zlib.compress(DECODED)],
    Compression.ZSTD: [
        zstd(DECODED),
        zstd(DECODED, write_content_size=False),
        zstd(DECODED[:HALF]) + zstd(b"") + zstd(DECODED[HALF:]),
        SKIPPABLE + zstd(DECODED),
    ],
}
EVERY = pytest.mark.parametrize(
    ("kind", "stored"),
    [(kind, stored) for kind, variants in STORED.items() for stored in variants],
    ids=lambda value: value.name if isinstance(value, Compression) else str(len(value)),
)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[k : k + size] for k in range(0, len(data), size)]


def read(stored: bytes, kind: Compression, size: int = 1 << 20) -> list[bytes]:
    return list(itertools.chain.from_iterable(iterate_payloads(decode_stream(pieces(stored, size), kind))))


@EVERY
@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_every_compression_in_pieces_of_any_size(kind, stored, size):
    assert read(stored, kind, size) == PAYLOADS


@EVERY
def test_compression_is_told_by_the_first_bytes(kind, stored):
    if not stored.startswith(b"\x50"):
        assert sniff_compression(stored[:12]) is kind


@given(st.binary(max_size=20))
def test_sniffing_never_fails(head):
    assert sniff_compression(head) in set(Compression)


def test_a_plain_file_whose_length_looks_like_zlib_is_plain():
    payload = bytes(0x9C78)
    assert plain.frame(payload)[:2] == b"\x78\x9c"
    assert sniff_compression(plain.frame(payload)[:12]) is Compression.NONE


@EVERY
def test_a_file_that_ends_early_says_so(kind, stored):
    """It MUST NOT take the end of the file inside a frame for the end of the data."""
    ends = {0, *itertools.accumulate(len(plain.frame(payload)) for payload in PAYLOADS)}
    for cut in range(1, len(stored)):
        if kind is Compression.NONE and cut in ends:
            # Without compression nothing tells a file cut between records from a shorter one.
            assert read(stored[:cut], kind) == PAYLOADS[: len(read(stored[:cut], kind))]
        elif stored[:cut] in SKIPPED:
            assert read(stored[:cut], kind) == []
        else:
            with pytest.raises(FormatError):
                read(stored[:cut], kind)


def test_every_flipped_bit_of_a_plain_file_is_found():
    """A reader of a file without an index MUST compare both checksums of a frame before it returns the
    payload.
    """
    data = b"".join(map(plain.frame, [b"wren", b"", b"robin"]))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        before = []
        with pytest.raises(CorruptRecordError) as caught:
            for payloads in iterate_payloads([bytes(damaged)]):
                before += payloads
        assert before == [b"wren", b"", b"robin"][: len(before)]
        row = 0 if bit < 160 else 1 if bit < 288 else 2
        assert (caught.value.row, len(before)) == (row, row)
        assert caught.value.start == (0, 20, 36)[row]


@pytest.mark.parametrize("length", [1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1, (1 << 64) - 16, (1 << 30) + 1])
def test_a_length_over_the_limit_is_refused_with_a_valid_checksum(length):
    """A length MUST be checked against its limit, and against what is left, before anything is allocated."""
    head = length.to_bytes(8, "little")
    data = plain.frame(b"wren") + head + plain.masked(head).to_bytes(4, "little") + b"x" * 50
    found = []
    with refused(CorruptRecordError, "limit") as caught:
        for payloads in iterate_payloads(pieces(data, 10)):
            found += payloads
    assert found == [b"wren"]
    assert (caught.value.row, caught.value.start) == (1, 20)


def test_a_caller_may_lower_the_limit():
    with pytest.raises(CorruptRecordError):
        list(iterate_payloads([plain.frame(b"12345")], limits=Limits(record=4)))


def test_bytes_after_a_zlib_stream_are_an_error():
    stored = zlib.compress(DECODED)
    with pytest.raises(FormatError) as caught:
        read(stored + stored, Compression.ZLIB)
    assert caught.value.start == len(stored)


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.ZLIB, Compression.ZSTD])
def test_garbage_is_an_error(kind):
    for stored in (b"garbage" * 10, STORED[kind][0] + b"garbage", b"\xff" + STORED[kind][0]):
        with pytest.raises(FormatError):
            read(stored, kind)


def with_window(data: bytes, log: int) -> bytes:
    """Return a frame that asks for a window of 2^log bytes, as `zstd --long=log` writes it from a pipe."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=log, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_zstandard_windows_are_taken_up_to_the_limit_and_named_beyond_it(size):
    """A frame that fits into one output buffer needs no window, whatever it asks for; a larger one would."""
    large = plain.frame(bytes(300_000)) * 40
    assert len(read(with_window(large, 27), Compression.ZSTD)) == 40
    stored = zstd(DECODED) + with_window(DECODED, 28)
    with pytest.raises(FormatError) as caught:
        read(stored, Compression.ZSTD, size)
    assert (caught.value.start, caught.value.found) == (len(zstd(DECODED)), f"{1 << 28} bytes")
    assert caught.value.expected == f"at most {128 << 20} bytes"
    raised = decode_stream(pieces(stored, size), Compression.ZSTD, limits=Limits(stream_window=2 << 30))
    assert b"".join(raised) == DECODED + DECODED


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_zstandard_dictionary_is_named(size):
    """It is not in the file, which is not damaged."""
    samples = [b"wren %d robin" % n * 9 for n in range(500)]
    words = zstandard.train_dictionary(2000, samples)
    with pytest.raises(FormatError) as caught:
        read(zstd(DECODED, dict_data=words), Compression.ZSTD, size)
    assert caught.value.found == f"dictionary {words.dict_id()}"


@pytest.mark.slow
def test_where_there_is_no_memory_for_a_window_that_is_said(tmp_path):
    """The environment failed, and the file is not damaged."""
    (tmp_path / "x.zst").write_bytes(with_window(DECODED, 31))
    script = f"""
import resource
import zstandard
from shardio.errors import StorageError
from shardio.format import Compression, Limits, decode_stream
data = open({str(tmp_path / "x.zst")!r}, "rb").read()
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    list(decode_stream([data], Compression.ZSTD, limits=Limits(stream_window=2 << 30)))
except StorageError as error:
    print(error.what, error.expected)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"there is no memory for the window of a Zstandard frame {1 << 31} bytes\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.ZLIB, Compression.ZSTD])
def test_a_bomb_is_decoded_in_small_pieces(kind):
    """Two gigabytes from two megabytes or less are never in memory at once."""
    if kind is Compression.ZSTD:
        bomb = crafted_zstd((128 << 10) * 16_000, 17, 16_000)
    else:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31 if kind is Compression.GZIP else 15)
        bomb = b"".join(packer.compress(bytes(16 << 20)) for _ in range(8)) + packer.flush()
    tracemalloc.start()
    try:
        stream = decode_stream([bomb], kind)
        largest = max(map(len, itertools.islice(stream, 20)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert largest <= 40 << 20
    assert peak <= 120 << 20


@pytest.mark.slow
def test_a_bomb_without_an_index_costs_an_error_and_no_memory(tmp_path):
    """The same through the front door, in a process that may have little memory."""
    (tmp_path / "bomb.tfrecord").write_bytes(crafted_zstd((128 << 10) * 64_000, 17, 64_000))
    script = f"""
import resource, warnings
import numpy, zstandard, shardio, shardio.reader, shardio.storage
warnings.simplefilter("ignore")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
try:
    list(shardio.open_shard({str(tmp_path / "bomb.tfrecord")!r}))
except shardio.errors.CorruptRecordError as error:
    print("refused:", error.row)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "refused: 0\n"


def test_checksums_of_a_damaged_frame_are_hexadecimal() -> None:
    whole = plain.frame(b"wren")
    with pytest.raises(CorruptRecordError) as caught:
        list(iterate_payloads(iter([whole[:-1] + bytes([whole[-1] ^ 1])])))
    stored = int.from_bytes(whole[-4:], "little")
    assert {caught.value.expected, caught.value.found} == {f"{stored:#010x}", f"{stored ^ 1 << 24:#010x}"}
