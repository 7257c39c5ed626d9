"""The shards of a split, opened when first needed and kept in a bounded number.

Opening reads the head of the index and compares it with the list of shards; nothing else is read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardio.errors import NotFoundError
from shardio.format import DEFAULT_LIMITS
from shardio.metadata import parse_deletions
from shardio.reader._heads import OpenIndex, begin_head
from shardio.reader._shard import OpenShard
from shardio.storage import BlockCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from shardio.metadata import IndexHead, ShardTable
    from shardio.reader._options import ReadOptions
    from shardio.reader._stats import ReadStats
    from shardio.storage import DataFile, Store

__all__ = ["ShardPool"]


class ShardPool:
    """Open shards by their number in a table; safe to share among threads and with forked children.

    There is no lock to be held when somebody forks: every step on the dict is atomic.

    Args:
        stores: by number of the data root; 0 is the dataset's own, where all indexes lie.
        table: the shards.
        options: of the reader.
        stats: counts what is read.
    """

    def __init__(
        self, stores: Mapping[int, Store], table: ShardTable, options: ReadOptions, stats: ReadStats
    ) -> None:
        self._stats = stats
        self._stores = stores
        self._table = table
        self._options = options
        self._limits = options.limits or DEFAULT_LIMITS
        self._cache = BlockCache(options.cache) if options.cache is not None else None
        self._open: dict[int, OpenShard] = {}
        self._deleted: dict[int, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        """Return how many shards are open now."""
        return len(self._open)

    def get(self, number: int) -> OpenShard:
        """Return a shard, opened.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the object.
        """
        shard = self._open.get(number)
        if shard is None:
            # Two threads may open it at once; the first one's checked bits are worth keeping.
            shard = self._open.setdefault(number, self._open_shard(number))
            if len(self._open) > self._options.max_open_shards:
                self._forget_oldest()
        return shard

    def url_of(self, number: int) -> str:
        """Return the URL of a shard's object."""
        return self._stores[int(self._table.root[number])].url_of(self._table.key[number])

    def deleted(self, number: int) -> NDArray[np.int64] | None:
        """Return the deleted rows of a shard, int64 ascending, or None where there are none."""
        if not self._table.deletion_key[number]:
            return None
        rows = self._deleted.get(number)
        if rows is None:
            entry = self._table[number]
            store = self._stores[0]
            url = store.url_of(entry.deletion_key)
            data = store.get(entry.deletion_key, max_bytes=self._limits.manifest)
            rows = self._deleted[number] = parse_deletions(data, entry, url=url)
        return rows

    def _forget_oldest(self) -> None:
        # Not closed: a thread may be reading from it. Its handles go with the last reference.
        # Another thread may change the dict between the two steps; then it has made room, too.
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):
            del self._open[next(iter(self._open))]

    def store_of(self, number: int) -> Store:
        """Return the store of the data root that a shard lies under."""
        return self._stores[int(self._table.root[number])]

    def open_index(self, number: int) -> tuple[DataFile, IndexHead]:
        """Return the index file of a shard, and its head, which is the one that the list of shards names.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the index.
        """
        opened = self._begin_index(number)()
        return opened.file, opened.head

    def prepare(self, numbers: Iterable[int]) -> None:
        """Open several shards; the heads of their indexes are fetched together."""
        waiting = [
            (number, self._begin_index(number))
            for number in dict.fromkeys(numbers)
            if number not in self._open
        ]
        if len(waiting) > 1:
            for number, wait in waiting:
                self._open.setdefault(number, self._open_shard(number, wait))
            while len(self._open) > max(self._options.max_open_shards, len(waiting)):
                self._forget_oldest()

    def _begin_index(self, number: int) -> Callable[[], OpenIndex]:
        return begin_head(self._stores[0], self._table[number], self._cache_of(0), self._limits, self._stats)

    def _cache_of(self, root: int) -> BlockCache | None:
        # What lies on local disk needs no copy there.
        return None if self._stores[root].is_local else self._cache

    def _open_shard(self, number: int, index_of: Callable[[], OpenIndex] | None = None) -> OpenShard:
        entry = self._table[number]
        index, head, frames = (index_of or self._begin_index(number))()
        try:
            data = self.store_of(number).open(entry.key, size=head.stored_bytes, stable=not entry.adopted)
        except NotFoundError as error:
            raise error.located(shard=entry.key) from error
        return OpenShard(
            entry.key,
            head,
            index,
            data,
            frames=frames,
            adopted=entry.adopted,
            verify=self._options.verify,
            limits=self._limits,
            stats=self._stats,
            cache=self._cache_of(entry.root),
        )
