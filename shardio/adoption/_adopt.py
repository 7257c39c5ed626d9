"""Adoption from end to end: find the shards, index each as it comes, make all of them one new version.

Nothing is visible before the commit, and nothing of what others wrote is touched.  Killed at any moment, it
continues where it was when it is run again: an index that was made for the shard as it is now is kept.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardio.adoption._commit import Changeset, RootedEntry, commit_shards, keeps_deletions, known_shards
from shardio.adoption._layout import (
    AdoptTarget,
    ShardSearch,
    assign_shards,
    choose_target,
    find_shards,
)
from shardio.adoption._report import AdoptProgress, AdoptReport, Refusal, opening_line
from shardio.adoption._scan import ScanOptions
from shardio.adoption._schema import (
    AdoptedRecords,
    ResolvedSchema,
    line_content,
    partition_outcomes,
    resolve_schema,
)
from shardio.adoption._shard import AdoptJob, FoundShard, ShardOutcome, index_is_intact, index_shards
from shardio.arguments import checked_options, mapping
from shardio.catalog import Catalog, Version
from shardio.display import plural
from shardio.errors import BadRecord, NotFoundError, UnsafeNameError
from shardio.metadata import Schema, ShardEntry, naming
from shardio.progress import displayed
from shardio.sources import (
    SPLIT_KEY,
    FoundFile,
    SplitRules,
    SplitUrl,
    find_governed,
    find_links,
    folder_key,
    format_of_name,
)
from shardio.storage import url_text


@checked_options
def adopt(  # noqa: PLR0913 - the options are the public contract
    urls: str | Path | Iterable[str | Path],
    *,
    into: str | Path | None = None,
    split: str | Mapping[str, str] | None = None,
    executor: Executor | None = None,
    salvage: bool = False,
    update: bool = False,
    drop_missing: bool = False,
    schema: Any = None,
    types: Mapping[str, Any] | None = None,
    encoding: str | None = None,
    follow_links: bool = False,
    scan: ScanOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    into_options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[AdoptProgress], None] = False,
) -> AdoptReport:
    r"""Make shards that others wrote a dataset, where they are, without changing a byte of them.

    Calling it again adds what is new, skips what is done, and names what has changed.

    Args:
        urls: shards, folders, globs, braces (`train-{0000..1023}.tar`), and `@file` for a list of URLs.
        into: where the dataset goes; None for beside the shards, or the user's cache folder where that
            cannot be written. A folder that was not named itself is the place only where it is a dataset
            already, or holds nothing else.
        split: name of their split, or patterns by name, `{"train": "*train*", "val": "*val*"}`. None goes by
            the names of files and folders, such as `val-00000-of-00008.tfrecord`; where no name tells a
            split, it is "train". `report.notes` says what was decided.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        salvage: index around damage and report what was left out; otherwise a damaged shard is refused.
        update: index shards again that have changed since they were adopted, or whose index is damaged or
            gone.
        drop_missing: take shards out of the dataset that would be found, and that are no longer there.
        schema: types of some features, instead of those that the dataset has or that are inferred; None in
            place of a type takes a feature out. A whole `Schema` takes the place of the dataset's. Without
            one, Examples, JSON lines and tar files get an inferred schema. False leaves records as they are.
        types: types of some features, as a mapping for `schema`. Not beside a whole one.
        encoding: how records hold the features of `schema`, where that is not what is inferred. A mapping is
            the whole schema then. "bytes" with one feature takes lines as they are.
        follow_links: take also files that symbolic links lead to outside of the folder that was named.
        scan: format, checksums and block size, where they are not to be detected.
        storage_options: of the shards, as in fsspec.
        into_options: of `into`; None for the same where it is the same kind of storage.
        workers: processes of the pool.
        dry_run: change nothing, only say which shards would be adopted, and where; no shard is read.
        progress: True for a bar on a terminal and lines in a log, or a function of an `AdoptProgress`.

    Returns:
        What became of every shard. Look at `report.ok`, `report.refused` and `report.opens`.

    Raises:
        NotFoundError: nothing matches.
        StorageError: a place cannot be listed or written.
        SchemaError: no one schema reads all records of the dataset; nothing was committed.
        CommitConflictError: the place is within another dataset.
        ValueError: arguments that make no sense; the place holds other files, or another dataset; or some
            file names tell a split and others do not.

    Examples:
        >>> import shardio_indexer, shardio, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "words.txt").write_text("wren\nrobin\n")
        >>> report = shardio_indexer.adopt(folder / "words.txt")
        >>> shardio.open(folder)[1]
        'robin'
    """
    if schema is not False and not isinstance(schema, Schema):
        schema = None if schema is None else mapping("schema", schema)
    if types is not None:
        if isinstance(schema, Schema | bool):
            message = "types= changes some features of what is there or inferred: leave out schema=, or this"
            raise ValueError(message)
        schema = {**(schema or {}), **mapping("types", types)}
    storage_options = None if storage_options is None else mapping("storage_options", storage_options)
    into_options = None if into_options is None else mapping("into_options", into_options)
    splits = SplitRules(split)
    options = ScanOptions() if scan is None else scan
    if not isinstance(options, ScanOptions):
        raise TypeError(f"scan= takes a ScanOptions, found {options!r:.80}")
    if salvage:
        options = replace(options, salvage=True)
    search = find_shards(
        urls, storage_options=storage_options, follow_links=follow_links, format=options.format
    )
    target = choose_target(
        search,
        None if into is None else url_text(into),
        storage_options=storage_options,
        into_options=into_options,
    )
    work = _Adoption(
        target, options, storage_options, search, schema, encoding,
        update=update, drop_missing=drop_missing,
    )  # fmt: skip
    work.plan(splits)
    if not (search.shards or work.missing):
        raise search.nothing
    if dry_run:
        return work.report()
    with displayed(progress, "index") as show:
        work.index(executor, workers, show)
    return work.commit()


def _notes_on_keys(shards: Iterable[FoundShard]) -> list[str]:
    """Note what folders such as `year=2020` say of records: only a conversion makes features of it."""
    found = map(folder_key, {part for shard in shards for part in shard.key.split("/")[:-1]})
    keys = {key.name: str(key) for key in found if key is not None and key.name != SPLIT_KEY}
    if not keys:
        return []
    names = ", ".join(sorted(keys.values()))
    return [f"folders ({names}) give adopted records no features; `shardio convert` makes features of them"]


class _Adoption:
    """One adoption on its way.

    Args:
        target: where the dataset goes.
        options: of the scan.
        data_options: storage options of the shards.
        search: what was found.
        schema, encoding: that the caller wants.
        update: index changed shards again.
        drop_missing: take shards out that are gone.
    """

    def __init__(
        self,
        target: AdoptTarget,
        options: ScanOptions,
        data_options: Mapping[str, Any] | None,
        search: ShardSearch,
        schema: Any,
        encoding: str | None,
        *,
        update: bool,
        drop_missing: bool,
    ) -> None:
        self._target = target
        self._options = options
        self._data_options = data_options
        self._update = update
        self._catalog = Catalog(target.store)
        self._base: Version | None = self._catalog.latest()
        self._known: dict[tuple[str, str], ShardEntry] = {}
        if self._base is not None:
            self._base, self._known = self._catalog.reading(
                lambda base: (base, known_shards(self._catalog, base))
            )
        self._schema, self._encoding = schema, encoding
        if options.lines is None:
            formats = {options.format or format_of_name(file.key) for file in search.shards.values()}
            lines = line_content(schema, encoding, self._base, self._known.values(), formats)
            self._options = replace(options, lines=lines)
        self._drop_missing = drop_missing
        self._notes = [target.note] if target.note else []
        self._ignored = list(search.ignored)
        self.missing: dict[str, tuple[str, str]] = {}  # URL to root and key
        self._stale: list[str] = []
        self._kept: list[ShardEntry] = []
        self._changed: set[str] = set()
        self._search = search
        self._shards: list[FoundShard] = []
        self._outcomes: list[ShardOutcome] = []

    def plan(self, splits: SplitRules) -> None:
        """Tell new shards from known ones, and these from changed ones."""
        self._leave_governed()
        shards, left, notes = assign_shards(self._search, self._target, splits, self._known)
        self._notes += notes
        if left:
            none = (
                f"match no pattern of a split ({splits})"
                if splits.given
                else "are in no split of dataset_info.json"
            )
            self._notes.append(f"{plural(len(left), 'shard')} {none}, such as {left[0]}")
            self._ignored += left
        self._notes += _notes_on_keys(shards)
        self._find_missing({(shard.root, shard.key) for shard in shards})
        doomed, (rewritten, gone) = self._doomed_keys(), self._rewritten()
        within = []
        for found in self._without_links(shards):
            shard = replace(
                found, unusable_keys=doomed.intersection(found.index_keys(found.uuid(self._options)))
            )
            entry = self._known.get((shard.root, shard.key))
            if entry is None and not shard.root and naming.is_own_key(shard.key):
                # When its version has expired, garbage collection could not tell it from what writers left.
                error = UnsafeNameError(
                    "a file has a name as this dataset's own shards have",
                    url=shard.url,
                    advice="rename it, or make a dataset of it elsewhere, with into=",
                )
                self._refused.append(Refusal(shard.url, error))
                continue
            there = shard.uuid(self._options) in rewritten or self._place_of(shard.root, shard.key) in gone
            if entry is None and there:
                within.append(shard.url)
            elif entry is None:
                self._shards.append(shard)
            elif not entry.adopted or (entry.etag == shard.etag and not self._must_renew(entry)):
                self._kept.append(entry)
            elif entry.etag == shard.etag:
                # An index is never overwritten: the new one gets a name of its own.
                taken = shard.index_keys(shard.uuid(self._options))
                self._changed.add(shard.url)
                self._shards.append(replace(shard, unusable_keys=shard.unusable_keys.union(taken)))
            elif self._update:
                self._changed.add(shard.url)
                self._shards.append(shard)
            else:
                self._stale.append(shard.url)
        if within:
            self._ignored += within
            self._notes.append(
                f"{plural(len(within), 'shard')} such as {within[0]}: compaction has written the records "
                "into shards of the dataset's own, so the old files are left out; new records need files of "
                "other names"
            )

    def _leave_governed(self) -> None:
        """Leave out shards of shardio's own writers that are not in the version, see `find_governed`.

        Raises:
            NotFoundError: nothing else was found.
        """
        known = {self._place_of(root, key) for root, key in self._known}
        governed = find_governed(self._search.listings, self._data_options).keys() - known
        if not governed:
            return
        for place in governed:
            self._search.shards.pop(place, None)
        urls = sorted(place.url for place in governed)
        self._ignored += urls
        note = (
            f"{plural(len(urls), 'shard')} such as {urls[0]}: of a dataset of shardio, but not of its latest "
            "version here; left out, because its manifests tell which records count"
        )
        self._notes.append(note)
        if not self._search.shards and self._base is None:
            raise NotFoundError(
                "there is nothing to adopt",
                url=self._target.place.url,
                found=note,
                advice="open that dataset, commit its sessions (`shardio commit`) or `shardio convert` it",
            )

    def _without_links(self, shards: Sequence[FoundShard]) -> list[FoundShard]:
        """Return each file of a split once, whatever names symbolic links give it; known ones keep theirs."""
        home = self._target.place.url
        links, notes = find_links(
            (
                (FoundFile(shard.root or home, shard.key, shard.size, shard.etag), shard.split)
                for shard in shards
                if (shard.root, shard.key) not in self._known
            ),
            (
                (FoundFile(root or home, key, entry.stored_bytes, entry.etag), entry.split)
                for (root, key), entry in self._known.items()
            ),
        )
        self._notes += notes
        self._ignored += links
        return [shard for shard in shards if shard.url not in links]

    def _place_of(self, root: str, key: str) -> SplitUrl:
        return (SplitUrl.parse(root) if root else self._target.place).join_key(key)

    def _rewritten(self) -> tuple[set[bytes], set[SplitUrl]]:
        """Return UUIDs and places of adopted shards whose records are in shards of our own by now.

        The UUID tells them where the lists of their version have expired; the place where a file was touched
        or is read in another way since.
        """
        uuids: set[bytes] = set()
        places: set[SplitUrl] = set()
        if self._base is None or all(entry.adopted for entry in self._known.values()):
            return uuids, places
        alive = {entry.uuid for entry in self._known.values()}
        versions = [*self._catalog.between(1, self._base.number - 1), self._base]
        for before, version in reversed(list(itertools.pairwise(versions))):
            # A version that was restored meanwhile holds nothing of what was written after it.
            rewrites = [i for i in version.manifest.rewrites if not i.new or alive.intersection(i.new)]
            old = {uuid for rewrite in rewrites for uuid in rewrite.old}
            alive |= old
            uuids |= old
            if old:
                with contextlib.suppress(NotFoundError):
                    known = known_shards(self._catalog, before)
                    places |= {
                        self._place_of(*shard)
                        for shard, entry in known.items()
                        if entry.uuid in old and entry.adopted
                    }
        return uuids, places

    def _must_renew(self, entry: ShardEntry) -> bool:
        """Tell, where changed shards are to be indexed again, whether a shard's index is damaged or gone."""
        return self._update and not index_is_intact(self._target.store, entry, self._options)

    def _find_missing(self, found: set[tuple[str, str]]) -> None:
        """Tell which shards of the dataset were looked for and are gone."""
        explained: set[int] = set()  # listings that find nothing because shards are gone
        for (root, key), entry in self._known.items():
            if entry.adopted and (root, key) not in found:
                place = self._place_of(root, key)
                if lacking := self._search.listings_without(place):
                    self.missing[place.url] = (root, key)
                    explained.update(map(id, lacking))
        # What is said to be gone is not refused a second time.
        self._refused = [
            Refusal(str(getattr(error, "url", "")), error)
            for listing, error in self._search.unmatched
            if listing.bad_names or id(listing) not in explained
        ]

    def _doomed_keys(self) -> frozenset[str]:
        """Return the keys that garbage collection has ever given up."""
        if self._base is None or not self._base.manifest.expiry.expired_versions:
            return frozenset()
        versions = self._catalog.versions()
        return frozenset(key for version in versions for key in version.manifest.expiry.doomed_keys)

    def index(
        self,
        executor: Executor | None,
        workers: int | None,
        progress: Callable[[AdoptProgress], None] | None,
    ) -> None:
        """Index the shards, in parallel."""
        job = AdoptJob(
            target=self._target.place.url,
            target_options=self._target.options,
            data_options=self._data_options,
            scan=self._options,
            shards=tuple(self._shards),
        )
        total = sum(shard.size for shard in self._shards)
        done = 0

        def show(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(AdoptProgress(min(done, total), total, len(self._outcomes), len(self._shards)))

        for outcome in index_shards(job, executor=executor, workers=workers, show=show):
            self._outcomes.append(outcome)
        if progress is not None:
            progress(AdoptProgress(total, total, len(self._outcomes), len(self._shards)))
        order = {shard: number for number, shard in enumerate(self._shards)}
        self._outcomes.sort(key=lambda outcome: order[outcome.shard])

    def commit(self) -> AdoptReport:
        """Commit the indexed shards to the dataset, and report the outcome for each shard."""
        gone = frozenset(self.missing.values()) if self._drop_missing else frozenset()
        stays = {place: entry for place, entry in self._known.items() if place not in gone}
        good, bad = partition_outcomes(self._outcomes, stays.values())
        for outcome in bad:
            if outcome.error is not None:
                self._refused.append(Refusal(outcome.shard.url, outcome.error))
        again = {(outcome.shard.root, outcome.shard.key) for outcome in good}
        known = [RootedEntry(root, entry) for (root, key), entry in stays.items() if (root, key) not in again]
        search = self._search
        records = AdoptedRecords(
            self._target, self._data_options, self._options, search.tfds, search.mds_columns
        )
        resolved = resolve_schema(
            good, known, records, wanted=self._schema, encoding=self._encoding, base=self._base
        )
        self._notes += [*resolved.notes, *self._untold(good), *self._undeleted(good)]
        version = self._base
        if good or gone or resolved.replaces:
            change = Changeset(
                additions=[
                    RootedEntry(outcome.shard.root, outcome.entry)
                    for outcome in good
                    if outcome.entry is not None
                ],
                schema=resolved.schema,
                replaces=resolved.replaces,
                metadata=resolved.metadata,
                update=self._update,
                dropped=gone,
            )
            version = commit_shards(self._catalog, change, base=self._base)
        return self.report(good, resolved, version)

    def _untold(self, good: list[ShardOutcome]) -> list[str]:
        """Return which shards have other numbers of records than the folder says."""
        told = {place.url: file.rows for place, file in self._search.told.items()}
        rows = {outcome.shard.url: outcome.entry.rows for outcome in good if outcome.entry is not None}
        return [
            f"{url}: dataset_info.json says {told[url]:,} records, found {count:,}"
            for url, count in rows.items()
            if told.get(url) not in (None, count)
        ]

    def _undeleted(self, good: list[ShardOutcome]) -> list[str]:
        """Return which shards' deletions are forgotten: of other bytes by now, or of files that are gone."""
        found = {(outcome.shard.root, outcome.shard.key): outcome.entry for outcome in good}
        gone = set(self.missing.values()) if self._drop_missing else set()
        notes = []
        for (root, key), old in self._known.items():
            new = found.get((root, key))
            if old.live_rows == old.rows or (new is None and (root, key) not in gone):
                continue
            if new is None or not keeps_deletions(old, new):
                what = "it is gone" if new is None else "it is another file now"
                notes.append(
                    f"{self._place_of(root, key).url}: {what}, and so are the deletions of "
                    f"{plural(old.rows - old.live_rows, 'record')}: where they come back, delete them again"
                )
        return notes

    def report(
        self,
        good: Sequence[ShardOutcome] = (),
        resolved: ResolvedSchema | None = None,
        version: Version | None = None,
    ) -> AdoptReport:
        """Return the report; without a schema, only what is known before any shard is read."""
        dry_run = resolved is None
        shards = self._shards if dry_run else [outcome.shard for outcome in good]
        entries = [outcome.entry for outcome in good if outcome.entry is not None] + self._kept
        updated = sum(shard.url in self._changed for shard in shards)
        seen = sum((outcome.notes for outcome in good), Counter[str]())
        manifest = version.manifest if version is not None else None
        at = self._base if dry_run else version
        missing = tuple(sorted(self.missing))
        splits = Counter(shard.split for shard in shards) + Counter(entry.split for entry in self._kept)
        return AdoptReport(
            url=self._target.place.url,
            version=at.number if at is not None else None,
            digest=at.digest if at is not None else "",
            opens=self._opens(good, version),
            adopted=len(shards) - updated,
            known=len(self._kept),
            updated=updated,
            shards=dict(sorted(splits.items())),
            records=0 if dry_run else sum(entry.rows for entry in entries),
            stored_bytes=sum(each.size for each in shards) + sum(each.stored_bytes for each in self._kept),
            splits={total.name: total.rows for total in manifest.splits} if manifest is not None else {},
            schema=manifest.schema if manifest is not None else None,
            refused=tuple(self._refused),
            stale=tuple(self._stale),
            missing=() if self._drop_missing else missing,
            dropped=missing if self._drop_missing else (),
            ignored=tuple(self._ignored),
            skipped=tuple(
                BadRecord(outcome.shard.url, gap.reason, start=gap.start, stop=gap.stop)
                for outcome in good
                for gap in outcome.skipped
            ),
            notes=(*self._notes, *(f"{what}: {count}" for what, count in sorted(seen.items()))),
            dry_run=dry_run,
        )

    def _opens(self, good: Sequence[ShardOutcome], version: Version | None) -> str:
        if version is None:
            return ""
        names = [total.name for total in version.manifest.splits]
        first = next((outcome.shard.split for outcome in good), names[0] if names else None)
        first = "train" if "train" in names else first
        options = dict(self._data_options or {})
        return opening_line(
            self._target.place.url,
            split=first if len(names) > 1 else None,
            target_options=self._target.options,
            roots={url: options if "://" in url else {} for url in version.manifest.roots.values()},
        )
