"""Take records out of a dataset: rows of shards become tombstones in a new version.

What is deleted is a row of a shard.  Positions are those of one version, resolved once; whatever others
commit meanwhile, no other record than the one that was meant is deleted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError, FormatError
from shardio.lifecycle._report import Change, DeleteReport, make_change, records_of
from shardio.lifecycle._targets import Targets, find_targets, numbers_of
from shardio.metadata import Manifest, ShardTable
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

    def plan(base: Version) -> Change:
        deletion = _Deletion(catalog, base, targets, read, strict=positions is not None)
        deleted = deletion.by_split.total()
        before = records_of(base.manifest)
        facts = {
            "read_version": read.number,
            "deleted": deleted,
            "already_deleted": sum(map(len, targets.values())) - deleted,
            "shards": deletion.by_shard,
        }
        after = {name: count - deletion.by_split[name] for name, count in before.items()}
        return Change(base, deletion.manifest, after, facts)

    return DeleteReport(**make_change(catalog, plan, operation="delete", dry_run=dry_run))


class _Deletion:
    """What a deletion changes in a version.

    Args:
        catalog: of the dataset.
        base: the version.
        targets: what is to be deleted.
        read: the version in which they were found.
        strict: what is deleted already is refused.

    Attributes:
        rows: all deleted rows afterwards, by number of the shard.
        by_split, by_shard: how many records are deleted now.
    """

    def __init__(
        self, catalog: Catalog, base: Version, targets: Targets, read: Version, *, strict: bool
    ) -> None:
        self._base, self._catalog = base, catalog
        self.rows: dict[int, NDArray[np.int64]] = {}
        self.by_split = Counter[str]()
        self.by_shard: dict[str, int] = {}
        table = catalog.table(base)
        advice = (
            "they were compacted, erased or overwritten (`shardio log`): look the records up in "
            "the latest version, and delete them there"
        )
        most = catalog.limits.manifest // 4
        for shard, number in numbers_of(catalog, base, table, targets, read, advice=advice).items():
            entry, rows = table[number], targets[shard]
            before = deleted_rows(catalog.store, entry, catalog.limits)
            after = np.union1d(before, rows)
            again = len(before) + len(rows) - len(after)
            if again and strict:
                raise CommitConflictError(
                    f"{again} of the records to delete are deleted already in version {base.number}",
                    url=catalog.store.url,
                    shard=entry.key,
                    row=int(np.intersect1d(before, rows)[0]),
                    expected=f"the records of version {read.number}",
                    advice="leave them out; positions of the latest version name what is still there",
                )
            if again == len(rows):
                continue
            if len(after) > most:
                raise FormatError(
                    "more rows of a shard are deleted than its sidecar may hold",
                    url=catalog.store.url,
                    shard=entry.key,
                    expected=f"at most {most} rows",
                    found=len(after),
                    advice="delete in parts, with `shardio compact` between them, which leaves out what is "
                    "deleted",
                )
            self.rows[number] = after
            self.by_shard[entry.key] = len(rows) - again
            self.by_split[entry.split] += len(rows) - again

    def manifest(self, lists: StoredLists) -> Manifest | None:
        """Return the manifest that follows, None where nothing is deleted; sidecars are stored."""
        if not self.rows:
            return None
        first = 0

        def change(table: ShardTable) -> ShardTable:
            nonlocal first
            begin, first = first, first + len(table)
            numbers = [number for number in self.rows if begin <= number < first]
            if not numbers:
                return table
            counts, sha256 = table.deleted_rows.copy(), table.deletion_sha256.copy()
            keys = list(table.deletion_key)
            for number in numbers:
                data = self.rows[number].astype("<u4").tobytes()
                digest, i = hashlib.sha256(data).digest(), number - begin
                keys[i] = lists.put_rows(data, digest)
                counts[i] = len(self.rows[number])
                sha256[i] = np.frombuffer(digest, np.uint8)
            return table.with_columns(deleted_rows=counts, deletion_key=keys, deletion_sha256=sha256)

        refs, table = lists.edit(self._catalog, self._base.manifest.lists, change)
        return replace(self._base.manifest, lists=refs, splits=tuple(table.totals().values()), deletions=True)
