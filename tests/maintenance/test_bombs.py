"""What unpacks to more than it says, or to very much: bounded memory, and a finding.

The packed objects are small, and unpack to 1.5 GB; the process that looks at them has 200 MiB to spare.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard

from shardio.format import Compression, Framing
from shardio.kernels import crc32c, encode_frames
from shardio.metadata import IndexBuilder
from tests.maintenance.made import index_of

PART = 32 << 20
PARTS = 48
KINDS = {"zlib": Compression.ZLIB, "gzip": Compression.GZIP, "bgzip": Compression.GZIP}
KINDS |= {"zstd": Compression.ZSTD, "zstd-frames": Compression.ZSTD}


def packed(kind: str, first: bytes, part: bytes, parts: int = PARTS) -> bytes:
    """Return `first` and then `parts` times `part`, compressed without holding them."""
    if kind.startswith("zstd"):
        packer = zstandard.ZstdCompressor(level=1)
        if kind == "zstd-frames":
            return packer.compress(first) + packer.compress(part) * parts
        stream = packer.compressobj()
        return b"".join(
            [stream.compress(first), *(stream.compress(part) for _ in range(parts)), stream.flush()]
        )
    if kind == "bgzip":
        cut = [part[start : start + (60 << 10)] for start in range(0, len(part), 60 << 10)]
        return (
            packed("gzip", first, b"", 0) + b"".join(packed("gzip", piece, b"", 0) for piece in cut) * parts
        )
    # Flushed fully, a part packs to the same bytes wherever it is, and is packed once.
    packer_ = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer_.compress(first) + packer_.flush(zlib.Z_FULL_FLUSH)
    if parts:
        body += (packer_.compress(part) + packer_.flush(zlib.Z_FULL_FLUSH)) * parts
    body += packer_.flush()
    size = len(first) + len(part) * parts
    if kind == "zlib":
        check = zlib.adler32(first)
        for _ in range(parts):
            check = zlib.adler32(part, check)
        return b"\x78\x01" + body + check.to_bytes(4, "big")
    crc = zlib.crc32(first)
    for _ in range(parts):
        crc = zlib.crc32(part, crc)
    ends = crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + body + ends


def stream_index(compression: Compression, stored: bytes, block: bytes, frames: list[int], **kind) -> bytes:
    """Return an index that gives a stream this one block."""
    builder = IndexBuilder(uuid=bytes(range(16)), compression=compression, **kind)
    stops = np.array(frames, np.uint32)
    builder.add_block(
        stored_bytes=len(block), decoded_bytes=len(block), crc32c=crc32c(block), frame_stop=stops
    )
    builder.mark_stream(stored_bytes=len(stored), crc32c=crc32c(stored))
    return builder.finish().data


def looked_at(folders: list[Path], warm: Path) -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bombs.py")), str(warm), *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return {name: said for line in done.stdout.splitlines() for name, said in json.loads(line).items()}


def shard(folder: Path, stored: bytes, index: bytes | None, suffix: str = "") -> Path:
    folder.mkdir(parents=True)
    path = folder / f"x.tfrecord{suffix}"
    path.write_bytes(stored)
    if index is not None:
        index_of(path).write_bytes(index)
    return folder


@pytest.fixture
def warm(tmp_path) -> Path:
    frames, stops = encode_frames([b"wren", b"robin"])
    stored = zlib.compress(frames)
    folder = tmp_path / "warm"
    shard(folder / "adopt", stored, stream_index(Compression.ZLIB, stored, frames, stops.tolist()))
    foreign(folder / "taken-in-lines", "jsonl.gz", gzip.compress(b'{"a": 1}\n'))
    foreign(folder / "taken-in-tar", "tar.gz", gzip.compress(member("a.txt", 1) + bytes(2048)))
    return folder


def foreign(folder: Path, ending: str, stored: bytes) -> Path:
    """Store what others wrote."""
    folder.mkdir(parents=True)
    (folder / f"x.{ending}").write_bytes(stored)
    return folder


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return the header of a member of a tar file."""
    header = tarfile.TarInfo(name)
    header.size, header.type = size, kind
    return header.tobuf(tarfile.USTAR_FORMAT if kind == tarfile.XHDTYPE else tarfile.GNU_FORMAT)


def endless(compression: str) -> dict[str, tuple[str, bytes]]:
    """Return by name what is taken in: the ending, and bytes that unpack to 400 MB of one thing."""
    ending = "zst" if compression == "zstd" else "gz"
    lines = {"line": (b'{"a": 1}\n{"a": "', b"x" * PART)}
    tars = {
        "member": (member("a.bin", PARTS * PART), bytes(PART)),
        "zeros": (member("a.txt", 1) + b"1" + bytes(511 + 1024), bytes(PART)),
        "name": (member("././@LongLink", PARTS * PART, tarfile.GNUTYPE_LONGNAME), b"n" * PART),
        "pax": (member("././pax", PARTS * PART, tarfile.XHDTYPE), b"n" * PART),
    }
    return {
        name: (f"jsonl.{ending}", packed(compression, *parts, parts=12)) for name, parts in lines.items()
    } | {name: (f"tar.{ending}", packed(compression, *parts, parts=12)) for name, parts in tars.items()}


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_what_is_taken_in_and_unpacks_to_very_much(tmp_path, warm, compression):
    """Adoption, salvage and conversion end with the records, or an error that says what was wrong."""
    bombs = endless(compression)
    folders = [foreign(tmp_path / f"taken-in-{name}", *bomb) for name, bomb in bombs.items()]
    for folder, said in looked_at(folders, warm).items():
        name = folder.removeprefix("taken-in-")
        assert not any(text.startswith("MemoryError") for text in said.values()), (name, said)
        if name == "zeros":
            assert said["adopt"] == "True, 1"
            assert said["salvage"].startswith("True, 1")
            assert said["convert"] == "{'train': 1}"
        else:
            wanted = {"line": "StorageError"}.get(name, "FormatError")
            assert said["adopt"].startswith(f"False, 0, {wanted}"), (name, said)
            # A conversion holds what a member has so far, and ends where memory does.
            wanted = {"member": "StorageError"}.get(name, wanted)
            assert said["convert"].startswith(wanted), (name, said)
            assert str(folder) in said["convert"]


@pytest.mark.slow
def test_a_frame_that_holds_more_than_it_declares(tmp_path, warm):
    """The library compares the sizes at the end of a frame: decoding stops before."""
    magic = b"\x28\xb5\x2f\xfd"
    fill = (128 << 10 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"  # so many zeros
    declared = (4 << 20).to_bytes(4, "little")
    liar = magic + bytes([0b10 << 6, (20 - 10) << 3]) + declared + fill * 20_000
    good = zstandard.compress(b'{"a": 1}\n' * 100)
    folder = foreign(tmp_path / "taken-in-liar", "jsonl.zst", magic + b"\xff" * 20 + liar + good)
    said = looked_at([folder], warm)["taken-in-liar"]
    assert said["salvage"] == "False, 0, 0 left out"
    assert "FormatError" in said["adopt"], said
    assert said["convert"].startswith("FormatError"), said


@pytest.mark.slow
def test_a_stream_that_decodes_to_more_than_its_index_says(tmp_path, warm):
    """A reader MUST stop decoding a stream where it decodes to more bytes than its index says, and hold no
    more of them than the block it works on.
    """
    frames, stops = encode_frames([b"wren", b"robin"])
    folders = []
    for kind, compression in KINDS.items():
        stored = packed(kind, frames, bytes(PART))
        assert len(stored) < 20 << 20
        folders.append(
            shard(tmp_path / kind, stored, stream_index(compression, stored, frames, stops.tolist()))
        )
    for name, said in looked_at(folders, warm).items():
        assert said["read"] == "2", (name, said)
        assert said["verify"].startswith("decode: a compressed stream decodes to another size"), (name, said)
        assert f"expected {len(frames)} bytes" in said["verify"], (name, said)
        assert "found more" in said["verify"], (name, said)


@pytest.mark.slow
def test_a_stream_that_decodes_to_less_than_its_index_says(tmp_path, warm):
    frames, stops = encode_frames([b"wren", b"robin"])
    folders = []
    for kind, compression in KINDS.items():
        stored = packed(kind, frames[:30], b"", 0)
        index = stream_index(compression, stored, frames, stops.tolist())
        folders.append(shard(tmp_path / kind, stored, index))
    for name, said in looked_at(folders, warm).items():
        assert said["read"].startswith("StaleIndexError: "), (name, said)
        assert said["verify"].startswith("decode: a compressed stream decodes to another size"), (name, said)
        assert f"expected {len(frames)} bytes, found 30 bytes" in said["verify"], (name, said)


@pytest.mark.slow
def test_a_block_that_holds_more_than_the_stream(tmp_path, warm):
    """An index that claims a record of a gigabyte costs what is there, not what is claimed."""
    stored = packed("gzip", b"a" * 100, b"", 0)
    builder = IndexBuilder(uuid=bytes(16), compression=Compression.GZIP, framing=Framing.RAW)
    builder.add_block(
        stored_bytes=1 << 30, decoded_bytes=1 << 30, crc32c=1, frame_stop=np.array([1 << 30], np.uint32)
    )
    builder.mark_stream(stored_bytes=len(stored), crc32c=crc32c(stored))
    folder = shard(tmp_path / "claims", stored, builder.finish().data)
    said = looked_at([folder], warm)["claims"]
    assert "found 100 bytes" in said["verify"]
    assert said["read"].startswith("StaleIndexError"), said
    assert "expected 1073741824 bytes, found 100 bytes" in said["read"], said


@pytest.mark.slow
def test_large_streams_cost_little(tmp_path, warm):
    """Honest shards of 400 MB are adopted, verified and read in the same memory."""
    parts = 12
    (frames, _) = encode_frames([bytes(PART // 32 - 16)] * 32)
    assert len(frames) == PART
    folders = [
        shard(
            tmp_path / f"adopt-{kind}", packed(kind, b"", frames, parts), None, ".gz" * (kind[-4:] == "gzip")
        )
        for kind in KINDS
    ]
    for name, said in looked_at(folders, warm).items():
        count = 32 * parts
        assert said == {"verify": f"ok, {count}", "read": str(count), "adopt": f"True, {count}"}, name
