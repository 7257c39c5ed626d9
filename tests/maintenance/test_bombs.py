"""What unpacks to more than it says, or to very much: bounded memory, and a finding.

The packed objects are small, and unpack to 1.5 GB; whoever looks at them has 200 MiB to spare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    # Flushed fully, a part packs to the same bytes wherever it stands, and is packed once.
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
    folder.mkdir()
    path = folder / f"x.tfrecord{suffix}"
    path.write_bytes(stored)
    if index is not None:
        index_of(path).write_bytes(index)
    return folder


@pytest.fixture
def warm(tmp_path) -> Path:
    frames, stops = encode_frames([b"wren", b"robin"])
    stored = zlib.compress(frames)
    return shard(
        tmp_path / "adopt-warm", stored, stream_index(Compression.ZLIB, stored, frames, stops.tolist())
    )


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
        assert f"expected {len(frames)} bytes, found more than {len(frames)} bytes" in said["verify"], name


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
    assert "found 100 of 1073741824 decoded bytes" in said["read"], said


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
