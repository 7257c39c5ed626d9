"""Tables and generators of this process become datasets, and come back as they were."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image

import shardio
from shardio import Feature
from shardio.errors import CommitConflictError, SchemaError
from tests.suites.errors import refused

TABLE = pa.table(
    {
        "n": pa.array([1, 2, None], pa.int32()),
        "word": ["a", "b", "c"],
        "parts": [[1.5], [], [2.0, 3.0]],
        "point": [{"x": 1, "y": 2}] * 3,
        "raw": [b"\x00", b"", b"\xff"],
    }
)


OPTIONAL = Feature("float32", optional=True)


def test_a_table_of_arrow(tmp_path):
    ds = shardio.from_arrow(TABLE, tmp_path / "ds", split="test", compression="zstd")
    assert ds.split == "test"
    assert {name: feature.short for name, feature in ds.features.items()} == {
        "n": "int32",
        "word": "text",
        "parts": "float64[?]",
        "point.x": "int64",
        "point.y": "int64",
        "raw": "bytes",
    }
    assert [record["n"] for record in ds] == [1, 2, None]
    assert [record["parts"].tolist() for record in ds] == [[1.5], [], [2.0, 3.0]]
    assert ds[2]["raw"] == b"\xff"


def test_a_batch_and_an_empty_table(tmp_path):
    assert len(shardio.from_arrow(TABLE.to_batches()[0], tmp_path / "batch")) == 3
    assert len(shardio.from_arrow(TABLE.slice(0, 0), tmp_path / "empty")) == 0


def test_schema_and_mode_are_those_of_conversions(tmp_path):
    shardio.from_arrow(TABLE, tmp_path / "ds", schema={"n": OPTIONAL, "point.x": None, "point.y": None})
    with pytest.raises(CommitConflictError):
        shardio.from_arrow(TABLE, tmp_path / "ds")
    more = TABLE.select(["n", "word", "parts", "raw"]).set_column(
        0, "n", pa.array([1.0, 2.0, 3.0], pa.float32())
    )
    assert len(shardio.from_arrow(more, tmp_path / "ds", mode="append")) == 6


def test_frames_of_pandas_keep_an_index_that_is_data(tmp_path):
    df = pd.DataFrame({"word": ["a", "b"], "kind": pd.Categorical(["u", "v"]), "x": np.float32([1, 2])})
    assert shardio.from_pandas(df, tmp_path / "plain").column_names == ["word", "kind", "x"]
    named = shardio.from_pandas(df.set_index("word"), tmp_path / "named")
    assert [record["word"] for record in named] == ["a", "b"]
    named = shardio.from_pandas(df.set_axis([7, 1]).rename_axis("row"), tmp_path / "rows")
    assert [record["row"] for record in named] == [7, 1]


@pytest.mark.parametrize("kept", [[True, True, False, True], [True] * 4])
def test_frames_of_pandas_have_the_same_columns_whichever_rows_a_filter_left(tmp_path, kept):
    df = pd.DataFrame({"x": [1, 2, 3, 4]})
    shardio.from_pandas(df, tmp_path / "ds")
    ds = shardio.from_pandas(df[kept], tmp_path / "ds", mode="append")
    assert ds.column_names == ["x"]
    report = shardio.convert_dataset(df[kept], tmp_path / "again")
    assert any("index" in note for note in report.notes) == (not all(kept))


def test_a_column_of_pandas_without_one_type_is_named(tmp_path):
    for values in ([1, "two"], [b"x", 1.5], [1j, 2j], [2**70, 1]):
        with refused(SchemaError, "column odd"):
            shardio.from_pandas(pd.DataFrame({"n": [1, 2], "odd": values}), tmp_path / "ds")
    assert not (tmp_path / "ds").exists()


def test_an_index_or_columns_of_pandas_without_names_of_their_own(tmp_path):
    for df in (
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"x": [1]}, index=pd.Index([5], name="x")),
        pd.DataFrame({"x": [1, 2]}, index=pd.Index([1, "two"])),
    ):
        with pytest.raises(SchemaError):
            shardio.from_pandas(df, tmp_path / "ds")
        df.columns = ["a", "b"][: len(df.columns)]
        assert len(shardio.from_pandas(df.reset_index(drop=True), tmp_path / "ds", mode="overwrite")) == len(
            df
        )
        shutil.rmtree(tmp_path / "ds")


@pytest.mark.parametrize(
    ("values", "advised"),
    [
        ([np.ones((2, 2)), np.zeros((2, 2))], "rows"),
        ([1j, 2j], "rows"),
        (pd.arrays.SparseArray([0, 1]), "one type"),
        ([2**70, 1], "one type"),
    ],
)
def test_the_advice_for_columns_that_arrow_has_no_type_for(tmp_path, values, advised):
    df = pd.DataFrame({"odd": values})
    with refused(SchemaError, "from_generator", "to_dict", "'records'"):
        shardio.from_pandas(df, tmp_path / "ds")
    if advised == "rows":
        ds = shardio.from_generator(df.to_dict("records"), tmp_path / "ds")
    else:
        ds = shardio.from_pandas(df.astype({"odd": "float64"}), tmp_path / "ds")
    assert all(np.array_equal(record["odd"], value) for record, value in zip(ds, values, strict=True))


def test_frames_of_polars(tmp_path):
    frame = pl.from_arrow(TABLE)
    for number, df in enumerate((frame, frame.lazy())):
        ds = shardio.from_polars(df, tmp_path / f"{number}")
        assert [record["word"] for record in ds] == ["a", "b", "c"]


def test_polars_objects_are_refused_and_not_their_addresses_written(tmp_path):
    df = pl.DataFrame({"n": [1], "odd": pl.Series([{"a"}], dtype=pl.Object)})
    with refused(SchemaError, "'odd'"):
        shardio.from_polars(df, tmp_path / "ds")
    big = pl.DataFrame({"n": pl.Series([1], dtype=pl.Int128)})
    with refused(SchemaError, "'NAME'"):
        shardio.from_polars(big, tmp_path / "ds")
    assert len(shardio.from_polars(big.cast({"n": pl.Float64}), tmp_path / "ds")) == 1


def test_tables_are_sources_of_convert(tmp_path):
    report = shardio.convert_dataset(TABLE, tmp_path / "ds", split={"train": 0.5, "test": 0.5})
    assert (report.kind, report.source, sum(report.records.values())) == ("arrow", "pyarrow.Table", 3)
    with refused(ValueError, "kind="):
        shardio.convert_dataset(TABLE, tmp_path / "other", kind="parquet")


@pytest.mark.parametrize("function", [shardio.from_arrow, shardio.from_pandas, shardio.from_polars])
def test_what_is_no_table(tmp_path, function):
    for given in ([1], {"a": [1]}, None, "s3://bucket/a.parquet"):
        with pytest.raises(TypeError, match=f"{function.__name__} takes a table of"):
            function(given, tmp_path / "ds")
    assert not (tmp_path / "ds").exists()


def numbers():
    for n in range(2500):
        yield {"n": n, "parts": np.arange(n % 3)}


def test_what_a_generator_yields(tmp_path):
    for name, given in {"function": numbers, "iterator": numbers(), "list": list(numbers())}.items():
        ds = shardio.from_generator(given, tmp_path / name, shard_bytes=10_000)
        assert [int(record["n"]) for record in ds] == list(range(2500))
        assert ds.features["parts"].short == "int64[?]"


@pytest.mark.parametrize(
    ("value", "short", "read"),
    [
        (np.str_("wren"), "text", "wren"),
        (np.bytes_(b"wren"), "bytes", b"wren"),
        (memoryview(b"wren"), "bytes", b"wren"),
        (np.array(["a", "bc"]), "text[2]", ["a", "bc"]),
        (np.array(["a", "bc"], object), "text[2]", ["a", "bc"]),
        ([np.float32(1), np.float32(2)], "float32[2]", [1.0, 2.0]),
        (np.zeros((0, 2), ">i4"), "int32[?,2]", []),
        (torch.ones(2, 3, dtype=torch.float16), "float16[2,3]", [[1.0] * 3] * 2),
        (torch.tensor(True), "bool", True),
    ],
)
def test_values_are_inferred_as_they_are_written(tmp_path, value, short, read):
    """NumPy's text, tensors and views of bytes, which a writer takes, get the type of what they hold."""
    ds = shardio.from_generator([{"a": value}], tmp_path / "ds")
    assert ds.features["a"].short == short
    found = ds[0]["a"]
    assert (found.tolist() if isinstance(found, np.ndarray | np.generic) else found) == read


def test_pillow_images_are_inferred_as_images(tmp_path):
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    ds = shardio.from_generator([{"a": Image.fromarray(pixels)}], tmp_path / "ds")
    assert ds.features["a"].short == "image"
    assert np.array_equal(shardio.open(tmp_path / "ds", decode="image")[0]["a"], pixels)


def test_bytes_and_nothing(tmp_path):
    assert list(shardio.from_generator([b"a", b"b"], tmp_path / "bytes")) == [b"a", b"b"]
    assert len(shardio.from_generator([], tmp_path / "none", schema={"n": "int64"})) == 0


def test_values_that_do_not_fit_publish_nothing(tmp_path):
    for values in ([{"a": 1}, {"a": "x"}], [{"a": 1, "b": 0}, {"a": "x", "b": 1}]):
        with refused(SchemaError, "'a'", "schema=") as caught:
            shardio.from_generator(values, tmp_path / "ds")
        assert "on_error" not in str(caught.value)
    with refused(SchemaError, "'a'"):
        shardio.from_generator([{"a": 1}, {"a": b"x"}], tmp_path / "ds")
    late = [{"a": n} for n in range(1500)] + [{"a": "x"}]
    with refused(SchemaError, "'a'", "schema="):
        shardio.from_generator(late, tmp_path / "ds")
    for odd in (np.datetime64("2020-01-01"), np.zeros(2, [("x", "i4")]), np.longdouble(1), {1}):
        with refused(SchemaError, "'a'"):
            shardio.from_generator([{"a": odd}], tmp_path / "ds")
    with refused(TypeError, "from_generator"):
        shardio.from_generator(5, tmp_path / "ds")
    with pytest.raises(shardio.errors.NotFoundError):
        shardio.open(tmp_path / "ds")


@pytest.mark.parametrize("missing", [False, True])
def test_integers_that_may_be_missing_stay_exact_in_pandas(tmp_path, missing):
    values = {"id": [2**53 + 1, 2**62 + 3], "u": [2**64 - 1, 5]}
    schema = {"id": shardio.Feature("int64", optional=True), "u": shardio.Feature("uint64", optional=True)}
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        for row in range(2):
            out.write({name: column[row] for name, column in values.items()})
        if missing:
            out.write({})
    with pytest.warns(UserWarning, match="records are read"):
        frame = shardio.open(tmp_path / "ds").to_pandas()
    for name, column in values.items():
        assert [int(value) for value in frame[name].dropna()] == column
        assert frame[name].isna().sum() == missing


TENSORS = {
    "scalars of torch": ([torch.tensor(3), torch.tensor(-4)], "int64"),
    "tokens of torch": ([torch.tensor([1, 2]), torch.tensor([3, 4])], "int64[2]"),
    "flags of torch": ([torch.tensor([True])], "bool[1]"),
    "a list of scalars of torch": ([[torch.tensor(1), torch.tensor(2)]], "int64[2]"),
    "a list of arrays": ([[np.ones(2, np.float32)] * 3], "float32[3,2]"),
    "integers of two widths": ([np.int8(1), np.int64(2), np.uint16(3)], "int64"),
    "floats of two widths": ([np.float32(1), 2.5], "float64"),
    "an unsigned one beside a negative one": ([np.uint8(200), np.int8(-1)], "int16"),
}


@pytest.mark.parametrize("what", TENSORS)
def test_numbers_of_libraries_are_inferred(tmp_path, what):
    values, short = TENSORS[what]
    ds = shardio.from_generator([{"x": value} for value in values], tmp_path / "ds")
    assert ds.schema["x"].short == short
    read = [np.asarray(record["x"]).tolist() for record in ds]
    assert read == [np.asarray(value).tolist() for value in values]
