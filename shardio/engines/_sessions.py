"""A write whose tasks an engine runs, and runs again: tables or values as the tasks of a `WriteSession`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardio.convert import ArrowEncoder
from shardio.errors import CommitConflictError
from shardio.parallel import WriteReport, WriteSession


class Written(NamedTuple):
    """What one attempt at a task has stored."""

    task: int
    attempt: str
    rows: int


@dataclass(frozen=True)
class SessionSink:
    """Where the tasks of an engine write; travels to the workers.

    Attributes:
        session: of the write.
        split: of all records.
        encoder: of Arrow tables; None until `for_schema`.
    """

    session: WriteSession
    split: str
    encoder: ArrowEncoder | None = None

    @classmethod
    def begin(cls, url: str | Path, *, split: str = "train", **options: Any) -> SessionSink:
        """Return where to write, after what the commit would refuse was refused; see `WriteSession.begin`."""
        return cls(WriteSession.begin(url, **{"splits": [split], **options}), split)

    def for_schema(self, arrow: Any) -> SessionSink:
        """Return the same for tables of an Arrow schema.

        Raises:
            SchemaError: a column cannot become a feature, or not one that the dataset has.
        """
        options = self.session.options
        base = self.session.catalog.latest() if options["mode"] == "append" else None
        dataset = base.manifest.schema if base is not None else None
        encoder = ArrowEncoder.from_schema(arrow, options["schema"], dataset)
        session = replace(self.session, options={**options, "schema": encoder.schema})
        return replace(self, session=session, encoder=encoder)

    def write_tables(self, task: int, tables: Iterable[Any]) -> Written:
        """Store the rows of Arrow tables as one task; an engine may know no columns before there are rows."""
        some = (table for table in tables if table.num_rows)
        first = next(some, None)
        if first is None:
            return self.write_values(task, ())
        all_of_them = itertools.chain([first], some)
        if self.encoder is None:
            return self.for_schema(first.schema).write_tables(task, all_of_them)
        with self.session.task(task) as out:
            for table in all_of_them:
                for payload in self.encoder.payloads(table):
                    out.write_encoded(payload, self.split)
        return Written(task, out.attempt, sum(out.written.values()))

    def write_values(self, task: int, values: Iterable[Any]) -> Written:
        """Store values by the schema as one task."""
        with self.session.task(task) as out:
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
        before = self.session.committed
        if before is not None:
            # Engines may cut and order the same data otherwise when it is written again: their number stays.
            there = {split: count for split, count in before.records.items() if count}
            if there != records:
                raise CommitConflictError(
                    f"session {self.session.id!r} was committed with other data",
                    url=self.session.url,
                    expected=there,
                    found=records,
                    advice="a session names one write: take another session= for other data",
                )
            return before
        return self.session.commit({each.task: each.attempt for each in accepted})
