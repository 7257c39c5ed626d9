"""A write whose tasks an engine runs, and runs again: its driver says which attempt of each counts.

Two-phase, as engines have it: a task stores its shards and a receipt under a session and returns which
attempt it was; the driver commits the attempts that the engine accepted, whatever others have stored.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.catalog import Catalog, commit_session, forget_session
from shardio.convert import ArrowEncoder
from shardio.errors import CommitConflictError, StorageError
from shardio.metadata import naming
from shardio.parallel import WriteReport, merged_before
from shardio.storage import url_text
from shardio.writer import DatasetWriter, WriterOptions, catalog_to_write, check_mode, check_writer_options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Written(NamedTuple):
    """What one attempt at a task has stored."""

    task: int
    attempt: str
    rows: int


@dataclass(frozen=True)
class SessionSink:
    """Where the tasks of an engine write; travels to the workers.

    Attributes:
        url: of the dataset.
        session: the caller's id of the write, or one of our own.
        named: it is the caller's.
        split: of all records.
        mode: "create", "append" or "overwrite".
        schema: what the caller says of features, or None.
        writer: further options of `DatasetWriter`.
        encoder: of Arrow tables; None until `for_schema`.
    """

    url: str
    session: str
    named: bool
    split: str
    mode: str
    schema: Any
    writer: WriterOptions
    storage_options: Any
    encoder: ArrowEncoder | None = None

    @classmethod
    def begin(
        cls, url: str | Path, *, split: str = "train", mode: str = "create", schema: Any = None,
        session: str | None = None, storage_options: Any = None, **options: Any,
    ) -> SessionSink:  # fmt: skip
        """Return where to write, after what the commit would refuse was refused.

        Raises:
            CommitConflictError: mode "create", and there is a dataset.
            TypeError, ValueError: an option that makes no sense.
        """
        check_writer_options(options, "write")
        naming.check_split(split)
        name = session if session is not None else f"write.{naming.random_id()}"
        writer: Any = options
        sink = cls(url_text(url), name, session is not None, split, mode, schema, writer, storage_options)
        catalog = sink._catalog
        check_mode(catalog, catalog.latest(), mode, name, storage_options)
        return sink

    def for_schema(self, arrow: Any) -> SessionSink:
        """Return the same for tables of an Arrow schema.

        Raises:
            SchemaError: a column cannot become a feature, or not one that the dataset has.
        """
        base = self._catalog.latest() if self.mode == "append" else None
        dataset = base.manifest.schema if base is not None else None
        encoder = ArrowEncoder.from_schema(arrow, self.schema, dataset)
        return replace(self, schema=encoder.schema, encoder=encoder)

    @property
    def before(self) -> WriteReport | None:
        """The report of the session where an earlier run has committed it."""
        options = {**self.writer, "storage_options": self.storage_options}
        return merged_before(self.url, self.session if self.named else None, options)

    def write_tables(self, task: int, tables: Iterable[Any]) -> Written:
        """Store the rows of Arrow tables as one task; an engine may know no columns before there are rows."""
        some = (table for table in tables if table.num_rows)
        first = next(some, None)
        if first is None:
            return self.write_values(task, ())
        all_of_them = itertools.chain([first], some)
        if self.encoder is None:
            return self.for_schema(first.schema).write_tables(task, all_of_them)
        with self._writer(task) as out:
            for table in all_of_them:
                for payload in self.encoder.payloads(table):
                    out.write_encoded(payload, self.split)
        return Written(task, out.attempt, sum(out.written.values()))

    def write_values(self, task: int, values: Iterable[Any]) -> Written:
        """Store values by the schema as one task."""
        with self._writer(task) as out:
            out.write_many(values, self.split)
        return Written(task, out.attempt, sum(out.written.values()))

    def commit(self, written: Iterable[Written]) -> WriteReport:
        """Publish one attempt of each task as one new version; a session that was committed stays as it is.

        Raises:
            CommitConflictError: as `shardio.commit`; or the session was committed with other numbers of
                records.
            CommitOutcomeUnknownError, StorageError: as `shardio.commit`.
        """
        accepted = sorted(written) or [self.write_values(0, ())]
        rows = sum(each.rows for each in accepted)
        records = {self.split: rows} if rows else {}
        before = self.before
        if before is not None:
            # Engines may cut and order the same data otherwise when it is written again: their number stays.
            there = {split: count for split, count in before.records.items() if count}
            if there != records:
                raise CommitConflictError(
                    f"session {self.session!r} was committed with other data",
                    url=self.url,
                    expected=there,
                    found=records,
                    advice="a session names one write: take another session= for other data",
                )
            return before
        attempts = {each.task: each.attempt for each in accepted}
        version = commit_session(
            self._catalog, self.session, len(attempts), mode=self.mode, attempts=attempts
        )
        if not self.named:
            self._forget(shards=False)
        return WriteReport(version.number, version.digest, self.session, len(attempts), 0, records, [])

    def abort(self) -> None:
        """Remove what was stored, unless the session is the caller's; what stays is left to `shardio gc`."""
        if not self.named:
            self._forget(shards=True)

    def _forget(self, *, shards: bool) -> None:
        with contextlib.suppress(StorageError):  # what stays is left to `shardio gc`
            forget_session(self._catalog, self.session, shards=shards)

    def _writer(self, task: int) -> DatasetWriter:
        return DatasetWriter(
            self.url, self.schema, mode=self.mode, session=self.session, task=task, commit=False,
            storage_options=self.storage_options, **self.writer,
        )  # fmt: skip

    @property
    def _catalog(self) -> Catalog:
        return catalog_to_write(
            self.url, self.storage_options, single_writer=self.writer.get("single_writer", False)
        )
