"""What builds of tables and of indexes of keys share: workers read shards, one commit publishes them.

Promises: what is published is whole or not there at all; what garbage collection has doomed before the commit
is made again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from shardio.arguments import options_by_root
from shardio.catalog import Catalog, Version
from shardio.errors import CommitConflictError, NotFoundError
from shardio.metadata import Schema, ShardEntry, ShardTable, TableColumn
from shardio.parallel import JobRunner, LostJob
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, ShardSource, root_stores
from shardio.storage import connect, url_text

ReadShards = Callable[[Callable[["ShardJob"], Any], list["ShardJob"]], Iterator[tuple["ShardJob", Any]]]

R = TypeVar("R")
_TRIES = 3


@dataclass(frozen=True)
class ShardJob:
    """One shard whose features are to be read, as it travels to a worker.

    Attributes:
        url: of the dataset.
        options: how it is read.
        roots: URLs of data roots by number.
        schema: of the dataset.
        partitions: features of it that folders tell.
        entry: the shard.
        features: names of the columns.
        described: the columns as the manifest describes them.
        known: keys of tables of this very content that were stored before.
    """

    url: str
    options: ReadOptions
    roots: Mapping[int, str]
    schema: Schema
    partitions: tuple[str, ...]
    entry: ShardEntry
    features: tuple[str, ...]
    described: tuple[TableColumn, ...] = ()
    known: tuple[str, ...] = ()

    def open(self) -> ShardSource:
        """Return the shard as a source of its own."""
        store = connect(self.url, storage_options=self.options.storage_options, engine=self.options.engine)
        table = ShardTable.from_entries([self.entry])
        stores = root_stores(store, self.roots, table, self.options)
        return ShardSource(
            self.url, table, stores, self.options, self.schema, partitions=self.partitions, roots=self.roots
        )


class SidecarBuild(ABC, Generic[R]):
    """A build on its way; `R` is its report."""

    def __init__(self, catalog: Catalog, options: ReadOptions, seen: Version) -> None:
        self._catalog, self._options, self._seen = catalog, options, seen
        self._store = catalog.store
        self._table = catalog.table(seen)

    @abstractmethod
    def make(self, read: ReadShards) -> None:
        """Make and store what is missing; `read` yields jobs with what a function made of them."""

    @abstractmethod
    def commit(self) -> Version:
        """Publish it."""

    @abstractmethod
    def report(self, version: Version, *, dry_run: bool = False) -> R:
        """Say what was done, or would be."""

    @abstractmethod
    def without(self, doomed: set[str], latest: Version) -> Self | None:
        """Return what goes on from another version where keys of what was made are doomed, else None."""

    def job(self, entry: ShardEntry, features: tuple[str, ...], **known: Any) -> ShardJob:
        """Return the job of one shard."""
        manifest = self._seen.manifest
        assert manifest.schema is not None  # noqa: S101 - as `choose_columns` found
        url, schema, partitions = self._store.url, manifest.schema, manifest.partitions
        return ShardJob(url, self._options, manifest.roots, schema, partitions, entry, features, **known)

    def read_shards(
        self,
        executor: Executor | None,
        workers: int | None,
        show: Callable[[CountProgress], None] | None,
        function: Callable[[ShardJob], Any],
        jobs: list[ShardJob],
    ) -> Iterator[tuple[ShardJob, Any]]:
        """Yield jobs with their results, as they end.

        Raises:
            StorageError: a worker was lost three times over one shard, or a data root is not allowed.
        """
        root_stores(self._store, self._seen.manifest.roots, self._table, self._options)
        total, done = sum(job.entry.rows for job in jobs), 0
        runner: JobRunner[ShardJob, Any] = JobRunner(function, executor=executor, workers=workers)
        with closing(runner.run(jobs)) as running:
            for job, result in running:
                if isinstance(result, LostJob):
                    advice = "it may have been out of memory; run it again, what is done is kept"
                    place = {"url": self._store.url, "shard": job.entry.key}
                    raise result.as_error("read a shard", advice=advice, **place) from result.error
                yield job, result
                done += job.entry.rows
                if show is not None:
                    show(CountProgress(done, total))


def open_for_build(
    url: str | Path,
    storage_options: Mapping[str, Any] | None,
    engine: str | None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None,
) -> tuple[Catalog, ReadOptions]:
    """Return the versions of a dataset, and how a build reads its shards, as `shardio.open` would."""
    options = ReadOptions(
        storage_options=dict(storage_options) if storage_options else None,
        engine=engine,
        allow_roots=options_by_root(allow_roots),
    )
    return Catalog(connect(url_text(url), storage_options=options.storage_options, engine=engine)), options


def run_build(
    begin: Callable[[Version], SidecarBuild[R]],
    catalog: Catalog,
    what: str,
    executor: Executor | None,
    workers: int | None,
    *,
    progress: bool | Callable[[CountProgress], None],
    dry_run: bool,
) -> R:
    """Make and publish what a build is for, again where garbage collection takes it; return its report."""

    def attempt(seen: Version) -> R:
        build, since = begin(seen), seen
        if dry_run:
            return build.report(seen, dry_run=True)
        with displayed(progress, what) as show:
            for _ in range(_TRIES):
                build.make(partial(build.read_shards, executor, workers, show))
                try:
                    return build.report(build.commit())
                except (CommitConflictError, NotFoundError):
                    # Garbage collection has doomed some of it, or removed it already.
                    latest = catalog.load()
                    between = [*catalog.between(since.number + 1, latest.number - 1), latest]
                    doomed = {key for version in between for key in version.manifest.expiry.doomed_keys}
                    rest = build.without(doomed, latest)
                    if rest is None:
                        raise
                    build, since = rest, latest
        raise CommitConflictError(
            f"garbage collection removed what this build had stored, {_TRIES} times",
            url=catalog.store.url,
            advice="do not run it at the same time",
        )

    return catalog.reading(attempt)
