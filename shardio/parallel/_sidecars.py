"""What builds of tables and of key indexes share: workers read shards, one commit publishes the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from typing import Any, Generic, TypeVar

from shardio.catalog import Catalog, Version
from shardio.errors import CommitConflictError, NotFoundError
from shardio.parallel._jobs import run
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, Slice, root_stores, slices
from shardio.storage import Address, Place

R = TypeVar("R")
_TRIES = 3
_ADVICE = "it may have been out of memory; run it again"
ReadShards = Callable[[Callable[[Slice], Any], list[int]], Iterator[tuple[Slice, Any]]]


class SidecarBuild(ABC, Generic[R]):
    """Builds files beside the shards of a version; `R` is the report of a build.

    Args:
        catalog: of the dataset.
        options: of reading it.
        seen: the version that is read.
    """

    def __init__(self, catalog: Catalog, options: ReadOptions, seen: Version) -> None:
        self._catalog, self._options, self._seen = catalog, options, seen
        self._store = catalog.store
        self._table = catalog.table(seen)

    @abstractmethod
    def make(self, read: ReadShards) -> None:
        """Make and store what is missing; `read` yields slices with what a function makes of them."""

    @abstractmethod
    def commit(self) -> Version:
        """Publish it."""

    @abstractmethod
    def report(self, version: Version, *, dry_run: bool = False) -> R:
        """Say what was done, or would be."""

    def slices(self, numbers: list[int]) -> list[Slice]:
        """Return some shards of the version."""
        return list(slices(self._store.url, self._seen, self._table, self._options, numbers))

    def read_shards(
        self,
        executor: Executor | None,
        workers: int | None,
        show: Callable[[CountProgress], None] | None,
        function: Callable[[Slice], Any],
        numbers: list[int],
    ) -> Iterator[tuple[Slice, Any]]:
        """Yield some shards with what workers make of them, as they end.

        Raises:
            StorageError: a worker was lost three times over one shard, or a data root is not allowed.
        """
        root_stores(self._store, self._seen.manifest.roots, self._table, self._options)
        parts = self.slices(numbers)
        results = run(function, parts, executor=executor, workers=workers, progress=show, advice=_ADVICE)
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
    """Make and publish what a build is for, and return its report.

    Where another commit or garbage collection overtakes it, the build begins anew with the latest version.
    """
    address = Address.of(place)
    catalog, options = Catalog(address.connect()), ReadOptions.at(address)

    def attempt(seen: Version) -> R:
        for tries_left in reversed(range(_TRIES)):
            build = begin(catalog, options, seen)
            if dry_run:
                return build.report(seen, dry_run=True)
            with displayed(progress, what) as show:
                build.make(partial(build.read_shards, executor, workers, show))
            try:
                return build.report(build.commit())
            except (CommitConflictError, NotFoundError):
                if not tries_left:
                    raise
                seen = catalog.load()
        raise AssertionError

    return catalog.reading(attempt)
