"""Erase records for good: shards are rewritten without them, and versions that hold them expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError, NotFoundError, StorageError
from shardio.format import Framing
from shardio.lifecycle._change import commit_change
from shardio.lifecycle._report import DeleteReport, change_facts, records_of
from shardio.lifecycle._rewrite import Group, Rewriting, block_bytes_of, write_groups
from shardio.lifecycle._targets import Targets, shards_of
from shardio.metadata import ListRef, Manifest, ShardEntry, ShardTable, live_to_physical, naming
from shardio.progress import displayed
from shardio.reader import deleted_rows
from shardio.storage import BlockCache, CacheOptions

# Rows of shards, int64, ascending, by UUID; None for all that may be.
Rows: TypeAlias = "dict[bytes, NDArray[np.int64] | None]"
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class EraseReport(DeleteReport):
    """What `delete(erase=True)` did, or would do.

    Attributes:
        expired_versions: versions that hold the records, and are expired (or would be).
        dropped_tags: tags of these versions, with their numbers.
        pending_gc: objects that hold bytes of the records until `shardio gc`, with their sizes in bytes.
        external_copies: URLs of objects that others wrote and that hold bytes of the records.
    """

    expired_versions: tuple[int, ...] = ()
    dropped_tags: Mapping[str, int] = field(default_factory=dict)
    pending_gc: Mapping[str, int] = field(default_factory=dict)
    external_copies: tuple[str, ...] = ()


def erase(  # noqa: PLR0913 - those of `delete`
    catalog: Catalog,
    targets: Targets,
    read: Version,
    latest: Version,
    *,
    drop_tags: bool,
    dry_run: bool,
    cache: CacheOptions | None,
    executor: Executor | None,
    progress: bool | Callable[[Any], None],
    allow_roots: Mapping[str, Mapping[str, Any]] | None,
    storage_options: Mapping[str, Any] | None,
) -> EraseReport:
    """Erase rows of shards for good; see `delete`.

    Args:
        catalog: of the dataset.
        targets: the rows, by shard.
        read: the version in which they were found.
        latest: the latest version.
        drop_tags: tags of versions that hold them may go.
        dry_run: change nothing.
        cache: of blocks on local disk, to be emptied.
        executor: where shards are rewritten; None for this process.
        progress: shows how many records were looked at.
        storage_options: of the dataset's filesystem, for the processes that write.
    """
    groups, counts = _groups(catalog, latest, targets, read)
    holders = _Holders(catalog, targets, drop_tags=drop_tags)
    holders.look(latest)
    number, before = None, records_of(latest.manifest)
    by_split = Counter[str]()
    for split, count in counts.values():
        by_split[split] += count
    after = {name: count - by_split[name] for name, count in before.items()}
    if targets and not dry_run:
        with displayed(progress, "erase") as show:
            written = write_groups(
                catalog,
                latest,
                groups,
                storage_options=storage_options,
                allow_roots=allow_roots,
                executor=executor,
                workers=None if executor else 1,
                show=show,
            )
        rewriting = Rewriting(catalog, latest, groups, written)

        def build(base: Version, lists: StoredLists) -> Manifest:
            holders.look(base)
            manifest = rewriting(base, lists)
            expired = {*manifest.expiry.expired_versions, *holders.expired}
            return replace(
                manifest,
                expiry=replace(manifest.expiry, expired_versions=tuple(sorted(expired))),
                tags={name: v for name, v in manifest.tags.items() if name not in holders.tags},
            )

        with rewriting.removed_on_failure():
            keys = rewriting.keys
            committed = commit_change(catalog, build, operation="erase", seen=latest, keys=keys)
        number = committed.number
        before, after = records_of(rewriting.base.manifest), records_of(committed.manifest)
    if cache is not None and not dry_run:
        BlockCache(cache).clear()
    return EraseReport(
        **change_facts(catalog, "erase", latest, number, before=before, after=after, dry_run=dry_run),
        read_version=read.number,
        deleted=sum(count for _, count in counts.values()),
        already_deleted=sum(map(len, targets.values())) - sum(count for _, count in counts.values()),
        shards={key: count for key, (_, count) in counts.items()},
        expired_versions=tuple(sorted(holders.expired)) if targets else (),
        dropped_tags=holders.tags if targets else {},
        pending_gc=holders.pending_gc if targets else {},
        external_copies=tuple(sorted(holders.external_copies)) if targets else (),
    )


def _groups(
    catalog: Catalog, latest: Version, targets: Targets, read: Version
) -> tuple[list[Group], dict[str, tuple[str, int]]]:
    """Return the shards to rewrite, and of each key its split and how many live records it loses."""
    table = catalog.table(latest)
    numbers = {shard: i for i, shard in enumerate(shards_of(latest, table)) if shard in targets}
    missing = [shard for shard in targets if shard not in numbers]
    if missing:
        raise CommitConflictError(
            f"{len(missing)} of the shards with the records to erase are no longer part of the dataset",
            url=catalog.store.url,
            expected=f"the shards of version {read.number}",
            found=f"version {latest.number} without {missing[0].key}",
            advice="look the records up in the latest version, and erase them there; what only "
            "earlier versions hold goes when these expire: `shardio gc URL --expire N`",
        )
    theirs = [shard for shard, i in numbers.items() if table[i].adopted]
    if theirs:
        framed = all(table[numbers[shard]].framing is Framing.TFRECORD for shard in theirs)
        copied = (
            "`shardio compact URL --adopted` copies them into the dataset, where erasing works"
            if framed
            else "`shardio convert URL NEW` copies them into a dataset of its own, where erasing works"
        )
        raise StorageError(
            "the records are in shards that others wrote, which are never rewritten",
            url=catalog.store.url,
            shard=theirs[0].key,
            found=f"{len(theirs)} of {len(targets)} shards",
            advice=f"{copied}; the files of others stay, and are yours to remove. Deleting without erasing "
            "hides the records",
        )
    starts: dict[int, int] = {}
    for name in {table.split[i] for i in numbers.values()}:
        members = np.array([i for i, split in enumerate(table.split) if split == name], np.int64)
        live = table.live_rows[members]
        starts |= dict(zip(members.tolist(), (np.cumsum(live) - live).tolist(), strict=True))
    groups, counts = [], {}
    for shard, i in sorted(numbers.items(), key=lambda item: item[1]):
        entry = table[i]
        gone = deleted_rows(catalog.store, entry, catalog.limits)
        live = np.setdiff1d(targets[shard], gone)
        # The rank of a live row among the live ones is its position in the shard.
        positions = starts[i] + live - np.searchsorted(gone, live)
        counts[entry.key] = (entry.split, len(live))
        groups.append(
            Group(
                split=entry.split,
                numbers=(i,),
                first=starts[i],
                stop=starts[i] + entry.live_rows,
                leave_out=positions,
                compression=entry.compression,
                level=None,
                block_bytes=block_bytes_of(entry),
                shard_bytes=1 << 62,
            )
        )
    return groups, counts


class _Rewritten(NamedTuple):
    """Shards of one version that became shards of another.

    Attributes:
        source, target: UUIDs of both.
        there, here: the versions of both.
        back: `target` is what was there before.
    """

    source: Sequence[bytes]
    target: Sequence[bytes]
    there: Version
    here: Version
    back: bool


class _Holders:
    """Which versions hold some shards, or older and other copies of them, and which objects these are.

    Args:
        catalog: of the dataset.
        targets: the records, as rows of shards of the latest version.
        drop_tags: tags of these versions may go.
    """

    def __init__(self, catalog: Catalog, targets: Targets, *, drop_tags: bool) -> None:
        self._catalog = catalog
        self._rows: Rows = {shard.uuid: rows for shard, rows in targets.items()}
        self._drop_tags = drop_tags
        self._tables: dict[str, ShardTable] = {}

    def look(self, latest: Version) -> None:
        """Find out what holds them, as of a version; refuse versions that have tags."""
        catalog = self._catalog
        already = set(latest.manifest.expiry.expired_versions)
        # Read again, the latest one too: what follows a version no longer says what that version rewrote.
        versions = list(catalog.between(1, latest.number))
        here = {uuid.tobytes() for uuid in catalog.table(latest).uuid}
        held = self._closure(versions, here)
        self.expired: set[int] = set()
        self.pending_gc: dict[str, int] = {}
        self.external_copies: set[str] = set()
        for version in versions:
            roots = {0: catalog.store.url, **version.manifest.roots}
            for ref in version.manifest.lists:
                table = self._table(ref, missing_ok=version.number in already)
                if table is None:
                    continue  # collected
                for i in [i for i in range(len(table)) if table.uuid[i].tobytes() in held]:
                    if version.number not in already:
                        self.expired.add(version.number)
                    entry = table[i]
                    if entry.adopted:
                        self.external_copies.add(f"{roots[entry.root].rstrip('/')}/{entry.key}")
                    else:
                        self.pending_gc[entry.key] = entry.stored_bytes
                    if entry.table_key:
                        self.pending_gc[entry.table_key] = entry.table_bytes
        self._add_attempts()
        tags = latest.manifest.tags
        self.tags = {name: number for name, number in tags.items() if number in self.expired}
        if self.tags and not self._drop_tags:
            name, number = min(self.tags.items())
            raise CommitConflictError(
                f"version {number} holds the records, and has the tag {name!r}, so it does not expire",
                url=catalog.store.url,
                found=f"tags {', '.join(sorted(self.tags))}",
                advice="drop_tags=True drops these tags; or remove them first (`shardio tag`)",
            )

    def _add_attempts(self) -> None:
        """Leave out what gc removed already, and add what lost attempts of the same tasks have stored."""
        store = self._catalog.store
        if not store.can_list:
            return
        there = {
            info.key: info.size for prefix in (naming.DATA, naming.TABLES) for info in store.list(prefix)
        }
        self.pending_gc = {key: size for key, size in self.pending_gc.items() if key in there}
        tasks = {
            (n.session, n.task) for key in self.pending_gc if (n := naming.DataKey.parse(key)) is not None
        }
        named = {key for table in self._tables.values() for key in table.key}
        for key, size in there.items():
            name = naming.DataKey.parse(key)
            if (
                name is not None
                and not key.endswith(naming.INDEX_SUFFIX)
                and key not in named
                and (name.session, name.task) in tasks
            ):
                self.pending_gc[key] = size

    def _closure(self, versions: list[Version], here: set[bytes]) -> set[bytes]:
        """Return the shards that hold the records: those of the latest version, and those before and after
        rewrites that led to or from them.
        """  # noqa: D205 - one thought
        held = dict(self._rows)
        rewrites = [(i, version.number) for version in versions for i in version.manifest.rewrites]
        by_number = {version.number: version for version in versions}
        while True:
            known = {uuid: None if rows is None else len(rows) for uuid, rows in held.items()}
            for rewrite, number in reversed(rewrites):
                there, after = by_number[number], by_number[number - 1]
                self._follow(held, _Rewritten(rewrite.new, rewrite.old, there, after, back=True))
            for rewrite, number in rewrites:
                # What is part of the latest version is known: its rows are those that were asked for.
                new = {} if here.intersection(rewrite.new) else held
                there, after = by_number[number - 1], by_number[number]
                self._follow(new, _Rewritten(rewrite.old, rewrite.new, there, after, back=False))
            if known == {uuid: None if rows is None else len(rows) for uuid, rows in held.items()}:
                return set(held)

    def _follow(self, held: Rows, step: _Rewritten) -> None:
        """Add to `held` what the rows of some shards are in the shards that were written of them, or before.

        Where that can no longer be told, all of these shards may hold them.
        """
        if not any(uuid in held for uuid in step.source):
            return
        moved = self._moved(held, step)
        for k, uuid in enumerate(step.target):
            rows, before = None if moved is None else moved[k], held.get(uuid, _NONE)
            if rows is None or before is None:
                held[uuid] = None
            elif len(rows):
                held[uuid] = np.union1d(before, rows)

    def _moved(self, held: Rows, step: _Rewritten) -> list[NDArray[np.int64]] | None:
        """Return the rows in each target, by their rank among the live records, which keep their order.

        None where that can no longer be told.
        """
        source, target, there, here, back = step
        entries = [part for version in (there, here) if (part := self._entries(version)) is not None]
        known = [rows for uuid in source if (rows := held.get(uuid, _NONE)) is not None]
        if len(entries) < 2 or len(known) < len(source):
            return None
        given, wanted = (
            [part[uuid] for uuid in ids] for part, ids in zip(entries, (source, target), strict=True)
        )
        # Of the old ones the live rows count; in new ones no row was deleted when they were written.
        try:
            store, limits = self._catalog.store, self._catalog.limits
            gone = [deleted_rows(store, entry, limits) for entry in (wanted if back else given)]
        except NotFoundError:
            return None
        sizes = [[entry.rows if back else entry.live_rows for entry in given]]
        sizes.append([entry.live_rows if back else entry.rows for entry in wanted])
        if sum(sizes[0]) != sum(sizes[1]):
            return None  # some were erased on the way
        ranks = []
        for k, rows in enumerate(known):
            if not back:
                left = np.setdiff1d(rows, gone[k])
                ranks.append(left - np.searchsorted(gone[k], left) + sum(sizes[0][:k]))
            else:
                ranks.append(rows + sum(sizes[0][:k]))
        every = np.sort(np.concatenate(ranks))
        out = []
        for k in range(len(target)):
            first = sum(sizes[1][:k])
            rows = every[(every >= first) & (every < first + sizes[1][k])] - first
            out.append(live_to_physical(rows, gone[k]) if back else rows)
        return out

    def _entries(self, version: Version) -> dict[bytes, ShardEntry] | None:
        """Return the shards of a version by UUID, or None where its lists are gone."""
        tables = []
        for ref in version.manifest.lists:
            if ref.key not in self._tables:
                table = self._catalog.find_shards(ref)
                if table is None:
                    return None
                self._tables[ref.key] = table
            tables.append(self._tables[ref.key])
        return {entry.uuid: entry for table in tables for entry in table}

    def _table(self, ref: ListRef, *, missing_ok: bool) -> ShardTable | None:
        if ref.key not in self._tables:
            table = self._catalog.find_shards(ref) if missing_ok else self._catalog.shards_of(ref)
            if table is None:
                return None
            self._tables[ref.key] = table
        return self._tables[ref.key]
