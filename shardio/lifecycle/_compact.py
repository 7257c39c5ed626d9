"""Compaction: small shards are merged, deleted rows left out, blocks and compression remade."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardio.arguments import checked_options, integer
from shardio.catalog import Catalog, Version
from shardio.format import DEFAULT_BLOCK_BYTES, BlockBuilder, Compression, Framing
from shardio.lifecycle._change import commit_change
from shardio.lifecycle._report import ChangeReport, change_facts, records_of
from shardio.lifecycle._rewrite import Group, Rewriting, block_bytes_of, write_groups
from shardio.metadata import ShardEntry, ShardTable
from shardio.parallel import check_workers
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, choose_split
from shardio.storage import Address, Place
from shardio.writer import DEFAULT_SHARD_BYTES

# A reader opens a shard with one request, the head of its index, and fetches so much by each further one.
_REQUEST_BYTES = 8 << 20
# A shard may be so much larger than was asked for rather than leave a small one behind it.
_ROOM = 1.25


@dataclass(frozen=True)
class CompactReport(ChangeReport):
    """What `compact` did, or would do.

    Attributes:
        records: that were (or would be) rewritten.
        dropped: deleted rows that were (or would be) left out.
        shards_before, shards_after: of the splits that were looked at; what would be is an estimate.
        bytes_before, bytes_after: of their stored bytes, likewise.
        requests_before, requests_after: of one pass over them in a bucket: one for the index of each shard,
            and one for every 8 MiB of each; an estimate.
        skipped_shards: shards that others wrote or that hold no TFRecord frames; they stay as they are.
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
    BlockBuilder(
        compression=kind or Compression.NONE, level=level, block_bytes=block_bytes or DEFAULT_BLOCK_BYTES
    )
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
            rewriting = Rewriting(catalog, latest, plan.groups, written)
            with rewriting.removed_on_failure():
                keys = rewriting.keys
                committed = commit_change(catalog, rewriting, operation="compact", seen=latest, keys=keys)
            number = committed.number
            # A split without live records is gone with its shards.
            records, left = records_of(rewriting.base.manifest), records_of(committed.manifest)
            after = plan.kept + [size for part in written for size in part.stored_bytes.tolist()]
        before = plan.sizes
        return CompactReport(
            **change_facts(catalog, "compact", latest, number, before=records, after=left, dry_run=dry_run),
            records=sum(group.stop - group.first for group in plan.groups),
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


@dataclass
class _CompactPlan:
    """Which neighbouring shards are rewritten together.

    Attributes:
        table: the shards.
        splits: those that are looked at.
        shard_bytes, kind, level, block_bytes, adopted: as in `compact`; `kind` is None for each shard's own.
        groups: of shards.
        sizes: stored bytes of all shards that were looked at.
        kept: of those that stay.
        dropped: deleted rows that are left out.
        skipped_shards: shards that may not be rewritten.
    """

    table: ShardTable
    splits: list[str]
    shard_bytes: int
    kind: Compression | None
    level: int | None
    block_bytes: int | None
    adopted: bool

    def __post_init__(self) -> None:
        self.groups: list[Group] = []
        self.skipped_shards = 0
        table = self.table
        members = {name: [i for i, each in enumerate(table.split) if each == name] for name in self.splits}
        for name, numbers in members.items():
            for run in self._runs(numbers):
                self.groups += self._cut(name, numbers, run)
        chosen = {i for group in self.groups for i in group.numbers}
        looked_at = [i for numbers in members.values() for i in numbers]
        self.sizes = table.stored_bytes[looked_at].tolist() if looked_at else []
        self.kept = [int(table.stored_bytes[i]) for i in looked_at if i not in chosen]
        self.dropped = sum(int(table.rows[i] - table.live_rows[i]) for i in chosen)

    def estimate(self) -> list[int]:
        """Return about which stored bytes shards would have."""
        out = list(self.kept)
        for group in self.groups:
            size = sum(self._live_bytes(self.table[i]) for i in group.numbers)
            if group.stop > group.first:
                shards = max(1, round(size / self.shard_bytes))
                out += [size // shards] * shards
        return out

    def _live_bytes(self, entry: ShardEntry) -> int:
        return entry.stored_bytes * entry.live_rows // max(1, entry.rows)

    def _compression(self, entry: ShardEntry) -> Compression:
        return entry.compression if self.kind is None else self.kind

    def _runs(self, numbers: list[int]) -> Iterator[list[int]]:
        """Yield neighbouring shards that gain by being rewritten, and may stand in one shard."""
        run: list[int] = []
        last: tuple[object, ...] = ()
        for i in numbers:
            entry = self.table[i]
            may = entry.framing is Framing.TFRECORD and (self.adopted or not entry.adopted)
            self.skipped_shards += not may
            like = (entry.schema, self._compression(entry))
            if not may or not self._gains(entry) or (run and like != last):
                if run:
                    yield run
                run = []
            if may and self._gains(entry):
                run.append(i)
            last = like
        if run:
            yield run

    def _gains(self, entry: ShardEntry) -> bool:
        return (
            2 * self._live_bytes(entry) < self.shard_bytes
            or entry.live_rows < entry.rows
            or self._must(entry)
        )

    def _must(self, entry: ShardEntry) -> bool:
        """Tell whether a shard is rewritten also if nothing can be merged with it."""
        return (
            entry.live_rows < entry.rows
            or self._compression(entry) is not entry.compression
            or self.block_bytes is not None
            or (self.adopted and entry.adopted)
        )

    def _cut(self, split: str, numbers: list[int], run: list[int]) -> Iterator[Group]:
        """Yield groups of about the wanted size."""
        parts: list[list[int]] = [[]]
        size = 0
        for i in run:
            more = self._live_bytes(self.table[i])
            if parts[-1] and size + more > self.shard_bytes * _ROOM:
                parts.append([])
                size = 0
            parts[-1].append(i)
            size += more
        live = self.table.live_rows[numbers]
        starts = dict(zip(numbers, (np.cumsum(live) - live).tolist(), strict=True))
        for part in parts:
            entries = [self.table[i] for i in part]
            if len(part) == 1 and not self._must(entries[0]):
                continue
            first = starts[part[0]]
            yield Group(
                split=split,
                numbers=tuple(part),
                first=first,
                stop=first + sum(entry.live_rows for entry in entries),
                leave_out=np.zeros(0, np.int64),
                compression=self._compression(entries[0]),
                level=self.level,
                block_bytes=self.block_bytes or max(block_bytes_of(entry) for entry in entries),
                # A group of small shards is one shard, also where it is a little too large.
                shard_bytes=int(self.shard_bytes * (2 * _ROOM if len(part) > 1 else 1)),
            )
