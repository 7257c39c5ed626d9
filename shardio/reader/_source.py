"""Shards as one sequence, as this process sees them: where they are, and how records are decoded.

A source is what a reader, its slices and the streams over it share.  It pickles to an address of constant
size (URL, version, digest, split, options) and is built again from the manifest where it arrives; the version
is passed on, never looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Catalog, Version
from shardio.errors import StorageError
from shardio.format import DEFAULT_LIMITS, Compression, Framing
from shardio.metadata import Schema, ShardTable
from shardio.ranges import distinct
from shardio.reader._options import ReadOptions, ReadStats
from shardio.reader._pool import ShardPool
from shardio.redact import redact
from shardio.storage import Store, connect


class Location(NamedTuple):
    """Where a record is.

    Attributes:
        url: of the shard's object.
        shard: key of the shard.
        row: number of the record within the shard.
        start, stop: half-open byte range of its frame: in the stored object where the shard is not
            compressed, else in the decoded bytes of its block.
    """

    url: str
    shard: str
    row: int
    start: int
    stop: int


class ShardSource:
    """Shards that are read as one sequence; what readers, slices and streams share.

    Attributes:
        url: of the dataset or shard.
        table: the shards, in order.
        stops: int64[shards], live rows in this and all earlier shards.
        pool: the shards, opened when needed.
        options: of the reader.
        stats: what reading has done so far in this process.
        schema: what a record holds, or None where records are bytes.
        is_local: all bytes are in local files.
        metadata: the free metadata of the version.
    """

    def __init__(
        self,
        url: str,
        table: ShardTable,
        stores: Mapping[int, Store],
        options: ReadOptions,
        schema: Schema | None,
        *,
        version: Version | None = None,
    ) -> None:
        self.url = url
        self.metadata = {} if version is None else version.manifest.metadata
        self.table = table
        self.options = options
        self.schema = schema
        self.stats = ReadStats()
        self.is_local = all(store.is_local for store in stores.values())
        self.stops: NDArray[np.int64] = table.row_stops()
        self.pool = ShardPool(stores, table, options, self.stats, version)

    @property
    def is_plain_local(self) -> bool:
        """Whether all shards are files of this dataset on a local disk, not compressed."""
        return self._is_own_local and bool((self.table.compression == Compression.NONE.value).all())

    @property
    def has_local_blocks(self) -> bool:
        """Whether all shards are files of this dataset on a local disk, whose blocks are read one by one."""
        return self._is_own_local and not bool((self.table.compression == Compression.ZLIB.value).any())

    @property
    def _is_own_local(self) -> bool:
        framed = bool((self.table.framing == Framing.TFRECORD.value).all())
        return self.is_local and framed and not (self.table.root.any() or self.table.holds("etag"))

    @property
    def is_mapped(self) -> bool:
        """Whether reading any record is a look into mapped memory."""
        return self.options.mmap and self.is_plain_local

    def __len__(self) -> int:
        """Return the number of live records."""
        return int(self.stops[-1]) if len(self.stops) else 0

    def __copy__(self) -> Self:
        # Not by `__reduce__`, which opens the dataset again.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @cached_property
    def codec(self) -> Any:
        """What turns payloads into values; None where records stay bytes."""
        codec = self._codec()
        if not self.options.functions:
            return codec
        from shardio.codecs import MappedCodec

        return MappedCodec(codec, self.options.functions)

    def _codec(self) -> Any:
        options = self.options
        images = options.images
        if not isinstance(options.decode, bool) and images is None:
            return options.decode
        if self.schema is None and images is not None:
            raise ValueError(
                f'{redact(self.url)}: decode="image" needs a schema that says which features are images, and '
                "this dataset has none"
            )
        if options.decode is not False:
            from shardio.reader._foreign import foreign_codec

            framings = self._value_framings
            if self.schema is None and framings == {int(Framing.LINES)}:
                self._refuse_features()
            found = foreign_codec(framings, self.schema, features=options.features, images=images)
            if found is not None:
                return found
        if self.schema is None:
            self._refuse_features()
        if self.schema is None or options.decode is False:
            return None
        from shardio.codecs import record_codec

        return record_codec(self.schema, features=options.features, images=images)

    @property
    def _value_framings(self) -> set[int]:
        """The framings that say what records are; converted lines of text are read as lines."""
        from shardio.reader._foreign import TEXT_METADATA

        if self.schema is None and self.metadata.items() >= TEXT_METADATA.items():
            return {int(Framing.LINES)}
        return set(self.table.framing.tolist())

    def _refuse_features(self) -> None:
        if self.options.features is not None:
            raise ValueError("features= needs a schema, and this dataset has none")

    @property
    def holds_objects(self) -> bool:
        """Whether the bytes of records are not payloads: tar samples or JSON objects."""
        from shardio.reader._foreign import holds_objects

        return holds_objects(self.table.framing.tolist(), self.schema)

    @property
    def values_without_schema(self) -> str:
        """What records are where there is no schema, in a word or two."""
        kinds = self._value_framings
        if self.options.decode is False or len(kinds) != 1:
            return "bytes"
        names = {Framing.TAR_SAMPLE.value: "members of samples", Framing.LINES.value: "text"}
        return names.get(kinds.pop(), "bytes")

    def shard_of(self, position: int) -> tuple[int, int]:
        """Return the shard's number in the table and the physical row of a position."""
        number = int(np.searchsorted(self.stops, position, side="right"))
        live = position - (int(self.stops[number - 1]) if number else 0)
        return number, int(self.pool.physical_rows(number, range(live, live + 1))[0])

    def rows_at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of each position's shard in the table, and its physical row there; int64."""
        shards = np.searchsorted(self.stops, positions, side="right")
        rows = positions - (self.stops - self.table.live_rows)[shards]
        for number in distinct(shards).tolist() if self.pool.has_deletions else ():
            own = shards == number
            rows[own] = self.pool.physical_rows(number, rows[own])
        return shards, rows

    def locate(self, position: int) -> Location:
        """Return where a position is; reads the shard's index and not the record."""
        number, row = self.shard_of(position)
        start, stop = self.pool.get(number).locate(row)
        return Location(self.pool.url_of(number), self.table.key[number], row, start, stop)


class DatasetSource(ShardSource):
    """A split of a version of a dataset.

    Attributes:
        version: the version, resolved once and kept.
        split: name of the split, or "all".
        pinned: the version was named, or told by the process that resolved it; not looked up here.

    A caller that has read the lists of the version gives them as `table`, the shards of all splits.
    """

    def __init__(
        self,
        store: Store,
        version: Version,
        split: str | None,
        options: ReadOptions,
        *,
        pinned: bool,
        table: ShardTable | None = None,
    ) -> None:
        self.pinned = pinned
        names = [total.name for total in version.manifest.splits]
        self.version = version
        self.split = choose_split(names, split, store.url)
        everything = (
            Catalog(store, limits=options.limits or DEFAULT_LIMITS).table(version) if table is None else table
        )
        chosen = names if self.split == "all" else [name for name in names if name == self.split]
        table = ShardTable.concatenate([everything.of_split(name) for name in chosen])
        stores = root_stores(store, version.manifest.roots, table, options)
        manifest = version.manifest
        super().__init__(
            store.url, table, stores, options, manifest.schema,
            version=version,
        )  # fmt: skip

    @classmethod
    def resolve_each(
        cls,
        url: str,
        split: str | None,
        options: ReadOptions,
        *,
        version: int | str | None = None,
        digest: str | None = None,
    ) -> list[DatasetSource]:
        """Open a split of the version asked for, or of the latest; each of them for None, "train" first."""
        store = _connect(url, options)
        catalog = Catalog(store, limits=options.limits or DEFAULT_LIMITS)
        pinned = version is not None or digest is not None

        def read(found: Version) -> list[DatasetSource]:
            names = [total.name for total in found.manifest.splits]
            if split is not None or len(names) < 2:
                return [cls(store, found, split, options, pinned=pinned)]
            names.sort(key=lambda name: (name != "train", name))
            table = catalog.table(found)
            return [cls(store, found, name, options, pinned=pinned, table=table) for name in names]

        return catalog.reading(read, version, digest=digest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle to an address; the other side reads the manifest again and compares its digest."""
        return _reopen, (self.url, self.version.number, self.version.digest, self.split, self.options)


def reopen(source: DatasetSource, number: int, digest: str) -> DatasetSource:
    """Return the same split at a version that another process has resolved."""
    return _reopen(source.url, number, digest, source.split, source.options)


def _reopen(url: str, number: int, digest: str, split: str, options: ReadOptions) -> DatasetSource:
    store = _connect(url, options)
    version = Catalog(store, limits=options.limits or DEFAULT_LIMITS).load(
        number, digest=digest, known_live=True
    )
    return DatasetSource(store, version, split, options, pinned=True)


def _connect(url: str, options: ReadOptions) -> Store:
    return connect(url, storage_options=options.storage_options, engine=options.engine)


def choose_split(names: list[str], wanted: str | None, url: str) -> str:
    """Return the split that a caller means; "all" stands for all of them.

    Raises:
        ValueError: names the splits there are.
    """
    if wanted is None:
        if len(names) > 1:
            raise several_splits(url, names)
        return names[0] if names else "all"
    if wanted != "all" and wanted not in names:
        raise ValueError(
            f"{redact(url)} has no split {wanted!r}; it has {', '.join(map(repr, names)) or 'none'}"
        )
    return wanted


def several_splits(url: str, names: Sequence[str]) -> ValueError:
    """Return the error for a dataset of several splits of which one is meant."""
    return ValueError(
        f'{redact(url)} has several splits, choose one with split=: {", ".join(names)}, or "all"'
    )


def root_stores(
    store: Store, roots: Mapping[int, str], table: ShardTable, options: ReadOptions
) -> Mapping[int, Store]:
    """Return the stores of the data roots (URLs by number) of some shards; foreign ones must be allowed."""
    stores = {0: store}
    allowed = {url.rstrip("/"): (url, given) for url, given in options.allow_roots.items()}
    for number in sorted(set(table.root.tolist()) - {0}):
        root = roots[number]
        if root.rstrip("/") not in allowed:
            raise StorageError(
                "the shards of this dataset are elsewhere, and that place is not allowed",
                url=store.url,
                found=root,
                advice=f"if you trust it, open with allow_roots={{{root!r}: {{}}}}, storage_options as value",
            )
        url, given = allowed[root.rstrip("/")]
        stores[number] = connect(url, storage_options=dict(given or {}), engine=options.engine)
    return stores
