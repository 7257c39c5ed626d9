"""Indexes for other programs, written from ours: the text indexes of DALI and the `tfrecord` package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.catalog import Catalog
from shardio.errors import FormatError, StorageError
from shardio.format import Compression, Framing
from shardio.reader import ReadOptions, Source, root_stores
from shardio.storage import connect
from shardio_indexer._existing import dali_lines, dali_tar_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardio.storage import Store

__all__ = ["export_indexes"]

_BLOCKS = 16  # of a tar file, read together


def export_indexes(
    url: str | Path,
    *,
    form: str = "dali",
    into: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Write an index beside every TFRecord and tar shard.

    For TFRecord it is `<shard>.idx`: offset and length of each frame, a line each. For `x.tar` it is `x.idx`,
    as DALI's own `wds2idx` makes it: a line per sample that names its members.

    Files that exist with the same contents are left as they are.

    Args:
        url: of the dataset.
        form: "dali".
        into: folder for the indexes; None for beside the shards.
        storage_options: of the dataset, as in fsspec.
        allow_roots: roots of adopted shards that may be written to, each with its storage options.

    Returns:
        The URLs of the indexes.

    Raises:
        FormatError: a shard is compressed, or neither TFRecord nor tar, which DALI does not read; or the name
            of a member cannot stand in an index.
        StorageError: another file stands under the name of an index, or the place cannot be written.
    """
    if form != "dali":
        message = f"form={form!r} is not known; there is 'dali'"
        raise ValueError(message)
    store = connect(url, storage_options=storage_options)
    catalog = Catalog(store)
    version = catalog.load()
    table = catalog.table(version)
    options = ReadOptions(
        storage_options=storage_options,
        allow_roots={root: dict(given or {}) for root, given in (allow_roots or {}).items()},
    )
    stores = root_stores(store, version, table, options)
    source = Source(store.url, table, stores, options, None)
    target = None if into is None else connect(str(into))
    written = []
    for number, entry in enumerate(table):
        known = entry.framing in (Framing.TFRECORD, Framing.TAR_SAMPLE)
        if not known or entry.compression is not Compression.NONE:
            raise FormatError(
                "DALI reads plain TFRECORD and tar files only",
                url=source.pool.url_of(number),
                found=f"{entry.framing.name}, {entry.compression.name}",
                advice="make plain TFRECORD files of it with `shardio export URL TARGET --kind tfrecord`, "
                "and adopt those",
            )
        place = target or source.pool.store_of(number)
        if entry.framing is Framing.TFRECORD:
            written.append(_put(place, f"{entry.key}.idx", dali_lines(*_frames(source, number))))
        else:
            index = dali_tar_lines(_samples(source, number), source.pool.url_of(number))
            written.append(_put(place, _tar_index_key(entry.key), index))
    return written


def _tar_index_key(key: str) -> str:
    """Return the name that `wds2idx` gives: up to the first dot of the file's name, past its first letter."""
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{name[:1]}{name[1:].partition('.')[0]}.idx"


def _samples(source: Source, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield where each sample of a tar shard begins, and its bytes."""
    starts = iter(_frames(source, number)[0].tolist())
    shard = source.pool.get(number)
    for first in range(0, shard.head.blocks, _BLOCKS):
        for payload in shard.load(first, min(first + _BLOCKS, shard.head.blocks)).payloads():
            yield next(starts), payload


def _frames(source: Source, number: int) -> tuple[Any, Any]:
    """Return where frames begin and end in the shard, without those of gaps; int64."""
    index, head = source.pool.open_index(number)
    with index:
        data = index.read(head.frame_stop_offset, head.frame_stop_offset + 4 * head.rows)
    stops = np.frombuffer(data, "<u4").astype(np.int64)
    row_stops = head.block_row_stop.astype(np.int64)
    rows = np.diff(row_stops, prepend=0)
    bases = head.block_stop.astype(np.int64) - head.block_decoded_bytes.astype(np.int64)
    starts = np.empty_like(stops)
    starts[1:] = stops[:-1]
    starts[(row_stops - rows)[rows > 0]] = 0
    shift = np.repeat(bases, rows)
    return starts + shift, stops + shift


def _put(store: Store, key: str, data: bytes) -> str:
    url = store.url_of(key)
    if not store.put_new(key, data) and store.get(key, max_bytes=len(data) + 1) != data:
        raise StorageError(
            "another file stands under the name of the index",
            url=url,
            advice="remove it, or put the indexes elsewhere with --into",
        )
    return url
