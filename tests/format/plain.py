"""An independent TFRecord reader and writer, in the fewest lines; what shardio writes is held against it."""

from __future__ import annotations

import gzip
import io
import struct
import zlib

import crc32c
import zstandard


def masked(data: bytes) -> int:
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", masked(head)) + payload + struct.pack("<I", masked(payload))


def payloads(decoded: bytes) -> list[bytes]:
    """Return the payloads of plain TFRecord bytes; every checksum is compared."""
    found, place = [], 0
    while place < len(decoded):
        (length,) = struct.unpack_from("<Q", decoded, place)
        assert struct.unpack_from("<I", decoded, place + 8) == (masked(decoded[place : place + 8]),)
        payload = decoded[place + 12 : place + 12 + length]
        assert len(payload) == length
        assert struct.unpack_from("<I", decoded, place + 12 + length) == (masked(payload),)
        found.append(payload)
        place += 16 + length
    return found


def decoded(stored: bytes, compression: str | None) -> bytes:
    """Return what `gzip -d`, `zstd -d` and Python's zlib make of a whole file."""
    if compression == "zlib":
        return zlib.decompress(stored)
    if compression == "gzip":
        return gzip.decompress(stored) if stored else b""
    if compression == "zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored), read_across_frames=True)
        return reader.read()
    return stored
