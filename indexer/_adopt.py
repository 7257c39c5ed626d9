"""Adoption from end to end: find the shards, index each as it comes, make all of them one new version.

Nothing is visible before the commit, and nothing of what others wrote is touched.  Killed at any moment, it
goes on where it was when it is run again: an index that was made for the shard as it is now is kept.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardio.catalog import Catalog
from shardio.errors import NotFoundError, StorageError
from shardio_indexer._commit import Addition, commit_shards, known_shards
from shardio_indexer._drive import Job, run_jobs
from shardio_indexer._places import explain_listing, find_shards
from shardio_indexer._report import AdoptProgress, AdoptReport, LeftOut, Refusal, opening_line
from shardio_indexer._scan import ScanOptions
from shardio_indexer._splits import Splits
from shardio_indexer._suit import settle_schema, sort_out
from shardio_indexer._target import choose_target, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from shardio.catalog import Version
    from shardio.metadata import ShardEntry
    from shardio_indexer._infer import Inferred
    from shardio_indexer._places import Search
    from shardio_indexer._shard import Outcome, Shard
    from shardio_indexer._target import Target

__all__ = ["adopt"]


def adopt(  # noqa: PLR0913 - the options are the public contract
    urls: str | Path | Iterable[str | Path],
    *,
    into: str | Path | None = None,
    split: str | Mapping[str, str] | None = None,
    executor: Executor | None = None,
    salvage: bool = False,
    update: bool = False,
    schema: Any = None,
    scan: ScanOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    into_options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    progress: Callable[[AdoptProgress], None] | None = None,
) -> AdoptReport:
    r"""Make shards that others wrote a dataset, where they lie, without changing a byte of them.

    Calling it again adds what is new, skips what is done, and names what has changed.

    Args:
        urls: names, folders, globs, braces (`train-{0000..1023}.tar`), and `@file` for a list of URLs.
        into: where the dataset goes; None for beside the shards, or the user's cache folder where that
            cannot be written.
        split: name of their split, or patterns by name, `{"train": "*train*", "val": "*val*"}`; None for
            "train".
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        salvage: index around damage and report what was left out; otherwise a damaged shard is refused.
        update: index shards again that have changed since they were adopted.
        schema: a schema or mapping for the records; None infers one for Examples; False leaves records bytes.
        scan: format, checksums and block size, where they shall not be found out.
        storage_options: of the shards, as in fsspec.
        into_options: of `into`; None for the same where it is the same kind of storage.
        workers: processes of the pool.
        progress: called now and then.

    Returns:
        What became of every shard. Look at `report.ok`, `report.refused` and `report.opens`.

    Raises:
        NotFoundError: nothing matches.
        StorageError: a place cannot be listed or written.
        SchemaError: the new records do not fit the dataset's schema; nothing was committed.
        ValueError: arguments that make no sense.

    Examples:
        >>> import shardio_indexer, shardio, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "words.txt").write_text("wren\nrobin\n")
        >>> report = shardio_indexer.adopt(folder / "words.txt")
        >>> shardio.open(folder)[1]
        'robin'
    """
    given = [urls] if isinstance(urls, str | os.PathLike) else urls
    patterns = [os.fspath(url) for url in given]
    splits = Splits(split)
    options = scan or ScanOptions()
    if salvage:
        options = ScanOptions(**{**vars(options), "salvage": True})
    try:
        search = find_shards(patterns, storage_options=storage_options)
    except NotFoundError:
        raise
    except StorageError as error:
        raise explain_listing(error) from error
    if not search.shards:
        raise search.missing[0] if search.missing else NotFoundError("there is nothing to adopt")
    target = choose_target(
        search,
        None if into is None else str(into),
        storage_options=storage_options,
        into_options=into_options,
    )
    work = _Adoption(target, options, storage_options, search, update=update)
    work.plan(splits)
    work.index(executor, workers, progress)
    return work.commit(schema)


class _Adoption:
    """One adoption on its way.

    Args:
        target: where the dataset goes.
        options: of the scan.
        data_options: storage options of the shards.
        search: what was found.
        update: index changed shards again.
    """

    def __init__(
        self,
        target: Target,
        options: ScanOptions,
        data_options: Mapping[str, Any] | None,
        search: Search,
        *,
        update: bool,
    ) -> None:
        self._target = target
        self._options = options
        self._data_options = data_options
        self._update = update
        self._catalog = Catalog(target.store)
        self._base: Version | None = self._catalog.latest()
        self._known: dict[tuple[str, str], ShardEntry] = known_shards(self._catalog, self._base)
        self._refused = [Refusal(str(getattr(error, "url", "")), error) for error in search.missing]
        self._notes = [note for note in (*search.notes, target.note) if note]
        self._stale: list[str] = []
        self._kept: list[ShardEntry] = []
        self._changed: set[str] = set()
        self._search = search
        self._shards: list[Shard] = []
        self._outcomes: list[Outcome] = []

    def plan(self, splits: Splits) -> None:
        """Tell new shards from known ones, and these from changed ones."""
        shards, left = lay_out(self._search, self._target, splits)
        if left:
            self._notes.append(f"{len(left)} shards match no pattern of --split ({splits}), e.g. {left[0]}")
        doomed = self._doomed()
        for found in shards:
            shard = replace(found, given_up=doomed.intersection(found.index_keys(found.uuid(self._options))))
            entry = self._known.get((shard.root, shard.key))
            if entry is None:
                self._shards.append(shard)
            elif not entry.adopted or entry.stamp == shard.stamp:
                self._kept.append(entry)
            elif self._update:
                self._changed.add(shard.url)
                self._shards.append(shard)
            else:
                self._stale.append(shard.url)

    def _doomed(self) -> frozenset[str]:
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
        job = Job(
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
                progress(AdoptProgress(len(self._outcomes), len(self._shards), min(done, total), total))

        for outcome in run_jobs(job, executor=executor, workers=workers, show=show):
            self._outcomes.append(outcome)
        if progress is not None:
            progress(AdoptProgress(len(self._outcomes), len(self._shards), total, total))
        order = {shard: number for number, shard in enumerate(self._shards)}
        self._outcomes.sort(key=lambda outcome: order[outcome.shard])

    def commit(self, schema: Any) -> AdoptReport:
        """Make what was indexed part of the dataset, and say what became of every shard."""
        good, bad = sort_out(self._outcomes, self._known.values())
        self._refused += [Refusal(outcome.shard.url, outcome.error) for outcome in bad if outcome.error]
        inferred, metadata, notes = settle_schema(
            good, schema, self._base, self._target, self._options, self._data_options
        )
        self._notes += notes
        version = self._base
        if good:
            version = commit_shards(
                self._catalog,
                [
                    Addition(outcome.shard.root, outcome.entry)
                    for outcome in good
                    if outcome.entry is not None
                ],
                schema=inferred.schema,
                metadata=metadata,
                update=self._update,
                seen=self._base.number if self._base is not None else 0,
            )
        return self._report(good, inferred, version)

    def _report(self, good: list[Outcome], inferred: Inferred, version: Version | None) -> AdoptReport:
        entries = [outcome.entry for outcome in good if outcome.entry is not None] + self._kept
        updated = sum(outcome.shard.url in self._changed for outcome in good)
        seen: Counter[str] = Counter()
        for outcome in good:
            seen.update(outcome.notes)
        notes = [*self._notes, *(f"{what}: {count}" for what, count in sorted(seen.items()))]
        manifest = version.manifest if version is not None else None
        return AdoptReport(
            url=self._target.place.url,
            version=version.number if version is not None else None,
            digest=version.digest if version is not None else "",
            opens=self._opens(good, version),
            adopted=len(good) - updated,
            known=len(self._kept),
            updated=updated,
            rows=sum(entry.rows for entry in entries),
            num_bytes=sum(outcome.shard.size for outcome in good)
            + sum(entry.stored_bytes for entry in self._kept),
            splits={total.name: total.rows for total in manifest.splits} if manifest is not None else {},
            schema=manifest.schema if manifest is not None else None,
            inference=inferred.report,
            refused=tuple(self._refused),
            stale=tuple(self._stale),
            left_out=tuple(
                LeftOut(outcome.shard.url, *part) for outcome in good for part in outcome.left_out
            ),
            notes=tuple(notes),
        )

    def _opens(self, good: list[Outcome], version: Version | None) -> str:
        if version is None:
            return ""
        names = [total.name for total in version.manifest.splits]
        first = next((outcome.shard.split for outcome in good), names[0] if names else None)
        options = dict(self._data_options or {})
        return opening_line(
            self._target.place.url,
            split=first if len(names) > 1 else None,
            target_options=self._target.options,
            roots={url: options if "://" in url else {} for url in version.manifest.roots.values()},
        )
