"""Small datasets and shards to damage, made through the rooms' doors."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

import shardio
from shardio import kernels
from shardio.catalog import Catalog, Version, publish
from shardio.format import Compression, Framing, RecordCrc
from shardio.metadata import IndexBuilder, ListRef, ShardTable, naming, pack_list
from shardio.storage import connect


def payloads(count: int, size: int = 60) -> list[bytes]:
    return [f"{number:04d}".encode() * (size // 4 + number % 3) for number in range(count)]


def make_dataset(
    url: Path, records: dict[str, list[bytes]], *, compression: str | None = None, shard_bytes: int = 1 << 20
) -> Path:
    with shardio.DatasetWriter(url, None, compression, block_bytes=256, shard_bytes=shard_bytes) as out:
        for split, values in records.items():
            for value in values:
                out.write(value, split=split)
    return url


def shards(url: Path) -> list[Path]:
    return sorted(path for path in (url / "data").iterdir() if path.suffix != ".shardidx")


def index_of(shard: Path) -> Path:
    return shard.with_name(shard.name + ".shardidx")


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of a file; written under a new inode, because the old one may be mapped."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    rewrite(path, bytes(data))


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def republish(url: Path, change) -> Version:
    """Commit a version whose one list of shards is the latest one's, changed."""
    catalog = Catalog(connect(str(url)))

    def build(base: Version | None):
        assert base is not None
        table = change(catalog, catalog.table(base))
        data, sha256 = pack_list(table)
        key = naming.list_key(naming.random_id())
        assert catalog.store.put_if_absent(key, data)
        ref = ListRef(key, len(data), sha256, len(table))
        splits = tuple(total for _, total in sorted(table.totals().items()))
        deletions = any(table.deletion_key)
        return replace(base.manifest, operation="test", lists=(ref,), splits=splits, deletions=deletions)

    return publish(catalog, build)


def delete_rows(url: Path, rows: list[int]) -> Path:
    """Delete rows of the first shard; return the path of the sidecar."""
    data = np.array(rows, "<u4").tobytes()
    key = f"data/deleted-{naming.random_id()}.deletions"

    def change(catalog: Catalog, table: ShardTable) -> ShardTable:
        assert catalog.store.put_if_absent(key, data)
        first = replace(
            table[0],
            deleted_rows=len(rows),
            deletion_key=key,
            deletion_sha256=hashlib.sha256(data).digest(),
        )
        return ShardTable.from_entries([first, *list(table)[1:]])

    republish(url, change)
    return url / key


def adopted(
    folder: Path,
    blocks: list[list[bytes]],
    *,
    framing: Framing = Framing.TFRECORD,
    record_crc: RecordCrc | None = None,
    stream: Compression | None = None,
    gap_after: bytes = b"",
) -> Path:
    """Write a shard as others may have written it, and its index."""
    kind = stream or Compression.NONE
    builder = IndexBuilder(uuid=bytes(range(16)), framing=framing, record_crc=record_crc, compression=kind)
    decoded = b""
    for block in blocks:
        if framing is Framing.TFRECORD:
            data, stops = kernels.encode_frames(block)
        else:
            data, stops = b"".join(block), np.cumsum([len(record) for record in block]).astype(np.uint32)
        builder.add_block(
            stored_bytes=len(data), decoded_bytes=len(data), crc32c=kernels.crc32c(data), frame_stop=stops
        )
        decoded += data
    if gap_after:
        size = len(gap_after)
        builder.add_gap(
            stored_bytes=size, decoded_bytes=size, crc32c=kernels.crc32c(gap_after), reason="end of a test"
        )
        decoded += gap_after
    builder.crc32c = kernels.crc32c(decoded)
    stored = decoded
    if stream is not None:
        packer = zlib.compressobj(wbits=31 if stream is Compression.GZIP else zlib.MAX_WBITS)
        stored = packer.compress(decoded) + packer.flush()
        builder.mark_stream(stored_bytes=len(stored), crc32c=kernels.crc32c(stored))
    path = folder / "foreign.tfrecord"
    path.write_bytes(stored)
    index_of(path).write_bytes(builder.finish().data)
    return path
