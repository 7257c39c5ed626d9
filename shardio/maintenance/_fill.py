"""Fill a cache on local disk before a run: every block is read through it, and compared with its checksum.

Promises: what the cache holds is not fetched again, so a fill that was killed goes on; processes of one
machine that fill the same cache at once fetch each block once between them, and wait for one another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from shardio.arguments import checked_options
from shardio.metadata import ShardTable
from shardio.parallel import run
from shardio.progress import CountProgress, displayed
from shardio.reader import RecordSequence, Slice, open_split, slices
from shardio.reports import Report
from shardio.storage import Address, BlockCache, CacheOptions, Place

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
def fill_cache(
    url: Place,
    cache: CacheOptions,
    *,
    split: str | None = None,
    version: int | str | None = None,
    digest: str | None = None,
    executor: Executor | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[CountProgress], None] = False,
) -> FillReport:
    """Bring the shards of a split into a cache on local disk, so that a run begins with a warm one.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        cache: as `shardio.open` takes it. Of a split that is larger than 7/8 of `max_bytes`, the first shards
            that fit are read: the cache keeps the rest free for what comes next.
        split: its name; None for the only one, "all" for all of them.
        version: a number or tag; None for the latest.
        digest: `"sha256:..."` that the version must have.
        executor: any `concurrent.futures.Executor` on this machine; None for this process.
        dry_run: read nothing, only say what there is room for.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

    Raises:
        ValueError: no such split, or the dataset is on a local disk already.
        FormatError, NotFoundError, StorageError: a shard is damaged or cannot be read; what was read before
            is kept.
    """
    address = Address.of(url)
    ds = open_split(
        address.url, split, version=version, digest=digest, cache=cache, decode=False,
        storage_options=address.storage_options, engine=address.engine, allow_roots=address.allow_roots,
    )  # fmt: skip
    source = ds.source
    if source.is_local:
        raise ValueError(f"{source.url} is on a local disk: it is read without a cache")
    fits = source.table.stored_bytes.cumsum() <= cache.max_bytes * 7 // 8
    chosen = source.table.take(fits.nonzero()[0])
    # Of a slice every block is read, deleted records too.
    whole = ShardTable.from_entries([entry.without_deletions() for entry in chosen])
    parts = [] if dry_run else [*slices(source.url, source.version, whole, source.options)]
    again = "run it again: what was read is kept"
    with displayed(progress, "fill") as show:
        filled = run(
            _fill_shard,
            parts,
            source.url,
            executor=executor,
            workers=None if executor else 1,
            progress=show,
            advice=again,
        )
        with contextlib.closing(filled):
            fetched = sum(count for _, count in filled)
    kept, every = int(chosen.stored_bytes.sum()), int(source.table.stored_bytes.sum())
    facts = (len(chosen), kept, fetched, len(source.table) - len(chosen), every - kept)
    return FillReport(source.url, ds.version, ds.digest, ds.split, *facts, dry_run=dry_run)


def _fill_shard(part: Slice) -> int:
    """Read a shard through the cache; return how many of its bytes were fetched."""
    assert part.options.cache is not None  # noqa: S101 - `fill_cache` was given one
    source = replace(part, schema=None).open()
    with BlockCache(part.options.cache).alone_with(part.entry.key):
        for _ in RecordSequence(source).iter_batches(_ROWS):
            pass
    return source.stats.bytes_read
