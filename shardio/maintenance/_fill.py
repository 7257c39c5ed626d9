"""Fill a cache on local disk before a run: every block is read through it, and compared with its checksum.

Promises: what the cache holds is not fetched again, so a fill that was killed goes on; processes of one
machine that fill the same cache at once fetch each block once between them, and wait for one another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardio.arguments import checked_options, options_by_root
from shardio.metadata import ShardEntry, ShardTable
from shardio.parallel import JobRunner, LostJob
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, RecordSequence, ShardSource, open_split, root_stores
from shardio.reports import Report
from shardio.storage import BlockCache, CacheOptions, connect

_ROWS = 4096


@dataclass(frozen=True)
class FillReport(Report):
    """What filling a cache did.

    Attributes:
        url, version, digest: what was read.
        split: of the dataset.
        shards, stored_bytes: that are in the cache now.
        fetched_bytes: of these, what was fetched; the rest was there.
        left_out_shards, left_out_bytes: for which the cache has no room.
        dry_run: nothing was read; this is what would be.
    """

    url: str
    version: int
    digest: str
    split: str
    shards: int
    stored_bytes: int
    fetched_bytes: int
    left_out_shards: int
    left_out_bytes: int
    dry_run: bool = False


@checked_options
def fill_cache(  # noqa: PLR0913 - the options are the public contract
    url: str | Path,
    cache: CacheOptions,
    *,
    split: str | None = None,
    version: int | str | None = None,
    digest: str | None = None,
    executor: Executor | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[CountProgress], None] = False,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
) -> FillReport:
    """Bring the shards of a split into a cache on local disk, so that a run begins with a warm one.

    Args:
        url: of the dataset.
        cache: as `shardio.open` takes it. Of a split that is larger than 7/8 of `max_bytes`, the first shards
            that fit are read: the cache keeps the rest free for what comes next.
        split: its name; None for the only one, "all" for all of them.
        version: a number or tag; None for the latest.
        digest: `"sha256:..."` that the version must have.
        executor: any `concurrent.futures.Executor` on this machine; None for this process.
        dry_run: read nothing, only say what there is room for.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.
        storage_options, engine, allow_roots: as in `shardio.open`.

    Raises:
        ValueError: no such split, or the dataset is on a local disk already.
        FormatError, NotFoundError, StorageError: a shard is damaged or cannot be read; what was read before
            is kept.
    """
    ds = open_split(
        url, split, version=version, digest=digest, cache=cache, decode=False,
        storage_options=storage_options, engine=engine, allow_roots=allow_roots,
    )  # fmt: skip
    source = ds.source
    if source.is_local:
        raise ValueError(f"{source.url} is on a local disk: it is read without a cache")
    fits = source.table.stored_bytes.cumsum() <= cache.max_bytes * 7 // 8
    chosen = [source.table[number] for number in fits.nonzero()[0].tolist()]
    options = replace(source.options, allow_roots=options_by_root(allow_roots))
    fill = _ShardFill(source.url, options, source.version.manifest.roots)
    total = sum(entry.stored_bytes for entry in chosen)
    fetched = done = 0
    workers = None if executor else 1
    runner: JobRunner[ShardEntry, int] = JobRunner(fill, executor=executor, workers=workers)
    with (
        displayed(progress, "fill") as show,
        contextlib.closing(runner.run([] if dry_run else chosen)) as jobs,
    ):
        for entry, result in jobs:
            if isinstance(result, LostJob):
                place = {"url": source.url, "shard": entry.key}
                again = "run it again: what was read is kept"
                raise result.as_error("read a shard", advice=again, **place) from result.error
            fetched += result
            done += entry.stored_bytes
            if show is not None:
                show(CountProgress(done, total, "bytes"))
    whole = int(source.table.stored_bytes.sum())
    facts = (len(chosen), total, fetched, len(source.table) - len(chosen), whole - total)
    return FillReport(source.url, ds.version, ds.digest, ds.split, *facts, dry_run=dry_run)


@dataclass(frozen=True)
class _ShardFill:
    """Reads a shard through the cache; travels to workers."""

    url: str
    options: ReadOptions
    roots: Mapping[int, str]

    def __call__(self, entry: ShardEntry) -> int:
        """Return how many bytes of a shard were fetched."""
        table = ShardTable.from_entries([entry.without_deletions()])
        store = connect(self.url, storage_options=self.options.storage_options, engine=self.options.engine)
        source = ShardSource(
            self.url, table, root_stores(store, self.roots, table, self.options), self.options, None
        )
        assert self.options.cache is not None  # noqa: S101 - `fill_cache` was given one
        with BlockCache(self.options.cache).alone_with(entry.key):
            for _ in RecordSequence(source).iter_batches(_ROWS):
                pass
        return source.stats.bytes_read
