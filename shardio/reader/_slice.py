"""Shards of one version as they travel to a worker, which opens them without asking for the version again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardio.catalog import Version
from shardio.metadata import Schema, ShardEntry, ShardTable
from shardio.reader._options import ReadOptions
from shardio.reader._source import ShardSource, root_stores
from shardio.storage import connect


@dataclass(frozen=True)
class Slice:
    """Some shards of a version; picklable, and good after the version has expired.

    Attributes:
        url: of the dataset.
        shards: the shards themselves.
        options: how they are read.
        number: of the first shard in the version.
        schema, roots: of the version.
        extra: what else the worker needs to know.
    """

    url: str
    shards: ShardTable
    options: ReadOptions
    number: int = 0
    schema: Schema | None = None
    roots: Mapping[int, str] | None = None
    extra: Any = None

    @classmethod
    def of_version(
        cls,
        url: str,
        version: Version,
        shards: ShardTable,
        options: ReadOptions,
        *,
        number: int = 0,
        extra: Any = None,
    ) -> Slice:
        """Return some shards of a version."""
        manifest = version.manifest
        return cls(url, shards, options, number, manifest.schema, manifest.roots, extra)

    @property
    def entry(self) -> ShardEntry:
        """The first shard."""
        return self.shards[0]

    @property
    def label(self) -> str:
        """What a worker reads, for an error."""
        return "a shard"

    @property
    def size(self) -> int:
        """Stored bytes of the shards, as progress counts them."""
        return int(self.shards.stored_bytes.sum())

    def open(self) -> ShardSource:
        """Return the shards as a source of their own.

        Raises:
            StorageError: a data root is not allowed.
        """
        options = self.options
        store = connect(self.url, storage_options=options.storage_options, engine=options.engine)
        stores = root_stores(store, self.roots or {}, self.shards, options)
        return ShardSource(
            self.url,
            self.shards,
            stores,
            options,
            self.schema,
        )


def slices(
    url: str, version: Version, table: ShardTable, options: ReadOptions, numbers: Iterable[int] | None = None
) -> Iterator[Slice]:
    """Yield a slice for each shard of a version, or for some by number."""
    for number in range(len(table)) if numbers is None else numbers:
        shard = table.take(np.array([number]))
        yield Slice.of_version(url, version, shard, options, number=number)
