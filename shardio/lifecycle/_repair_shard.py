"""One shard with its index and deleted rows: from a mirror by digest, else what is good of it.

Promises: what was stored stays as it is, so everything new has a name never used before, and what is missing
gets its very bytes back under its own; nothing is stored before it was compared with the digests in the list
of shards; records that go into a new shard are those, and only those, that `shardio verify` calls good.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.catalog import Catalog, writer_name
from shardio.errors import (
    BadRecord,
    CommitConflictError,
    FormatError,
    NotFoundError,
    StaleIndexError,
    StorageError,
    UnsafeNameError,
)
from shardio.format import DEFAULT_LIMITS
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.lifecycle._rewrite import rewriting_task
from shardio.maintenance import UNREADABLE, CheckedBlock, Finding, Survey, check_indexed, check_listed
from shardio.metadata import IndexHead, ShardEntry, check_index_end, naming, parse_deletions, parse_head
from shardio.ranges import runs_of
from shardio.reader import ShardSource, Slice, deleted_rows
from shardio.storage import (
    Address,
    ShortReadError,
    Store,
    connect_folder,
    holds,
    read_intact,
    temporary_files,
)
from shardio.writer import ShardOptions, ShardSpool, spool_folder

T = TypeVar("T")

_PIECE = 8 << 20
# What says that an object is not the one that is looked for. That a place cannot be read says nothing, and
# ends the repair: for want of a mirror's answer no record is given up.
_WRONG = (FormatError, StaleIndexError, UnsafeNameError, NotFoundError, ShortReadError)
_OF_SHARD = ("size", "block", "decode", "record", "checksum")
_OF_INDEX = ("index", "frames")
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
class Repairing:
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

    def __call__(self, part: Slice) -> list[RepairOutcome]:
        """Repair the shards of a slice, in a worker."""
        mirror = None if self.mirror is None else self.mirror.connect()
        source = part.open()
        return [
            _ShardRepair(self, source, mirror, number, part.number + number).repair()
            for number in range(len(part.shards))
        ]


@dataclass(kw_only=True)
class RepairOutcome(Repairs):
    """What became of one shard.

    Attributes:
        number: of the shard in the version.
        old: as the version lists it.
        new: as the next version lists it; None where it is not listed any more. The same as `old` where
            nothing about it changes.
        keys: of the objects that were stored under new names.
    """

    number: int
    old: ShardEntry
    new: ShardEntry | None
    keys: list[str] = field(default_factory=list)


class _Index(NamedTuple):
    """The whole index of a shard, and where it came from."""

    data: bytes
    head: IndexHead
    source: str


class _ShardRepair:
    """One shard while it is looked at and repaired."""

    def __init__(
        self, job: Repairing, source: ShardSource, mirror: Store | None, place: int, number: int
    ) -> None:
        self.job, self.source, self.mirror, self.place, self.number = job, source, mirror, place, number
        self.entry = self.new = source.table[place]
        self.store = source.pool.stores[0]  # takes what is written, and holds indexes and deleted rows
        self.data_store = source.pool.store_of(place)
        self.url = self.data_store.url_of(self.entry.key)
        self.out = RepairOutcome(number=self.number, old=self.entry, new=self.entry)
        self.deleted: NDArray[np.int64] | None = None  # rows, where these were repaired

    def repair(self) -> RepairOutcome:
        """Return what is wrong and what became of it."""
        survey, entry = Survey(), self.entry
        check_listed(survey, self.source, self.store, self.place, entry)
        if any(finding.kind == UNREADABLE for finding in survey.findings):
            # What cannot be looked at is not known to be lost.
            self.out.unrepaired += survey.findings
            return self.out
        index_url, rows_url = map(self.store.url_of, (entry.usual_index_key, entry.deletion_key or "-"))
        urls = {self.url: _OF_SHARD, index_url: _OF_INDEX, rows_url: ("deletions",)}
        shard, index, rows = (
            [
                each
                for each in survey.findings
                if each.kind in kinds or (each.kind == "missing" and each.url == url)
            ]
            for url, kinds in urls.items()
        )
        with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-repair-") as folder:
            if rows and not self._mend_rows(rows, rows_url):
                return self.out
            if entry.adopted and shard:
                self._leave(shard, _ADOPTED_SHARD)
                self.out.unrepaired += index
            elif shard:
                self._mend_shard(shard, index, Path(folder))
            elif index:
                self._mend_index(index, self.data_store, entry.key)
        if self.out.new is not None:
            self.out.new = self.new
            if self.new.table_key:
                known = (*shard, *index, *rows)
                self.out.unrepaired += [each for each in survey.findings if each not in known]
        return self.out

    def _mend_rows(self, findings: list[Finding], url: str) -> bool:
        """Get the deleted rows back; return False where nothing else is to be done with the shard."""
        entry = self.entry
        found = self._from_mirror(entry.deletion_key, lambda data: parse_deletions(data, shard=entry))
        if found is None:
            self._leave(findings, _ROWS)
            return False
        data, self.deleted = found
        missing = _all_missing(findings)
        key = entry.deletion_key if missing else naming.rows_key(naming.random_id() + naming.random_id())
        self._store(key, data)
        self.new = replace(self.new, deletion_key=key)
        self._note("restored" if missing else "replaced", "deletions", url, key, "mirror")
        return True

    # Indexes.

    def _mend_index(self, findings: list[Finding], store: Store, key: str) -> None:
        """Store the index of a shard that is whole: under its own name if it is the one that is missing."""
        found, entry = self._mirrored_index(), self.new
        if found is None and (entry.adopted or self.job.mirror_only):
            self._leave(findings, _ADOPTED_INDEX)
            return
        found = found or self._scanned_index(store, key)
        same = found.head.head_sha256 == entry.index_head_sha256 and _all_missing(findings)
        name, url = entry.usual_index_key, self.store.url_of(entry.usual_index_key)
        if not same:
            stem = name.removesuffix(naming.INDEX_SUFFIX) if entry.adopted else entry.key
            name = naming.usual_index_key(f"{stem}.{naming.random_id()}")
            self.new = _with_index(entry, found.head, name)
        self._store(name, found.data)
        how = "rebuilt" if found.source == "shard" else "restored" if same else "replaced"
        self._note(how, "index", url, name, found.source)

    def _mirrored_index(self) -> _Index | None:
        """Return the index that the mirror has, where it is the one that the list names."""

        def parse(data: bytes) -> IndexHead:
            head = parse_head(data)
            stop = head.frame_stop_offset + 4 * head.rows
            check_index_end(head, data[stop:])
            same = kernels.crc32c(data[head.frame_stop_offset : stop]) == head.frames_crc32c
            if not same or head.head_sha256 != self.entry.index_head_sha256:
                raise StaleIndexError("an index of the mirror is another one")
            return head

        found = self._from_mirror(self.entry.usual_index_key, parse)
        return None if found is None else _Index(*found, "mirror")

    def _scanned_index(self, store: Store, key: str, *, salvage: bool = False) -> _Index:
        """Return the index of a shard made again; around damage where that is left out.

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
        index = scan_shard(store, key, self.entry.uuid, options).index
        try:
            return _Index(index.read(), index.head, "shard")
        finally:
            index.discard()

    # A shard that is damaged or missing.

    def _mend_shard(self, shard: list[Finding], index: list[Finding], folder: Path) -> None:
        copy = self._mirrored_shard(folder / "shard")
        if copy is not None:
            missing = _all_missing(shard)
            if index:
                self._mend_index(index, *connect_folder(str(copy)))
            if not missing:
                index_key = self.new.usual_index_key
                self.new = replace(self.new.without_table(), key=self._new_key(), index_key=index_key)
            self._store(self.new.key, copy)
            self._note("restored" if missing else "replaced", "shard", self.url, self.new.key, "mirror")
        elif self.job.mirror_only:
            self.out.unrepaired += shard
        elif _all_missing(shard):
            self._drop(shard[0].message)
        else:
            self._salvage(shard, folder)

    def _mirrored_shard(self, path: Path) -> Path | None:
        """Fetch the shard from the mirror; None where that does not have the same bytes."""
        entry, mirror = self.entry, self.mirror

        def read() -> Path:
            assert mirror is not None  # noqa: S101 - for mypy: see below
            with mirror.open(entry.key) as data, path.open("wb") as file:
                crc = 0
                for piece in data.pieces(_PIECE) if data.size == entry.stored_bytes else ():
                    crc = kernels.crc32c(piece, crc)
                    file.write(piece)
            if path.stat().st_size != entry.stored_bytes or crc != entry.crc32c:
                raise FormatError("a shard of the mirror is another one", url=mirror.url_of(entry.key))
            return path

        with contextlib.suppress(*_WRONG):
            return None if mirror is None else read_intact(read)
        return None

    def _salvage(self, shard: list[Finding], folder: Path) -> None:
        """Put the good records into a new shard, and list what is lost."""
        with contextlib.ExitStack() as files:
            proven = True
            try:
                opened, head = self.source.pool.open_index(self.place)
                files.enter_context(opened)
            except _WRONG:
                found = self._mirrored_index()
                if found is None:
                    proven, found = False, self._scanned_index(self.data_store, self.entry.key, salvage=True)
                head = found.head
                (folder / "index").write_bytes(found.data)
                store, key = connect_folder(str(folder / "index"))
                opened = files.enter_context(store.open(key))
            if not proven and self.entry.deletion_key:
                self._leave(shard, f"the index is lost too, and {_ROWS}")
                return
            # Records that all match their checksums, in a shard that does not match its own, are another's.
            if not proven and not head.gaps:
                self._drop("nothing proves that its readable records belong here")
                return
            deleted = self.deleted
            if deleted is None:
                deleted = deleted_rows(self.store, self.new, DEFAULT_LIMITS)
            good, survey = np.zeros(head.rows, bool), Survey()
            data = files.enter_context(self.data_store.open(self.entry.key))
            options = ShardOptions(
                compression=self.entry.compression, spool=spool_folder(self.store, None), writer=writer_name()
            )
            spool = ShardSpool(options)
            files.callback(spool.discard)

            def take(block: CheckedBlock) -> None:
                good[block.first : block.first + len(block.good)] = block.good
                rows = () if self.job.dry_run else block.rows_without(deleted).tolist()
                starts, view = block.starts, memoryview(block.decoded)
                for row in rows:
                    spool.add(bytes(view[int(starts[row]) + 12 : int(block.stops[row]) - 4]))

            check_indexed(survey, head, opened, data, shard=self.entry.key, limits=DEFAULT_LIMITS, take=take)
            for finding in survey.findings:
                if finding.kind == UNREADABLE:
                    raise StorageError(
                        finding.message, url=finding.url, found=finding.found, advice="try again"
                    )
            good[deleted] = False
            self._put_salvaged(spool, int(good.sum()))
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

    def _put_salvaged(self, spool: ShardSpool, rows: int) -> None:
        entry, job, key = self.new, self.job, None
        if not rows:
            self._drop()
            return
        if job.dry_run:
            self.new = replace(entry, key="", deleted_rows=entry.rows - rows)
        else:
            with rewriting_task(Catalog(self.store), job.session, self.number, job.base_version) as task:
                task.store(entry.split, spool, last=True)
                made = task.complete().table[0]
            self.new, key = replace(made, schema=entry.schema), made.key
            self.out.keys += [made.key, made.usual_index_key]
        lost = max(0, entry.live_rows - rows)
        self._note("salvaged", "shard", self.url, key, None, records=rows, lost=lost)

    def _drop(self, reason: str = "") -> None:
        """Give the shard up; with a reason, all of its rows are listed as lost for it."""
        self.out.new = None
        if reason:
            self.out.lost.append(BadRecord(self.url, reason, row=0, row_stop=self.new.rows))
        self._note("dropped", "shard", self.url, None, None, records=0, lost=self.new.live_rows)

    # What all of them need.

    def _leave(self, findings: list[Finding], advice: str) -> None:
        self.out.unrepaired += [each.with_advice(advice) for each in findings]

    def _from_mirror(self, key: str, parse: Callable[[bytes], T]) -> tuple[bytes, T] | None:
        """Return an object of the mirror, and what it is, where there is one and it is right."""
        return get_right(self.mirror, key, DEFAULT_LIMITS.index, parse)

    def _new_key(self) -> str:
        session, attempt = naming.session_id(self.job.session), naming.random_attempt()
        name = naming.DataKey(self.entry.split, session, self.number, attempt, 0)
        return name.key(self.entry.compression.suffix)

    def _store(self, key: str, data: bytes | Path) -> None:
        if not self.job.dry_run:
            put_object(self.store, key, data)
            self.out.keys.append(key)

    def _note(
        self, how: str, what: str, url: str, key: str | None, source: str | None, **counts: int
    ) -> None:
        by = None if self.job.dry_run else key
        self.out.repaired.append(Repaired(how=how, what=what, url=url, by=by, source=source, **counts))


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


def _with_index(entry: ShardEntry, head: IndexHead, key: str) -> ShardEntry:
    """Return a shard under another index; what depends on the head of the old one falls away."""
    made = ShardEntry.of_index(head, split=entry.split, key=entry.key, index_key=key, etag=entry.etag)
    old = entry if head.head_sha256 == entry.index_head_sha256 else entry.without_table()
    return replace(
        made.with_deletions_of(entry),
        root=entry.root,
        schema=entry.schema,
        table_key=old.table_key,
        table_bytes=old.table_bytes,
        table_sha256=old.table_sha256,
    )


def _all_missing(findings: list[Finding]) -> bool:
    return all(finding.kind == "missing" for finding in findings)


def get_right(
    store: Store | None, key: str, most: int, parse: Callable[[bytes], T]
) -> tuple[bytes, T] | None:
    """Return an object and what `parse` makes of it; None where there is none that it takes.

    Raises:
        StorageError: the environment failed.
    """
    if store is None:
        return None

    def read() -> tuple[bytes, T]:
        data = store.get(key, max_bytes=most)
        return data, parse(data)

    with contextlib.suppress(*_WRONG):
        return read_intact(read)
    return None


def put_object(store: Store, key: str, data: bytes | Path) -> None:
    """Create an object that was missing, or under a new name.

    Raises:
        CommitConflictError: another object was stored under the name meanwhile.
        StorageError: it was not created, or that is not known.
    """
    created = store.put_idempotent((key, data))
    if not created and (isinstance(data, Path) or not holds(store, key, data)):
        raise CommitConflictError(
            "another object was stored under the name of one that was missing",
            url=store.url_of(key),
            advice="run it again",
        )
