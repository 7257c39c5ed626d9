"""Shards as other programs write them, made in memory, and readers that share no code with shardio."""

from __future__ import annotations

import gzip
import io
import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence

import crc32c
import numpy as np
import zstandard

from shardio.adoption import ScanOptions, ScanResult, scan_shard
from shardio.cli import main as program
from shardio.metadata import IndexHead, check_frames_part, parse_head
from shardio.storage import connect

UUID = b"0123456789abcdef"


def main(arguments: Sequence[str]) -> int:
    """Run `shardio adopt`."""
    return program(["index", *arguments])


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes, crc=crc32c.crc32c) -> bytes:
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", masked(crc(head))) + payload + struct.pack("<I", masked(crc(payload)))


def tfrecord(payloads: Iterable[bytes], crc=crc32c.crc32c) -> bytes:
    return b"".join(frame(payload, crc) for payload in payloads)


def read_tfrecord(data: bytes) -> Iterator[bytes]:
    """An independent reader: lengths alone."""
    file = io.BytesIO(data)
    while head := file.read(12):
        (length,) = struct.unpack_from("<Q", head)
        yield file.read(length)
        file.read(4)


def tar(members: Iterable[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def samples_of(data: bytes) -> list[dict[str, object]]:
    """What WebDataset makes of a tar file, with `tarfile` and nothing of ours."""
    out: list[dict[str, object]] = []
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            name = member.name
            folder, slash, base = name.rpartition("/")
            stem, dot, extension = base.partition(".")
            meta = re.match(r"__[^/]*__($|/)", name) is not None  # the library's own expression
            if not member.isreg() or not dot or not stem or meta:
                continue
            key = folder + slash + stem
            if not out or out[-1]["__key__"] != key:
                out.append({"__key__": key})
            out[-1][extension.lower()] = archive.extractfile(member).read()
    return out


def members(parts: Sequence[bytes], kind: str) -> bytes:
    """Compress parts as members one after another."""
    if kind == "gzip":
        return b"".join(gzip.compress(part, mtime=0) for part in parts)
    if kind == "zstd":
        return b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)
    if kind == "zlib":
        return zlib.compress(b"".join(parts))
    return b"".join(parts)


def scan(data: bytes, name: str = "x.tfrecord", **options) -> ScanResult:
    """Scan bytes in memory."""
    store = connect("memory://scan")
    store.delete(name)
    store.put_if_absent(name, data)
    return scan_shard(store, name, UUID, ScanOptions(**options))


def frames_of(index: bytes) -> tuple[IndexHead, list[tuple[int, int]]]:
    """Return the head of an index, checked to its last frame, and where frames are in the decoded bytes."""
    head = parse_head(index)
    stops = np.frombuffer(index, "<u4", head.rows, head.frame_stop_offset)
    out = []
    base = 0
    for block in range(head.blocks):
        first, stop = head.block_rows(block)
        check_frames_part(head, block, stops[first:stop])
        start = 0
        for end in stops[first:stop].tolist():
            out.append((base + start, base + end))
            start = end
        base += int(head.block_decoded_bytes[block])
    return head, out
