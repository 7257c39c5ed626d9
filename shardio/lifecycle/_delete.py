"""Take records out of a dataset: rows of shards become tombstones in a new version.

What is deleted is a row of a shard.  Positions are those of one version, resolved once; whatever others
commit meanwhile, no other record than the one that was meant is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError, FormatError
from shardio.lifecycle._change import commit_change
from shardio.lifecycle._report import DeleteReport, records_of
from shardio.lifecycle._targets import Targets, find_targets, shards_of
from shardio.metadata import ListRef, Manifest, ShardEntry, ShardTable
from shardio.reader import deleted_rows
from shardio.storage import Address, Place


@checked_options
def delete(  # noqa: PLR0913 - the options are the public contract
    url: Place,
    positions: ArrayLike | Iterable[int] | None = None,
    *,
    where: str | Callable[[dict[str, Any]], Any] | NDArray[np.bool_] | None = None,
    keys: Sequence[Any] | None = None,
    feature: str | None = None,
    split: str | None = None,
    version: int | str | None = None,
    features: Sequence[str] | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[Any], None] = False,
) -> DeleteReport:
    """Delete records, in a new version; earlier versions keep them.

    The records are gone from lengths, lookups, streams, exports and verification of the new version and all
    that follow it. Their bytes stay in the shards, for earlier versions; `shardio.erase` removes them for
    good.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        positions: of the records, integers from 0 as `ds[i]` takes them, each once, in any order.
        where: a condition, as `ds.filter` takes it: text such as `"label = 3"`, `f(columns)` that returns a
            bool for each record, or a mask, bool [records].
        keys: of the records, each once, as `ds.find` takes them; all records that have one of them are meant.
        feature: which feature's keys these are; None for the only one with an index of keys.
        split: which positions count: of one split; of the only one by default; of "all", joined.
        version: whose positions are meant, a number or a tag; None for the latest.
        features: which are read for `where`.
        dry_run: change nothing, only say what would be deleted.
        progress: True for a display on stderr, or a function of how far it has come: `done` and `total`,
            records that `where` has looked at.

    Returns:
        The report; `version` is None where there was nothing to delete.

    Raises:
        IndexError: a position is out of range.
        ValueError, TypeError: a position is negative or is there twice, there is no such split, or not
            exactly one of `positions`, `where` and `keys` is given.
        NotFoundError: there is no dataset, no such version, no record has one of the keys, or there is no
            index of keys.
        CommitConflictError: a record is deleted already in a later version, or its shard is no longer part of
            the dataset: it was compacted, erased or overwritten.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> _ = shardio.from_generator(({"n": n} for n in range(10)), url)
        >>> shardio.delete(url, [3, 5]).deleted
        2
        >>> report = shardio.delete(url, where=lambda columns: columns["n"] > 6, features=["n"])
        >>> report.version, [int(row["n"]) for row in shardio.open(url)]
        (3, [0, 1, 2, 4, 6])
    """
    catalog = Catalog(Address.of(url).connect())

    read, targets = find_targets(
        catalog,
        url,
        positions,
        where=where,
        keys=keys,
        feature=feature,
        split=split,
        version=version,
        features=features,
        progress=progress,
    )
    change = _Deletion(catalog, targets, read.number, strict=positions is not None)
    number = None
    if dry_run or not targets:
        catalog.reading(change.count)
    else:
        committed = commit_change(catalog, change, operation="delete", seen=catalog.load())
        number = committed.number if change.deleted else None
    # Once committed nothing is read any more: what fails then would look as if nothing had happened.
    before = records_of(change.base.manifest)
    return DeleteReport(
        url=catalog.store.url,
        operation="delete",
        dry_run=dry_run,
        version=number,
        base_version=change.base.number,
        before=before,
        after={name: count - change.by_split.get(name, 0) for name, count in before.items()},
        read_version=read.number,
        deleted=change.deleted,
        already_deleted=change.already,
        shards=change.by_shard,
    )


class _Deletion:
    """Tombstones on their way into a version; builds the manifest again after each lost race.

    Args:
        catalog: of the dataset.
        targets: what is to be deleted.
        read_version: in which they were found.
        strict: what is deleted already is refused; else it is counted.
    """

    def __init__(self, catalog: Catalog, targets: Targets, read_version: int, *, strict: bool) -> None:
        self._catalog = catalog
        self._targets = targets
        self._read_version = read_version
        self._strict = strict

    def __call__(self, base: Version, lists: StoredLists) -> Manifest | None:
        return self._build(base, lists)

    def count(self, base: Version) -> None:
        """Find out what would be deleted, and store nothing."""
        self._build(base, None)

    def _build(self, base: Version, lists: StoredLists | None) -> Manifest | None:
        self.base = base
        self.deleted = self.already = 0
        self.by_split: dict[str, int] = {}
        self.by_shard: dict[str, int] = {}
        table = self._catalog.table(base)
        numbers = {shard: i for i, shard in enumerate(shards_of(base, table)) if shard in self._targets}
        missing = [shard for shard in self._targets if shard not in numbers]
        if missing:
            raise CommitConflictError(
                f"{len(missing)} of the shards with the records to delete are no longer part of the dataset",
                url=self._catalog.store.url,
                expected=f"the shards of version {self._read_version}",
                found=f"version {base.number} without {missing[0].key}",
                advice="they were compacted, erased or overwritten (`shardio log`): look the records up in "
                "the latest version, and delete them there",
            )
        changed = {}
        for shard, rows in self._targets.items():
            after = self._deleted_after(base, table[numbers[shard]], rows)
            if after is not None:
                changed[numbers[shard]] = after
        if lists is None or not changed:
            return None
        refs, table = _with_deletions(self._catalog, base, changed, lists)
        return replace(base.manifest, lists=refs, splits=tuple(table.totals().values()), deletions=True)

    def _deleted_after(
        self, base: Version, entry: ShardEntry, rows: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return all deleted rows of a shard after this deletion, or None where it changes nothing."""
        before = deleted_rows(self._catalog.store, entry, self._catalog.limits)
        after = np.union1d(before, rows)
        again = len(before) + len(rows) - len(after)
        if again and self._strict:
            raise CommitConflictError(
                f"{again} of the records to delete are deleted already in version {base.number}",
                url=self._catalog.store.url,
                shard=entry.key,
                row=int(np.intersect1d(before, rows)[0]),
                expected=f"the records of version {self._read_version}",
                advice="leave them out; positions of the latest version name what is still there",
            )
        self.already += again
        new = len(rows) - again
        if not new:
            return None
        most = self._catalog.limits.manifest // 4
        if len(after) > most:
            raise FormatError(
                "more rows of a shard are deleted than its sidecar may hold",
                url=self._catalog.store.url,
                shard=entry.key,
                expected=f"at most {most} rows",
                found=len(after),
                advice="delete in parts, with `shardio compact` between them, which leaves out what is "
                "deleted",
            )
        self.deleted += new
        self.by_split[entry.split] = self.by_split.get(entry.split, 0) + new
        self.by_shard[entry.key] = new
        return after


def _with_deletions(
    catalog: Catalog, base: Version, changed: Mapping[int, NDArray[np.int64]], lists: StoredLists
) -> tuple[tuple[ListRef, ...], ShardTable]:
    """Return lists and shards of a version in which other rows are deleted; sidecars are stored.

    Args:
        catalog: of the dataset.
        base: the version before.
        changed: all deleted rows by the number of their shard in the version.
        lists: which store.
    """
    first = 0

    def change(table: ShardTable) -> ShardTable:
        nonlocal first
        begin, first = first, first + len(table)
        numbers = [number for number in changed if begin <= number < first]
        if not numbers:
            return table
        deleted_rows = table.deleted_rows.copy()
        sha256, keys = table.deletion_sha256.copy(), list(table.deletion_key)
        for number in numbers:
            data = changed[number].astype("<u4").tobytes()
            digest = hashlib.sha256(data).digest()
            i = number - begin
            keys[i] = lists.put_rows(data, digest)
            deleted_rows[i] = len(changed[number])
            sha256[i] = np.frombuffer(digest, np.uint8)
        return table.with_columns(deleted_rows=deleted_rows, deletion_key=keys, deletion_sha256=sha256)

    return lists.edit(catalog, base.manifest.lists, change)
