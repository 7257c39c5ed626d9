"""Repair of a dataset: bytes from a mirror by digest, an index by scanning, else what is good.

Promises: nothing that is good is lost and nothing is made up; what is damaged stays where it is, but for
manifests and lists, whose very bytes are put back; what is lost is listed by address, and a mirror that is
found later still brings it back; a dry run unless told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError, NotFoundError, ShardioError, StorageError
from shardio.lifecycle._change import commit_change
from shardio.lifecycle._repair_metadata import RepairedMetadata, repair_metadata
from shardio.lifecycle._repair_report import RepairProgress, RepairReport, Repairs
from shardio.lifecycle._repair_shard import Repairing, RepairOutcome
from shardio.maintenance import Survey, check_keys
from shardio.metadata import Manifest, Rewrite, ShardEntry, ShardTable, naming
from shardio.parallel import check_workers, cut_jobs, run
from shardio.progress import displayed
from shardio.reader import ReadOptions, Slice
from shardio.storage import Address, Place

_JOB_BYTES = 256 << 20
_LATER = "shards are checked after the manifests and lists are restored"
# Operations after which a shard that a repair dropped may come back: they take no other shard out.
_STEADY = {"append", "repair", "delete", "compact", "tag", "untag", "table", "keys", "gc", "adopt"}


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
        recovered = [] if self.mirror is None else list(self._recover(found, version, table, changes, after))
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
        found: RepairedMetadata,
        version: Version,
        table: ShardTable,
        changes: dict[_Identity, list[ShardEntry]],
        after: dict[str, int],
    ) -> Iterator[RepairOutcome]:
        """Add to the changes shards of which earlier repairs lost records, and which the mirror has."""
        here = {entry.uuid: entry for entry in table}
        order = list(here)
        places = dict(here)  # of the latest version, by UUID; of what is recovered in its place too
        work = self._repairing(version, mirror_only=True)
        for number, lost in enumerate(self._lost_shards(found, version, here), len(table)):
            old, place = lost.table[lost.number], lost.place
            part = self._slice(lost.version, lost.table.take(np.array([lost.number])), number)
            (outcome,) = work(part)
            if not outcome.repaired or outcome.unrepaired or outcome.new is None:
                continue
            at = order.index(place.uuid)
            if lost.replaced:
                here[old.uuid] = replace(outcome.new, split=place.split)
                places[old.uuid], order[at] = place, old.uuid
                changes[_identity(place)] = [here[old.uuid]]
            else:
                here[old.uuid] = outcome.new
                order.insert(at + lost.behind, old.uuid)
            gained = old.live_rows - (place.live_rows if lost.replaced else 0)
            after[here[old.uuid].split] = after.get(here[old.uuid].split, 0) + gained
            self.out.repaired += [replace(each, how="recovered") for each in outcome.repaired]
            yield outcome
        # Those that were dropped go before the next shard that is there, or behind the last one.
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

    def _lost_shards(
        self, found: RepairedMetadata, version: Version, here: dict[bytes, ShardEntry]
    ) -> Iterator[_LostShard]:
        """Yield the shards that earlier repairs replaced by what was good of them, or dropped.

        Args:
            found: all versions.
            version: the latest.
            here: its shards by UUID.
        """
        expired = set(version.manifest.expiry.expired_versions)
        successors: dict[bytes, tuple[bytes, ...]] = {}
        steady = True
        for number in range(version.number, 1, -1):
            later, before = found.versions.get(number), found.versions.get(number - 1)
            if later is None or before is None:
                return  # a manifest between is lost: what became of the shards is not known
            rewrites = later.manifest.rewrites if later.manifest.operation == "repair" else ()
            successors |= {each.old[0]: each.new for each in rewrites}
            if rewrites and before.number not in expired:
                table = self.catalog.table(before)
                gone = {each.old[0] for each in rewrites} - here.keys()
                for k, old in enumerate(table):
                    if old.uuid not in gone:
                        continue
                    new = successors[old.uuid]
                    while new and new[0] not in here and new[0] in successors:
                        new = successors[new[0]]
                    place = here.get(new[0]) if new else None
                    if place is not None and not place.deletion_key and place.live_rows < old.live_rows:
                        yield _LostShard(before, table, k, place, replaced=True)
                    elif not new and steady:
                        # Before the next shard that is still here; behind the one before where none is.
                        order = (*range(k + 1, len(table)), *range(k - 1, -1, -1))
                        near = next((i for i in order if table[i].uuid in here), None)
                        if near is not None:
                            place = here[table[near].uuid]
                            yield _LostShard(before, table, k, place, replaced=False, behind=near < k)
            steady = steady and later.manifest.operation in _STEADY

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


class _LostShard(NamedTuple):
    """A shard of which an earlier repair lost records.

    Attributes:
        version: the last one that named it.
        table: the shards of that version.
        number: of the shard among them.
        place: the shard of the latest version in whose place, or beside which, it was.
        replaced: what was good of it is in `place`; else it was dropped.
        behind: a dropped shard was behind `place`, not before it.
    """

    version: Version
    table: ShardTable
    number: int
    place: ShardEntry
    replaced: bool
    behind: bool = False


def _identity(entry: ShardEntry) -> _Identity:
    return entry.root, entry.key, entry.uuid
