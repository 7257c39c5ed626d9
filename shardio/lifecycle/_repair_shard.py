"""One shard with its index and deleted rows: from a mirror, from each other, or as far as it is good.

Promises: what was stored stays as it is, so everything new has a name never used before, and what is missing
gets its very bytes back under its own; nothing is stored before it was compared with the digests in the list
of shards; records that go into a new shard are those, and only those, that `shardio verify` calls good.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.catalog import Catalog, Version, writer_name
from shardio.errors import (
    BadRecord,
    CommitConflictError,
    FormatError,
    NotFoundError,
    StaleIndexError,
    StorageError,
    UnsafeNameError,
)
from shardio.format import DEFAULT_LIMITS, Framing
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.lifecycle._rewrite import rewriting_task
from shardio.maintenance import UNREADABLE, CheckedBlock, Finding, Survey, check_indexed, check_listed
from shardio.metadata import (
    IndexHead,
    ShardEntry,
    check_frames_part,
    check_index_end,
    naming,
    parse_deletions,
    parse_head,
)
from shardio.ranges import runs_of
from shardio.reader import (
    BlockReader,
    ReadOptions,
    ShardSource,
    deleted_rows,
    examined_blocks,
    root_stores,
)
from shardio.storage import (
    DataFile,
    ShortReadError,
    Store,
    connect,
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
_CHOOSE = (
    'give uncertain="take" to have them, or uncertain="leave" to give '
    "them up; or name a mirror that has the whole object"
)


class DatasetAddress(NamedTuple):
    """A place that travels to other processes.

    Attributes:
        url: of the dataset there.
        storage_options, engine: as in fsspec.
    """

    url: str
    storage_options: Mapping[str, Any] | None = None
    engine: str | None = None

    def connect(self) -> Store:
        """Return its store."""
        return connect(self.url, storage_options=self.storage_options, engine=self.engine)


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


@dataclass(frozen=True, kw_only=True)
class RepairOptions:
    """What the caller asked for.

    Attributes:
        place, mirror: of the dataset, and of a copy of it or None.
        allow_roots: storage options by URL of the roots of adopted shards that may be read.
        dry_run: store nothing.
        uncertain: "take", "leave" or None.
    """

    place: DatasetAddress
    mirror: DatasetAddress | None
    allow_roots: Mapping[str, Mapping[str, Any]]
    dry_run: bool
    uncertain: str | None


@dataclass(frozen=True)
class RepairJob:
    """Shards of a version that one process looks at one after another.

    Attributes:
        options: of the repair.
        version, digest: of the version.
        session: of the shards that are written.
        first, stop: half-open range of shards.
    """

    options: RepairOptions
    version: int
    digest: str
    session: str
    first: int
    stop: int

    def run(self) -> list[RepairOutcome]:
        """Look at the shards, and repair those that are damaged.

        Raises:
            StorageError: what was repaired could not be stored.
        """
        # By the session, too: another repair looks at the places again.
        context = _context_of(pickle.dumps(replace(self, first=0, stop=0)))
        return [_ShardRepair(self, context, number).repair() for number in range(self.first, self.stop)]


class _JobContext(NamedTuple):
    """What all jobs of a process share."""

    catalog: Catalog
    version: Version
    source: ShardSource
    mirror: Store | None
    copies: Mapping[tuple[bytes, bytes], ShardEntry]  # of the mirror, by UUID and SHA-256 of the index's head


@functools.lru_cache(maxsize=2)
def _context_of(frozen: bytes) -> _JobContext:
    job: RepairJob = pickle.loads(frozen)  # noqa: S301 - frozen above
    place, mirror, allow_roots = job.options.place, job.options.mirror, job.options.allow_roots
    catalog = Catalog(place.connect())
    version = catalog.load(job.version, digest=job.digest, known_live=True)
    table = catalog.table(version)
    options = ReadOptions(
        storage_options=place.storage_options, engine=place.engine, allow_roots=allow_roots, mmap=False
    )
    stores = root_stores(catalog.store, version.manifest.roots, table, options)
    source = ShardSource(place.url, table, stores, options, version.manifest.schema)
    if mirror is None:
        return _JobContext(catalog, version, source, None, {})
    store = mirror.connect()
    copies = {}
    # A mirror that was itself repaired has the same bytes under other names.
    with contextlib.suppress(*_WRONG):
        there = Catalog(store)
        copies = {(each.uuid, each.index_head_sha256): each for each in there.table(there.load())}
    return _JobContext(catalog, version, source, store, copies)


def _uint32(raw: bytes, start: int, stop: int) -> NDArray[np.uint32]:
    """Return what an index that may be cut short holds of a column there."""
    return np.frombuffer(raw[start : min(stop, len(raw) - len(raw) % 4)], "<u4")


class _Index(NamedTuple):
    """The whole index of a shard, proven by the digest in the list or made again; and where it came from."""

    data: bytes
    head: IndexHead
    source: str


class _ShardRepair:
    """One shard while it is looked at and repaired."""

    def __init__(self, job: RepairJob, context: _JobContext, number: int) -> None:
        self.job = job
        self.context = context
        self.number = number
        self.entry = context.source.table[number]
        self.store = context.catalog.store  # takes what is written, and holds indexes and deleted rows
        self.data_store = context.source.pool.store_of(number)
        self.url = self.data_store.url_of(self.entry.key)
        self.index_url = self.store.url_of(self.entry.usual_index_key)
        self.rows_url = self.store.url_of(self.entry.deletion_key) if self.entry.deletion_key else ""
        self.out = RepairOutcome(number=number, old=self.entry, new=self.entry)
        self._rows: bytes | None = None  # which are deleted, where these were repaired

    def repair(self) -> RepairOutcome:
        """Return what is wrong and what became of it."""
        survey = Survey()
        check_listed(survey, self.context.source, self.store, self.number, self.entry)
        if not survey.findings:
            return self.out
        if any(finding.kind == UNREADABLE for finding in survey.findings):
            # What cannot be looked at is not known to be lost.
            self.out.unrepaired += survey.findings
            return self.out
        shard = [f for f in survey.findings if f.kind in _OF_SHARD or _is_missing(f, self.url)]
        index = [f for f in survey.findings if f.kind in _OF_INDEX or _is_missing(f, self.index_url)]
        rows = [f for f in survey.findings if f.kind == "deletions" or _is_missing(f, self.rows_url)]
        if rows and not self._mend_rows(rows):
            return self.out
        with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-repair-") as folder:
            if self.entry.adopted:
                self._mend_adopted(shard, index)
            elif shard:
                self._mend_shard(shard, index, Path(folder))
            elif index:
                self._mend_index(index, self.data_store, self.entry.key)
        if self.out.new is not None and self.out.new.table_key:
            known = (*shard, *index, *rows)
            self.out.unrepaired += [finding for finding in survey.findings if finding not in known]
        return self.out

    # Deleted rows.

    def _mend_rows(self, findings: list[Finding]) -> bool:
        """Get the deleted rows back; return False where nothing else is to be done with the shard."""
        entry = self.entry
        found = self._from_mirror(entry.deletion_key, functools.partial(parse_deletions, shard=entry))
        source, data = "mirror", None if found is None else found[0]
        if data is None and entry.live_rows == 0:
            # All rows are deleted: there is one such sidecar.
            source, data = "shard", np.arange(entry.rows, dtype="<u4").tobytes()
        missing = all(finding.kind == "missing" for finding in findings)
        if data is not None:
            self._rows = data
            key = entry.deletion_key if missing else naming.rows_key(naming.random_id() + naming.random_id())
            self._store(key, data)
            self.entry = replace(self._new(), deletion_key=key)
            self.out.new = self.entry
            how = "restored" if missing else "replaced"
            self._note(how, "deletions", self.rows_url, key, source)
            return True
        deleted = entry.rows - entry.live_rows
        if self.job.options.uncertain is None:
            what = f"{deleted} rows of {entry.rows} were deleted, and nothing tells which"
            self.out.uncertain[self.url] = entry.rows
            self.out.unrepaired += [each.with_advice(f"{what}: {_CHOOSE}") for each in findings]
        elif self.job.options.uncertain == "take":
            self.out.uncertain[self.url] = entry.rows
            self.out.new = self.entry = entry.without_deletions()
            self._note("dropped", "deletions", self.rows_url, None, None)
            return True
        else:
            self._drop(f"{deleted} rows were deleted, and nothing tells which")
        return False

    # Shards of others.

    def _mend_adopted(self, shard: list[Finding], index: list[Finding]) -> None:
        """Get the index back; a shard that others wrote is never written or copied."""
        advice = (
            "others wrote this shard, so repair leaves it alone: get it from its source again, then "
            '`shardio adopt URL --update`; readers with on_error="skip" leave the damage out'
        )
        self.out.unrepaired += [each.with_advice(advice) for each in shard]
        if index and not shard:
            found = self._mirrored_index()
            if found is not None:
                self._put_index(index, found)
            else:
                advice = "make it again from the shard: `shardio adopt URL --update`, URL being the shard's"
                self.out.unrepaired += [each.with_advice(advice) for each in index]
        elif index:
            self.out.unrepaired += index

    # The index of a shard that is whole.

    def _mend_index(self, findings: list[Finding], store: Store, key: str) -> None:
        with store.open(key) as data:
            found = self._patched_index(data) or self._mirrored_index() or self._scanned_index(store, key)
        self._put_index(findings, found)

    def _put_index(self, findings: list[Finding], found: _Index) -> None:
        """Store an index: under its own name where that is free and it is the one that the list names."""
        entry = self._new()
        same = found.head.head_sha256 == entry.index_head_sha256
        free = all(finding.kind == "missing" for finding in findings)
        if same and free:
            key = entry.usual_index_key
        else:
            key = naming.usual_index_key(
                f"{entry.usual_index_key.removesuffix(naming.INDEX_SUFFIX)}.{naming.random_id()}"
                if entry.adopted
                else f"{entry.key}.{naming.random_id()}"
            )
        self._store(key, found.data)
        if key != entry.usual_index_key:
            self.out.new = _with_index(entry, found.head, key)
        how = "rebuilt" if found.source == "shard" else "restored" if same and free else "replaced"
        self._note(how, "index", self.index_url, key, found.source)

    def _patched_index(self, data: DataFile) -> _Index | None:
        """Return the index from its own head, where that is whole, and what the shard says of its frames."""
        entry = self.entry

        def parse(raw: bytes) -> IndexHead:
            head = parse_head(raw[: entry.index_head_bytes])
            if head.head_sha256 != entry.index_head_sha256:
                raise StaleIndexError("an index is another one", url=self.index_url)
            return head

        own = get_right(self.store, entry.usual_index_key, DEFAULT_LIMITS.index, parse)
        if own is None:
            return None
        raw, head = own
        # What cannot be had is left as zeros, which no checksum takes for a part.
        whole = bytearray(head.index_bytes)
        whole[: head.frame_stop_offset] = raw[: head.frame_stop_offset]
        whole[-8:] = b"SHRDEND1"
        blocks = examined_blocks(head, data, data, shard=self.entry.key, limits=DEFAULT_LIMITS)
        for block in range(head.blocks):
            start, stop = head.frame_stop_bounds(block)
            part = _uint32(raw, start, stop)
            try:
                check_frames_part(head, block, part)
            except FormatError:
                part = self._derived_part(blocks, block, data)
            whole[start:stop] = part.tobytes()
        return _Index(bytes(whole), head, "shard")

    def _derived_part(self, blocks: BlockReader, block: int, data: DataFile) -> NDArray[np.uint32]:
        """Return a block's part of `frame_stop` from itself, where the head vouches for both; or zeros."""
        head = blocks.head
        found = np.zeros(head.block_rows(block)[1] - head.block_rows(block)[0], np.uint32)
        if head.stream or head.framing is not Framing.TFRECORD:
            return found
        with contextlib.suppress(*_WRONG):
            stored = blocks.wrong(block, data.read(*head.block_bounds(block)), 0, None)
            if stored.error is None and stored.decoded is not None:
                part = kernels.scan_frames(stored.decoded).frame_stops.astype("<u4")
                check_frames_part(head, block, part)
                return part
        return found

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

        for key in dict.fromkeys((self.entry.usual_index_key, self._copy().usual_index_key)):
            found = self._from_mirror(key, parse)
            if found is not None:
                return _Index(*found, "mirror")
        return None

    def _scanned_index(self, store: Store, key: str, *, salvage: bool = False) -> _Index:
        """Return the index of a shard made again; around damage where that is left out.

        Raises:
            FormatError: it is damaged, and damage is not to be left out.
        """
        from shardio_indexer import ScanOptions, scan_shard

        def scanned(writer: str) -> _Index:
            options = ScanOptions(
                format="tfrecord", compression=self.entry.compression, salvage=salvage, writer=writer
            )
            index = scan_shard(store, key, self.entry.uuid, options).index
            try:
                return _Index(index.read(), index.head, "shard")
            finally:
                index.discard()

        found = scanned(writer_name())
        other = self.context.version.manifest.writer
        if not salvage and found.head.head_sha256 != self.entry.index_head_sha256 and other:
            # The head names the program that wrote the shard; with the same name it may be the same head.
            again = scanned(other)
            found = again if again.head.head_sha256 == self.entry.index_head_sha256 else found
        return found

    # A shard that is damaged or missing.

    def _mend_shard(self, shard: list[Finding], index: list[Finding], folder: Path) -> None:
        copy = self._mirrored_shard(folder)
        if copy is not None:
            self._put_copy(shard, index, copy)
        else:
            self._salvage(shard, index, folder)

    def _mirrored_shard(self, folder: Path) -> Path | None:
        """Fetch the shard from the mirror; None where that has not the same bytes."""
        if self.context.mirror is None:
            return None
        entry, path, mirror = self.entry, folder / "shard", self.context.mirror

        def read(key: str) -> Path:
            with mirror.open(key) as data, path.open("wb") as file:
                crc = 0
                for piece in data.pieces(_PIECE) if data.size == entry.stored_bytes else ():
                    crc = kernels.crc32c(piece, crc)
                    file.write(piece)
            if path.stat().st_size != entry.stored_bytes or crc != entry.crc32c or not self._blocks_fit(path):
                raise FormatError("a shard of the mirror is another one", url=mirror.url_of(key))
            return path

        for key in dict.fromkeys((entry.key, self._copy().key)):
            with contextlib.suppress(*_WRONG):
                return read_intact(functools.partial(read, key))
        return None

    def _blocks_fit(self, path: Path) -> bool:
        """Compare a copy block by block with an index that the list names, where there is one left."""
        store, key = connect_folder(str(path))
        with store.open(key) as data:
            found = self._patched_index(data) or self._mirrored_index()
            if found is None:
                return True  # size and checksum of the whole are all that is known of it
            return not self._compare(found, data, path.with_name("check"))

    def _compare(
        self,
        found: _Index,
        data: DataFile,
        path: Path,
        take: Callable[[CheckedBlock], None] | None = None,
    ) -> list[Finding]:
        """Return what `verify` finds in a shard by an index, which becomes a file under a path.

        Raises:
            StorageError: some of it could not be read.
        """
        path.write_bytes(found.data)
        store, key = connect_folder(str(path))
        survey = Survey()
        with store.open(key) as index:
            check_indexed(
                survey, found.head, index, data, shard=self.entry.key, limits=DEFAULT_LIMITS, take=take
            )
        for finding in survey.findings:
            if finding.kind == UNREADABLE:
                raise StorageError(finding.message, url=finding.url, found=finding.found, advice="try again")
        return survey.findings

    def _put_copy(self, shard: list[Finding], index: list[Finding], copy: Path) -> None:
        entry = self._new()
        missing = all(finding.kind == "missing" for finding in shard)
        key = entry.key if missing else self._new_key()
        if index:
            store, name = connect_folder(str(copy))
            self._mend_index(index, store, name)
            entry = self._new()
        self._store(key, copy)
        if key != entry.key:
            self.out.new = replace(entry.without_table(), key=key, index_key=entry.usual_index_key)
        self._note("restored" if missing else "replaced", "shard", self.url, key, "mirror")

    def _salvage(self, shard: list[Finding], index: list[Finding], folder: Path) -> None:
        """Put the good records into a new shard, and list what is lost."""
        entry = self.entry
        if all(finding.kind == "missing" for finding in shard):
            self._drop(shard[0].message)
            return
        with self.data_store.open(entry.key) as data:
            found = self._patched_index(data) or self._mirrored_index()
            known = found is not None
            if found is None:
                found = self._scanned_index(self.data_store, entry.key, salvage=True)
            kept = _Kept(
                self._deleted() if known else np.empty(0, np.int64),
                doubtful=self.job.options.uncertain == "take",
                proven=known,
            )
            spool = self._spool()
            try:
                take = functools.partial(kept.take, spool)
                findings = self._compare(found, data, folder / "index", take)
                if not known and (other := self._whose(found.head)) is not None:
                    self._drop(f"the bytes of another shard are here, {other}")
                    return
                if kept.doubtful_rows:
                    self.out.uncertain[self.url] = kept.doubtful_rows
                if kept.doubtful_rows and self.job.options.uncertain is None:
                    where = "match their own checksums, but their blocks do not match theirs"
                    if not known:
                        where = "can be read, but without the index nothing proves that they belong here"
                        where += ", or were not deleted" if entry.deletion_key else ""
                    what = f"{kept.doubtful_rows} records {where}"
                    self.out.unrepaired += [each.with_advice(f"{what}: {_CHOOSE}") for each in shard + index]
                    return
                self._put_salvaged(spool, kept)
            finally:
                if spool is not None:
                    spool.discard()
        if known:
            self.out.lost += self._lost_rows(kept, found.head, findings or shard)
        else:
            self.out.lost += self._lost_places(found.head, kept.rows)

    def _whose(self, head: IndexHead) -> str | None:
        """Return the key of another shard of the dataset that these bytes are, or None."""
        table = self.context.source.table
        same = (table.crc32c == head.crc32c) & (table.stored_bytes == head.stored_bytes)
        others = [number for number in np.flatnonzero(same).tolist() if number != self.number]
        return table.key[others[0]] if others else None

    def _put_salvaged(self, spool: ShardSpool | None, kept: _Kept) -> None:
        entry = self._new()
        lost = max(0, entry.live_rows - kept.rows)
        if not kept.rows:
            self.out.new = None
            self._note("dropped", "shard", self.url, None, None, records=0, lost=lost)
            return
        key = None
        if spool is not None:
            job = self.job
            with rewriting_task(self.context.catalog, job.session, self.number, job.version) as task:
                task.store(entry.split, spool, last=True)
                made = task.complete().table[0]
            self.out.new = replace(made, schema=entry.schema)
            self.out.keys += [made.key, made.usual_index_key]
            key = made.key
        else:
            self.out.new = replace(entry, key="", live_rows=kept.rows)
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

    def _lost_places(self, head: IndexHead, kept: int) -> Iterator[BadRecord]:
        """Yield what is lost, by place, where no row is known."""
        if not kept:
            yield BadRecord(
                self.url,
                "nothing proves that its readable records belong here",
                start=0,
                stop=head.stored_bytes,
            )
            return
        for block, reason in sorted(head.gaps.items()):
            start, stop = head.block_bounds(block)
            yield BadRecord(self.url, reason.removeprefix("damage: "), start=start, stop=stop)

    # What all of them need.

    def _new(self) -> ShardEntry:
        assert self.out.new is not None  # noqa: S101 - for mypy: a shard is dropped last
        return self.out.new

    def _deleted(self) -> NDArray[np.int64]:
        if self._rows is not None:  # in a dry run, they are not stored
            return parse_deletions(self._rows, self._new())
        return deleted_rows(self.store, self._new(), DEFAULT_LIMITS)

    def _copy(self) -> ShardEntry:
        """Return the mirror's entry of this shard, or the own one."""
        return self.context.copies.get((self.entry.uuid, self.entry.index_head_sha256), self.entry)

    def _from_mirror(self, key: str, parse: Callable[[bytes], T]) -> tuple[bytes, T] | None:
        """Return an object of the mirror, and what it is, where there is one and it is right."""
        mirror = self.context.mirror
        return None if mirror is None else get_right(mirror, key, DEFAULT_LIMITS.index, parse)

    def _new_key(self) -> str:
        entry = self._new()
        name = naming.DataKey(entry.split, self.job.session, self.number, naming.random_id(), 0)
        return name.key(entry.compression.suffix)

    def _spool(self) -> ShardSpool | None:
        if self.job.options.dry_run:
            return None
        return ShardSpool(
            ShardOptions(
                compression=self.entry.compression,
                spool=spool_folder(self.store, None),
                writer=writer_name(),
            )
        )

    def _store(self, key: str, data: bytes | Path) -> None:
        if self.job.options.dry_run:
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
        by = None if self.job.options.dry_run else key
        self.out.repaired.append(
            Repaired(how=how, what=what, url=url, by=by, source=source, records=records, lost=lost)
        )


class _Kept:
    """The good records of a shard, in order, on their way into another one.

    Args:
        deleted: rows that are left behind, int64, ascending.
        doubtful: keep what cannot be proven, too.
        proven: the index is the one that the list of shards names.

    Attributes:
        rows: how many were kept.
        doubtful_rows: how many can be read and not be proven: they stand in damaged blocks, and what is
            beside them could be another's as well, or the index is not proven itself.
        good: of each block with records that are kept, number of its first row and which rows are kept.
    """

    def __init__(self, deleted: NDArray[np.int64], *, doubtful: bool, proven: bool) -> None:
        self.deleted = deleted
        self.rows = self.doubtful_rows = 0
        self.good: list[tuple[int, NDArray[np.bool_]]] = []
        self._doubtful = doubtful
        self._proven = proven

    def take(self, spool: ShardSpool | None, block: CheckedBlock) -> None:
        """Take the good records of a block."""
        rows = block.rows_without(self.deleted)
        if not (block.sound and self._proven):
            self.doubtful_rows += len(rows)
            if not self._doubtful:
                return
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


def _is_missing(finding: Finding, url: str) -> bool:
    return finding.kind == "missing" and finding.url == url


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
