"""One session from its items to its commit: keep finished tasks, run missing ones, then commit once."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardio.callers import warn
from shardio.catalog import (
    commit_session,
    complete_receipts,
    items_of_tasks,
    session_shards,
)
from shardio.errors import CommitConflictError, SchemaError
from shardio.metadata import naming
from shardio.parallel._driver import Progress, cut_items, run_tasks
from shardio.parallel._gather import gathered, stored_payloads
from shardio.parallel._task import TaskSpec
from shardio.parallel._write_session import WriteReport, WriteSession
from shardio.progress import displayed
from shardio.reader import ReadOptions
from shardio.writer import DEFAULT_SHARD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    from shardio.catalog import Version
    from shardio.metadata import ShardTable
    from shardio.parallel._task import Note


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the tasks of a write are run, whatever they write.

    Attributes:
        executor: where; None for a process pool.
        workers: processes of that pool; None for one per processor, 1 for this process itself.
        tasks: how many; None for as many as suit.
        on_error: "raise" or "skip".
        progress: True to print it, or a function of a `Progress`.
        noted: takes what the tasks noted, in the place of the report.
        origin: what tells the items of the write from others, where those of a task do not; 32 bytes.
    """

    executor: Executor | None = None
    workers: int | None = None
    tasks: int | None = None
    on_error: str = "raise"
    progress: bool | Callable[[Progress], None] = False
    noted: list[Note] | None = None
    origin: bytes = b""


def write_session(
    url: str,
    items: Iterable[Any],
    function: Callable[[Any], Any],
    *,
    session: str | None,
    run: RunOptions,
    writer: Mapping[str, Any],
    encoded: bool = False,
    gather: bool = True,
) -> WriteReport:
    """Write items as the tasks of a session and commit them; a rerun runs only the tasks that have not ended.

    Args:
        url: of the dataset.
        items: what the function is called with, each once.
        function: called in a worker, and importable there; yields values, or tuples of split and value.
        session: the caller's id of it, or None for one that will not run again.
        run: how the tasks are run.
        writer: options of `DatasetWriter`.
        encoded: the function yields payloads, which are stored as they are.
        gather: make large shards of small ones, where neither the session nor the tasks are the caller's.

    Raises:
        CommitConflictError, CommitOutcomeUnknownError, StorageError: as `DatasetWriter`.
        Exception: what the function raised.
    """
    write = WriteSession.of(url, session, writer)
    catalog, name = write.catalog, write.id
    before = write.check_mode()
    cut = cut_items(items, run.tasks)
    known = complete_receipts(catalog, name) if session is not None else {}
    done = items_of_tasks(known)
    spec = TaskSpec(write, function, run.on_error, encoded, run.origin)
    with displayed(run.progress, "write") as show:
        try:
            out = run_tasks(spec, cut, done, run.executor, run.workers, show)
        except BaseException:
            write.abort()
            raise
    notes = sorted(map(str, out.notes))
    if run.noted is not None:
        run.noted.extend(out.notes)
        notes = []
    committing = False
    try:
        if gather and session is None and run.tasks is None and _is_same(before, catalog.latest()):
            large = _gather(url, session_shards(catalog, name, out.tasks), run, writer)
            if large is not None:
                write.forget(shards=True)
                return replace(large, tasks=out.tasks, skipped=out.skipped, notes=[*notes, *large.notes])
        committing = True
        version = commit_session(catalog, name, out.tasks, mode=writer["mode"], known=known)
    except BaseException as error:
        if session is None:
            _give_up(write, out.tasks, error, committing=committing)
        raise
    report = write.report(version, out.tasks, reused=len(done), skipped=out.skipped, notes=notes)
    if writer.get("splits") is None:
        report.notes.extend(_doubts(report, version))
    if session is None:
        write.forget(shards=False)
    return report


def _is_same(one: Version | None, other: Version | None) -> bool:
    """Tell whether two versions are one: what came in between is for the commit to judge, not to follow."""
    return (one and one.digest) == (other and other.digest)


def _gather(url: str, table: ShardTable, run: RunOptions, writer: Mapping[str, Any]) -> WriteReport | None:
    """Write the records of small shards into large ones and commit these; None where shards are large."""
    options = ReadOptions(storage_options=writer.get("storage_options"), decode=False)
    runs = gathered(url, table, options, writer.get("shard_bytes", DEFAULT_SHARD_BYTES))
    if runs is None:
        return None
    # A task is a run, and leaves one shard.
    return write_session(
        url,
        runs,
        stored_payloads,
        session=None,
        run=replace(run, tasks=len(runs), on_error="raise"),
        writer={**writer, "shard_bytes": sys.maxsize},
        encoded=True,
    )


def _doubts(report: WriteReport, version: Version) -> list[str]:
    """Warn of splits that may be one, mistyped: a task sees only those that it writes itself."""
    every = sorted(total.name for total in version.manifest.splits)
    pairs = sorted(
        {tuple(sorted((one, two))) for one in report.records for two in every if naming.look_alike(one, two)}
    )
    notes = [
        f"splits {one!r} and {two!r} may be one, mistyped; if both are meant, declare them with splits=[...]"
        for one, two in pairs
    ]
    for note in notes:
        warn(note)
    return notes


def _give_up(write: WriteSession, tasks: int, error: BaseException, *, committing: bool) -> None:
    """Remove what a write that cannot be run again has stored, unless it may have been committed."""
    if not committing or isinstance(error, CommitConflictError | SchemaError):
        write.abort()
        return
    error.add_note(
        "shardio: all records are stored, and nothing was removed; to finish this write: "
        f"shardio commit {write.catalog.store.url} --session {write.id} --tasks {tasks}"
    )
