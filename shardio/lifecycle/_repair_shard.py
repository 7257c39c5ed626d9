"""One shard with its index and deleted rows: from a mirror by digest, else what is good of it.

Promises: what was stored stays as it is, so everything new has a name never used before, and what is missing
gets its very bytes back under its own; nothing is stored before it was compared with the digests in the list
of shards; records that go into a new shard are those, and only those, that `shardio verify` calls good.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
        names: of a shard in the mirror where it is called otherwise there, by UUID: key and key of the index.
        base_version: the version whose shards they are.
        writer: the program that wrote it.
        session: of the shards that are written.
        dry_run: store nothing.
        mirror_only: take nothing but what the mirror has.
    """

    mirror: Address | None
    names: Mapping[bytes, tuple[str, str]]
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
        self.entry = source.table[place]
        self.store = source.pool.stores[0]  # takes what is written, and holds indexes and deleted rows
        self.data_store = source.pool.store_of(place)
        self.url = self.data_store.url_of(self.entry.key)
        self.index_url = self.store.url_of(self.entry.usual_index_key)
        self.rows_url = self.store.url_of(self.entry.deletion_key) if self.entry.deletion_key else ""
        self.names = (self.entry.key, self.entry.usual_index_key)
        self.mirror_names = job.names.get(self.entry.uuid, self.names)
        self.out = RepairOutcome(number=self.number, old=self.entry, new=self.entry)
        self._rows: bytes | None = None  # which are deleted, where these were repaired

    def repair(self) -> RepairOutcome:
        """Return what is wrong and what became of it."""
        survey = Survey()
        check_listed(survey, self.source, self.store, self.place, self.entry)
        if any(finding.kind == UNREADABLE for finding in survey.findings):
            # What cannot be looked at is not known to be lost.
            self.out.unrepaired += survey.findings
            return self.out
        shard = self._about(survey, _OF_SHARD, self.url)
        index = self._about(survey, _OF_INDEX, self.index_url)
        rows = self._about(survey, ("deletions",), self.rows_url)
        if rows and not self._mend_rows(rows):
            return self.out
        with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-repair-") as folder:
            if self.entry.adopted and shard:
                self._leave(shard, _ADOPTED_SHARD)
                self.out.unrepaired += index
            elif shard:
                self._mend_shard(shard, index, Path(folder))
            elif index:
                self._mend_index(index, self.data_store, self.entry.key)
        if self.out.new is not None and self.out.new.table_key:
            known = (*shard, *index, *rows)
            self.out.unrepaired += [finding for finding in survey.findings if finding not in known]
        return self.out

    @staticmethod
    def _about(survey: Survey, kinds: tuple[str, ...], url: str) -> list[Finding]:
        return [
            each
            for each in survey.findings
            if each.kind in kinds or (each.kind == "missing" and each.url == url)
        ]

    # Deleted rows.

    def _mend_rows(self, findings: list[Finding]) -> bool:
        """Get the deleted rows back; return False where nothing else is to be done with the shard."""
        entry, source = self.entry, "mirror"
        data, _ = self._from_mirror([entry.deletion_key], lambda data: parse_deletions(data, shard=entry))
        if data is None and entry.live_rows == 0:
            # All rows are deleted: there is one such sidecar.
            source, data = "shard", np.arange(entry.rows, dtype="<u4").tobytes()
        if data is None:
            self._leave(findings, _ROWS)
            return False
        self._rows = data
        missing = _all_missing(findings)
        key = entry.deletion_key if missing else naming.rows_key(naming.random_id() + naming.random_id())
        self._store(key, data)
        self.entry = self.out.new = replace(self._new(), deletion_key=key)
        self._note("restored" if missing else "replaced", "deletions", self.rows_url, key, source)
        return True

    # The index of a shard that is whole.

    def _mend_index(self, findings: list[Finding], store: Store, key: str) -> None:
        found = self._mirrored_index()
        if found is None and (self.entry.adopted or self.job.mirror_only):
            self._leave(findings, _ADOPTED_INDEX)
            return
        self._put_index(findings, found or self._scanned_index(store, key))

    def _put_index(self, findings: list[Finding], found: _Index) -> None:
        """Store an index: under its own name where that is free and it is the one that the list names."""
        entry = self._new()
        same = found.head.head_sha256 == entry.index_head_sha256 and _all_missing(findings)
        key = entry.usual_index_key
        if not same:
            stem = key.removesuffix(naming.INDEX_SUFFIX) if entry.adopted else entry.key
            key = naming.usual_index_key(f"{stem}.{naming.random_id()}")
            self.out.new = _with_index(entry, found.head, key)
        self._store(key, found.data)
        how = "rebuilt" if found.source == "shard" else "restored" if same else "replaced"
        self._note(how, "index", self.index_url, key, found.source)

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

        data, head = self._from_mirror([self.entry.usual_index_key, self.mirror_names[1]], parse)
        return None if data is None or head is None else _Index(data, head, "mirror")

    def _scanned_index(self, store: Store, key: str, *, salvage: bool = False) -> _Index:
        """Return the index of a shard made again; around damage where that is left out.

        Raises:
            FormatError: it is damaged, and damage is not to be left out.
        """
        from shardio.adoption import ScanOptions, scan_shard

        # The head names the program that wrote the shard; with the same name it may be the same head.
        found = None
        for writer in dict.fromkeys((writer_name(), self.job.writer or writer_name())):
            if found is not None and (salvage or found.head.head_sha256 == self.entry.index_head_sha256):
                break
            options = ScanOptions(
                format="tfrecord", compression=self.entry.compression, salvage=salvage, writer=writer
            )
            index = scan_shard(store, key, self.entry.uuid, options).index
            try:
                found = _Index(index.read(), index.head, "shard")
            finally:
                index.discard()
        assert found is not None  # noqa: S101 - for mypy: there is one writer at least
        return found

    # A shard that is damaged or missing.

    def _mend_shard(self, shard: list[Finding], index: list[Finding], folder: Path) -> None:
        copy = self._mirrored_shard(folder)
        if copy is not None:
            missing = _all_missing(shard)
            key = self._new().key if missing else self._new_key()
            if index:
                store, name = connect_folder(str(copy))
                self._mend_index(index, store, name)
            entry = self._new()
            self._store(key, copy)
            if key != entry.key:
                self.out.new = replace(entry.without_table(), key=key, index_key=entry.usual_index_key)
            self._note("restored" if missing else "replaced", "shard", self.url, key, "mirror")
        elif self.job.mirror_only:
            self.out.unrepaired += shard
        elif _all_missing(shard):
            self._drop(shard[0].message)
        else:
            self._salvage(shard, folder)

    def _mirrored_shard(self, folder: Path) -> Path | None:
        """Fetch the shard from the mirror; None where that does not have the same bytes."""
        entry, path, mirror = self.entry, folder / "shard", self.mirror
        if mirror is None:
            return None
        index = self._mirrored_index()

        def read(key: str) -> Path:
            with mirror.open(key) as data, path.open("wb") as file:
                crc = 0
                for piece in data.pieces(_PIECE) if data.size == entry.stored_bytes else ():
                    crc = kernels.crc32c(piece, crc)
                    file.write(piece)
            right = path.stat().st_size == entry.stored_bytes and crc == entry.crc32c
            if not right or (index is not None and self._walk(connect_folder(str(path)), index, folder)):
                raise FormatError("a shard of the mirror is another one", url=mirror.url_of(key))
            return path

        for key in dict.fromkeys((entry.key, self.mirror_names[0])):
            with contextlib.suppress(*_WRONG):
                return read_intact(functools.partial(read, key))
        return None

    def _walk(
        self,
        place: tuple[Store, str],
        index: _Index | None,
        folder: Path,
        take: Callable[[CheckedBlock], None] | None = None,
    ) -> list[Finding]:
        """Return what `verify` finds in a shard; by its own index where None is given.

        Raises:
            StorageError: some of it could not be read.
        """
        survey = Survey()
        with contextlib.ExitStack() as files:
            data = files.enter_context(place[0].open(place[1]))
            if index is None:
                opened, head = self.source.pool.open_index(self.place)
                files.enter_context(opened)
            else:
                (folder / "index").write_bytes(index.data)
                store, key = connect_folder(str(folder / "index"))
                opened, head = files.enter_context(store.open(key)), index.head
            check_indexed(survey, head, opened, data, shard=self.entry.key, limits=DEFAULT_LIMITS, take=take)
        for finding in survey.findings:
            if finding.kind == UNREADABLE:
                raise StorageError(finding.message, url=finding.url, found=finding.found, advice="try again")
        return survey.findings

    def _salvage(self, shard: list[Finding], folder: Path) -> None:
        """Put the good records into a new shard, and list what is lost."""
        proven, index = True, None
        try:
            head = self.source.pool.open_index(self.place)[1]
        except _WRONG:
            index = self._mirrored_index()
            if index is None:
                proven, index = False, self._scanned_index(self.data_store, self.entry.key, salvage=True)
            head = index.head
        if not proven and self.entry.deletion_key:
            self._leave(shard, f"the index is lost too, and {_ROWS}")
            return
        # Records that all match their checksums, in a shard that does not match its own, are another's.
        if not proven and not head.gaps:
            self._drop("nothing proves that its readable records belong here")
            return
        deleted = self._deleted() if proven else np.empty(0, np.int64)
        kept = _Kept(deleted)
        spool = self._spool()
        try:
            findings = self._walk(
                (self.data_store, self.entry.key), index, folder, functools.partial(kept.take, spool)
            )
            self._put_salvaged(spool, kept)
        finally:
            if spool is not None:
                spool.discard()
        if proven:
            self.out.lost += self._lost_rows(kept, head, findings or shard)
        else:
            self.out.lost += self._lost_places(head)

    def _put_salvaged(self, spool: ShardSpool | None, kept: _Kept) -> None:
        entry, job, key = self._new(), self.job, None
        lost = max(0, entry.live_rows - kept.rows)
        if not kept.rows:
            self.out.new = None
            self._note("dropped", "shard", self.url, None, None, records=0, lost=lost)
            return
        if spool is None:
            self.out.new = replace(entry, key="", deleted_rows=entry.rows - kept.rows)
        else:
            catalog = Catalog(self.store)
            with rewriting_task(catalog, job.session, self.number, job.base_version) as task:
                task.store(entry.split, spool, last=True)
                made = task.complete().table[0]
            self.out.new = replace(made, schema=entry.schema)
            self.out.keys += [made.key, made.usual_index_key]
            key = made.key
        self._note("salvaged", "shard", self.url, key, None, records=kept.rows, lost=lost)

    def _drop(self, reason: str) -> None:
        entry = self._new()
        self.out.new = None
        self.out.lost.append(BadRecord(self.url, reason, row=0, row_stop=entry.rows))
        self._note("dropped", "shard", self.url, None, None, records=0, lost=entry.live_rows)

    def _lost_rows(self, kept: _Kept, head: IndexHead, findings: list[Finding]) -> list[BadRecord]:
        """Return what is lost, by rising row: runs of one reason; deleted rows are not lost."""
        lost = np.ones(head.rows, bool)
        for first, mask in kept.good:
            lost[first : first + len(mask)] &= ~mask
        lost[kept.deleted] = False
        reasons = np.full(head.rows, len(findings), np.int64)
        # What is said of a record itself says more than what is said of its block.
        for number in sorted(range(len(findings)), key=lambda n: findings[n].kind == "record"):
            row, row_stop = findings[number].row, findings[number].row_stop
            if row is not None:
                reasons[row : row + 1 if row_stop is None else row_stop] = number
        found = []
        for number in range(len(findings) + 1):
            why = findings[min(number, len(findings) - 1)]
            found += [
                BadRecord(self.url, why.message, start=why.start, stop=why.stop, row=first, row_stop=stop)
                for first, stop in runs_of(np.flatnonzero(lost & (reasons == number)))
            ]
        return sorted(found, key=lambda each: each.row or 0)

    def _lost_places(self, head: IndexHead) -> Iterator[BadRecord]:
        """Yield what is lost, by place, where no row is known."""
        for block, reason in sorted(head.gaps.items()):
            start, stop = head.block_bounds(block)
            yield BadRecord(self.url, reason.removeprefix("damage: "), start=start, stop=stop)

    # What all of them need.

    def _new(self) -> ShardEntry:
        assert self.out.new is not None  # noqa: S101 - for mypy: a shard is dropped last
        return self.out.new

    def _leave(self, findings: list[Finding], advice: str) -> None:
        self.out.unrepaired += [each.with_advice(advice) for each in findings]

    def _deleted(self) -> NDArray[np.int64]:
        if self._rows is not None:  # in a dry run, they are not stored
            return parse_deletions(self._rows, self._new())
        return deleted_rows(self.store, self._new(), DEFAULT_LIMITS)

    def _from_mirror(
        self, keys: list[str], parse: Callable[[bytes], T]
    ) -> tuple[bytes, T] | tuple[None, None]:
        """Return an object of the mirror, and what it is, where there is one and it is right."""
        mirror = self.mirror
        for key in dict.fromkeys(keys):
            found = None if mirror is None else get_right(mirror, key, DEFAULT_LIMITS.index, parse)
            if found is not None:
                return found
        return None, None

    def _new_key(self) -> str:
        entry = self._new()
        session, attempt = naming.session_id(self.job.session), naming.random_attempt()
        name = naming.DataKey(entry.split, session, self.number, attempt, 0)
        return name.key(entry.compression.suffix)

    def _spool(self) -> ShardSpool | None:
        if self.job.dry_run:
            return None
        return ShardSpool(
            ShardOptions(
                compression=self.entry.compression,
                spool=spool_folder(self.store, None),
                writer=writer_name(),
            )
        )

    def _store(self, key: str, data: bytes | Path) -> None:
        if self.job.dry_run:
            return
        put_object(self.store, key, data)
        self.out.keys.append(key)

    def _note(
        self,
        how: str,
        what: str,
        url: str,
        key: str | None,
        source: str | None,
        *,
        records: int | None = None,
        lost: int = 0,
    ) -> None:
        by = None if self.job.dry_run else key
        self.out.repaired.append(
            Repaired(how=how, what=what, url=url, by=by, source=source, records=records, lost=lost)
        )


class _Kept:
    """The good records of a shard, in order, on their way into another one.

    Args:
        deleted: rows that are left behind, int64, ascending.

    Attributes:
        rows: how many were kept.
        good: of each block with records that are kept, number of its first row and which rows are kept.
    """

    def __init__(self, deleted: NDArray[np.int64]) -> None:
        self.deleted = deleted
        self.rows = 0
        self.good: list[tuple[int, NDArray[np.bool_]]] = []

    def take(self, spool: ShardSpool | None, block: CheckedBlock) -> None:
        """Take the good records of a block."""
        rows = block.rows_without(self.deleted)
        self.good.append((block.first, block.good))
        self.rows += len(rows)
        if spool is None:
            return
        starts, view = block.starts, memoryview(block.decoded)
        for row in rows.tolist():
            spool.add(bytes(view[int(starts[row]) + 12 : int(block.stops[row]) - 4]))


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


def get_right(store: Store, key: str, most: int, parse: Callable[[bytes], T]) -> tuple[bytes, T] | None:
    """Return an object and what `parse` makes of it; None where there is none that it takes.

    Raises:
        StorageError: the environment failed.
    """

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
