"""Splits as a whole: removed or renamed, without touching a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError
from shardio.lifecycle._report import Change, ChangeReport, make_change, records_of
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
    names = records_of(catalog.load().manifest)
    choose_split(list(names), split, catalog.store.url)
    if new in names:
        message = f"{catalog.store.url} has a split {new!r} already; choose another name, or remove that one"
        raise ValueError(message)

    def plan(base: Version) -> Change:
        before = records_of(base.manifest)
        if split not in before or new in before:
            raise CommitConflictError(
                f"another writer changed the splits while {split!r} was to be changed",
                url=catalog.store.url,
                found=f"splits {', '.join(before) or 'none'}",
                advice="look at what came in between (`shardio log`), then do it again",
            )

        def follow(lists: StoredLists) -> Manifest:
            refs, table = lists.edit(catalog, base.manifest.lists, change)
            splits, deletions = tuple(table.totals().values()), table.holds("deletion_key")
            return replace(base.manifest, lists=refs, splits=splits, deletions=deletions)

        after = {new if name == split else name: count for name, count in before.items()}
        return Change(base, follow, {name: after[name] for name in sorted(filter(None, after))})

    return ChangeReport(**make_change(catalog, plan, operation=operation, dry_run=dry_run))
