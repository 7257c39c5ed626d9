"""Sidecars made by hand: any rule can be broken, while every checksum is right."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from shardio.kernels import crc32c
from shardio.v1 import manifest_pb2

Message = Any
INDEX, LIST = 1, 2
DTYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8"}


def container(
    kind: int,
    columns: dict[str, tuple[str, Any]],
    *,
    version: int = 1,
    magic: bytes = b"SHRDCOL1",
    end: bytes = b"SHRDEND1",
    padding: bytes = b"\0",
    edit: Callable[[list[list[Any]]], None] | None = None,
    swap: tuple[str, bytes] | None = None,
) -> bytes:
    """Lay columns out as docs/format.md says; nothing of shardio but its CRC is used.

    Args:
        kind: of the file.
        columns: dtype and values by name; texts are a list of str or bytes.
        version, magic, end, padding: of the file.
        edit: changes the entries `[name, dtype, crc32c, items, size]` of the directory before they are
            checksummed.
        swap: a column, and the bytes that it has instead.
    """
    entries, stored = [], []
    for name, (dtype, values) in columns.items():
        if dtype != "text":
            data = values if isinstance(values, bytes) else np.array(values, DTYPES[dtype]).tobytes()
            items = len(data) // {"b16": 16, "b32": 32}.get(dtype, 0) if dtype[0] == "b" else len(values)
        else:
            texts = [text if isinstance(text, bytes) else text.encode() for text in values]
            stops = np.cumsum([0, *map(len, texts)]).astype("<u4")
            data, items = stops.tobytes() + b"".join(texts), len(texts)
        if swap is not None and swap[0] == name:
            data = swap[1]
        entries.append([name, dtype, crc32c(data), items, len(data)])
        stored.append(data)
    if edit is not None:
        edit(entries)
    directory = b"".join(
        struct.pack("<32s4sIQQ", name.encode(), dtype.encode(), *rest) for name, dtype, *rest in entries
    )
    prefix = magic + struct.pack("<III", kind, version, len(entries))
    out = bytearray(prefix + struct.pack("<I", crc32c(prefix + directory)) + directory)
    for data in stored:
        out += data
        out += padding * (-len(out) % 8)
    return bytes(out + end)


def columns_in(data: bytes) -> dict[str, tuple[str, Any]]:
    """Return the columns of a file as `container` takes them."""
    count = int.from_bytes(data[16:20], "little")
    place = 24 + 56 * count
    found: dict[str, tuple[str, Any]] = {}
    for raw, code, _, items, size in struct.iter_unpack("<32s4sIQQ", data[24:place]):
        place += -place % 8
        name, dtype, column = (
            raw.rstrip(b"\0").decode(),
            code.rstrip(b"\0").decode(),
            data[place : place + size],
        )
        place += size
        if dtype == "text":
            stops, texts = np.frombuffer(column[: 4 * items + 4], "<u4"), column[4 * items + 4 :]
            found[name] = dtype, [texts[a:b] for a, b in itertools.pairwise(stops)]
        else:
            found[name] = dtype, column if dtype[0] == "b" else np.frombuffer(column, DTYPES[dtype]).tolist()
    return found


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


def header_of(columns: dict[str, np.ndarray], **fields: Any) -> dict[str, Any]:
    """Return the facts of an index that agree with its columns; fields override."""
    stops = columns["block_stop"]
    facts = {
        "version": 1,
        "framing": 1,
        "record_crc": 1,
        "compression": 1,
        "stream": 0,
        "uuid": bytes(range(16)),
        "stored_bytes": int(stops[-1]) if len(stops) else 0,
        "decoded_bytes": int(columns["block_decoded_bytes"].astype(object).sum()),
        "crc32c": 7,
        "writer": "",
        "gaps": {},
    }
    return {**facts, **fields}


def index_of(
    header: dict[str, Any],
    columns: dict[str, np.ndarray],
    *,
    edit: Callable[[list[list[Any]]], None] | None = None,
    names: tuple[str, ...] | None = None,
    **options: Any,
) -> bytes:
    """Lay an index out; `edit` may change its directory, `names` which block and row columns there are."""
    facts = {
        "uuid": ("b16", header["uuid"]),
        "framing": ("u8", [header["framing"]]),
        "record_crc": ("u8", [header["record_crc"]]),
        "compression": ("u8", [header["compression"]]),
        "stream": ("u8", [header["stream"]]),
        "stored_bytes": ("u64", [header["stored_bytes"]]),
        "decoded_bytes": ("u64", [header["decoded_bytes"]]),
        "crc32c": ("u32", [header["crc32c"]]),
        "writer": ("text", [header["writer"]]),
        "gap_block": ("u64", [*header["gaps"]]),
        "gap_reason": ("text", [*header["gaps"].values()]),
    }
    own = {
        name: ("u64" if name in ("block_stop", "block_row_stop") else "u32", columns[name])
        for name in names or columns
    }
    return container(INDEX, {**facts, **own}, version=header["version"], edit=edit, **options)


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


LIST_DTYPES = {
    "split_name": "text", "key_prefix": "text", "split": "u32", "prefix": "u32", "key_rest": "text",
    "root": "u32", "uuid": "b16", "framing": "u16", "compression": "u8", "stored_bytes": "u64",
    "decoded_bytes": "u64", "rows": "u64", "blocks": "u64", "crc32c": "u32", "index_key": "text",
    "index_head_bytes": "u64", "index_head_sha256": "b32", "schema": "u32", "etag": "text",
    "deleted_rows": "u32", "deletion_key": "text", "deletion_sha256": "b32", "table_key": "text",
    "table_bytes": "u64", "table_sha256": "b32",
}  # fmt: skip


def list_of(
    count: int = 2,
    *,
    version: int = 1,
    edit: Callable[[list[list[Any]]], None] | None = None,
    key: list[str] | None = None,
    swap: tuple[str, bytes] | None = None,
    **fields: Any,
) -> bytes:
    """Return a list of `count` shards of 10 rows each; fields override, None leaves a column out.

    `swap` names a column, and gives the bytes that it has instead.
    """
    key = key or [f"data/train-abcdefghk3v7q2mh-{k:04d}.tfrecord" for k in range(count)]
    cuts = [max(each.rfind("-"), each.rfind("/")) + 1 for each in key]
    prefixes = [each[:cut] for each, cut in zip(key, cuts, strict=True)]
    facts = {
        "split_name": ["test", "train"],
        "key_prefix": prefixes,
        "split": [1] * count,
        "prefix": [*range(count)],
        "key_rest": [each[cut:] for each, cut in zip(key, cuts, strict=True)],
        "uuid": b"".join(k.to_bytes(16, "little") for k in range(count)),
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
        **fields,
    }
    columns = {name: (LIST_DTYPES[name], facts[name]) for name in LIST_DTYPES if facts.get(name) is not None}
    return container(LIST, columns, version=version, edit=edit, swap=swap)


def hash_key(key: str | bytes | int, kind: str) -> int:
    """Return the hash of one key, as docs/format.md gives it: an unsigned integer of 64 bits."""
    if isinstance(key, str):
        data = key.encode()
    elif isinstance(key, bytes):
        data = key
    else:
        data = int(key).to_bytes(8, "little", signed=not kind.startswith("u"))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
