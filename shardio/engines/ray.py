"""Ray Data: datasets as blocks of Arrow, read and written by Ray's own tasks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from shardio.arguments import names, need
from shardio.engines._reading import open_for, spans_of
from shardio.engines._sessions import SessionSink, Written

need("shardio.engines.ray", "shardio[ray]", "Ray", "pyarrow")

import ray.data  # noqa: E402 - after the line that says how it is installed
from ray.data.block import BlockAccessor, BlockMetadata  # noqa: E402
from ray.data.datasource import Datasink, Datasource, ReadTask  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shardio.parallel import WriteReport
    from shardio.reader import DatasetReader

_BLOCK_BYTES = 64 << 20  # of the shard of one task of a write, at least where there is as much


def read(
    url: str | Path,
    *,
    split: str | None = None,
    features: Sequence[str] | None = None,
    where: str | None = None,
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Return a dataset as a `ray.data.Dataset`; nothing is read before Ray asks for it.

    Args:
        url: of the dataset.
        split: its name; None for the only one.
        features: names of features, or `<feature>_length`; None for all. Others are not decoded.
        where: a condition in SQL over features and `<feature>_length`, such as "label = 3"; what meets it is
            found here and now.
        override_num_blocks: blocks of the result, each read by one task; None for as many as Ray likes.
        options: those of `shardio.open`, such as `version=` and `storage_options=`.

    Raises:
        ValueError: no such split or feature, or several splits.
        NotFoundError, FormatError, StorageError: as `shardio.open`.
    """
    source = ShardioDatasource(open_for(url, split, where, options), features)
    return ray.data.read_datasource(source, override_num_blocks=override_num_blocks)


def write(
    dataset: ray.data.Dataset,
    url: str | Path,
    *,
    split: str = "train",
    schema: Any = None,
    mode: str = "create",
    session: str | None = None,
    concurrency: int | None = None,
    **options: Any,
) -> WriteReport:
    """Write a `ray.data.Dataset` as one new version; nothing is visible before all of it is stored.

    Args:
        dataset: of rows; types become features as those of Parquet files do.
        url: of the dataset.
        split: of all rows.
        schema: types of features by name, or a `Schema`; None for those of the columns, all of which may be
            missing.
        mode: "create", "append" or "overwrite".
        session: the caller's own id of this write: a driver that died is started again with the same one, and
            never doubles anything. Other data needs another session.
        concurrency: tasks that write at once; None for as many as Ray likes.
        options: further ones of `DatasetWriter`, and `storage_options`.

    Raises:
        CommitConflictError, SchemaError, StorageError: nothing was published.
    """
    sink = ShardioDatasink(url, split=split, schema=schema, mode=mode, session=session, **options)
    before = sink.sink.session.committed
    if before is not None:
        return before
    dataset.write_datasink(sink, concurrency=concurrency)
    assert sink.report is not None  # noqa: S101 - set by `on_write_complete`
    return sink.report


class ShardioDatasource(Datasource):
    """A reader as a source for `ray.data.read_datasource`.

    Args:
        reader: of one split; its version stays the one that is read.
        features: names of columns; None for those of the reader.
    """

    def __init__(self, reader: DatasetReader, features: Sequence[str] | None = None) -> None:
        super().__init__()
        self.reader = reader
        self._projection_map = (
            None if features is None else {each: each for each in names("features", features)}
        )

    def supports_projection_pushdown(self) -> bool:
        """Tell Ray that columns which it does not need are not decoded."""
        return True

    def estimate_inmemory_data_size(self) -> int | None:
        """Return about how many bytes the records take."""
        return sum(span.num_bytes for span in spans_of(self.reader))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each span."""
        del data_context
        columns = self._get_data_columns()
        schema = self.reader.arrow_schema(columns)
        return [
            ReadTask(
                functools.partial(span.iter_arrow, columns),
                BlockMetadata(span.num_rows, span.num_bytes, None, input_files=None),
                schema,
                per_task_row_limit,
            )
            for span in spans_of(self.reader, parallelism)
        ]


class ShardioDatasink(Datasink[Written]):
    """Where `ray.data.Dataset.write_datasink` writes; arguments are those of `write`.

    Attributes:
        report: what was written, once Ray has ended.
    """

    def __init__(self, url: str | Path, **options: Any) -> None:
        self.sink = SessionSink.begin(url, **options)
        self.report: WriteReport | None = None

    @property
    def min_bytes_per_write(self) -> int:
        """How much Ray gives to one task, where there is as much."""
        return _BLOCK_BYTES

    def on_write_start(self, schema: Any = None) -> None:
        """Take the columns' types from the first block."""
        if schema is not None:
            self.sink = self.sink.for_schema(schema)

    def write(self, blocks: Iterable[Any], ctx: Any) -> Written:
        """Store blocks as one task."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        return self.sink.write_tables(ctx.task_idx, tables)

    def on_write_complete(self, write_result: Any) -> None:
        """Commit the attempts that Ray counts."""
        self.report = self.sink.commit(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:
        """Remove what was stored."""
        del error
        self.sink.session.abort()
