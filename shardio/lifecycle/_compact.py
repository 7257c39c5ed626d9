"""Compaction: small shards are merged, deleted rows left out, blocks and compression remade."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from shardio.arguments import checked_options, integer
from shardio.catalog import Catalog, Version
from shardio.format import DEFAULT_BLOCK_BYTES, Compression, Framing
from shardio.lifecycle._report import ChangeReport, change_facts, records_of
from shardio.lifecycle._rewrite import Group, block_bytes_of, replace_shards, stored_keys, write_groups
from shardio.metadata import ShardEntry, ShardTable
from shardio.parallel import check_workers
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, choose_split
from shardio.storage import Address, Place
from shardio.writer import DEFAULT_SHARD_BYTES, Layout

# A reader opens a shard with one request, the head of its index, and fetches so much by each further one.
_REQUEST_BYTES = 8 << 20
# A shard may be so much larger than was asked for rather than leave a small one behind it.
_ROOM = 1.25


@dataclass(frozen=True)
class CompactReport(ChangeReport):
    """Result of `compact`.

    Attributes:
        records: that were (or would be) rewritten.
        dropped: deleted rows that were (or would be) removed.
        shards_before, shards_after: of the splits that were looked at; what would be is an estimate.
        bytes_before, bytes_after: of their stored bytes, likewise.
        requests_before, requests_after: of one pass over them in a bucket: one for the index of each shard,
            and one for every 8 MiB of each; an estimate.
        skipped_shards: adopted shards and shards without TFRecord frames, which stay unchanged.
    """

    records: int = 0
    dropped: int = 0
    shards_before: int = 0
    shards_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    requests_before: int = 0
    requests_after: int = 0
    skipped_shards: int = 0


@checked_options
def compact(  # noqa: PLR0913 - the options are the public contract
    url: Place,
    split: str | None = None,
    *,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    compression: str | None = "same",
    level: int | None = None,
    block_bytes: int | None = None,
    adopted: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[CountProgress], None] = False,
    spool_dir: str | Path | None = None,
) -> CompactReport:
    """Write small shards and those with deleted rows again, as fewer and larger ones, in a new version.

    The records are the same, in the same order. Shards are merged with their neighbours of the same split;
    those that are large enough, and have nothing to leave out, stay. Earlier versions keep the old shards
    until they expire, so compaction frees no byte before `shardio gc`. The order of an epoch depends on the
    shards, so a stream is resumed on the version that it was begun with. What is appended meanwhile stays
    behind.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        split: the only one to look at; None for all.
        shard_bytes: stored bytes of a shard; those of less than half of it are merged.
        compression: of all shards, by which those that have another are rewritten; "same" is what each has.
            Or "zstd", "gzip" or "zlib", or None for no compression.
        level: of the compression; None for its usual one.
        block_bytes: target size of a block in decoded bytes, by which all shards are rewritten; None for
            about what the shards have.
        adopted: copy shards that others wrote into the dataset, too; their files stay where they are.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        workers: processes of that pool; None for one per processor, 1 for this process.
        dry_run: change nothing, only say what it would gain.
        progress: True for a display on stderr, or a function of how far it has come: `done` and `total`,
            in records.
        spool_dir: folder for shards under construction; None for that of temporary files.

    Returns:
        The report; `version` is None where there was nothing to gain.

    Raises:
        ValueError, TypeError: an option that makes no sense, by name; there is no such split.
        NotFoundError: there is no dataset.
        CommitConflictError: another writer changed these shards meanwhile; nothing was changed.
        FormatError, StorageError: a record cannot be read, or a shard not be stored; nothing was changed.
        CommitOutcomeUnknownError: see `shardio.commit`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/days"
        >>> for day in range(20):
        ...     with shardio.DatasetWriter(url, mode="append") as out:
        ...         out.write(b"day %d" % day)
        >>> report = shardio.compact(url, workers=1)
        >>> report.shards_before, report.shards_after, shardio.open(url)[7]
        (20, 1, b'day 7')
    """
    if integer("shard_bytes", shard_bytes) < 1:
        raise ValueError(f"shard_bytes={shard_bytes!r} must be a whole number of at least 1")
    check_workers(workers, executor)
    kind = None if compression == "same" else Compression.parse(compression)
    # Refuses what makes no sense.
    Layout(compression=kind or Compression.NONE, level=level, block_bytes=block_bytes or DEFAULT_BLOCK_BYTES)
    address = Address.of(url)
    catalog = Catalog(address.connect())

    def attempt(latest: Version) -> CompactReport:
        names = [total.name for total in latest.manifest.splits]
        if split is not None:
            choose_split(names, split, catalog.store.url)
        wanted = names if split in (None, "all") else [split]
        table = catalog.table(latest)
        plan = _CompactPlan(table, wanted, shard_bytes, kind, level, block_bytes, adopted)
        number, after = None, plan.estimate()
        records = left = records_of(latest.manifest)
        if plan.groups and not dry_run:
            with displayed(progress, "compact") as show:
                written = write_groups(
                    catalog,
                    latest,
                    plan.groups,
                    ReadOptions.at(address, decode=False),
                    executor=executor,
                    workers=workers,
                    spool_dir=None if spool_dir is None else str(spool_dir),
                    show=show,
                )
            base, committed = replace_shards(
                catalog, latest, written, stored_keys(written), operation="compact"
            )
            number = committed.number
            # A split without live records is gone with its shards.
            records, left = records_of(base.manifest), records_of(committed.manifest)
            after = plan.kept + [entry.stored_bytes for each in written for entry in each.new]
        before = plan.sizes
        return CompactReport(
            **change_facts(catalog, "compact", latest, number, before=records, after=left, dry_run=dry_run),
            records=plan.records,
            dropped=plan.dropped,
            shards_before=len(before),
            shards_after=len(after),
            bytes_before=sum(before),
            bytes_after=sum(after),
            requests_before=_requests(before),
            requests_after=_requests(after),
            skipped_shards=plan.skipped_shards,
        )

    return catalog.reading(attempt)


def _requests(sizes: list[int]) -> int:
    return sum(1 + -(-size // _REQUEST_BYTES) for size in sizes)


class _CompactPlan:
    """Which neighbouring shards are rewritten together; the arguments are those of `compact`.

    Attributes:
        groups: of shards.
        sizes, kept: stored bytes of all shards that were looked at, and of those that stay.
        records, dropped: live rows that are written, and deleted rows that are left out.
        skipped_shards: shards that may not be rewritten.
    """

    def __init__(
        self,
        table: ShardTable,
        splits: list[str],
        shard_bytes: int,
        kind: Compression | None,
        level: int | None,
        block_bytes: int | None,
        adopted: bool,  # noqa: FBT001 - as `compact` has it
    ) -> None:
        self._table, self._shard_bytes, self._kind = table, shard_bytes, kind
        self._level, self._block_bytes, self._adopted = level, block_bytes, adopted
        names = table.split
        numbers = [i for name in splits for i in range(len(table)) if names[i] == name]
        runs = [[*run] for like, run in groupby(numbers, self._like) if like is not None]
        self.groups = [group for run in runs for group in self._cut(run)]
        chosen = [i for group in self.groups for i in group.numbers]
        self.sizes = table.stored_bytes[numbers].tolist() if numbers else []
        self.kept = table.stored_bytes[sorted({*numbers} - {*chosen})].tolist()
        self.records = sum(int(table.live_rows[i]) for i in chosen)
        self.dropped = sum(int(table.rows[i]) for i in chosen) - self.records
        self.skipped_shards = sum(not self._may(table[i]) for i in numbers)

    def estimate(self) -> list[int]:
        """Return about which stored bytes shards would have."""
        out = list(self.kept)
        for group in self.groups:
            entries = [self._table[i] for i in group.numbers]
            size = sum(map(_live_bytes, entries))
            if any(entry.live_rows for entry in entries):
                shards = max(1, round(size / self._shard_bytes))
                out += [size // shards] * shards
        return out

    def _may(self, entry: ShardEntry) -> bool:
        return entry.framing is Framing.TFRECORD and (self._adopted or not entry.adopted)

    def _like(self, number: int) -> tuple[object, ...] | None:
        """Return what shards that may stand in one have in common; None for one that does not gain by it."""
        entry = self._table[number]
        gains = self._must(entry) or 2 * _live_bytes(entry) < self._shard_bytes
        if not (gains and self._may(entry)):
            return None
        return entry.split, entry.schema, self._kind or entry.compression

    def _must(self, entry: ShardEntry) -> bool:
        """Tell whether a shard is rewritten also if nothing can be merged with it."""
        return (
            entry.live_rows < entry.rows
            or (self._kind or entry.compression) is not entry.compression
            or self._block_bytes is not None
            or (self._adopted and entry.adopted)
        )

    def _cut(self, run: list[int]) -> Iterator[Group]:
        """Yield groups of about the wanted size."""
        parts: list[list[int]] = [[]]
        size = 0
        for i in run:
            more = _live_bytes(self._table[i])
            if parts[-1] and size + more > self._shard_bytes * _ROOM:
                parts.append([])
                size = 0
            parts[-1].append(i)
            size += more
        for part in parts:
            entries = [self._table[i] for i in part]
            if len(part) > 1 or self._must(entries[0]):
                yield Group(
                    numbers=tuple(part),
                    leave_out=np.zeros(0, np.int64),
                    layout=Layout(
                        compression=self._kind or entries[0].compression,
                        level=self._level,
                        block_bytes=self._block_bytes or max(map(block_bytes_of, entries)),
                        # A group of small shards is one shard, also where it is a little too large.
                        shard_bytes=int(self._shard_bytes * (2 * _ROOM if len(part) > 1 else 1)),
                    ),
                )


def _live_bytes(entry: ShardEntry) -> int:
    return entry.stored_bytes * entry.live_rows // max(1, entry.rows)
