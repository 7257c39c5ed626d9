"""Repair of a dataset: bytes from a mirror by digest, an index by scanning, else what is good.

Promises: nothing that is good is lost and nothing is made up; what is damaged stays where it is, but for
manifests and lists, whose very bytes are put back; what is lost is listed by address, and a mirror that is
found later still brings it back; a dry run unless told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version
from shardio.errors import FormatError, NotFoundError, ShardioError, StorageError
from shardio.lifecycle._losses import find_losses
from shardio.lifecycle._recover import Recovery
from shardio.lifecycle._repair_metadata import repair_metadata
from shardio.lifecycle._repair_report import RepairReport, Repairs
from shardio.lifecycle._repair_shard import Repairing, RepairOutcome
from shardio.lifecycle._report import records_of
from shardio.lifecycle._rewrite import Replacement, remove_objects, replace_shards
from shardio.maintenance import Survey, check_keys
from shardio.metadata import naming
from shardio.parallel import check_workers, run, sliced
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, Slice
from shardio.storage import Address, Place

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
    progress: bool | Callable[[CountProgress], None] = False,
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
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

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
        self, executor: Executor | None, workers: int | None, show: Callable[[CountProgress], None] | None
    ) -> RepairReport:
        """Repair the metadata, then the shards."""
        out, catalog = self.out, self.catalog
        found = repair_metadata(catalog, self.copy, digest=self.digest, dry_run=self.dry_run)
        out.add(found)
        try:
            version = catalog.load()
            self.facts["base_version"] = version.number
            table = catalog.table(version)
        except ShardioError as error:
            # What stays lost is reported; in a dry run it would be repaired. What does not answer is neither.
            if isinstance(error, StorageError) and not out.unrepaired:
                raise
            if self.dry_run and found.repaired:
                out.notes.append(_LATER)
            return out.report(**self.facts)
        survey = Survey()
        check_keys(survey, catalog, version)
        out.unrepaired += survey.findings
        session, writer = naming.random_session(rewriting=True), version.manifest.writer
        work = Repairing(self.mirror, version.number, writer, session, self.dry_run)
        parts = sliced(catalog.store.url, version, table, ReadOptions.at(self.address, mmap=False))
        outcomes = self._look(work, parts, executor, workers, show)
        for outcome in outcomes:
            out.add(outcome)
        slots = [[entry] for entry in table] + [[]]
        changed = [outcome for outcome in outcomes if outcome.new != outcome.old]
        for outcome in changed:
            slots[outcome.number] = [] if outcome.new is None else [outcome.new]
        before = records_of(version.manifest)
        if sum(before.values()) and not any(entry.live_rows for slot in slots for entry in slot):
            # Rather a folder that is not mounted than a disk that lost every shard and no manifest.
            advice = "no record would be left: check that the data is where it was, or name a mirror"
            for lost in out.lost:
                out.leave("missing", NotFoundError(lost.reason), advice, url=lost.where)
            out.repaired = [each for each in out.repaired if each.what in ("manifest", "list")]
            out.lost = []
            remove_objects(catalog, _new_names(changed))
            return out.report(**self.facts, before=before, after=before)
        if self.mirror is not None:
            recovery = Recovery(catalog, self.address, self.mirror, replace(work, mirror_only=True), out)
            try:
                losses = find_losses(catalog, found.versions)
            except (FormatError, NotFoundError) as error:  # a list that stays damaged, or does in a dry run
                out.notes.append(f"what earlier repairs lost is looked up once all lists are there: {error}")
            else:
                changed += recovery.recover(losses, slots)
        after = dict.fromkeys(before, 0)
        for entry in chain.from_iterable(slots):
            after[entry.split] = after.get(entry.split, 0) + entry.live_rows
        left = {entry.split for entry in chain.from_iterable(slots)}
        out.notes += [
            f"split {name!r} is gone, because none of its shards is left; earlier versions name it"
            for name in before
            if name not in left
        ]
        if changed and not self.dry_run:
            new = [Replacement((i,), slot) for i, slot in enumerate(slots[:-1]) if slot != [table[i]]]
            keys = {key for outcome in changed for key in outcome.keys}
            _, committed = replace_shards(
                catalog, version, new, keys, operation="repair", appended=slots[-1],
                keep=keys - {*_new_names(changed)},
            )  # fmt: skip
            self.facts["version"] = committed.number
        return out.report(**self.facts, before=before, after=after)

    def _look(
        self,
        work: Repairing,
        parts: list[Slice],
        executor: Executor | None,
        workers: int | None,
        show: Callable[[CountProgress], None] | None,
    ) -> list[RepairOutcome]:
        """Return what became of each shard, in order."""
        results = run(
            work,
            parts,
            executor=executor,
            workers=1 if executor is None and len(parts) < 2 else workers,
            progress=show,
            unit="bytes",
            advice="it may have been out of memory; run it again",
        )
        with closing(results):
            found = chain.from_iterable([outcomes for _, outcomes in results])
        return sorted(found, key=lambda outcome: outcome.number)


def _new_names(outcomes: Iterable[RepairOutcome]) -> Iterator[str]:
    """Yield keys that no other process knows; what got its own name back stays."""
    for outcome in outcomes:
        old = {outcome.old.key, outcome.old.usual_index_key, outcome.old.deletion_key}
        yield from (key for key in outcome.keys if key not in old)
