"""Apache Beam: a dataset as a PCollection of records, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.arguments import need
from shardio.engines._reading import open_for, spans_of
from shardio.engines._sessions import SessionSink

need("shardio.engines.beam", "shardio[beam]", "apache_beam", "pyarrow")

import apache_beam as beam  # noqa: E402 - after the line that says how it is installed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class ReadFromShardio(beam.PTransform):
    """Read the records of a dataset, as plain iteration gives them.

    Args:
        url: of the dataset; its latest version is found when the pipeline is made.
        split: its name; None for the only one.
        where: a condition in SQL over features and `<feature>_length`, such as "label = 3"; what meets it is
            found when the pipeline is made.
        options: those of `shardio.open`, such as `version=`, `features=` and `storage_options=`.
    """

    def __init__(
        self, url: str | Path, *, split: str | None = None, where: str | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._spans = spans_of(open_for(url, split, where, options))

    def expand(self, begin: Any) -> Any:
        """Make a bundle of each span."""
        return begin | beam.Create(self._spans) | beam.Reshuffle() | beam.FlatMap(iter)


class WriteToShardio(beam.PTransform):
    """Write records as one new version, and yield its `WriteReport`; until then nothing is visible.

    Args:
        url: of the dataset.
        schema: types of features by name, or a `Schema`; None: records are bytes.
        split: of all records.
        mode: "create", "append" or "overwrite".
        session: the caller's own id of this write: a pipeline that died is run again with the same one, and
            never doubles anything. Other data needs another session.
        tasks: how many parts are written at once, each of which leaves a shard.
        options: further ones of `DatasetWriter`, and `storage_options`.

    Raises:
        CommitConflictError: mode "create", and there is a dataset.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        schema: Any = None,
        split: str = "train",
        mode: str = "create",
        session: str | None = None,
        tasks: int = 16,
        **options: Any,
    ) -> None:
        super().__init__()
        self._sink = SessionSink.begin(url, split=split, mode=mode, schema=schema, session=session, **options)
        self._tasks = tasks

    def expand(self, records: Any) -> Any:
        """Deal the records to tasks, write each, and commit what Beam kept of them."""
        return (
            records
            | beam.ParDo(_Deal(self._tasks))
            | beam.GroupByKey()
            | beam.MapTuple(self._sink.write_values)
            | beam.combiners.ToList()
            | beam.Map(self._sink.commit)
        )


class _Deal(beam.DoFn):
    """Give records to tasks in turn."""

    def __init__(self, tasks: int) -> None:
        self._tasks, self._next = tasks, 0

    def process(self, record: Any) -> Iterable[tuple[int, Any]]:
        """Yield a record with the number of its task."""
        yield self._next, record
        self._next = (self._next + 1) % self._tasks
