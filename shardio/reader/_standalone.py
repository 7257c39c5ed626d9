"""One TFRecord file by itself, with its index or without.

With an index it is a `Sequence` of payloads like any dataset.  Without one it can only be read from the
start, and says so: every record's own checksums are compared then.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from shardio.errors import FormatError, NotFoundError, ShardioError
from shardio.format import (
    DEFAULT_LIMITS,
    Compression,
    Limits,
    decode_stream,
    iterate_payloads,
    sniff_compression,
)
from shardio.metadata import ShardEntry, ShardTable, parse_head, usual_index_key
from shardio.reader._options import ReadOptions
from shardio.reader._records import Records
from shardio.reader._source import Source
from shardio.storage import Store, connect_folder, url_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardio.storage import DataFile

__all__ = ["SequentialShard", "ShardReader", "open_shard"]

_PIECE = 1 << 20


class _ShardSource(Source):
    """A shard by itself: its table has one row, made from its own index."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        store, name = connect_folder(url, storage_options=options.storage_options, engine=options.engine)
        table = ShardTable.of([_entry(store, name, options.limits or DEFAULT_LIMITS)])
        super().__init__(url, table, {0: store}, options, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ShardSource, (self.url, self.options)


class ShardReader(Records):
    """The records of one shard, as payload bytes; made by `shardio.open_shard`."""

    def __repr__(self) -> str:
        return f"<shardio.ShardReader {self.source.url}: {len(self):,} records>"


class SequentialShard:
    """A TFRecord file without an index: its records in order, from the start, as payload bytes.

    Plain, gzip, ZLIB and Zstandard files are recognised by their first bytes. Both checksums of every record
    are compared.
    """

    def __init__(self, url: str, options: ReadOptions) -> None:
        self.url = url
        self._options = options
        self._store, self._name = connect_folder(
            url, storage_options=options.storage_options, engine=options.engine
        )

    def __iter__(self) -> Iterator[bytes]:
        """Yield the payloads; memory stays within a few megabytes and one record.

        Raises:
            NotFoundError: there is no such file.
            FormatError, CorruptRecordError: with row and bytes.
        """
        limits = self._options.limits or DEFAULT_LIMITS
        with self._store.open(self._name) as file:
            try:
                compression = sniff_compression(bytes(file.read(0, min(12, file.size))))
                pieces = decode_stream(_pieces(file), compression, limits=limits)
                for payloads in iterate_payloads(pieces, limits=limits):
                    yield from payloads
            except ShardioError as error:
                raise error.located(url=self.url) from error

    @property
    def compression(self) -> Compression:
        """How the file is compressed, by its first bytes."""
        with self._store.open(self._name) as file:
            return sniff_compression(bytes(file.read(0, min(12, file.size))))

    def __len__(self) -> int:
        raise TypeError(self._sequential_only("has no length"))

    def __getitem__(self, item: object) -> bytes:
        raise TypeError(self._sequential_only("cannot be looked up by number"))

    def _sequential_only(self, what: str) -> str:
        return f"{self.url} has no index, so it {what}: iterate over it, or adopt it with `shardio index`"


def open_shard(
    url: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    verify: bool = True,
    limits: Limits | None = None,
) -> ShardReader | SequentialShard:
    """Open one TFRecord file.

    Args:
        url: of the file; its index, if there is one, lies beside it as `<name>.shardidx`.
        storage_options: as in fsspec.
        engine: None for the best at hand, "fsspec" or "obstore".
        verify: compare the checksum of every block before anything of it is returned.
        limits: upper bounds for sizes that the file claims, a `Limits`; None for those of the format.

    Returns:
        A `Sequence` of payloads where there is an index; else an iterable of payloads in order, and a
        warning that says so.

    Raises:
        NotFoundError: there is no such file.
        StaleIndexError: the index was made for another file, or the file changed since.
    """
    options = ReadOptions(
        storage_options=dict(storage_options) if storage_options else None,
        engine=engine,
        verify=verify,
        limits=limits,
    )
    name = url_text(url)
    if "/" not in name:
        name = f"./{name}"
    try:
        return ShardReader(_ShardSource(name, options))
    except NotFoundError:
        shard = SequentialShard(name, options)
        _ = shard.compression  # a file that is not there is found out here
    warnings.warn(f"{name} has no index: it can only be read in order", stacklevel=2)
    return shard


def _entry(store: Store, name: str, limits: Limits) -> ShardEntry:
    """Return a shard as a list of shards would describe it, from its index."""
    with store.open(usual_index_key(name)) as index:
        if index.size > limits.index:
            raise FormatError(
                "an index is over the limit", url=index.url, expected=limits.index, found=index.size
            )
        data = index.read(0, index.size)
        head = parse_head(data, url=index.url, limits=limits)
    # No list of shards has checksums of a single file: it is read, not mapped, and measured each time.
    return ShardEntry.of_index(head, split="shard", key=name, etag="alone")


def _pieces(file: DataFile) -> Iterator[bytes]:
    for start in range(0, file.size, _PIECE):
        yield bytes(file.read(start, min(start + _PIECE, file.size)))
