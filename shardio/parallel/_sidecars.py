"""What builds of tables and of key indexes share: workers read shards, one commit publishes the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardio.catalog import Catalog, Version
from shardio.errors import CommitConflictError, NotFoundError
from shardio.parallel._jobs import run
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions, Slice
from shardio.storage import Address, Place

R = TypeVar("R")
_TRIES = 3


@dataclass(frozen=True)
class SidecarPlan(Generic[R]):
    """What a build does beside the shards of a version; `R` is its report.

    Attributes:
        parts: shards that are read.
        read: what workers do with each of them.
        store: takes the parts with what workers made of them, as they end, and stores what is missing.
        publish: commits it, unless it is a dry run, and returns the report.
    """

    parts: list[Slice]
    read: Callable[[Slice], Any]
    store: Callable[[Iterable[tuple[Slice, Any]]], None]
    publish: Callable[[bool], R]


def run_build(
    plan: Callable[[Catalog, ReadOptions, Version], SidecarPlan[R]],
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
            build = plan(catalog, options, seen)
            if not dry_run:
                with displayed(progress, what) as show:
                    results = run(
                        build.read, build.parts, catalog.store.url,
                        executor=executor, workers=workers, progress=show,
                        advice="it may have been out of memory; run it again",
                    )  # fmt: skip
                    with closing(results):
                        build.store(results)
            try:
                return build.publish(dry_run)
            except (CommitConflictError, NotFoundError):
                if not tries_left:
                    raise
                seen = catalog.load()
        raise AssertionError

    return catalog.reading(attempt)
