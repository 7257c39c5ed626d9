"""Sidecars made by hand: any rule can be broken, while every checksum is right."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from shardio.kernels import crc32c
from shardio.metadata._index import COLUMN_DTYPES, COLUMNS, DTYPES
from shardio.v1 import index_pb2, manifest_pb2

Message = Any


def columns_of(blocks: list[list[int]], stored: list[int] | None = None) -> dict[str, np.ndarray]:
    """Return the columns of blocks that are given as the sizes of their frames."""
    frames = [np.cumsum(sizes, dtype="<u4") for sizes in blocks]
    decoded = [sum(sizes) for sizes in blocks]
    return {
        "block_stop": np.cumsum(stored or decoded, dtype="<u8"),
        "block_row_stop": np.cumsum([len(sizes) for sizes in blocks], dtype="<u8"),
        "block_decoded_bytes": np.array(decoded, "<u4"),
        "block_crc32c": np.arange(len(blocks), dtype="<u4"),
        "block_frames_crc32c": np.array([crc32c(part.tobytes()) for part in frames], "<u4"),
        "frame_stop": np.concatenate(frames).astype("<u4") if frames else np.empty(0, "<u4"),
    }


def header_of(columns: dict[str, np.ndarray], **fields: Any) -> Message:
    """Return a header that agrees with the columns; fields override."""
    stops, rows = columns["block_stop"], columns["block_row_stop"]
    facts = {
        "format_version": 1,
        "framing": index_pb2.TFRECORD,
        "record_crc": index_pb2.CRC32C,
        "compression": index_pb2.NONE,
        "shard_uuid": bytes(range(16)),
        "stored_bytes": int(stops[-1]) if len(stops) else 0,
        "decoded_bytes": int(columns["block_decoded_bytes"].astype(object).sum()),
        "rows": int(rows[-1]) if len(rows) else 0,
        "blocks": len(stops),
        "crc32c": 7,
    }
    return index_pb2.ShardIndex(**{**facts, **fields})


def index_of(
    header: Message,
    columns: dict[str, np.ndarray],
    *,
    edit: Callable[[Message], None] | None = None,
    padding: bytes = b"\0",
    magic: bytes = b"SHRDIDX1",
    end: bytes = b"SHRDEND1",
    names: tuple[str, ...] = COLUMNS,
    lengths: dict[str, int] | None = None,
) -> bytes:
    """Lay an index out; `edit` may change the header before it is checksummed, `lengths` what columns say."""
    for name in names:
        data = columns[name]
        header.columns.add(
            name=name,
            dtype=COLUMN_DTYPES[name],
            length=(lengths or {}).get(name, len(data)),
            offset=1,
            crc32c=crc32c(data.tobytes()),
        )
    while True:
        place = 16 + header.ByteSize()
        offsets = []
        for name in names:
            place += -place % 64
            offsets.append(place)
            place += columns[name].nbytes
        if [entry.offset for entry in header.columns] == offsets:
            break
        for entry, offset in zip(header.columns, offsets, strict=True):
            entry.offset = offset
    size = header.ByteSize()
    if edit is not None:
        edit(header)
        assert header.ByteSize() == size, "an edit must not move what it does not mean to"
    body = header.SerializeToString(deterministic=True)
    out = bytearray(magic + struct.pack("<II", len(body), crc32c(body)) + body)
    for name, offset in zip(names, offsets, strict=True):
        out += padding * (offset - len(out))
        out += columns[name].astype(DTYPES[COLUMN_DTYPES[name]]).tobytes()
    out += padding * (-len(out) % 64)
    return bytes(out + end)


def sealed(message: Message | bytes) -> bytes:
    """Seal a message as docs/format.md says; nothing of shardio is used."""
    payload = message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)
    data = b"SHRDMAN1" + struct.pack("<Q", len(payload)) + payload
    data += struct.pack("<I", crc32c(data))
    return data + hashlib.sha256(data).digest() + b"SHRDEND1"


def manifest_message(**fields: Any) -> Message:
    facts = {
        "format_version": 1,
        "dataset_uuid": bytes(16),
        "version": 1,
        "write_id": bytes(range(16)),
        "operation": "create",
    }
    return manifest_pb2.Manifest(**{**facts, **fields})


def list_message(count: int = 2, **fields: Any) -> Message:
    """Return a list of `count` shards of 10 rows each."""
    facts = {
        "format_version": 1,
        "split_names": ["test", "train"],
        "split": [1] * count,
        "key": [f"data/train-s-00000-0123456789abcdef-{k:05d}.tfrecord" for k in range(count)],
        "shard_uuid": b"".join(k.to_bytes(16, "little") for k in range(count)),
        "framing": [1] * count,
        "compression": [1] * count,
        "stored_bytes": [160] * count,
        "decoded_bytes": [160] * count,
        "rows": [10] * count,
        "blocks": [1] * count,
        "crc32c": [0] * count,
        "index_head_bytes": [640] * count,
        "index_head_sha256": bytes(32 * count),
        "schema": [0] * count,
    }
    return manifest_pb2.ShardList(**{**facts, **fields})


def hash_key(key: str | bytes | int, kind: str) -> int:
    """Return the hash of one key, as docs/format.md gives it: an unsigned integer of 64 bits."""
    if isinstance(key, str):
        data = key.encode()
    elif isinstance(key, bytes):
        data = key
    else:
        data = int(key).to_bytes(8, "little", signed=not kind.startswith("u"))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
