"""Splits as a whole: removed or renamed, without touching a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version, commit_change
from shardio.errors import CommitConflictError
from shardio.lifecycle._report import ChangeReport, change_facts, records_of
from shardio.metadata import Manifest, ShardTable, naming
from shardio.reader import choose_split
from shardio.storage import Address, Place


@checked_options
def remove_split(
    url: Place,
    split: str,
    *,
    dry_run: bool = False,
) -> ChangeReport:
    """Take a whole split out of a dataset, in a new version; earlier versions keep it.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        split: its name.
        dry_run: change nothing, only say what would be left.

    Raises:
        ValueError: there is no such split.
        NotFoundError: there is no dataset.
        CommitConflictError: another writer removed or renamed it meanwhile.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.
    """
    naming.check_split(split)

    def change(table: ShardTable) -> ShardTable:
        stays = np.array([name != split for name in table.split], bool)
        return table if stays.all() else table.take(np.flatnonzero(stays))

    return _change_splits(url, "remove split", split, change, None, dry_run)


@checked_options
def rename_split(
    url: Place,
    split: str,
    name: str,
    *,
    dry_run: bool = False,
) -> ChangeReport:
    """Give a split another name, in a new version; earlier versions keep the old one.

    Shards keep the names of their objects, in which the old name stays to be seen.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        split: its name.
        name: the new one.
        dry_run: change nothing, only say what would be there.

    Raises:
        ValueError: there is no such split, or one of the new name already.
        UnsafeNameError: the new name is none for a split.
        NotFoundError: there is no dataset.
        CommitConflictError: another writer removed or renamed it, or took the new name meanwhile.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.
    """
    naming.check_split(split)
    naming.check_split(name)

    def change(table: ShardTable) -> ShardTable:
        if split not in table.split:
            return table
        return table.with_columns(split=[name if each == split else each for each in table.split])

    return _change_splits(url, "rename split", split, change, name, dry_run)


def _change_splits(
    url: Place,
    operation: str,
    split: str,
    change: Callable[[ShardTable], ShardTable],
    new: str | None,
    dry_run: bool,  # noqa: FBT001 - passed on
) -> ChangeReport:
    catalog = Catalog(Address.of(url).connect())
    latest = catalog.load()
    before = records_of(latest.manifest)
    choose_split(list(before), split, catalog.store.url)
    if new in before:
        message = f"{catalog.store.url} has a split {new!r} already; choose another name, or remove that one"
        raise ValueError(message)

    def build(base: Version, lists: StoredLists) -> Manifest:
        names = [total.name for total in base.manifest.splits]
        if split not in names or new in names:
            raise CommitConflictError(
                f"another writer changed the splits while {split!r} was to be changed",
                url=catalog.store.url,
                found=f"splits {', '.join(names) or 'none'}",
                advice="look at what came in between (`shardio log`), then do it again",
            )
        refs, table = lists.edit(catalog, base.manifest.lists, change)
        return replace(
            base.manifest,
            lists=refs,
            splits=tuple(table.totals().values()),
            deletions=table.holds("deletion_key"),
        )

    number = None if dry_run else commit_change(catalog, build, operation=operation, seen=latest).number
    after = {name if name != split or new is None else new: count for name, count in before.items()}
    if new is None:
        del after[split]
    after = dict(sorted(after.items()))
    facts = change_facts(catalog, operation, latest, number, before=before, after=after, dry_run=dry_run)
    return ChangeReport(**facts)
