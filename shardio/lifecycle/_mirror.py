"""Objects by the digests that name them: fetched from a mirror, proven, put back where they were.

Promises: nothing is stored before it was compared with its digest; missing and damaged objects get their
exact bytes back under their own names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from shardio.errors import CommitConflictError, FormatError, NotFoundError, StaleIndexError, UnsafeNameError
from shardio.format import DEFAULT_LIMITS
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.storage import ShortReadError, Store, connect, read_intact

T = TypeVar("T")

_PIECE = 8 << 20
# What says that an object is not the one that is looked for. That a place cannot be read says nothing, and
# ends the repair: for want of a mirror's answer no record is given up.
WRONG = (FormatError, StaleIndexError, UnsafeNameError, NotFoundError, ShortReadError)


@dataclass(frozen=True)
class Named(Generic[T]):
    """An object that another one names by a digest.

    Attributes:
        what: "manifest", "list", "keys", "shard", "index", "deletions" or "table".
        key: its name.
        read: returns what it holds in a store; raises one of `WRONG` where it is not the one.
        most_bytes: that it may have.
    """

    what: str
    key: str
    read: Callable[[Store], T]
    most_bytes: int = DEFAULT_LIMITS.index


class Restorer:
    """Puts objects of a dataset back, or reports what it would.

    Args:
        store: of the dataset.
        mirror: of a copy; None for none.
        folder: for what was fetched.
        out: takes what was done.
        dry_run: store nothing.
    """

    def __init__(
        self, store: Store, mirror: Store | None, folder: str, out: Repairs, *, dry_run: bool
    ) -> None:
        self.store, self.mirror, self.out, self.dry_run = store, mirror, out, dry_run
        self.folder, self.copies = Path(folder), connect(folder)

    def path_of(self, key: str) -> Path:
        """Return the path of the copy of an object."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def fetch(self, named: Named[T]) -> T | None:
        """Copy an object of the mirror and return what it holds; None where the mirror hasn't it.

        Raises:
            StorageError: the mirror does not answer.
        """
        mirror = self.mirror
        if mirror is None:
            return None

        def read() -> T:
            with mirror.open(named.key) as data, self.path_of(named.key).open("wb") as file:
                if data.size > named.most_bytes:
                    raise FormatError("an object of the mirror is too large", found=data.size)
                for piece in data.pieces(_PIECE):
                    file.write(piece)
            return named.read(self.copies)

        with suppress(*WRONG):
            return read_intact(read)
        return None

    def put(self, named: Named[T], *, missing: bool, new_key: str = "", source: str = "mirror") -> None:
        """Store the copy of an object under a new name, or under its own in the place of a damaged object.

        Raises:
            CommitConflictError: another object was stored under the name of one that was missing.
            StorageError: it was not stored, or that is not known.
        """
        key, path = new_key or named.key, self.path_of(named.key)
        if self.dry_run:
            pass
        elif not missing and not new_key:
            # The name is never free: a damaged object is there until its bytes are.
            self.store.overwrite(key, path)
        elif not self.store.put_idempotent((key, path)):
            try:
                named.read(self.store)
            except WRONG as error:
                raise CommitConflictError(
                    "another object was stored under the name of one that was missing",
                    url=self.store.url_of(key),
                    advice="run it again",
                ) from error
        if not self.dry_run:
            (self.out.new_keys if new_key else self.out.restored_keys).append(key)
        self.out.repaired.append(
            Repaired(
                how="rebuilt" if source == "shard" else "restored",
                what=named.what,
                url=self.store.url_of(named.key),
                by=None if self.dry_run else key,
                source=source,
            )
        )

    def restore(self, named: Named[T], *, missing: bool) -> T | None:
        """Put an object back from the mirror; return what it holds, None where the mirror hasn't it."""
        found = self.fetch(named)
        if found is not None:
            self.put(named, missing=missing)
        return found
