"""Indexes of other programs: codewithgpu's is read beside its shards, and DALI's written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import options_by_root
from shardio.catalog import Catalog
from shardio.errors import FormatError, StorageError
from shardio.format import Compression, Framing, Limits
from shardio.reader import ReadOptions, ShardSource, root_stores
from shardio.storage import Store, connect, holds, read_intact
from shardio_indexer._offsets import OffsetFramer, parse_record_index


def codewithgpu_framer(store: Store, key: str, limits: Limits) -> OffsetFramer:
    """Return the framer of `x.data`, by the index `x.index` beside it.

    Raises:
        NotFoundError: there is none.
        FormatError: it is not such an index.
    """
    folder, slash, name = key.rpartition("/")
    beside = f"{folder}{slash}{name.rpartition('.')[0] or name}.index"
    url = store.url_of(beside)
    data = read_intact(partial(store.get, beside, max_bytes=limits.index))
    return OffsetFramer(parse_record_index(data, url), url)


def export_indexes(
    url: str | Path,
    *,
    form: str = "dali",
    into: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Write `<shard>.idx` beside every TFRecord shard: offset and length of each frame, a line each.

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
        FormatError: a shard is compressed, or not TFRecord. DALI indexes tar files itself.
        StorageError: another file is under the name of an index, or the place cannot be written.
    """
    if form != "dali":
        raise ValueError(f"form={form!r} is not known; there is 'dali'")
    store = connect(url, storage_options=storage_options)
    catalog = Catalog(store)
    version = catalog.load()
    table = catalog.table(version)
    options = ReadOptions(storage_options=storage_options, allow_roots=options_by_root(allow_roots))
    stores = root_stores(store, version.manifest.roots, table, options)
    source = ShardSource(store.url, table, stores, options, None)
    target = None if into is None else connect(str(into))
    written = []
    for number, entry in enumerate(table):
        if entry.framing is not Framing.TFRECORD or entry.compression is not Compression.NONE:
            raise FormatError(
                "indexes are written for plain TFRECORD files only",
                url=source.pool.url_of(number),
                found=f"{entry.framing.name}, {entry.compression.name}",
                advice="make plain TFRECORD files of it with `shardio export URL TARGET --kind tfrecord`, "
                "and adopt those; DALI indexes tar files itself",
            )
        starts, stops = _frames(source, number)
        lines = zip(starts.tolist(), (stops - starts).tolist(), strict=True)
        data = "".join(f"{start} {length}\n" for start, length in lines).encode()
        written.append(_put(target or source.pool.store_of(number), f"{entry.key}.idx", data))
    return written


def _frames(source: ShardSource, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    if not store.put_if_absent(key, data) and not holds(store, key, data):
        raise StorageError(
            "another file is under the name of the index",
            url=url,
            advice="remove it, or put the indexes elsewhere with into=",
        )
    return url
