"""One write of many tasks, wherever they run: begun once, written by tasks, committed once.

Two-phase: a task stores its shards and a receipt under the session's id, and counts only once the session is
committed.  A task may run again, or in several attempts at once; exactly one of them becomes part of the
version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version, commit_session, forget_session
from shardio.errors import ShardioError
from shardio.metadata import naming
from shardio.reports import Report
from shardio.storage import url_text
from shardio.writer import (
    DatasetWriter,
    WriterOptions,
    catalog_to_write,
    check_mode,
    check_writer_options,
    split_names,
)

if TYPE_CHECKING:
    from shardio.errors import BadRecord


@dataclass(frozen=True)
class WriteReport(Report):
    """What a parallel write did.

    Attributes:
        version, digest: of the new version.
        session: id of the write.
        tasks: how many there were; `reused` of them were found complete from an earlier run.
        records: of the write, by split, those of reused tasks too.
        skipped: what the tasks of this run left out: with `on_error="skip"` items for which `fn` raised, and
            any `BadRecord` that `fn` yields.
        notes: any `Note` that `fn` yields, as text.
    """

    version: int
    digest: str
    session: str
    tasks: int
    reused: int
    records: dict[str, int]
    skipped: list[BadRecord]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WriteSession:
    """A write of many tasks in one commit; picklable, so that workers on any machine can write its tasks.

    `WriteSession.begin` makes one. Each worker writes a task with `session.task(number)`, and one process
    commits. Tasks are idempotent: rerun any of them, also after a crash; no record is lost or duplicated.

    Attributes:
        url: of the dataset.
        id: of the session, the caller's own or a random one.
        named: the id is the caller's, so that a rerun continues the session.
        options: of `DatasetWriter`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> session = shardio.WriteSession.begin(url, {"n": "int64"})
        >>> for number in range(3):  # each in a worker of its own
        ...     with session.task(number) as out:
        ...         out.write({"n": number})
        >>> session.commit(tasks=3).records
        {'train': 3}
    """

    url: str
    id: str
    named: bool
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    @checked_options
    def begin(
        cls,
        url: str | Path,
        schema: Any = None,
        *,
        mode: str = "create",
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[WriterOptions],
    ) -> WriteSession:
        """Begin a write; what the commit would refuse is refused here already.

        Args:
            url: of the dataset.
            schema: as `DatasetWriter` takes it.
            mode: "create", "append" or "overwrite".
            session: the caller's own id of this write, by which a rerun continues it; None for a random one.
            storage_options: as in fsspec.
            options: further options of `DatasetWriter`, such as `compression` and `shard_bytes`.

        Raises:
            CommitConflictError: mode "create", and there is a dataset.
            TypeError, ValueError: an option that makes no sense.
        """
        check_writer_options(options, "WriteSession.begin")
        splits = split_names(options.get("splits"))
        if splits is not None:
            options["splits"] = sorted(splits)
        given = {"schema": schema, "mode": mode, "storage_options": storage_options, **options}
        write = cls.of(url_text(url), session, given)
        write.check_mode()
        return write

    @classmethod
    def of(cls, url: str, session: str | None, options: Mapping[str, Any]) -> WriteSession:
        """Return a session with options of `DatasetWriter` that were checked; nothing is looked at."""
        # A task that is run again is recognised by its session, also where its name is known nowhere else.
        name = session if session is not None else f"write.{naming.random_id()}"
        return cls(url, name, session is not None, options)

    def check_mode(self) -> Version | None:
        """Return the latest version; refuse a mode in which nothing can be committed now.

        Raises:
            CommitConflictError: mode "create", and there is a dataset.
        """
        catalog = self.catalog
        latest = catalog.latest()
        check_mode(catalog, latest, self.options["mode"], self.id, self.options.get("storage_options"))
        return latest

    @property
    def catalog(self) -> Catalog:
        """The versions of the dataset."""
        return catalog_to_write(
            self.url,
            self.options.get("storage_options"),
            single_writer=self.options.get("single_writer", False),
        )

    @property
    def committed(self) -> WriteReport | None:
        """The report of the session where an earlier run has committed it; else None."""
        if not self.named:
            return None
        version = self.catalog.latest()
        merged = None if version is None else self.catalog.merged(version, self.id)
        if version is None or merged is None:
            return None
        return self.report(version, merged.tasks, reused=merged.tasks)

    def report(
        self,
        version: Version,
        tasks: int,
        *,
        reused: int = 0,
        skipped: Sequence[BadRecord] = (),
        notes: Sequence[str] = (),
    ) -> WriteReport:
        """Return the report of the session, which a version holds."""
        merged = self.catalog.merged(version, self.id)
        records = {} if merged is None else dict(merged.rows)
        facts = (version.number, version.digest, self.id, tasks, reused, records)
        return WriteReport(*facts, [*skipped], [*notes])

    def task(self, number: int) -> DatasetWriter:
        """Return the writer of one task, a context manager; an exception in the block leaves the task undone.

        Args:
            number: of the task, from 0.

        Raises:
            TypeError, ValueError: that is not the number of a task.
        """
        return DatasetWriter(self.url, session=self.id, task=number, commit=False, **self.options)

    def commit(self, tasks: int | Mapping[int, str]) -> WriteReport:
        """Make the tasks one new version; a session that was committed with the same content stays as it is.

        Args:
            tasks: how many there are, numbered from 0; or of each task the attempt that counts, which is the
                `attempt` of its writer, where an engine may run several.

        Raises:
            NotFoundError: names the tasks that have not ended.
            CommitConflictError: merged before with other content, or another commit is in the way.
            CommitOutcomeUnknownError, StorageError: see `shardio.commit`.
        """
        attempts = None if isinstance(tasks, int) else dict(tasks)
        count = tasks if isinstance(tasks, int) else len(tasks)
        version = commit_session(self.catalog, self.id, count, mode=self.options["mode"], attempts=attempts)
        report = self.report(version, count)
        if not self.named:
            self.forget(shards=False)
        return report

    def abort(self) -> None:
        """Remove what was stored, unless the id is the caller's: then a rerun may continue."""
        if not self.named:
            self.forget(shards=True)

    def forget(self, *, shards: bool) -> None:
        """Remove receipts, and with `shards` what they name; what stays is left to `shardio gc`."""
        with contextlib.suppress(ShardioError):
            forget_session(self.catalog, self.id, shards=shards)
