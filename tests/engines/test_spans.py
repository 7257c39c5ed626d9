"""Spans are the records of a reader, each once, whatever it holds; a law for all of them."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio.engines import _spans
from shardio.engines._spans import comparison, plan
from tests.engines.conftest import RECORDS, write_numbers

FORMS = ["plain", "zstd", "deleted", "filtered", "table", "part"]


@pytest.fixture(scope="module", params=FORMS)
def reader(request, tmp_path_factory) -> shardio.DatasetReader:
    url = str(tmp_path_factory.mktemp("spans") / request.param)
    compression = "zstd" if request.param == "zstd" else None
    write_numbers(url, compression=compression)
    if request.param == "deleted":
        shardio.delete(url, positions=np.arange(0, RECORDS, 3), split="train")
    if request.param == "table":
        shardio.build_table(url, features=["n", "name"], workers=1)
    ds = shardio.open(url)
    if request.param == "filtered":
        return ds.filter(np.arange(RECORDS) % 5 == 0)
    return ds[100:5000] if request.param == "part" else ds


def _read(spans, columns=None) -> pa.Table:
    # As they arrive at a worker.
    travelled = pickle.loads(pickle.dumps(spans))
    return pa.concat_tables([table for span in travelled for table in span.batches(columns)])


@pytest.mark.filterwarnings("ignore:records are read")
@pytest.mark.parametrize("wanted", [0, 3, 1000])
def test_spans_are_the_records_each_once_in_order(reader, wanted) -> None:
    found = plan(reader, wanted=wanted)
    table = _read(found.spans)
    assert table.schema == found.schema
    assert table.equals(reader.to_arrow())
    assert sum(span.rows for span in found.spans) == len(reader)
    for span in found.spans:
        rows = sum(each.num_rows for each in span.batches(["n"]))
        assert rows == len(span.reader())
        assert rows == span.rows or not span.exact


@settings(max_examples=30, deadline=None)
@given(wanted=st.integers(0, 200))
def test_spans_end_where_blocks_do(numbers, wanted) -> None:
    ds = shardio.open(numbers)
    stops = {0}
    for shard in range(ds.num_shards):
        first = int(ds.source.stops[shard - 1]) if shard else 0
        stops |= {first + int(stop) for stop in ds.source.block_stops(shard)}
    for span in plan(ds, wanted=wanted).spans:
        selection = span.reader().selection
        assert {selection.start, selection.stop} <= stops


def test_columns_are_chosen_and_others_not_decoded(numbers, monkeypatch) -> None:
    ds = shardio.open(numbers)
    spans = plan(ds, ["vector", "n", "name_length"]).spans
    table = _read(spans, ["name_length", "n"])
    assert table.column_names == ["name_length", "n"]
    assert table["name_length"].unique().to_pylist() == [6]
    assert _read(spans, []).num_columns == 0
    with pytest.raises(ValueError, match="no feature 'nam'; did you mean 'name'"):
        plan(ds, ["nam"])
    with pytest.raises(TypeError, match=r"features=\['name'\]"):
        plan(ds, "name")


def test_a_plan_asks_for_nothing_and_a_table_for_no_record(tmp_path, monkeypatch) -> None:
    write_numbers(tmp_path / "ds")
    shardio.build_table(tmp_path / "ds", features=["n"], workers=1)
    ds = shardio.open(tmp_path / "ds")

    def refused(*_) -> None:
        raise AssertionError("a shard was opened")

    monkeypatch.setattr(type(ds.source.pool), "get", refused)
    spans = plan(ds).spans
    _spans._reader.cache_clear()
    assert _read(spans, ["n"])["n"].to_pylist() == list(range(RECORDS))


def test_a_commit_during_the_read_changes_nothing(tmp_path) -> None:
    write_numbers(tmp_path / "ds", records=500)
    spans = plan(shardio.open(tmp_path / "ds")).spans
    shardio.delete(tmp_path / "ds", positions=[0], split="train")
    write_numbers(tmp_path / "ds", records=10, first=500, mode="append")
    _spans._reader.cache_clear()
    assert _read(spans)["n"].to_pylist() == list(range(500))


def test_records_without_a_schema_are_one_column_of_payloads(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        out.write_many([b"one", b"two", b""])
    table = _read(plan(shardio.open(tmp_path / "ds")).spans)
    assert table.to_pydict() == {"payload": [b"one", b"two", b""]}
    counted = plan(shardio.open(tmp_path / "ds"), [])
    assert (counted.schema.names, [len(table) for table in counted.spans[0].batches()]) == ([], [3])
    with pytest.raises(ValueError, match="no column 'n': records without a schema have one, 'payload'"):
        plan(shardio.open(tmp_path / "ds"), ["payload", "n"])


def test_what_is_no_storage_order_is_refused(numbers) -> None:
    ds = shardio.open(numbers)
    with pytest.raises(ValueError, match=r"leave out shuffle\(\)"):
        plan(ds.shuffle(seed=1))
    with pytest.raises(ValueError, match=r"leave out map\(\)"):
        plan(ds.map(len))


@pytest.mark.parametrize(
    ("column", "operator", "values"),
    [("n", "=", [7]), ("n", "IN", [3, 5999]), ("name", ">", ["name 5"]), ("n", "<=", [2.5]),
     ("name", "=", ["it's"]), ("n", "IS NULL", []), ("name", "IS NOT NULL", [])],
)  # fmt: skip
def test_a_comparison_keeps_what_numpy_keeps(tmp_path_factory, column, operator, values) -> None:
    url = tmp_path_factory.mktemp("comparison") / "ds"
    write_numbers(url, records=300)
    assert comparison(shardio.open(url), column, operator, values) is None, "there is no table yet"
    shardio.build_table(url, features=["n", "name"], workers=1)
    ds = shardio.open(url)
    condition = comparison(ds, column, operator, values)
    tests = {
        "=": lambda one: one == values[0], "IN": lambda one: one in values, ">": lambda one: one > values[0],
        "<=": lambda one: one <= values[0], "IS NULL": lambda one: one is None,
        "IS NOT NULL": lambda one: one is not None,
    }  # fmt: skip
    kept = [int(value["n"]) for value in ds if tests[operator](value[column])]
    assert ds.filter(condition).read_batch(range(len(kept)))["n"].tolist() == kept
    assert len(ds.filter(condition)) == len(kept)


@pytest.mark.parametrize(
    ("column", "operator", "value"),
    [("image", "=", b"1"), ("n", "=", float("nan")), ("vector", "=", 1), ("n", "LIKE", "1"), ("x", "=", 1)],
)
def test_what_the_table_cannot_tell_is_left_to_the_engine(tmp_path, column, operator, value) -> None:
    write_numbers(tmp_path / "ds", records=100)
    shardio.build_table(tmp_path / "ds", features=["n"], workers=1)
    assert comparison(shardio.open(tmp_path / "ds"), column, operator, [value]) is None
