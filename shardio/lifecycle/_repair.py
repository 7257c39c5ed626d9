"""Repair of a dataset: bytes from a mirror by digest, an index by scanning, else what is good.

Promises: nothing that is good is lost and nothing is made up; what is damaged stays where it is, but for
manifests and lists, whose very bytes are put back; what is lost is listed by address, and a mirror that is
found later still brings it back; a dry run unless told.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError, FormatError, NotFoundError, ShardioError, StorageError
from shardio.lifecycle._change import commit_change
from shardio.lifecycle._losses import Loss, Losses, Salvaged
from shardio.lifecycle._repair_metadata import repair_metadata
from shardio.lifecycle._repair_report import Repaired, RepairProgress, RepairReport, Repairs
from shardio.lifecycle._repair_shard import Repairing, RepairOutcome, put_object
from shardio.maintenance import Survey, check_keys
from shardio.metadata import Manifest, Rewrite, ShardEntry, ShardTable, naming
from shardio.parallel import check_workers, cut_jobs, run
from shardio.progress import displayed
from shardio.reader import ReadOptions, RecordSequence, Slice, deleted_rows
from shardio.storage import Address, Place

_JOB_BYTES = 256 << 20
_LATER = "shards are checked after the manifests and lists are restored"


@checked_options
def repair(
    url: Place,
    *,
    mirror: Place | None = None,
    dry_run: bool = True,
    digest: str | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Callable[[RepairProgress], None] = False,
) -> RepairReport:
    """Repair what `shardio.verify` finds: from a mirror by digest, or from what is left and good.

    - A manifest or list that is damaged or gone gets its very bytes back, from the mirror; a list also made
      again where its digest proves it.
    - An index that is damaged or gone is taken from the mirror, or made again from its shard.
    - A shard that is damaged or gone is taken from the mirror where its checksums are those of the list.
      Otherwise its good records go into a new shard, in their order; the rest is lost, and listed. Positions
      behind a lost record count one less. A later repair with a mirror brings them back.

    What is missing is stored again under its own name. What is damaged stays, and a new version names what
    takes its place; earlier versions still name what is damaged. Adopted shards are never written: their
    indexes are.

    Args:
        url: of the dataset, or its address.
        mirror: copy of the dataset to repair from; every byte is compared before it is stored. A URL of the
            same kind of storage is read with the dataset's storage options.
        dry_run: change nothing, only report what would be done.
        digest: `"sha256:..."` of the latest version, where its manifest is gone and the mirror's is to be
            trusted.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool.
        workers: processes of that pool; None for one per processor, 1 for this process.
        progress: True for a bar on a terminal and lines in a log, or a function of a `RepairProgress`.

    Returns:
        The report. Look at `report.ok`, `report.unrepaired` and `report.lost`.

    Raises:
        NotFoundError: there is no dataset, or the mirror is none.
        FormatError: the mirror is another dataset.
        UnsupportedVersionError: a newer shardio wrote it.
        CommitConflictError: what was damaged was changed by others meanwhile; run it again.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.
        ValueError: arguments that make no sense.

    Examples:
        >>> import pathlib, shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/bytes"
        >>> with shardio.DatasetWriter(url) as out:
        ...     out.write(b"one")
        >>> (index,) = pathlib.Path(url, "data").glob("*.shardidx")
        >>> index.unlink()
        >>> report = shardio.repair(url, dry_run=False)
        >>> [(each.how, each.what) for each in report.repaired], report.lost
        ([('rebuilt', 'index')], ())
        >>> shardio.verify(url).ok
        True
    """
    check_workers(workers, executor)
    address, copy = Address.of(url), None if mirror is None else Address.of(mirror)
    if copy is not None and copy.storage_options is None and _protocol(copy) == _protocol(address):
        copy = replace(copy, storage_options=address.storage_options)
    with displayed(progress, "repair") as show:
        catalog, latest = Catalog(address.connect()), None
        with suppress(ShardioError):
            latest = catalog.load()

        def attempt(_: Version | None) -> RepairReport:
            return _Repair(address, copy, digest, dry_run=dry_run).run(executor, workers, show)

        # In a dry run, what another process has expired meanwhile is not damaged.
        return catalog.reading(attempt) if latest is not None and dry_run else attempt(latest)


def _protocol(address: Address) -> str:
    return address.url.partition("://")[0]


class _Repair:
    """One repair on its way."""

    def __init__(
        self, address: Address, mirror: Address | None, digest: str | None, *, dry_run: bool
    ) -> None:
        self.address, self.mirror, self.digest, self.dry_run = address, mirror, digest, dry_run
        self.catalog = Catalog(address.connect())
        store = self.catalog.store
        self.copy = None if mirror is None else Catalog(mirror.connect())
        if self.copy is not None and self.copy.store.url == store.url:
            raise ValueError(f"mirror={self.copy.store.url!r} is the dataset itself; name a copy of it")
        if not dry_run:
            store.refuse_writing(advice="repair the dataset where it can be written, or a copy of it")
        self.out = Repairs()
        self.facts: dict[str, Any] = {"url": store.url, "dry_run": dry_run, "base_version": None}

    def run(
        self, executor: Executor | None, workers: int | None, show: Callable[[RepairProgress], None] | None
    ) -> RepairReport:
        """Repair the metadata, then the shards."""
        out, store = self.out, self.catalog.store
        found = repair_metadata(self.catalog, self.copy, digest=self.digest, dry_run=self.dry_run)
        if not found.top:
            raise NotFoundError(
                "there is no shardio dataset here",
                url=store.url,
                advice="check the address; a single shard is salvaged with `shardio adopt --salvage`",
            )
        out.add(found)
        version = table = None
        try:
            version = self.catalog.load()
            self.facts["base_version"] = version.number
            table = self.catalog.table(version)
        except ShardioError as error:
            # What stays lost is reported; in a dry run it would be repaired. What does not answer is neither.
            if isinstance(error, StorageError) and not out.unrepaired:
                raise
        if version is None or table is None:
            if self.dry_run and found.repaired:
                out.notes.append(_LATER)
            return out.report(**self.facts)
        survey = Survey()
        check_keys(survey, self.catalog, version)
        out.unrepaired += survey.findings
        parts = [
            self._slice(version, table.take(np.arange(first, stop)), first)
            for first, stop in cut_jobs(table.stored_bytes.tolist(), most_bytes=_JOB_BYTES)
        ]
        work = self._repairing(version)
        outcomes = sorted(self._look(work, parts, executor, workers, show), key=lambda each: each.number)
        before = {total.name: total.rows for total in version.manifest.splits}
        after = dict(before)
        for outcome in outcomes:
            out.add(outcome)
            after[outcome.old.split] -= outcome.old.live_rows - (outcome.new.live_rows if outcome.new else 0)
        changed = [outcome for outcome in outcomes if outcome.new != outcome.old]
        if sum(before.values()) and not sum(after.values()):
            # Rather a folder that is not mounted than a disk that lost every shard and no manifest.
            advice = "no record would be left: check that the data is where it was, or name a mirror"
            for lost in out.lost:
                out.leave("missing", NotFoundError(lost.reason), advice, url=lost.where)
            out.repaired = [each for each in out.repaired if each.what in ("manifest", "list")]
            out.lost = []
            self._remove(changed)
            return out.report(**self.facts, before=before, after=before)
        changes = {_identity(each.old): [] if each.new is None else [each.new] for each in changed}
        recovered: list[RepairOutcome] = []
        if self.mirror is not None:
            work = self._repairing(version, mirror_only=True)
            try:
                losses = Losses(self.catalog, found.versions)
            except (FormatError, NotFoundError) as error:  # a list that stays damaged, or does in a dry run
                out.notes.append(f"what earlier repairs lost is looked up once all lists are there: {error}")
            else:
                recovered = list(self._recover(losses, table, work, changes, after))
        out.notes += [
            f"split {name!r} is gone, because none of its shards is left; earlier versions name it"
            for name in before
            if not any(self._left(table, changes, name))
        ]
        if changes and not self.dry_run:
            self.facts["version"] = self._commit(version, changes, [*changed, *recovered])
        return out.report(**self.facts, before=before, after=after)

    def _left(
        self, table: ShardTable, changes: dict[_Identity, list[ShardEntry]], split: str
    ) -> Iterator[ShardEntry]:
        """Yield the shards that a split will have."""
        for entry in table.of_split(split):
            yield from changes.get(_identity(entry), [entry])

    def _slice(self, version: Version, shards: ShardTable, number: int) -> Slice:
        options = ReadOptions.at(self.address, mmap=False)
        return Slice.of_version(self.address.url, version, shards, options, number=number)

    def _repairing(self, version: Version, *, mirror_only: bool = False) -> Repairing:
        names = {}
        if self.copy is not None:
            # A mirror that was itself repaired has the same bytes under other names.
            with suppress(ShardioError):
                table = self.copy.table(self.copy.load())
                names = {each.uuid: (each.key, each.usual_index_key) for each in table}
        return Repairing(
            self.mirror, names, version.number, version.manifest.writer,
            naming.random_session(rewriting=True), self.dry_run, mirror_only,
        )  # fmt: skip

    def _look(
        self,
        work: Repairing,
        parts: list[Slice],
        executor: Executor | None,
        workers: int | None,
        show: Callable[[RepairProgress], None] | None,
    ) -> Iterator[RepairOutcome]:
        """Yield what became of each shard, as they come."""
        repaired = len(self.out.repaired)
        results = run(
            work,
            parts,
            executor=executor,
            workers=1 if executor is None and len(parts) < 2 else workers,
            progress=None if show is None else lambda at: show(RepairProgress(at.done, at.total, repaired)),
            unit="bytes",
            advice="it may have been out of memory; run it again",
        )
        with closing(results):
            for _, outcomes in results:
                repaired += sum(len(outcome.repaired) for outcome in outcomes)
                yield from outcomes

    def _recover(
        self,
        losses: Losses,
        table: ShardTable,
        work: Repairing,
        changes: dict[_Identity, list[ShardEntry]],
        after: dict[str, int],
    ) -> Iterator[RepairOutcome]:
        """Add to the changes shards of which earlier repairs lost records, and which the mirror has."""
        back: list[tuple[Loss, ShardEntry]] = []
        for number, loss in enumerate(losses.open, len(table)):
            if any(each.holds(loss.entry.uuid) for each, _ in back):
                continue  # all of it came back with the shard that it was salvaged from
            (outcome,) = work(self._slice_of(loss.version, loss.entry, number))
            if outcome.unrepaired or outcome.new is None:
                continue
            try:
                entry = self._without_spent(loss, outcome)
            except (FormatError, NotFoundError) as error:
                self.out.notes.append(
                    f"the mirror has {loss.entry.key}, of which an earlier repair lost {loss.lost_rows} "
                    f"records, but not which rows were deleted since: {error}"
                )
                self._remove([outcome])
                continue
            back.append((loss, entry))
            url = self.catalog.store.url_of(entry.key)
            # Nothing was repaired where an earlier attempt had put its bytes back, and then died.
            restored = outcome.repaired or [Repaired(how="recovered", what="shard", url=url)]
            self.out.repaired += [replace(each, how="recovered") for each in restored]
            yield outcome
        if not back:
            return
        here = {entry.uuid: entry for entry in table}
        order = list(here)
        places = dict(here)  # shards of the latest version; of what is recovered, the shard in whose place
        # Those lost last stand beside those lost before them.
        for loss, entry in reversed(back):
            if loss.place is not None:
                place = here[loss.place]
                gone = changes.get(_identity(place), [place])
                after[loss.split] -= sum(each.live_rows for each in gone)
                changes[_identity(place)] = [entry]
                order[order.index(place.uuid)] = entry.uuid
                places[entry.uuid] = place
            else:
                order.insert(self._position(loss, losses, order), entry.uuid)
            here[entry.uuid] = entry
            after[loss.split] = after.get(loss.split, 0) + loss.recovered_rows
        # What has no place goes before the next shard that has one, or behind the last.
        waiting: list[ShardEntry] = []
        for uuid in order:
            if uuid not in places:
                waiting.append(here[uuid])
            elif waiting:
                identity = _identity(places[uuid])
                changes[identity] = [*waiting, *changes.get(identity, [places[uuid]])]
                waiting = []
        if waiting:
            last = next(places[uuid] for uuid in reversed(order) if uuid in places)
            changes[_identity(last)] = [*changes.get(_identity(last), [last]), *waiting]

    def _position(self, loss: Loss, losses: Losses, order: list[bytes]) -> int:
        """Return where a shard comes back: behind what it was merged into, else beside its neighbours."""
        table = self.catalog.table(loss.version).uuid
        uuids = [each.tobytes() for each in table]
        merged = [each.entry.uuid for each in loss.salvaged if each.merged]
        for uuid in (*merged, *uuids[: loss.number][::-1]):
            heirs = losses.heirs(uuid, order)
            if heirs:
                return max(map(order.index, heirs)) + 1
        for uuid in uuids[loss.number + 1 :]:
            heirs = losses.heirs(uuid, order)
            if heirs:
                return min(map(order.index, heirs))
        return len(order)

    def _without_spent(self, loss: Loss, outcome: RepairOutcome) -> ShardEntry:
        """Return a shard that comes back, without rows that were deleted since or are in other shards.

        Raises:
            FormatError, NotFoundError: a shard that was salvaged from it cannot be read.
        """
        assert outcome.new is not None  # noqa: S101 - for mypy: the mirror has it
        store, limits = self.catalog.store, self.catalog.limits
        entry = replace(outcome.new, split=loss.split)
        if loss.recovered_rows == entry.live_rows:
            return entry
        spent = [each for each in loss.salvaged if each.spent_rows]
        if self.dry_run:
            for salvaged in spent:
                for _ in self._payloads(salvaged.version, salvaged.entry):
                    pass  # only to find damage: the shard itself is not stored yet
            return entry
        deleted = deleted_rows(store, entry, limits)
        for salvaged in spent:
            left = np.setdiff1d(np.arange(entry.rows), deleted)
            rows = self._find_rows(loss, entry, left, salvaged)
            gone = slice(None) if salvaged.merged else deleted_rows(store, salvaged.entry, limits)
            deleted = np.union1d(deleted, rows[gone])
        data = deleted.astype("<u4").tobytes()
        key = naming.rows_key(naming.random_id() + naming.random_id())
        put_object(store, key, data)
        outcome.keys.append(key)
        digest = hashlib.sha256(data).digest()
        return replace(entry, deleted_rows=len(deleted), deletion_key=key, deletion_sha256=digest)

    def _find_rows(
        self, loss: Loss, entry: ShardEntry, rows: NDArray[np.int64], salvaged: Salvaged
    ) -> NDArray[np.int64]:
        """Return which of some rows of a shard were salvaged, in order.

        Among equal records any will do: nothing tells them apart.
        """
        wanted = set(rows.tolist())
        whole = enumerate(self._payloads(loss.version, entry))
        candidates = ((row, payload) for row, payload in whole if row in wanted)
        found = []
        for payload in self._payloads(salvaged.version, salvaged.entry):
            row = next((row for row, each in candidates if each == payload), None)
            if row is None:
                raise FormatError("a salvaged record is not in the mirror's shard", shard=salvaged.entry.key)
            found.append(row)
        return np.array(found, np.int64)

    def _payloads(self, version: Version, entry: ShardEntry) -> Iterator[bytes]:
        """Yield the payloads of all rows of a shard, deleted ones too; where it is damaged, the mirror's."""
        assert self.mirror is not None  # noqa: S101 - for mypy: nothing comes back without one
        whole = ShardTable.from_entries([entry.without_deletions()])

        def read(place: Address) -> Iterator[bytes]:
            part = Slice.of_version(
                place.url, version, whole, ReadOptions.at(place, decode=False, mmap=False)
            )
            for batch in RecordSequence(part.open()).iter_batches(1024):
                yield from batch

        count = 0
        try:
            for payload in read(self.address):
                yield payload
                count += 1
        except (FormatError, NotFoundError):
            yield from itertools.islice(read(self.mirror), count, None)

    def _slice_of(self, version: Version, entry: ShardEntry, number: int) -> Slice:
        return self._slice(version, ShardTable.from_entries([entry.without_table()]), number)

    def _commit(
        self, version: Version, changes: dict[_Identity, list[ShardEntry]], outcomes: list[RepairOutcome]
    ) -> int:
        """Make a version that names what takes the place of what is damaged; return its number."""
        looked_at = {_identity(entry): entry for entry in self.catalog.table(version)}

        def build(base: Version, lists: StoredLists) -> Manifest | None:
            rewrites: list[Rewrite] = []

            def change(table: ShardTable) -> ShardTable:
                kept: list[ShardEntry] = []
                entries = list(table)
                for entry in entries:
                    new = changes.get(_identity(entry), [entry])
                    if new != [entry] and entry != looked_at[_identity(entry)]:
                        raise CommitConflictError(
                            "a shard was changed by another writer while it was repaired",
                            url=self.catalog.store.url,
                            shard=entry.key,
                            advice="run it again",
                        )
                    if entry.uuid not in {each.uuid for each in new}:
                        rewrites.append(Rewrite((entry.uuid,), tuple(each.uuid for each in new)))
                    kept += new
                return table if kept == entries else ShardTable.from_entries(kept)

            refs, table = lists.edit(self.catalog, base.manifest.lists, change)
            if refs == base.manifest.lists:
                return None  # a commit that took the shards out meanwhile took their damage out, too
            return replace(
                base.manifest,
                lists=refs,
                splits=tuple(table.totals().values()),
                deletions=table.holds("deletion_key"),
                rewrites=tuple(rewrites),
            )

        keys = [key for outcome in outcomes for key in outcome.keys]
        try:
            return commit_change(self.catalog, build, operation="repair", seen=version, keys=keys).number
        except CommitConflictError:
            self._remove(outcomes)
            raise

    def _remove(self, outcomes: list[RepairOutcome]) -> None:
        """Remove what has new names, which no other process knows; what got its own name back stays."""
        for outcome in outcomes:
            old = {outcome.old.key, outcome.old.usual_index_key, outcome.old.deletion_key}
            for key in set(outcome.keys) - old:
                with suppress(StorageError):
                    self.catalog.store.delete(key)


_Identity = tuple[int, str, bytes]


def _identity(entry: ShardEntry) -> _Identity:
    return entry.root, entry.key, entry.uuid
