"""What engines write, without one of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

import shardio
from shardio.engines._sessions import SessionSink
from shardio.errors import CommitConflictError, SchemaError
from tests.suites.errors import refused


def _write(url, table: pa.Table, **options) -> None:
    sink = SessionSink.begin(url, **options).for_schema(table.schema)
    sink.commit([sink.write_tables(0, [table])])


def test_an_append_keeps_the_features_of_the_dataset(tmp_path) -> None:
    """Columns of engines may always be null."""
    with shardio.DatasetWriter(tmp_path / "ds", schema={"n": "int64", "t": "text"}) as out:
        out.write({"n": 1, "t": "x"})
    schema = shardio.open(tmp_path / "ds").schema
    _write(tmp_path / "ds", pa.table({"n": [2], "t": ["y"]}), mode="append")
    assert shardio.open(tmp_path / "ds").schema == schema
    nulls = pa.table({"n": pa.array([None], pa.int64()), "t": ["z"]})
    with refused(SchemaError, "'n'") as caught:
        _write(tmp_path / "ds", nulls, mode="append")
    assert "on_error" not in str(caught.value)
    _write(tmp_path / "ds", nulls, mode="append", schema={"n": shardio.Feature("int64", optional=True)})
    assert [value["n"] for value in shardio.open(tmp_path / "ds")] == [1, 2, None]


def test_columns_may_be_known_only_when_there_are_rows(tmp_path) -> None:
    """An engine that filters tells of no columns where its first block is empty, or all of them are."""
    rows = pa.table({"n": [1, 2]})
    for name, tables in (("none", [pa.table({})]), ("some", [pa.table({}), rows[:0], rows])):
        sink = SessionSink.begin(tmp_path / name)
        report = sink.commit([sink.write_tables(0, tables)])
        assert sum(report.records.values()) == sum(table.num_rows for table in tables)
        assert len(shardio.open(tmp_path / name)) == sum(table.num_rows for table in tables)


def test_a_schema_that_is_none_is_refused_in_words(tmp_path) -> None:
    with pytest.raises(TypeError, match="a schema is a mapping of feature names to types, not str"):
        SessionSink.begin(tmp_path / "ds", schema="n").for_schema(pa.schema({"n": pa.int64()}))


def test_a_session_that_was_committed_takes_no_other_number_of_records(tmp_path) -> None:
    """Cut into other tasks, the same data is the same write; other data must not be lost in silence."""
    rows = pa.table({"n": [1, 2, 3]})
    options = {"session": "s", "mode": "append"}
    _write(tmp_path / "ds", rows, **options)
    sink = SessionSink.begin(tmp_path / "ds", **options).for_schema(rows.schema)
    report = sink.commit([sink.write_tables(1, [rows[2:]]), sink.write_tables(0, [rows[:2]])])
    assert (report.version, report.records) == (1, {"train": 3})
    for given, other in ((rows[1:], options), (rows[:0], options), (rows, {**options, "split": "val"})):
        with refused(CommitConflictError, "session="):
            _write(tmp_path / "ds", given, **other)
    assert [value["n"] for value in shardio.open(tmp_path / "ds")] == [1, 2, 3]
