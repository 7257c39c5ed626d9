"""Times and decimals keep one unit in a dataset, whatever they come from; nothing wraps around."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio
from shardio.errors import SchemaError
from tests.suites.errors import refused

WHEN = datetime.datetime(2020, 1, 1)  # noqa: DTZ001 - Arrow's times without a zone
NEVER = WHEN.replace(year=9999, month=12, day=31)
PAIRS = {
    "stamps": (WHEN, pa.timestamp("us"), pa.timestamp("ns")),
    "stamps the other way": (WHEN, pa.timestamp("ns"), pa.timestamp("s")),
    "stamps with a zone": (WHEN, pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin")),
    "dates": (WHEN.date(), pa.date64(), pa.date32()),
    "dates the other way": (WHEN.date(), pa.date32(), pa.date64()),
    "times": (datetime.time(1, 0), pa.time32("ms"), pa.time32("s")),
    "durations": (datetime.timedelta(hours=1), pa.duration("ms"), pa.duration("us")),
    "lists": ([WHEN, WHEN], pa.list_(pa.timestamp("us")), pa.list_(pa.timestamp("ns"))),
    "structs": ({"t": WHEN}, pa.struct([("t", pa.timestamp("us"))]), pa.struct([("t", pa.timestamp("ns"))])),
}


def column(value: Any, kind: Any) -> pa.Table:
    return pa.table({"t": pa.array([value, None], kind)})


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("entry", ["from_arrow", "convert"])
def test_the_same_moment_in_another_unit_is_the_same_number(tmp_path, pair, entry):
    value, one, other = PAIRS[pair]
    for number, kind in enumerate((one, other)):
        table, mode = column(value, kind), "append" if number else "create"
        if entry == "from_arrow":
            shardio.from_arrow(table, tmp_path / "ds", mode=mode)
            continue
        path = tmp_path / f"{number}.arrow"
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table)
        shardio.convert_dataset(path, tmp_path / "ds", mode=mode)
    ds = shardio.open(tmp_path / "ds")
    (name,) = ds.schema
    found = [None if row[name] is None else np.asarray(row[name]).tolist() for row in ds]
    assert found[:2] == found[2:]
    unit = one.field(0).type if pa.types.is_struct(one) else one.value_type if pa.types.is_list(one) else one
    assert ds.schema[name].unit == str(unit)


def test_an_append_in_another_unit_does_not_rename_the_unit_of_all(tmp_path):
    """The dataset keeps its microseconds, and `to_hf` gives no other moments."""
    datasets = pytest.importorskip("datasets")
    shardio.from_arrow(column(WHEN, pa.timestamp("us")), tmp_path / "ds")
    more = datasets.Dataset(column(WHEN, pa.timestamp("s")))
    shardio.convert_dataset(more, tmp_path / "ds", mode="append")
    ds = shardio.open(tmp_path / "ds")
    assert ds.schema["t"].unit == "timestamp[us]"
    assert "t" not in ds.metadata.get("huggingface", {})
    microseconds = [row["t"] for row in ds.to_hf()]
    assert microseconds == [row["t"] for row in ds]


def test_a_new_description_keeps_the_unit(tmp_path):
    shardio.from_arrow(column(WHEN, pa.timestamp("us")), tmp_path / "ds")
    said = shardio.Feature("int64", optional=True, description="when it was seen")
    shardio.set_schema(str(tmp_path / "ds"), {"t": said})
    finer = column(WHEN, pa.timestamp("ns"))
    found = shardio.from_arrow(finer, tmp_path / "ds", mode="append", schema={"t": said})
    assert found.schema["t"].unit == "timestamp[us]"
    assert found.schema["t"].description == "when it was seen"
    assert len({int(row["t"]) for row in found if row["t"] is not None}) == 1
    with pytest.raises(SchemaError):
        shardio.set_schema(str(tmp_path / "ds"), {"t": said.replace(unit="timestamp[s]")})


def test_frames_of_pandas_and_polars(tmp_path):
    shardio.from_pandas(pd.DataFrame({"t": np.array([WHEN], "datetime64[ms]")}), tmp_path / "ds")
    frame = pl.DataFrame({"t": pl.Series([WHEN]).cast(pl.Datetime("ns"))})
    found = shardio.from_polars(frame, tmp_path / "ds", mode="append")
    assert [int(row["t"]) for row in found] == [1577836800000] * 2


def test_what_would_lose_or_has_no_unit_is_refused(tmp_path):
    shardio.from_arrow(column(WHEN, pa.timestamp("s")), tmp_path / "ds")
    fine = column(WHEN + datetime.timedelta(microseconds=1), pa.timestamp("us"))
    far = column(NEVER, pa.timestamp("us"))
    for table in (fine, column(WHEN, pa.timestamp("s", "UTC")), column(datetime.time(1), pa.time64("us"))):
        with refused(SchemaError, "'t'"):
            shardio.from_arrow(table, tmp_path / "ds", mode="append")
    shardio.from_arrow(column(WHEN, pa.timestamp("ns")), tmp_path / "ns")
    with pytest.raises(SchemaError):
        shardio.from_arrow(far, tmp_path / "ns", mode="append")
    with shardio.DatasetWriter(tmp_path / "plain", {"t": shardio.Feature("int64", optional=True)}) as out:
        out.write({"t": 1577836800})
    with pytest.raises(SchemaError):
        shardio.from_arrow(fine, tmp_path / "plain", mode="append")
    told = shardio.from_arrow(
        column(WHEN, pa.timestamp("s")), tmp_path / "plain", mode="append", schema={"t": "int64"}
    )
    assert [None if row["t"] is None else int(row["t"]) for row in told] == [1577836800, 1577836800, None]
    # Plain integers say no unit: they are added where the caller says that they count the same.
    (tmp_path / "more.jsonl").write_text('{"t": 1577836801}\n')
    for source in (tmp_path / "more.jsonl", pa.table({"t": [1577836801]})):
        with refused(SchemaError, "'t'"):
            shardio.convert_dataset(source, tmp_path / "ds", mode="append")
    schema = {"t": shardio.Feature("int64", optional=True)}
    shardio.convert_dataset(tmp_path / "more.jsonl", tmp_path / "ds", mode="append", schema=schema)
    assert int(shardio.open(tmp_path / "ds")[-1]["t"]) == 1577836801
    assert shardio.open(tmp_path / "ds").schema["t"].unit == "timestamp[s]"
    with (
        pytest.raises(SchemaError),
        shardio.DatasetWriter(tmp_path / "ds", mode="append") as out,
    ):
        out.write_batch({"t": np.array([WHEN], "datetime64[ns]")})


def test_files_of_several_units_are_noted(tmp_path):
    for unit in ("us", "ns"):
        pq.write_table(column(WHEN, pa.timestamp(unit)), tmp_path / f"{unit}.parquet")
    report = shardio.convert_dataset(tmp_path / "*.parquet", tmp_path / "ds")
    assert any("'t' is timestamp[ns]" in note and "timestamp[us]" in note for note in report.notes)
    assert len({int(row["t"]) for row in shardio.open(tmp_path / "ds") if row["t"] is not None}) == 1


def test_int96_beyond_nanoseconds_is_read_in_microseconds(tmp_path):
    def written(values: list[Any], unit: str) -> str:
        table = pa.table({"t": pa.array(values, pa.timestamp(unit)), "l": pa.array([values] * len(values))})
        pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
        return str(tmp_path / "a.parquet")

    report = shardio.convert_dataset(written([WHEN, NEVER], "us"), tmp_path / "far")
    assert report.schema["t"].unit == "timestamp[us]"
    far = [int(row["t"]) for row in shardio.open(tmp_path / "far")]
    assert far == [1577836800000000, 253402214400000000]
    fine = written([pd.Timestamp("2020-01-01 00:00:00.000000001")], "ns")
    shardio.convert_dataset(fine, tmp_path / "fine")
    assert int(shardio.open(tmp_path / "fine")[0]["t"]) == 1577836800000000001


def test_values_of_arrow_that_features_do_not_have(tmp_path):
    def text(values: list[bytes]) -> Any:
        ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
        return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(values)))

    words = text([b"ITALY", b"R\xc9UNION", b"PERU"])
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], words)
    table = pa.table({"id": [1, 2, 3], "word": words, "words": lists})
    pq.write_table(table, tmp_path / "a.parquet")
    with refused(SchemaError, "'word'"):
        shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "raise")
    report = shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "skip", on_error="skip")
    assert report.records == {"train": 2}
    assert report.skipped[0].where.endswith("a.parquet row 1")
    schema = {"word": "bytes", "words": "bytes[?]"}
    shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "bytes", schema=schema)
    assert shardio.open(tmp_path / "bytes")[1] == {"id": 2, "word": b"R\xc9UNION", "words": [b"R\xc9UNION"]}
    shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "out", schema={"word": None, "words": None})
    assert len(shardio.open(tmp_path / "out")) == 3
    with refused(SchemaError, "'word'"):
        shardio.from_arrow(table, tmp_path / "arrow")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_within_lists_of_pandas(tmp_path, dtype):
    frame = pd.DataFrame({"x": [np.array([1.0, np.nan], dtype), np.array([3.0], dtype)]})
    found = shardio.from_pandas(frame, tmp_path / "ds")
    assert found.schema["x"].short == f"{dtype}[?]"
    np.testing.assert_array_equal(np.concatenate([row["x"] for row in found]), [1, np.nan, 3])
    report = shardio.convert_dataset(frame, tmp_path / "again")
    assert any("1 nulls within lists" in note for note in report.notes)


def test_nulls_within_lists_of_integers_are_named(tmp_path):
    with pytest.raises(SchemaError):
        shardio.from_arrow(pa.table({"x": [[1, None], [3, 4]]}), tmp_path / "ds")


@pytest.mark.parametrize("entry", ["parquet", "arrow"])
def test_columns_without_a_name_get_one(tmp_path, entry):
    columns = [[1, None], ["a", "b"], [2.5, 3.5]]
    table = pa.table([pa.array(values) for values in columns], names=["", "word", ""])
    place: Any = table
    if entry == "parquet":
        place = tmp_path / "a.parquet"
        pq.write_table(table, place)
    shardio.convert_dataset(place, tmp_path / "ds")
    found = [list(row.items()) for row in shardio.open(tmp_path / "ds")]
    assert found == [
        [("column0", 1), ("word", "a"), ("column2", 2.5)],
        [("column0", None), ("word", "b"), ("column2", 3.5)],
    ]


def decimals(value: str, digits: int, scale: int) -> pa.Table:
    return pa.table({"t": pa.array([decimal.Decimal(value), None], pa.decimal128(digits, scale))})


@pytest.mark.parametrize("more", [decimals("1.500", 7, 3), pa.table({"t": ["1.5", None]})])
def test_decimals_of_other_digits_are_refused(tmp_path, more):
    shardio.from_arrow(decimals("2.25", 5, 2), tmp_path / "ds")
    with refused(SchemaError, "'t'", "decimal128(5, 2)"):
        shardio.from_arrow(more, tmp_path / "ds", mode="append")
    assert len(shardio.open(tmp_path / "ds")) == 2


def test_decimals_become_numbers_where_the_caller_says_so(tmp_path):
    schema = {"t": shardio.Feature("float64", optional=True)}
    ds = shardio.from_arrow(decimals("2.25", 5, 2), tmp_path / "ds", schema=schema)
    assert [row["t"] for row in ds] == [2.25, None]
    more = shardio.from_arrow(decimals("1.5", 5, 3), tmp_path / "ds", mode="append", schema=schema)
    assert [row["t"] for row in more] == [2.25, None, 1.5, None]
