"""Repair of a dataset: metadata first, then shard by shard; what changes becomes one new version.

Promises: nothing that is good is lost and nothing is made up; what is damaged stays where it is, but for
manifests and lists, whose very bytes are put back; what is lost is listed by address; a dry run unless told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError, NotFoundError, ShardioError, StorageError
from shardio.lifecycle._change import commit_change
from shardio.lifecycle._recover import commit_remains, find_remains
from shardio.lifecycle._repair_metadata import Metadata, mend_metadata
from shardio.lifecycle._repair_report import Repaired, RepairProgress, RepairReport, Repairs
from shardio.lifecycle._repair_shard import DatasetAddress, RepairJob, RepairOptions, RepairOutcome
from shardio.maintenance import Survey, check_keys
from shardio.metadata import Manifest, Rewrite, ShardTable, naming
from shardio.parallel import JobRunner, LostJob, check_workers, cut_jobs
from shardio.progress import displayed
from shardio.storage import url_text

_JOB_BYTES = 256 << 20
_LATER = "shards are checked after the manifests and lists are restored"


@checked_options
def repair(  # noqa: PLR0913 - the options are the public contract
    url: str | Path,
    *,
    mirror: str | Path | None = None,
    dry_run: bool = True,
    uncertain: str | None = None,
    digest: str | None = None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Callable[[RepairProgress], None] = False,
    storage_options: Mapping[str, Any] | None = None,
    mirror_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> RepairReport:
    """Repair what `shardio.verify` finds: from a mirror by digest, or from what is left and good.

    - A manifest or list that is damaged or gone gets its very bytes back, from the mirror, or made again
      where a digest proves them.
    - An index that is damaged or gone is taken from the mirror, or made again from its shard.
    - A shard that is damaged or gone is taken from the mirror where its checksums are those of the list.
      Otherwise its good records go into a new shard, in their order; the rest is lost, and listed. Positions
      behind a lost record count one less.
    - Where the latest manifest is gone, and no mirror has it, one is made of the last version that can be
      read, and of the sessions that may have been committed since.

    What is missing is stored again under its own name. What is damaged stays, and a new version names what
    takes its place; earlier versions still name what is damaged. Shards of others are never written: their
    indexes are.

    Args:
        url: of the dataset.
        mirror: copy of the dataset to repair from; every byte is compared before it is stored.
        dry_run: change nothing, only say what would be done.
        uncertain: "take" or "leave" records that can be read, where nothing proves that they belong there.
            None reports them, and leaves their shards, or the lost manifest, as they are.
        digest: `"sha256:..."` of the latest version, where its manifest is gone and the mirror's is to be
            trusted.
        allow_roots: roots of adopted shards that may be read, each with its storage options.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        workers: processes of that pool; None for one per processor, 1 for this process.
        progress: True for a bar on a terminal and lines in a log, or a function of a `RepairProgress`.
        storage_options, mirror_options: of the two places, as in fsspec; `mirror_options=None` for the same
            where both are the same kind of storage.
        engine: None for the best at hand, "fsspec" or "obstore".

    Returns:
        The report. Look at `report.ok`, `report.unrepaired`, `report.lost` and `report.uncertain`.

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
    if uncertain not in (None, "take", "leave"):
        raise ValueError(f'uncertain={uncertain!r} must be "take", "leave" or None')
    check_workers(workers, executor)
    place = DatasetAddress(url_text(url), storage_options, engine)
    copy = None
    if mirror is not None:
        name = url_text(mirror)
        same = name.partition("://")[0] == place.url.partition("://")[0]
        copy = DatasetAddress(
            name, mirror_options if mirror_options is not None or not same else storage_options, engine
        )
    options = RepairOptions(
        place=place, mirror=copy, allow_roots=allow_roots or {}, dry_run=dry_run, uncertain=uncertain
    )
    with displayed(progress, "repair") as show:
        catalog, latest = Catalog(place.connect()), None
        with suppress(ShardioError):
            latest = catalog.load()
        if latest is None or not dry_run:
            return _Repair(options, digest).run(executor, workers, show)
        # What another process has expired meanwhile is not damaged.
        return catalog.reading(lambda _: _Repair(options, digest).run(executor, workers, show))


class _Repair:
    """One repair on its way."""

    def __init__(self, options: RepairOptions, digest: str | None) -> None:
        self.options = options
        self.digest = digest
        self.dry_run, self.uncertain, self.mirror = options.dry_run, options.uncertain, options.mirror
        self.catalog = Catalog(options.place.connect())
        store = self.catalog.store
        if self.mirror is not None and self.mirror.connect().url == store.url:
            raise ValueError(f"mirror={self.mirror.url!r} is the dataset itself; name a copy of it")
        if not self.dry_run:
            store.refuse_writing(advice="repair the dataset where it can be written, or a copy of it")
        self.out = Repairs()
        self.facts: dict[str, Any] = {"url": store.url, "dry_run": self.dry_run, "base_version": None}

    def run(
        self, executor: Executor | None, workers: int | None, show: Callable[[RepairProgress], None] | None
    ) -> RepairReport:
        """Repair the metadata, then the shards."""
        out = self.out
        copy = None if self.mirror is None else Catalog(self.mirror.connect())
        found = mend_metadata(self.catalog, copy, digest=self.digest, dry_run=self.dry_run)
        out.add(found)
        version, table = self._recover(found), None
        if version is not None:
            self.facts["base_version"] = version.number
            with suppress(ShardioError):  # a list stays lost, and is reported; or it would have been repaired
                table = self.catalog.table(version)
        if version is None or table is None:
            if self.dry_run and found.repaired:
                out.notes.append(_LATER)
            return out.report(**self.facts)
        survey = Survey()
        check_keys(survey, self.catalog, version)
        out.unrepaired += survey.findings
        outcomes = sorted(self._look(version, table, executor, workers, show), key=lambda each: each.number)
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
            out.lost, after = [], before
            for outcome in changed:
                self._remove(outcome)
        elif changed:
            left = {outcome.new.split for outcome in outcomes if outcome.new is not None}
            out.notes += [
                f"split {name!r} is gone, because none of its shards is left; earlier versions name it"
                for name in before
                if name not in left
            ]
            if not self.dry_run:
                self.facts["version"] = self._commit(version, changed)
        return out.report(**self.facts, before=before, after=after)

    def _recover(self, found: Metadata) -> Version | None:
        """Return the latest version, made of what is left where it is gone; None where there is none yet."""
        store = self.catalog.store
        number = max(found.versions, default=0)
        if number and number == found.top:
            if self.dry_run and found.repaired:
                # What would be repaired is not there yet; often the latest version can be read all the same.
                with suppress(ShardioError):
                    return self.catalog.load()
                return None
            return self.catalog.load()
        if any(finding.kind == "manifest" for finding in found.unrepaired):
            return None  # what is damaged is where a new one would have to
        remains = find_remains(self.catalog, found)
        if found.top == 0 and not remains.sessions:
            raise NotFoundError(
                "there is no shardio dataset here, nor anything left of one",
                url=store.url,
                advice="check the address; a single shard is salvaged with `shardio adopt --salvage`",
            )
        url = store.url_of(naming.manifest_key(found.top or 1))
        self.out.uncertain |= remains.uncertain
        self.out.notes += remains.notes
        nothing = remains.base is None and (self.uncertain != "take" or not remains.sessions)
        if nothing or self.uncertain is None:
            what = f"the manifest of version {found.top or 1} is gone, which was committed"
            left = ", ".join(f"{name}: {rows} records" for name, rows in remains.uncertain.items())
            left = f"; what may have been in it: {left}" if left else ""
            first = (
                f"version {remains.base.number} can be read{left}"
                if remains.base is not None
                else f"no version can be read{left}"
            )
            advice = (
                f"{first}; name a mirror, or choose: "
                + ('uncertain="leave" goes back to that version, ' if remains.base else "")
                + 'uncertain="take" adds what may have been in it'
            )
            self.out.leave("missing", NotFoundError(what), advice, url=url)
            return None
        taken = sum(each.rows for each in remains.sessions) if self.uncertain == "take" else 0
        kept = sum(total.rows for total in remains.base.manifest.splits) if remains.base else 0
        made = Repaired(how="recovered", what="manifest", url=url, source="left over", records=kept + taken)
        version = None
        if not self.dry_run:
            version = commit_remains(self.catalog, remains, take=self.uncertain == "take")
            made = replace(made, by=naming.manifest_key(version.number))
            self.facts["version"] = version.number
        elif remains.base is not None:
            self.out.notes.append(_LATER)
        self.out.repaired.append(made)
        return version

    def _look(
        self,
        version: Version,
        table: ShardTable,
        executor: Executor | None,
        workers: int | None,
        show: Callable[[RepairProgress], None] | None,
    ) -> Iterator[RepairOutcome]:
        """Yield what became of each shard, as they come."""
        jobs = list(self._jobs(version, table))
        total, done, repaired = int(table.stored_bytes.sum()), 0, len(self.out.repaired)
        here = executor is None and (len(jobs) < 2 or self.options.place.url.startswith("memory:"))
        runner: JobRunner[RepairJob, list[RepairOutcome]] = JobRunner(
            RepairJob.run, executor=executor, workers=1 if here else workers
        )
        with closing(runner.run(jobs)) as results:
            for job, result in results:
                if isinstance(result, LostJob):
                    url = self.catalog.store.url_of(table.key[job.first])
                    advice = "it may have been out of memory; run it again"
                    raise result.as_error("checked shards", advice=advice, url=url) from result.error
                done += sum(outcome.old.stored_bytes for outcome in result)
                repaired += sum(len(outcome.repaired) for outcome in result)
                if show is not None:
                    show(RepairProgress(done, total, repaired))
                yield from result

    def _jobs(self, version: Version, table: ShardTable) -> Iterator[RepairJob]:
        session = naming.random_session(rewriting=True)
        for first, stop in cut_jobs(table.stored_bytes.tolist(), most_bytes=_JOB_BYTES):
            yield RepairJob(self.options, version.number, version.digest, session, first, stop)

    def _commit(self, version: Version, changed: list[RepairOutcome]) -> int:
        """Make a version that names what takes the place of what is damaged; return its number."""
        wanted = {(outcome.old.root, outcome.old.key, outcome.old.uuid): outcome for outcome in changed}
        url = self.catalog.store.url

        def build(base: Version, lists: StoredLists) -> Manifest | None:
            applied: list[RepairOutcome] = []

            def change(table: ShardTable) -> ShardTable:
                entries = list(table)
                kept = []
                for entry in entries:
                    outcome = wanted.get((entry.root, entry.key, entry.uuid))
                    if outcome is None:
                        kept.append(entry)
                        continue
                    if entry != outcome.old:
                        raise CommitConflictError(
                            "a shard was changed by another writer while it was repaired",
                            url=url,
                            found=f"shard {entry.key}",
                            advice="run it again",
                        )
                    applied.append(outcome)
                    kept += [] if outcome.new is None else [outcome.new]
                return table if kept == entries else ShardTable.from_entries(kept)

            refs, table = lists.edit(self.catalog, base.manifest.lists, change)
            if refs == base.manifest.lists:
                return None  # a commit that took the shards out meanwhile took their damage out, too
            return replace(
                base.manifest,
                lists=refs,
                splits=tuple(table.totals().values()),
                deletions=table.holds("deletion_key"),
                rewrites=tuple(
                    Rewrite((each.old.uuid,), () if each.new is None else (each.new.uuid,))
                    for each in applied
                    if each.new is None or each.new.uuid != each.old.uuid
                ),
            )

        keys = [key for outcome in changed for key in outcome.keys]
        try:
            return commit_change(self.catalog, build, operation="repair", seen=version, keys=keys).number
        except CommitConflictError:
            for outcome in changed:
                self._remove(outcome)
            raise

    def _remove(self, outcome: RepairOutcome) -> None:
        """Remove what has new names, which no other process knows; what got its own name back stays."""
        old = {outcome.old.key, outcome.old.usual_index_key, outcome.old.deletion_key}
        for key in set(outcome.keys) - old:
            with suppress(StorageError):
                self.catalog.store.delete(key)
