"""Lists of shards or sessions on their way into a version: each content is stored once, under a new name.

An append merges the small lists at the end with its own, so that their sizes fall by more than `_RATIO` from
each to the next: their number grows with the logarithm of the number of shards, and a shard is written again
a few dozen times at most.  So it is with merged sessions, of which a manifest holds a few itself.

No version owns a list until a manifest names it, so garbage collection may doom it at any time before; then
it is stored again under another name, and the doomed name is never committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from shardio.catalog._catalog import Catalog
from shardio.metadata import ListRef, MergedSession, ShardTable, naming, pack_lists, seal_sessions
from shardio.storage import Store

LIST_SHARDS = 50_000  # in one list at most
_LIST_BYTES = 16 << 20  # and so many bytes, well below the limit
_SESSION_BYTES = 1 << 20  # of a list of sessions, so that its messages are within their limit, too
_SESSIONS = 64  # so many stand in a manifest at most, where no race was lost
_SESSION_SPLITS = 4096  # and name so many splits together
_RATIO = 8


class StoredLists:
    """The lists, and sidecars of deleted rows, that one commit has stored so far.

    Args:
        store: of the dataset.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[bytes, str] = {}

    def _put(self, key: Callable[[str], str], data: bytes, sha256: bytes) -> str:
        """Store a content under a new name, unless it is stored already; return its key."""
        if sha256 not in self._keys:
            name = key(naming.random_id() + naming.random_id())
            self._store.put_idempotent((name, data))
            self._keys[sha256] = name
        return self._keys[sha256]

    def put(self, data: bytes, sha256: bytes, count: int) -> ListRef:
        """Store a sealed list of so many items, unless it is stored already; return its reference.

        Raises:
            StorageError: the environment failed.
        """
        return ListRef(self._put(naming.list_key, data, sha256), len(data), sha256, count)

    def put_rows(self, data: bytes, sha256: bytes) -> str:
        """Store a sidecar of deleted rows, unless it is stored already; return its key.

        Raises:
            StorageError: the environment failed.
        """
        return self._put(naming.rows_key, data, sha256)

    def _put_shards(self, table: ShardTable) -> list[ListRef]:
        lists = pack_lists(table, most_shards=LIST_SHARDS, most_bytes=_LIST_BYTES)
        return [self.put(*each) for each in lists]

    def extend(
        self, catalog: Catalog, refs: Sequence[ListRef], table: ShardTable, *, merge: bool
    ) -> tuple[ListRef, ...]:
        """Store the lists of a version that has more shards than those of `refs`, and return all of them.

        Args:
            catalog: of the dataset; lists that are merged are read.
            refs: the lists of the version that this one follows, in order.
            table: the shards that come behind theirs.
            merge: small lists at the end may be merged with the new one.

        Raises:
            FormatError: a list to be merged is damaged.
            StorageError: the environment failed.
        """
        kept = list(refs)
        tail: list[ListRef] = []
        count, size = len(table), 0
        while merge and kept and kept[-1].shards <= _RATIO * count:
            count, size = count + kept[-1].shards, size + kept[-1].size
            if count > LIST_SHARDS or size > _LIST_BYTES:
                break
            tail.insert(0, kept.pop())
        if tail:
            table = ShardTable.concatenate([*catalog.store.concurrently(catalog.shards_of, tail), table])
        return (*kept, *self._put_shards(table))

    def edit(
        self, catalog: Catalog, refs: Sequence[ListRef], change: Callable[[ShardTable], ShardTable]
    ) -> tuple[tuple[ListRef, ...], ShardTable]:
        """Store the lists of a version whose shards differ from those of another, and return all of them.

        Args:
            catalog: of the dataset.
            refs: the lists of the version that this one follows, in order; all are read.
            change: takes the shards of one list and returns what is in their place: the same table where
                nothing changes, which keeps the list; an empty one drops it.

        Returns:
            The lists, and all shards that they hold.

        Raises:
            FormatError: a list is damaged.
            StorageError: the environment failed.
        """
        kept: list[ListRef] = []
        tables: list[ShardTable] = []
        for ref, old in zip(refs, catalog.store.concurrently(catalog.shards_of, refs), strict=True):
            new = change(old)
            tables.append(new)
            kept += [ref] if new is old else self._put_shards(new)
        return tuple(kept), ShardTable.concatenate(tables)

    def move_sessions(
        self, catalog: Catalog, refs: Sequence[ListRef], sessions: Sequence[MergedSession]
    ) -> tuple[tuple[ListRef, ...], tuple[MergedSession, ...]]:
        """Store the sessions of a manifest as a list where they are many; small lists are merged with it.

        Args:
            catalog: of the dataset; lists that are merged are read.
            refs: the lists of sessions that the manifest names, oldest first.
            sessions: those that stand in it.

        Returns:
            Lists and sessions of the version that follows, its own session aside.

        Raises:
            FormatError: a list to be merged is damaged.
            StorageError: the environment failed.
        """
        if len(sessions) < _SESSIONS and sum(len(each.rows) for each in sessions) < _SESSION_SPLITS:
            return tuple(refs), tuple(sessions)
        kept = list(refs)
        merged: list[ListRef] = []
        count, size = len(sessions), len(seal_sessions(sessions)[0])
        while kept and kept[-1].shards <= _RATIO * count and kept[-1].size + size <= _SESSION_BYTES:
            count, size = count + kept[-1].shards, size + kept[-1].size
            merged.insert(0, kept.pop())
        older = [
            each for part in catalog.store.concurrently(catalog.sessions_of, merged) for each in part.values()
        ]
        data, sha256 = seal_sessions([*older, *sessions])
        return (*kept, self.put(data, sha256, count)), ()

    def forget(self, doomed: Collection[str]) -> None:
        """Give up the lists and sidecars among some keys that garbage collection has doomed."""
        self._keys = {sha256: key for sha256, key in self._keys.items() if key not in doomed}
