"""Spans are the records of a reader, each exactly once, whatever the reader holds; a law for all of them."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from tests.engines.conftest import RECORDS, write_numbers
from tests.suites.errors import refused

FORMS = [
    "deleted",
    "part",
    *(pytest.param(form, marks=pytest.mark.slow) for form in ("zstd", "filtered", "table")),
]


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
    return pa.concat_tables([span.to_arrow(columns) for span in travelled])


@pytest.mark.filterwarnings("ignore:records are read")
@pytest.mark.parametrize("size", [64 << 20, 200_000, 20_000])
def test_spans_are_the_records_each_once_in_order(reader, size) -> None:
    spans = reader.spans(bytes=size)
    table = _read(spans)
    assert table.schema == reader.arrow_schema()
    assert table.equals(reader.to_arrow())
    assert sum(span.num_rows for span in spans) == len(reader)
    for span in spans:
        assert sum(each.num_rows for each in span.iter_arrow(["n"])) == span.num_rows == len(span.reader)
        assert [int(value["n"]) for value in span] == span.to_arrow(["n"])["n"].to_pylist()


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 2_000_000))
def test_spans_have_about_the_bytes_that_are_asked_for(numbers, size) -> None:
    ds = shardio.open(numbers)
    spans = ds.spans(bytes=size)
    largest_record = 200
    assert max(span.num_bytes for span in spans) <= size + largest_record
    assert len(spans) <= max(1, 2 * ds.num_bytes // size + ds.num_shards)
    assert abs(sum(span.num_bytes for span in spans) - ds.num_bytes) <= len(spans)


def test_a_span_keeps_the_records_of_a_mask(reader) -> None:
    for span in reader.spans(bytes=100_000):
        mask = np.arange(span.num_rows) % 3 == 1
        kept = pickle.loads(pickle.dumps(span.filter(mask)))
        assert kept.num_rows == mask.sum()
        assert kept.to_arrow(["n"]).equals(span.to_arrow(["n"]).filter(pa.array(mask)))
        assert span.filter(np.zeros(span.num_rows, bool)).to_arrow().num_rows == 0


def test_columns_are_chosen(numbers) -> None:
    ds = shardio.open(numbers)
    spans = ds.spans()
    table = _read(spans, ["name_length", "n"])
    assert table.column_names == ["name_length", "n"]
    assert table["name_length"].unique().to_pylist() == [6]
    counted = [span.to_arrow([]) for span in spans]
    assert {table.num_columns for table in counted} == {0}
    assert sum(table.num_rows for table in counted) == RECORDS
    with refused(ValueError, "'nam'", "'name'"):
        ds.arrow_schema(["nam"])
    with refused(TypeError, "columns=", "'name'"):
        spans[0].to_arrow("name")


def test_spans_of_a_table_need_no_shard(tmp_path) -> None:
    write_numbers(tmp_path / "ds")
    shardio.build_table(tmp_path / "ds", features=["n"], workers=1)
    spans = shardio.open(tmp_path / "ds").spans()
    for shard in (tmp_path / "ds" / "data").glob("*.tfrecord"):
        shard.unlink()
    assert _read(spans, ["n"])["n"].to_pylist() == list(range(RECORDS))


def test_a_commit_during_the_read_changes_nothing(tmp_path) -> None:
    write_numbers(tmp_path / "ds", records=500)
    spans = shardio.open(tmp_path / "ds").spans(bytes=10_000)
    shardio.delete(tmp_path / "ds", positions=[0], split="train")
    write_numbers(tmp_path / "ds", records=10, first=500, mode="append")
    assert _read(spans)["n"].to_pylist() == list(range(500))


def test_records_without_a_schema_are_one_column_of_payloads(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        out.write_many([b"one", b"two", b""])
    ds = shardio.open(tmp_path / "ds")
    (span,) = ds.spans()
    assert span.to_arrow().to_pydict() == {"payload": [b"one", b"two", b""]}
    assert list(span) == [b"one", b"two", b""]
    assert (ds.arrow_schema([]).names, span.to_arrow([]).num_rows) == ([], 3)
    with refused(ValueError, "'n'", "'payload'"):
        ds.arrow_schema(["payload", "n"])


def test_records_in_another_order_are_refused(numbers) -> None:
    ds = shardio.open(numbers)
    with refused(ValueError, "shuffle()"):
        ds.shuffle(seed=1).spans()
    with refused(ValueError, "map()"):
        ds.map(len).spans()
    with refused(ValueError, "bytes="):
        ds.spans(bytes=0)


def test_an_empty_dataset_has_no_spans(numbers) -> None:
    assert shardio.open(numbers)[:0].spans() == []
