"""Spark 4: `spark.read.format("shardio")` and `df.write.format("shardio")`, by its Python data source API.

Importing this registers the format with the session that is active; `register(spark)` does it for any other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardio.arguments import need
from shardio.engines._reading import open_for, spans_of
from shardio.engines._sessions import SessionSink, Written

need("shardio.engines.spark", "shardio[spark]", "pyspark", "pyarrow")

import pyarrow as pa  # noqa: E402
from pyspark.sql import SparkSession, datasource  # noqa: E402 - after the line that says how it is installed
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from shardio.reader import DatasetReader, Span


def register(spark: SparkSession) -> None:
    """Make `format("shardio")` known to a session."""
    spark.dataSource.register(ShardioDataSource)


@dataclass
class _SpanPartition(datasource.InputPartition):
    span: Span


@dataclass
class _TaskMessage(datasource.WriterCommitMessage):
    written: Written


class ShardioDataSource(datasource.DataSource):
    """What Spark calls "shardio".

    Options of a read: `split`, `version` (a number or tag), `digest`, `features` (comma-separated names),
    `where` (a condition in SQL over features), `num_partitions` (at least so many).
    Options of a write: `split` ("train"), `session`, `schema` (JSON: types of features), and those of
    `DatasetWriter` called `compression`, `level`, `shard_bytes`, `block_bytes`, `encoding` and `metadata`.
    `storage_options`, of both, is JSON.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "shardio"

    def schema(self) -> StructType:
        """Return the columns as types of Spark."""
        found = self._open().arrow_schema(self._features)
        schema: StructType = from_arrow_schema(
            pa.schema([field.with_type(_in_spark(field.type)) for field in found])
        )
        return schema

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return what reads."""
        return _SpanReader(self._open(), to_arrow_schema(schema), int(self.options.get("num_partitions", 0)))

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return what writes: mode "overwrite" replaces the records, "append" adds, or makes the dataset."""
        return _SessionWriter(self._options(_WRITING), to_arrow_schema(schema), overwrite=overwrite)

    @property
    def _features(self) -> list[str] | None:
        names = self.options.get("features")
        return None if names is None else [name.strip() for name in names.split(",")]

    def _open(self) -> DatasetReader:
        given = self._options(_READING)
        given.pop("features", None), given.pop("num_partitions", None)
        url, split, where = given.pop("path"), given.pop("split", None), given.pop("where", None)
        return open_for(url, split, where, given)

    def _options(self, known: dict[str, Any]) -> dict[str, Any]:
        """Return the options as values; names come in small letters."""
        found = {}
        for name, text in self.options.items():
            if name not in known:
                message = f"there is no option {name!r}; there are {', '.join(known)}"
                raise ValueError(message)
            try:
                found[name] = known[name](text)
            except ValueError as error:
                message = f"option {name!r} cannot be {text!r}: {error}"
                raise ValueError(message) from error
        if "path" not in found:
            raise ValueError("name the dataset: load(url) or save(url)")
        return found


def _in_spark(kind: Any) -> Any:
    """Return the Arrow type of Spark that holds the values of another; it has no unsigned integers."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_in_spark(kind.value_type))
    wider = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
    }  # fmt: skip
    return wider.get(kind, kind)


def _number_or_tag(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


_BOTH = {"path": str, "split": str, "storage_options": json.loads}
_READING: dict[str, Any] = {
    **_BOTH, "version": _number_or_tag, "digest": str, "features": str, "where": str, "num_partitions": int,
}  # fmt: skip
_WRITING: dict[str, Any] = {
    **_BOTH, "session": str, "schema": json.loads, "compression": str, "level": int, "shard_bytes": int,
    "block_bytes": int, "encoding": str, "metadata": json.loads,
}  # fmt: skip


class _SpanReader(datasource.DataSourceReader):
    def __init__(self, reader: DatasetReader, schema: Any, wanted: int) -> None:
        self._reader, self._schema, self._wanted = reader, schema, wanted

    def partitions(self) -> Sequence[datasource.InputPartition]:
        """Return a partition for each span."""
        return [_SpanPartition(span) for span in spans_of(self._reader, self._wanted)]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the record batches of a span."""
        for table in partition.span.iter_arrow(self._schema.names):
            yield from table.cast(self._schema).to_batches()


class _SessionWriter(datasource.DataSourceArrowWriter):
    def __init__(self, options: dict[str, Any], arrow: Any, *, overwrite: bool) -> None:
        mode = "overwrite" if overwrite else "append"
        self._sink = SessionSink.begin(options.pop("path"), mode=mode, **options).for_schema(arrow)

    def write(self, iterator: Iterator[Any]) -> datasource.WriterCommitMessage:
        """Store a partition as one task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - this runs in a task
        return _TaskMessage(self._sink.write_tables(context.partitionId(), iterator))

    def commit(self, messages: Sequence[datasource.WriterCommitMessage | None]) -> None:
        """Publish the attempts that Spark accepted."""
        self._sink.commit(each.written for each in messages if isinstance(each, _TaskMessage))

    def abort(self, messages: Sequence[datasource.WriterCommitMessage | None]) -> None:
        """Remove what was stored."""
        del messages
        self._sink.session.abort()


if (_active := SparkSession.getActiveSession()) is not None:
    register(_active)
