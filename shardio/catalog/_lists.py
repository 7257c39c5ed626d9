"""Lists of shards on their way into a version: each content is stored once, under a name of its own.

A list is nobody's until a manifest names it, so garbage collection may doom it at any time before; then it is
stored again under another name, and the doomed name is never committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.errors import StorageError
from shardio.metadata import ListRef, list_key, random_id
from shardio.storage import NotDurableError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardio.storage import Store

__all__ = ["StoredLists"]

_MAX_PUTS = 5


class StoredLists:
    """The lists that one commit has stored so far.

    Args:
        store: of the dataset.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refs: dict[bytes, ListRef] = {}

    def put(self, data: bytes, sha256: bytes, shards: int) -> ListRef:
        """Store a sealed list, unless it is stored already, and return what a manifest says of it.

        Raises:
            StorageError: the environment failed.
        """
        if sha256 not in self._refs:
            key = list_key(random_id() + random_id())
            self._put_new(key, data)
            self._refs[sha256] = ListRef(key, len(data), sha256, shards)
        return self._refs[sha256]

    def forget(self, doomed: Collection[str]) -> None:
        """Give up the lists among some keys that garbage collection has doomed."""
        self._refs = {sha256: ref for sha256, ref in self._refs.items() if ref.key not in doomed}

    def _put_new(self, key: str, data: bytes) -> None:
        # The name is random: a lost reply is settled by putting it again.
        for _ in range(_MAX_PUTS):
            try:
                self._store.put_new(key, data)
            except NotDurableError:
                raise
            except UnknownOutcomeError:
                continue
            return
        what = "an object could not be stored: no answer came back"
        raise StorageError(what, url=self._store.url_of(key))
