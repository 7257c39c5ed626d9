"""Indexes of other programs beside shards: found and read, and written for those programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shardio.arguments import options_by_root
from shardio.catalog import Catalog
from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.format import Compression, Framing, Limits
from shardio.reader import ReadOptions, ShardSource, root_stores
from shardio.storage import Store, connect, holds, read_intact
from shardio_indexer._external_index import (
    FrameBounds,
    dali_lines,
    dali_tar_lines,
    parse_tar_index,
    parse_text_index,
)


def external_index_names(key: str, framing: Framing) -> list[str]:
    """Return the keys under which the index of a shard may be, the likeliest first."""
    folder, slash, name = key.rpartition("/")
    stem = name.rpartition(".")[0] or name
    if framing is Framing.TAR_SAMPLE:
        names = [f"{stem}.tar.idx"]
    elif framing is Framing.RAW:
        names = [f"{stem}.index"]
    else:
        names = [f"{name}.index", f"{stem}.index", f"{name}.idx", f"{stem}.idx"]
    return [f"{folder}{slash}{one}" for one in dict.fromkeys(names)]


def find_external_index(store: Store, key: str, framing: Framing, limits: Limits) -> FrameBounds:
    """Read the index beside a shard.

    Raises:
        NotFoundError: there is none.
        FormatError: it is not an index of a known form.
    """
    names = external_index_names(key, framing)
    for name in names:
        with contextlib.suppress(NotFoundError):
            return read_intact(partial(_read_frames, store, name, framing, limits))
    raise NotFoundError(
        "the shard has no index beside it",
        url=store.url_of(key),
        expected=" or ".join(name.rpartition("/")[2] for name in names),
    )


def _read_frames(store: Store, name: str, framing: Framing, limits: Limits) -> FrameBounds:
    data, url = store.get(name, max_bytes=limits.index), store.url_of(name)
    return parse_tar_index(data, url) if framing is Framing.TAR_SAMPLE else parse_text_index(data, url)


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


def _samples(source: ShardSource, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield where each sample of a tar shard begins, and its bytes."""
    starts = iter(_frames(source, number)[0].tolist())
    shard = source.pool.get(number)
    for first in range(0, shard.head.blocks, _BLOCKS):
        last = min(first + _BLOCKS, shard.head.blocks) - 1
        rows = range(shard.head.block_rows(first)[0], shard.head.block_rows(last)[1])
        for payload in shard.blocks.payloads(rows):
            yield next(starts), payload


def _frames(source: ShardSource, number: int) -> tuple[Any, Any]:
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
