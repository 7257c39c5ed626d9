"""Rewrite shards: live records of neighbouring shards, in their order, into new shards in their place.

Compaction and erasing share it.  New shards are stored under names of a random session before anything is
committed; the commit puts them in the place of the old ones, and names both in the manifest.  It is refused
where the old shards are no longer what was read.  Shards appended meanwhile stay behind.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Base, Catalog, StoredLists, Version, forget_session, writer_name
from shardio.errors import CommitConflictError, CommitOutcomeUnknownError, ShardioError, StorageError
from shardio.format import DEFAULT_BLOCK_BYTES, Compression
from shardio.lifecycle._targets import TargetShard, shards_of
from shardio.metadata import Manifest, Rewrite, ShardEntry, ShardTable, naming
from shardio.parallel import run
from shardio.progress import CountProgress
from shardio.reader import ReadOptions, RecordSequence, Slice
from shardio.writer import ShardOptions, ShardSpool, Task, spool_folder

_AT_ONCE = 1024  # records


@dataclass(frozen=True)
class Group:
    """Neighbouring shards of a split that are rewritten together.

    Attributes:
        split: name of their split.
        numbers: of the shards in the version, ascending.
        first, stop: positions of their live records in the split.
        leave_out: int64 positions among them, ascending, that are not written.
        compression, level, block_bytes, shard_bytes: of the new shards, as `DatasetWriter` takes them.
    """

    split: str
    numbers: tuple[int, ...]
    first: int
    stop: int
    leave_out: NDArray[np.int64]
    compression: Compression
    level: int | None
    block_bytes: int
    shard_bytes: int


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
) -> list[ShardTable]:
    """Write groups of shards again, in processes, and return the new shards of each; nothing is visible yet.

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
        executor=executor,
        workers=workers if executor or workers else min(4, len(groups) or 1),
        progress=show,
        advice="nothing was changed; run it again, with fewer workers if memory was short",
    )
    try:
        with contextlib.closing(results):
            for part, shards in results:
                written[part.number] = shards
    except BaseException:
        # By its name: attempts of workers that were lost have stored shards that are not known here.
        with contextlib.suppress(StorageError):
            forget_session(catalog, session, shards=True)
        raise
    return [written[k] for k in range(len(groups))]


def remove_shards(catalog: Catalog, tables: Any) -> None:
    """Remove shards that no version names; what stays is listed by `shardio gc`."""
    for table in tables:
        for entry in table:
            for key in (entry.key, entry.usual_index_key):
                with contextlib.suppress(StorageError):
                    catalog.store.delete(key)


@contextlib.contextmanager
def rewriting_task(catalog: Catalog, session: str, number: int, base_version: int) -> Iterator[Task]:
    """Give the task that stores shards in the place of others; what it stored goes if it fails."""
    task = Task(
        catalog,
        session=session,
        task=number,
        schema=None,
        metadata={},
        mode="append",
        base=Base(base_version),
    )
    try:
        yield task
    except BaseException:
        task.cancel()
        task.remove_shards()
        raise


def _write_group(part: Slice, *, version: int, session: str, spool_dir: str | None) -> ShardTable:
    group: Group = part.extra
    source = part.open()
    catalog = Catalog(source.pool.stores[0])
    records = RecordSequence(source)
    options = ShardOptions(
        compression=group.compression,
        level=group.level,
        block_bytes=group.block_bytes,
        shard_bytes=group.shard_bytes,
        spool=spool_folder(catalog.store, spool_dir),
        writer=writer_name(),
    )
    with rewriting_task(catalog, session, part.number, version) as task:
        spool = ShardSpool(options)
        try:
            done = group.first
            for payloads in records.iter_batches(_AT_ONCE):
                edges = np.searchsorted(group.leave_out, [done, done + len(payloads)])
                skipped = set((group.leave_out[edges[0] : edges[1]] - done).tolist())
                for k, payload in enumerate(payloads):
                    if k in skipped:
                        continue
                    if spool.stored_bytes >= group.shard_bytes:
                        full, spool = spool, ShardSpool(options)
                        task.store(group.split, full)
                    spool.add(payload)
                done += len(payloads)
            task.store(group.split, spool, last=True)
            return task.complete().table
        except BaseException:
            spool.discard()
            raise


class Rewriting:
    """New shards on their way into the place of old ones; builds the manifest again after each lost race.

    Args:
        catalog: of the dataset.
        read: the version whose shards were rewritten.
        groups: the old shards.
        written: the new shards of each group.

    Attributes:
        base: the version that was built upon last.
    """

    def __init__(
        self, catalog: Catalog, read: Version, groups: Sequence[Group], written: Sequence[ShardTable]
    ) -> None:
        self._catalog = catalog
        self._read = self.base = read
        table = catalog.table(read)
        names = shards_of(read, table)
        self._deleted = {names[i]: table.deletion_sha256[i].tobytes() for g in groups for i in g.numbers}
        self._groups = [([names[i] for i in g.numbers], new) for g, new in zip(groups, written, strict=True)]

    @property
    def keys(self) -> list[str]:
        """Keys of the new shards."""
        return [key for _, new in self._groups for key in new.key]

    def __call__(self, base: Version, lists: StoredLists) -> Manifest:
        """Return the manifest that follows a version, which is kept as `base`."""
        self.base = base
        table = self._catalog.table(base)
        numbers = {shard: i for i, shard in enumerate(shards_of(base, table)) if shard in self._deleted}
        self._check(base, table, numbers)
        parts: dict[int, ShardTable] = {}
        gone = np.zeros(len(table), bool)
        for old, new in self._groups:
            first = numbers[old[0]]
            gone[[numbers[shard] for shard in old]] = True
            # Under the split's name and the schema's number of the version that they become part of.
            parts[first] = new.with_schema(int(table.schema[first])).with_columns(
                split=[table.split[first]] * len(new)
            )
        pieces: list[ShardTable] = []
        kept = np.flatnonzero(~gone)
        begin = 0
        for first in sorted(parts):
            end = int(np.searchsorted(kept, first))
            pieces += [table.take(kept[begin:end]), parts[first]]
            begin = end
        whole = ShardTable.concatenate([*pieces, table.take(kept[begin:])])
        return replace(
            base.manifest,
            lists=lists.extend(self._catalog, (), whole, merge=False),
            splits=tuple(whole.totals().values()),
            deletions=any(whole.deletion_key),
            rewrites=tuple(
                Rewrite(tuple(shard.uuid for shard in old), tuple(uuid.tobytes() for uuid in new.uuid))
                for old, new in self._groups
            ),
        )

    def _check(self, base: Version, table: ShardTable, numbers: Mapping[TargetShard, int]) -> None:
        """Refuse a version in which the old shards are not as they were read."""
        for old, _ in self._groups:
            missing = [shard for shard in old if shard not in numbers]
            here = [numbers[shard] for shard in old if shard in numbers]
            found = None
            if missing:
                found = f"version {base.number} without {missing[0].key}"
            elif any(
                table.deletion_sha256[i].tobytes() != self._deleted[shard]
                for i, shard in zip(here, old, strict=True)
            ):
                found = f"version {base.number}, in which other records of {old[0].key} are deleted"
            else:
                split = table.split[here[0]]
                between = table.split[here[0] : here[-1] + 1]
                if here != sorted(here) or Counter(between)[split] != len(here):
                    found = f"version {base.number}, in which {old[0].key} has other neighbours"
            if found:
                raise CommitConflictError(
                    "shards that were rewritten were changed by another writer meanwhile",
                    url=self._catalog.store.url,
                    expected=f"the shards of version {self._read.number}",
                    found=found,
                    advice="nothing was changed; run it again",
                )

    @contextlib.contextmanager
    def removed_on_failure(self) -> Any:
        """Remove the new shards where they did not become part of a version for certain.

        An interrupt says nothing of that: it may come behind the commit. What it leaves, `shardio gc` lists.
        """
        try:
            yield
        except CommitOutcomeUnknownError:
            raise
        except ShardioError:
            remove_shards(self._catalog, [new for _, new in self._groups])
            raise
