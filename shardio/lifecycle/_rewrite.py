"""Rewrite shards: live records of neighbouring shards, in their order, into new shards in their place.

Compaction, erasing and repair share the commit; compaction and erasing what is written, too.  New shards are
stored under names of a random session before anything is committed; the commit puts them in the place of the
old ones, and names both in the manifest.  It is refused where the old shards are no longer what was read.
Shards appended meanwhile stay behind.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Base, Catalog, StoredLists, Version, commit_change, remove_shards
from shardio.errors import CommitConflictError, CommitOutcomeUnknownError, ShardioError, StorageError
from shardio.format import DEFAULT_BLOCK_BYTES
from shardio.lifecycle._targets import TargetShard, shards_of
from shardio.metadata import Manifest, Rewrite, ShardEntry, ShardTable, naming
from shardio.parallel import run
from shardio.progress import CountProgress
from shardio.reader import ReadOptions, RecordSequence, Slice
from shardio.writer import Layout, ShardSpool, Task, spool_folder

_AT_ONCE = 1024  # records


@dataclass(frozen=True)
class Group:
    """Neighbouring shards of a split that are rewritten together.

    Attributes:
        numbers: of the shards in the version, ascending.
        leave_out: int64 numbers of their live records, ascending, that are not written.
        layout: of the new shards.
    """

    numbers: tuple[int, ...]
    leave_out: NDArray[np.int64]
    layout: Layout


def block_bytes_of(entry: ShardEntry) -> int:
    """Return a target size for blocks like those of a shard, in decoded bytes."""
    blocks = entry.blocks
    return max(256, min(1 << 24, entry.decoded_bytes // blocks)) if blocks > 1 else DEFAULT_BLOCK_BYTES


def write_groups(
    catalog: Catalog,
    version: Version,
    groups: Sequence[Group],
    options: ReadOptions,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    spool_dir: str | None = None,
    show: Callable[[CountProgress], None] | None = None,
) -> list[Replacement]:
    """Write groups of shards again, in processes, and return what is to take their place.

    Args:
        catalog: of the dataset.
        version: whose shards they are.
        groups: what is written.
        options: how payloads are read.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        workers: processes of that pool; None for one per processor, 1 for this process.
        spool_dir: folder for shards under construction.
        show: is called with how far it has come.

    Raises:
        ShardioError: a record cannot be read or a shard not be stored; what was stored is removed.
    """
    session = naming.random_session(rewriting=True)
    table = catalog.table(version)
    parts = [
        Slice.of_version(
            catalog.store.url, version, table.take(np.array(group.numbers)), options, number=k, extra=group
        )
        for k, group in enumerate(groups)
    ]
    written: dict[int, ShardTable] = {}
    results = run(
        partial(_write_group, version=version.number, session=session, spool_dir=spool_dir),
        parts,
        catalog.store.url,
        executor=executor,
        workers=workers if executor or workers else min(4, len(groups) or 1),
        progress=show,
        advice="nothing was changed; run it again, with fewer workers if memory was short",
    )
    try:
        with contextlib.closing(results):
            for part, shards in results:
                written[part.number] = shards.with_schema(part.entry.schema)
    except BaseException:
        # What lost workers have stored is not known here, and left to `shardio gc`.
        remove_shards(catalog, written.values())
        raise
    return [Replacement(group.numbers, list(written[k])) for k, group in enumerate(groups)]


def stored_keys(replacements: Iterable[Replacement]) -> Iterator[str]:
    """Yield the keys of the new shards and their indexes."""
    for each in replacements:
        for entry in each.new:
            yield from (entry.key, entry.usual_index_key)


class RewritingTask:
    """Stores records in shards that take the place of others; what it stored goes if the block fails.

    Args:
        catalog: of the dataset.
        session, number: of the task, which names the shards.
        version: whose shards are rewritten.
        split: name of their split.
        layout: of the new shards.
        folder: of their spool files.
    """

    def __init__(
        self,
        catalog: Catalog,
        session: str,
        number: int,
        version: int,
        split: str,
        layout: Layout,
        folder: Path,
    ) -> None:
        self._task = Task(
            catalog,
            session=session,
            task=number,
            schema=None,
            metadata={},
            mode="append",
            base=Base(version),
        )
        self._split, self._layout, self._folder = split, layout, folder
        self._spool = ShardSpool(layout, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._spool.discard()
        if kind is not None:
            self._task.cancel()
            self._task.remove_shards()

    def add(self, payload: bytes) -> None:
        """Add a record, behind the others."""
        if self._spool.stored_bytes >= self._layout.shard_bytes:
            full, self._spool = self._spool, ShardSpool(self._layout, self._folder)
            self._task.store(self._split, full)
        self._spool.add(payload)

    def complete(self) -> ShardTable:
        """Return the shards, which are stored."""
        self._task.store(self._split, self._spool, last=True)
        return self._task.complete().table


def _write_group(part: Slice, *, version: int, session: str, spool_dir: str | None) -> ShardTable:
    group: Group = part.extra
    source = part.open()
    catalog = Catalog(source.pool.stores[0])
    folder = spool_folder(catalog.store, spool_dir)
    skipped = {*group.leave_out.tolist()}
    batches = RecordSequence(source).iter_batches(_AT_ONCE)
    split, layout = part.entry.split, group.layout
    with RewritingTask(catalog, session, part.number, version, split, layout, folder) as task:
        for number, payload in enumerate(chain.from_iterable(batches)):
            if number not in skipped:
                task.add(payload)
        return task.complete()


@dataclass(frozen=True)
class Replacement:
    """Neighbouring shards of a split, and the shards that take their place.

    Attributes:
        numbers: of the old shards in the version that was read, ascending.
        new: what takes their place, with split and schema number as in that version.
    """

    numbers: tuple[int, ...]
    new: Sequence[ShardEntry]


def replace_shards(
    catalog: Catalog,
    read: Version,
    replacements: Sequence[Replacement],
    stored: Iterable[str],
    *,
    operation: str,
    appended: Sequence[ShardEntry] = (),
    finish: Callable[[Version, Manifest], Manifest] = lambda _, manifest: manifest,
    restored: Sequence[str] = (),
) -> tuple[Version, Version]:
    """Commit a version with new shards in the place of old ones; shards appended meanwhile stay behind.

    Args:
        catalog: of the dataset.
        read: the version whose shards are replaced.
        replacements: which, in any order.
        stored: keys of the objects that were stored for it; they are removed where nothing is committed.
        operation: a word for `shardio log`.
        appended: shards that come behind all others.
        finish: takes the version that is followed and its next manifest, and returns what to commit.
        restored: keys of objects that were put back under their own names; they stay in any case.

    Returns:
        The version that was followed, and the new one.

    Raises:
        CommitConflictError: the old shards are no longer as they were read.
        CommitOutcomeUnknownError: see `commit_change`; nothing was removed.
    """
    table = catalog.table(read)
    names = shards_of(read, table)
    deleted = {names[i]: table.deletion_sha256[i].tobytes() for each in replacements for i in each.numbers}
    stored, followed = tuple(stored), read

    def build(base: Version, lists: StoredLists) -> Manifest:
        nonlocal followed
        followed, here = base, catalog.table(base)
        numbers = {shard: i for i, shard in enumerate(shards_of(base, here)) if shard in deleted}
        gone = np.zeros(len(here), bool)
        parts: dict[int, list[ShardEntry]] = {}
        for each in replacements:
            old = [names[i] for i in each.numbers]
            if found := _difference(base, here, [numbers.get(shard) for shard in old], old, deleted):
                raise CommitConflictError(
                    "shards that were rewritten were changed by another writer meanwhile",
                    url=catalog.store.url,
                    expected=f"the shards of version {read.number}",
                    found=found,
                    advice="nothing was changed; run it again",
                )
            gone[[numbers[shard] for shard in old]] = True
            first = numbers[old[0]]
            before, now = table[each.numbers[0]], here[first]
            # Split and schema may have another name and number in the version that is followed.
            parts[first] = [
                replace(
                    entry,
                    split=now.split if entry.split == before.split else entry.split,
                    schema=now.schema if entry.schema == before.schema else entry.schema,
                )
                for entry in each.new
            ]
        kept, begin = np.flatnonzero(~gone), 0
        pieces: list[ShardTable] = []
        for first in sorted(parts):
            end = int(np.searchsorted(kept, first))
            pieces += [here.take(kept[begin:end]), ShardTable.from_entries(parts[first])]
            begin = end
        pieces += [here.take(kept[begin:]), ShardTable.from_entries(appended)]
        whole = ShardTable.concatenate(pieces)
        manifest = replace(
            base.manifest,
            lists=lists.extend(catalog, (), whole, merge=False),
            splits=tuple(whole.totals().values()),
            deletions=any(whole.deletion_key),
            rewrites=tuple(_rewrites(names, replacements)),
        )
        return finish(base, manifest)

    try:
        committed = commit_change(catalog, build, operation=operation, seen=read, keys=(*stored, *restored))
    except CommitOutcomeUnknownError:
        raise
    except ShardioError:
        # An interrupt says nothing of the commit: what it leaves, `shardio gc` lists.
        remove_objects(catalog, stored)
        raise
    return followed, committed


def _rewrites(names: list[TargetShard], replacements: Sequence[Replacement]) -> Iterator[Rewrite]:
    for each in replacements:
        old = tuple(names[i].uuid for i in each.numbers)
        new = tuple(entry.uuid for entry in each.new)
        if old[0] not in new:
            yield Rewrite(old, new)


def _difference(
    base: Version,
    table: ShardTable,
    numbers: Sequence[int | None],
    old: Sequence[TargetShard],
    deleted: Mapping[TargetShard, bytes],
) -> str | None:
    """Say how shards of a version differ from those that were read, or None."""
    here = [number for number in numbers if number is not None]
    if len(here) < len(old):
        return f"version {base.number} without {old[numbers.index(None)].key}"
    if any(table.deletion_sha256[i].tobytes() != deleted[shard] for i, shard in zip(here, old, strict=True)):
        return f"version {base.number}, in which other records of {old[0].key} are deleted"
    between = table.split[here[0] : here[-1] + 1]
    if here != sorted(here) or Counter(between)[table.split[here[0]]] != len(here):
        return f"version {base.number}, in which {old[0].key} has other neighbours"
    return None


def remove_objects(catalog: Catalog, keys: Iterable[str]) -> None:
    """Remove objects that no version names; what stays is listed by `shardio gc`."""
    for key in keys:
        with contextlib.suppress(StorageError):
            catalog.store.delete(key)
