"""What builds of tables and of indexes of keys share: workers read shards, one commit publishes them.

Promises: what is published is whole or not there at all; what garbage collection has doomed before the commit
is made again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from typing import Any, Generic, Self, TypeVar

from shardio.catalog import Catalog, Version
from shardio.errors import CommitConflictError, NotFoundError
from shardio.parallel import run
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, Slice, root_stores, slices
from shardio.storage import Address, Place

ReadShards = Callable[[Callable[[Slice], Any], list[Slice]], Iterator[tuple[Slice, Any]]]

R = TypeVar("R")
_TRIES = 3


class SidecarBuild(ABC, Generic[R]):
    """A build on its way; `R` is its report."""

    def __init__(self, catalog: Catalog, options: ReadOptions, seen: Version) -> None:
        self._catalog, self._options, self._seen = catalog, options, seen
        self._store = catalog.store
        self._table = catalog.table(seen)

    @abstractmethod
    def make(self, read: ReadShards) -> None:
        """Make and store what is missing; `read` yields slices with what a function made of them."""

    @abstractmethod
    def commit(self) -> Version:
        """Publish it."""

    @abstractmethod
    def report(self, version: Version, *, dry_run: bool = False) -> R:
        """Say what was done, or would be."""

    @abstractmethod
    def without(self, doomed: set[str], latest: Version) -> Self | None:
        """Return what goes on from another version where keys of what was made are doomed, else None."""

    def slices(self, numbers: list[int]) -> list[Slice]:
        """Return some shards of the version."""
        return list(slices(self._store.url, self._seen, self._table, self._options, numbers))

    def read_shards(
        self,
        executor: Executor | None,
        workers: int | None,
        show: Callable[[CountProgress], None] | None,
        function: Callable[[Slice], Any],
        parts: list[Slice],
    ) -> Iterator[tuple[Slice, Any]]:
        """Yield slices with their results, as they end.

        Raises:
            StorageError: a worker was lost three times over one shard, or a data root is not allowed.
        """
        root_stores(self._store, self._seen.manifest.roots, self._table, self._options)
        advice = "it may have been out of memory; run it again, what is done is kept"
        results = run(function, parts, executor=executor, workers=workers, progress=show, advice=advice)
        with closing(results):
            yield from results


def run_build(
    begin: Callable[[Catalog, ReadOptions, Version], SidecarBuild[R]],
    place: Place,
    what: str,
    executor: Executor | None,
    workers: int | None,
    *,
    progress: bool | Callable[[CountProgress], None],
    dry_run: bool,
) -> R:
    """Make and publish what a build is for, again where garbage collection takes it; return its report."""
    address = Address.of(place)
    catalog, options = Catalog(address.connect()), ReadOptions.at(address)

    def attempt(seen: Version) -> R:
        build, since = begin(catalog, options, seen), seen
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
