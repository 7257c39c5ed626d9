"""One shard with its index, deleted rows and table: from a mirror by digest, else what is good of it.

Promises: what was stored stays as it is, so everything new has a name never used before; records that go into
a new shard are those, and only those, that `shardio verify` calls good.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.catalog import Catalog, writer_name
from shardio.errors import BadRecord, FormatError, StaleIndexError, StorageError
from shardio.format import DEFAULT_LIMITS
from shardio.lifecycle._mirror import WRONG, Named, Restorer
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.lifecycle._rewrite import RewritingTask
from shardio.maintenance import UNREADABLE, CheckedBlock, Finding, Survey, check_indexed, check_listed
from shardio.metadata import IndexHead, ShardEntry, naming
from shardio.ranges import runs_of
from shardio.reader import ShardSource, Slice, check_index_file, deleted_rows, read_head, read_table_bytes
from shardio.storage import Address, Store, temporary_files
from shardio.writer import Layout, spool_folder

_PIECE = 8 << 20
# Which object a finding of a kind is about.
_OBJECTS = {
    "size": "shard", "block": "shard", "decode": "shard", "record": "shard", "checksum": "shard",
    "index": "index", "frames": "index", "deletions": "deletions", "table": "table",
}  # fmt: skip
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
                restorer = Restorer(source.pool.stores[0], mirror, self.dry_run, Path(folder), outcome)
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
        self.entry, self.store = out.old, restorer.store
        self.data_store = source.pool.store_of(place)
        self.url = self.data_store.url_of(self.entry.key)
        self.deleted: NDArray[np.int64] | None = None  # rows, where these were repaired

    @property
    def new(self) -> ShardEntry:
        """The shard as it will be listed."""
        return self.out.new or self.entry

    def repair(self) -> None:
        """Check the shard, and repair each of its objects."""
        survey, entry, out = Survey(), self.entry, self.out
        check_listed(survey, self.source, self.store, self.place, entry)
        if any(finding.kind == UNREADABLE for finding in survey.findings):
            # What cannot be looked at is not known to be lost.
            out.unrepaired += survey.findings
            return
        keys = {"deletions": entry.deletion_key, "index": entry.usual_index_key, "table": entry.table_key}
        names = {self.url: "shard", **{self.store.url_of(key): what for what, key in keys.items() if key}}
        wrong: dict[str, list[Finding]] = {}
        for finding in survey.findings:
            what = names.get(finding.url or "") if finding.kind == "missing" else _OBJECTS[finding.kind]
            wrong.setdefault(what or "shard", []).append(finding)
        if "deletions" in wrong and not self._mend_rows(wrong["deletions"]):
            return
        if entry.adopted and "shard" in wrong:
            self._leave(wrong["shard"], _ADOPTED_SHARD)
            out.unrepaired += wrong.get("index", ())
        elif "shard" in wrong:
            self._mend_shard(wrong["shard"], wrong.get("index", []))
        elif "index" in wrong:
            self._mend_index(wrong["index"], self.data_store)
        if out.new is not None and out.new.table_key and "table" in wrong:
            self._mend_table(wrong["table"])

    def _leave(self, findings: list[Finding], advice: str) -> None:
        self.out.unrepaired += [each.with_advice(advice) for each in findings]

    def _mend_rows(self, findings: list[Finding]) -> bool:
        """Get the deleted rows back; return False where nothing else is to be done with the shard."""
        missing = _all_missing(findings)
        new_key = "" if missing else naming.rows_key(naming.random_id() + naming.random_id())
        read = partial(deleted_rows, entry=self.entry, limits=DEFAULT_LIMITS)
        named = Named("deletions", self.entry.deletion_key, read)
        self.deleted = self.restorer.restore(named, missing=missing, new_key=new_key)
        if self.deleted is None:
            self._leave(findings, _ROWS)
        elif new_key:
            self.out.new = replace(self.new, deletion_key=new_key)
        return self.deleted is not None

    def _mend_table(self, findings: list[Finding]) -> None:
        read = partial(read_table_bytes, entry=self.entry, most=DEFAULT_LIMITS.index)
        named = Named("table", self.entry.table_key, read)
        if self.restorer.restore(named, missing=_all_missing(findings)) is None:
            self.out.unrepaired += findings

    # Indexes.

    @property
    def _index(self) -> Named[IndexHead]:
        """The index that the list of shards names."""
        return Named("index", self.entry.usual_index_key, partial(_read_index, entry=self.entry))

    def _mend_index(self, findings: list[Finding], store: Store) -> None:
        """Store the index of a shard that is whole: under its own name if it is the one that is missing."""
        entry, named, head = self.new, self._index, self.restorer.fetch(self._index)
        source = "mirror" if head is not None else "shard"
        if head is None:
            if entry.adopted or self.job.mirror_only:
                self._leave(findings, _ADOPTED_INDEX)
                return
            head = self._scan(store, salvage=False)
        missing, new_key = _all_missing(findings), ""
        if not missing or head.head_sha256 != entry.index_head_sha256:
            stem = named.key.removesuffix(naming.INDEX_SUFFIX) if entry.adopted else entry.key
            new_key = naming.usual_index_key(f"{stem}.{naming.random_id()}")
            self.out.new = _with_index(entry, head, new_key)
        self.restorer.put(named, missing=missing, new_key=new_key, source=source)

    def _scan(self, store: Store, *, salvage: bool) -> IndexHead:
        """Make the index of a shard again, around damage where that is left out.

        Raises:
            FormatError: it is damaged, and damage is not to be left out.
        """
        from shardio.adoption import ScanOptions, scan_shard

        # The head names the program that wrote the shard; with the same name it is mostly the same head.
        options = ScanOptions(
            format="tfrecord",
            compression=self.entry.compression,
            salvage=salvage,
            writer=self.job.writer or writer_name(),
        )
        index = scan_shard(store, self.entry.key, self.entry.uuid, options).index
        try:
            self.restorer.path_of(self._index.key).write_bytes(index.read())
        finally:
            index.discard()
        return index.head

    # A shard that is damaged or missing.

    def _mend_shard(self, shard: list[Finding], index: list[Finding]) -> None:
        entry, restorer, missing = self.entry, self.restorer, _all_missing(shard)
        named = Named("shard", entry.key, partial(_check_shard, entry=entry), entry.stored_bytes)
        if restorer.fetch(named):
            if index:
                self._mend_index(index, restorer.copies)
            new_key = "" if missing else self._new_key()
            if new_key:
                index_key = self.new.usual_index_key
                self.out.new = replace(self.new.without_table(), key=new_key, index_key=index_key)
            restorer.put(named, missing=missing, new_key=new_key)
        elif self.job.mirror_only:
            self.out.unrepaired += shard
        elif missing:
            self._drop(shard[0].message)
        else:
            self._salvage(shard)

    def _new_key(self) -> str:
        session, attempt = naming.session_id(self.job.session), naming.random_attempt()
        name = naming.DataKey(self.entry.split, session, self.out.number, attempt, 0)
        return name.key(self.entry.compression.suffix)

    def _drop(self, reason: str = "") -> None:
        """Give the shard up; with a reason, all of its rows are listed as lost for it."""
        if reason:
            self.out.lost.append(BadRecord(self.url, reason, row=0, row_stop=self.new.rows))
        self._note("dropped", None, 0, self.new.live_rows)
        self.out.new = None

    def _note(self, how: str, key: str | None, records: int, lost: int) -> None:
        self.out.repaired.append(
            Repaired(how=how, what="shard", url=self.url, by=key, records=records, lost=lost)
        )

    def _salvage(self, shard: list[Finding]) -> None:
        """Put the good records into a new shard, and list what is lost."""
        entry, copies, proven = self.new, self.restorer.copies, True
        with contextlib.ExitStack() as files:
            try:
                opened, head = self.source.pool.open_index(self.place)
            except WRONG:
                found = self.restorer.fetch(self._index)
                proven = found is not None
                head = found or self._scan(self.data_store, salvage=True)
                opened = copies.open(self._index.key)
            files.enter_context(opened)
            if not proven and entry.deletion_key:
                self._leave(shard, f"the index is lost too, and {_ROWS}")
                return
            # Records that all match their checksums, in a shard that does not match its own, are another's.
            if not proven and not head.gaps:
                self._drop("nothing proves that its readable records belong here")
                return
            deleted = self.deleted
            if deleted is None:
                deleted = deleted_rows(self.store, entry, DEFAULT_LIMITS)
            good, survey = np.zeros(head.rows, bool), Survey()
            layout = Layout(compression=entry.compression, shard_bytes=sys.maxsize)
            folder = spool_folder(self.store, None)
            job, number = self.job, self.out.number
            catalog = Catalog(self.store)
            task = files.enter_context(
                RewritingTask(catalog, job.session, number, job.base_version, entry.split, layout, folder)
            )

            def take(block: CheckedBlock) -> None:
                good[block.first : block.first + len(block.good)] = block.good
                rows = () if job.dry_run else block.rows_without(deleted).tolist()
                starts, view = block.starts, memoryview(block.decoded)
                for row in rows:
                    task.add(bytes(view[int(starts[row]) + 12 : int(block.stops[row]) - 4]))

            data = files.enter_context(self.data_store.open(entry.key))
            check_indexed(survey, head, opened, data, shard=entry.key, limits=DEFAULT_LIMITS, take=take)
            for finding in survey.findings:
                if finding.kind == UNREADABLE:
                    raise StorageError(
                        finding.message, url=finding.url, found=finding.found, advice="try again"
                    )
            good[deleted] = False
            self._put_salvaged(task, int(good.sum()))
        good[deleted] = True
        self.out.lost += (
            _lost_rows(self.url, good, survey.findings or shard)
            if proven
            else [
                BadRecord(self.url, reason.removeprefix("damage: "), start=start, stop=stop)
                for block, reason in sorted(head.gaps.items())
                for start, stop in [head.block_bounds(block)]
            ]
        )

    def _put_salvaged(self, task: RewritingTask, rows: int) -> None:
        entry, key = self.new, None
        if not rows:
            self._drop()
            return
        if self.job.dry_run:
            self.out.new = replace(entry, key="", deleted_rows=entry.rows - rows)
        else:
            made = task.complete()[0]
            self.out.new, key = replace(made, schema=entry.schema), made.key
            self.out.new_keys += [made.key, made.usual_index_key]
        self._note("salvaged", key, rows, max(0, entry.live_rows - rows))


def _lost_rows(url: str, good: NDArray[np.bool_], findings: list[Finding]) -> list[BadRecord]:
    """Return the rows that are not good, as runs of one reason, by rising row."""
    left, lost = ~good, []
    # What is said of a record itself says more than what is said of its block, and that more than the rest.
    ranked = sorted(findings, key=lambda each: (each.row is None, each.kind != "record"))
    for why in (*ranked, replace(ranked[-1], row=None)):
        first = why.row or 0
        stop = len(good) if why.row is None else why.row + 1 if why.row_stop is None else why.row_stop
        for begin, end in runs_of(first + np.flatnonzero(left[first:stop])):
            lost.append(BadRecord(url, why.message, start=why.start, stop=why.stop, row=begin, row_stop=end))
        left[first:stop] = False
    return sorted(lost, key=lambda each: each.row or 0)


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
        crc = 0
        for piece in data.pieces(_PIECE):
            crc = kernels.crc32c(piece, crc)
        if data.size != entry.stored_bytes or crc != entry.crc32c:
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
