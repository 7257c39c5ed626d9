"""One shard with its index, deleted rows and table: from a mirror by digest, else what is good of it.

Promises: a damaged object is overwritten only by the bytes of its digest, and every other object gets a name
never used before; a new shard holds those records, and only those, that `shardio verify` finds intact.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.catalog import Catalog, writer_name
from shardio.errors import BadRecord, FormatError, StaleIndexError, StorageError
from shardio.format import DEFAULT_LIMITS
from shardio.lifecycle._mirror import WRONG, Named, Restorer
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.lifecycle._rewrite import RewritingTask
from shardio.maintenance import (
    UNREADABLE,
    CheckedBlock,
    Finding,
    Survey,
    check_indexed,
    check_listed,
    stored_crc32c,
)
from shardio.metadata import IndexHead, ShardEntry, naming
from shardio.ranges import runs_of
from shardio.reader import ShardSource, Slice, check_index_file, deleted_rows, read_head, read_table_bytes
from shardio.storage import Address, Store, temporary_files
from shardio.writer import Layout, spool_folder

# Which object a finding of a kind is about; all others are about the shard.
_OBJECTS = {"index": "index", "frames": "index", "deletions": "deletions", "table": "table"}
_ADOPTED_SHARD = (
    "shardio does not own this shard, so repair leaves it alone: fetch it from its source again, then "
    '`shardio adopt URL --update`; readers with on_error="skip" leave the damage out'
)
_ADOPTED_INDEX = "make it again from the shard: `shardio adopt URL --update`, URL being the shard's"
_ROWS = (
    "nothing tells which rows were deleted: name a mirror that has them, or restore an earlier version and "
    "delete them again"
)


@dataclass(frozen=True)
class RepairJob:
    """How shards are repaired; travels to workers with them.

    Attributes:
        mirror: of the dataset, or None.
        base_version: the version whose shards they are.
        writer: the program that wrote it.
        session: of the shards that are written.
        dry_run: store nothing.
        mirror_only: take nothing but what the mirror has.
    """

    mirror: Address | None
    base_version: int
    writer: str
    session: str
    dry_run: bool
    mirror_only: bool = False

    def __call__(self, part: Slice) -> list[RepairedShard]:
        """Repair the shards of a slice, in a worker."""
        mirror = None if self.mirror is None else self.mirror.connect()
        source, outcomes = part.open(), []
        for place, entry in enumerate(source.table):
            with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-repair-") as folder:
                outcome = RepairedShard(number=part.number + place, old=entry, new=entry)
                restorer = Restorer(source.pool.stores[0], mirror, folder, outcome, dry_run=self.dry_run)
                _ShardRepair(self, source, place, restorer, outcome).repair()
            outcomes.append(outcome)
        return outcomes


@dataclass(kw_only=True)
class RepairedShard(Repairs):
    """What became of one shard.

    Attributes:
        number: of the shard in the version.
        old: as the version lists it.
        new: as the next version lists it; None where it is not listed any more. The same as `old` where
            nothing about it changes.
    """

    number: int
    old: ShardEntry
    new: ShardEntry | None


class _ShardRepair:
    """One shard while it is looked at and repaired."""

    def __init__(
        self, job: RepairJob, source: ShardSource, place: int, restorer: Restorer, out: RepairedShard
    ) -> None:
        self.job, self.source, self.place, self.restorer, self.out = job, source, place, restorer, out
        self.store, self.data_store = restorer.store, source.pool.store_of(place)
        self.url = self.data_store.url_of(out.old.key)
        self.deleted: NDArray[np.int64] | None = None  # rows, where these were repaired

    def repair(self) -> None:
        """Check the shard, and repair each of its objects."""
        survey, out = Survey(), self.out
        check_listed(survey, self.source, self.store, self.place, self.out.old)
        if any(finding.kind == UNREADABLE for finding in survey.findings):
            # What cannot be looked at is not known to be lost.
            out.unrepaired += survey.findings
            return
        wrong = self._by_object(survey.findings)
        if "deletions" in wrong:
            self.deleted = self._restore("deletions", wrong["deletions"])
            if self.deleted is None:
                self._leave(wrong["deletions"], _ROWS)
                return
        shard, index = wrong.get("shard", []), wrong.get("index", [])
        if shard and self.out.old.adopted:
            self._leave(shard, _ADOPTED_SHARD)
            out.unrepaired += index
        elif shard and self._restore("shard", shard) is None:
            if self.job.mirror_only:
                out.unrepaired += shard
            elif _all_missing(shard):
                lost = BadRecord(self.url, shard[0].message, row=0, row_stop=out.old.rows)
                out.lost.append(lost)
                self._replace("dropped", None, out.old.live_rows)
            else:
                self._salvage(shard)
        elif index and self._restore("index", index) is None:
            if self.out.old.adopted:
                self._leave(index, _ADOPTED_INDEX)
            else:
                # In a dry run a shard of the mirror is in its copy alone.
                copied = shard and self.job.dry_run
                store = self.restorer.copies if copied else self.data_store
                self._rebuild_index(store, missing=_all_missing(index))
        listed = out.new is not None and out.new.table_key
        if "table" in wrong and listed and self._restore("table", wrong["table"]) is None:
            out.unrepaired += wrong["table"]

    def _by_object(self, findings: list[Finding]) -> dict[str, list[Finding]]:
        """Return findings by the object that they are about."""
        entry, wrong = self.out.old, dict[str, list[Finding]]()
        keys = {"deletions": entry.deletion_key, "index": entry.usual_index_key, "table": entry.table_key}
        names = {self.store.url_of(key): what for what, key in keys.items() if key}
        for each in findings:
            what = names.get(each.url or "") if each.kind == "missing" else _OBJECTS.get(each.kind)
            wrong.setdefault(what or "shard", []).append(each)
        return wrong

    def _leave(self, findings: list[Finding], advice: str) -> None:
        self.out.unrepaired += [each.with_advice(advice) for each in findings]

    # Objects from the mirror.

    def _named(self, what: str) -> Named[Any]:
        """Return an object of the shard with what proves it."""
        entry = self.out.old
        if what == "deletions":
            return Named(what, entry.deletion_key, partial(deleted_rows, entry=entry, limits=DEFAULT_LIMITS))
        if what == "table":
            read = partial(read_table_bytes, entry=entry, most=DEFAULT_LIMITS.index)
            return Named(what, entry.table_key, read)
        if what == "index":
            return Named(what, entry.usual_index_key, partial(_read_index, entry=entry))
        return Named(what, entry.key, partial(_check_shard, entry=entry), entry.stored_bytes)

    def _restore(self, what: str, findings: list[Finding]) -> Any:
        """Put an object back from the mirror; return what it holds, None where the mirror hasn't it."""
        return self.restorer.restore(self._named(what), missing=_all_missing(findings))

    def _rebuild_index(self, store: Store, *, missing: bool) -> None:
        """Make the index again from the shard, under a new name unless it is the one that is missing."""
        entry, new_key = self.out.old, ""
        head = self._scan(store, salvage=False)
        if not missing or head.head_sha256 != entry.index_head_sha256:
            new_key = naming.usual_index_key(f"{entry.key}.{naming.random_id()}")
            self.out.new = _with_index(entry, head, new_key)
        self.restorer.put(self._named("index"), missing=missing, new_key=new_key, source="shard")

    def _scan(self, store: Store, *, salvage: bool) -> IndexHead:
        """Make the index of a shard again, around damage where that is left out.

        Raises:
            FormatError: it is damaged, and damage is not to be left out.
        """
        from shardio.adoption import ScanOptions, scan_shard

        entry = self.out.old
        # The head names the program that wrote the shard; with the same name it is mostly the same head.
        options = ScanOptions(
            format="tfrecord",
            compression=entry.compression,
            salvage=salvage,
            writer=self.job.writer or writer_name(),
        )
        index = scan_shard(store, entry.key, entry.uuid, options).index
        try:
            self.restorer.path_of(entry.usual_index_key).write_bytes(index.read())
        finally:
            index.discard()
        return index.head

    # The intact records of a shard.

    def _replace(self, how: str, new: ShardEntry | None, lost: int) -> None:
        """Let a new shard, or none, take the place of the old one."""
        self.out.new, by = new, new.key or None if new else None
        self.out.repaired.append(Repaired(how=how, what="shard", url=self.url, by=by, lost=lost))

    def _salvage(self, findings: list[Finding]) -> None:
        """Put the good records into a new shard, and list what is lost."""
        entry, proven = self.out.old, True
        try:
            index, head = self.source.pool.open_index(self.place)
        except WRONG:
            found = self.restorer.fetch(self._named("index"))
            proven = found is not None
            head = found or self._scan(self.data_store, salvage=True)
            index = self.restorer.copies.open(self.out.old.usual_index_key)
        with index:
            if not proven and entry.deletion_key:
                self._leave(findings, f"the index is lost too, and {_ROWS}")
                return
            # Records that all match their checksums, in a shard that does not match its own, are another's.
            if not proven and not head.gaps:
                why = "nothing proves that its readable records belong here"
                self.out.lost.append(BadRecord(self.url, why, row=0, row_stop=entry.rows))
                self._replace("dropped", None, entry.live_rows)
                return
            deleted = (
                deleted_rows(self.store, entry, DEFAULT_LIMITS) if self.deleted is None else self.deleted
            )
            survey = Survey()
            lost = ~self._rewrite(head, index, deleted, survey)
        lost[deleted] = False
        self.out.lost += (
            _lost_rows(self.url, lost, survey.findings or findings)
            if proven
            else [
                BadRecord(self.url, each.message, start=each.start, stop=each.stop) for each in survey.skipped
            ]
        )

    def _rewrite(
        self, head: IndexHead, index: Any, deleted: NDArray[np.int64], survey: Survey
    ) -> NDArray[np.bool_]:
        """Write the good records that were not deleted into a new shard; return which these are."""
        entry, job, good = self.out.old, self.job, np.zeros(head.rows, bool)
        task = RewritingTask(
            Catalog(self.store), job.session, self.out.number, job.base_version, entry.split,
            Layout(compression=entry.compression, shard_bytes=sys.maxsize), spool_folder(self.store, None),
        )  # fmt: skip

        def take(block: CheckedBlock) -> None:
            rows, starts, view = block.rows_without(deleted), block.starts, memoryview(block.decoded)
            good[rows + block.first] = True
            for row in () if job.dry_run else rows.tolist():
                task.add(bytes(view[int(starts[row]) + 12 : int(block.stops[row]) - 4]))

        with task, self.data_store.open(self.out.old.key) as data:
            check_indexed(survey, head, index, data, shard=entry.key, limits=DEFAULT_LIMITS, take=take)
            for each in survey.findings:
                if each.kind == UNREADABLE:
                    raise StorageError(each.message, url=each.url, found=each.found, advice="try again")
            rows = int(good.sum())
            new = replace(entry, key="", deleted_rows=entry.rows - rows)
            if rows and not job.dry_run:
                new = replace(task.complete()[0], schema=entry.schema)
                self.out.new_keys += [new.key, new.usual_index_key]
        self._replace(
            "salvaged" if rows else "dropped", new if rows else None, max(0, entry.live_rows - rows)
        )
        return good


def _lost_rows(url: str, left: NDArray[np.bool_], findings: list[Finding]) -> Iterator[BadRecord]:
    """Return the rows that are lost, as runs of one reason, by rising row."""
    lost = []
    # What is said of a record itself says more than what is said of its block, and that more than the rest.
    ranked = sorted(findings, key=lambda each: (each.row is None, each.kind != "record"))
    for why in (*ranked, replace(ranked[-1], row=None)):
        first = why.row or 0
        stop = len(left) if why.row is None else why.row + 1 if why.row_stop is None else why.row_stop
        for begin, end in runs_of(first + np.flatnonzero(left[first:stop])):
            lost.append(BadRecord(url, why.message, start=why.start, stop=why.stop, row=begin, row_stop=end))
        left[first:stop] = False
    return iter(sorted(lost, key=lambda each: each.row or 0))


def _read_index(store: Store, entry: ShardEntry) -> IndexHead:
    """Return the head of an index that the list of shards names, all of whose bytes are right."""
    with store.open(entry.usual_index_key) as file:
        head = read_head(file, DEFAULT_LIMITS)
        check_index_file(file, head)
        first = head.frame_stop_offset
        same = kernels.crc32c(file.read(first, first + 4 * head.rows)) == head.frames_crc32c
        if not same or head.head_sha256 != entry.index_head_sha256:
            raise StaleIndexError("an index is not the one that the list of shards names", url=file.url)
        return head


def _check_shard(store: Store, entry: ShardEntry) -> bool:
    """Return True for a shard of the size and checksum that the list of shards names."""
    with store.open(entry.key) as data:
        if data.size != entry.stored_bytes or stored_crc32c(data) != entry.crc32c:
            raise FormatError("a shard is not the one that the list of shards names", url=data.url)
        return True


def _with_index(entry: ShardEntry, head: IndexHead, key: str) -> ShardEntry:
    """Return a shard under another index; what depends on the head of the old one falls away."""
    same = head.head_sha256 == entry.index_head_sha256
    return replace(
        entry if same else entry.without_table(),
        index_key=key,
        index_head_bytes=head.frame_stop_offset,
        index_head_sha256=head.head_sha256,
        blocks=head.listed_blocks,
    )


def _all_missing(findings: list[Finding]) -> bool:
    return all(finding.kind == "missing" for finding in findings)
