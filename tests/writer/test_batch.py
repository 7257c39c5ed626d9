"""`write_batch` stores the rows of columns as `write` stores each, and takes what `read_batch` returns."""

from __future__ import annotations

import contextlib
import importlib

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import shardio
from shardio import Feature
from shardio.errors import SchemaError
from tests.suites.errors import refused

SCHEMA = {
    "n": "int64",
    "small": "uint8",
    "half": "float16",
    "flag": "bool",
    "vector": "float32[3]",
    "ragged": "int32[?]",
    "grid": "uint8[?,?]",
    "word": "text",
    "raw": "bytes",
    "tree": "json",
    "tags": "text[?]",
    "maybe": Feature("text", optional=True),
}


def record(n):
    value = {
        "n": n - 2**40,
        "small": n % 256,
        "half": n / 8,
        "flag": n % 2 == 0,
        "vector": np.array([n, n + 0.5, -n], np.float32),
        "ragged": np.arange(n % 4, dtype=np.int32),
        "grid": np.full((n % 3, n % 2 + 1), n % 256, np.uint8),
        "word": f"word {n}",
        "raw": bytes([n % 256]),
        "tree": {"n": [n, None]},
        "tags": [f"t{k}" for k in range(n % 3)],
    }
    return {**value, "maybe": f"m{n}"} if n % 5 else value


def payloads(url):
    return list(shardio.open(url, decode=False))


@pytest.mark.parametrize("encoding", ["example", "tensors"])
def test_rows_of_columns_are_stored_as_records_are(tmp_path, encoding):
    schema = SCHEMA if encoding == "example" else {"n": "int64", "vector": "float32[3]", "word": "text"}
    with shardio.DatasetWriter(tmp_path / "one", schema=schema, encoding=encoding) as out:
        for n in range(50):
            out.write({name: item for name, item in record(n).items() if name in schema})
    columns = shardio.open(tmp_path / "one").read_batch(range(50))
    with shardio.DatasetWriter(tmp_path / "two", schema=schema, encoding=encoding) as out:
        out.write_batch(columns)
    assert payloads(tmp_path / "two") == payloads(tmp_path / "one")


def test_lists_arrays_and_payloads(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", schema={"n": "int64", "x": "float32[2]"}) as out:
        out.write_batch({"n": [1, 2], "x": [[1, 2], [3, 4]]}, split="test")
        out.write_batch({"n": np.array([3]), "x": np.zeros((1, 2), np.float32)}, split="test")
        out.write_batch({"n": (), "x": ()})
    assert [int(value["n"]) for value in shardio.open(tmp_path / "ds", "test")] == [1, 2, 3]
    with shardio.DatasetWriter(tmp_path / "bytes") as out:
        out.write_batch({"payload": [b"a", b"b"]})
        with refused(SchemaError, "'payload'"):
            out.write_batch({"n": [b"c"]})
    assert payloads(tmp_path / "bytes") == [b"a", b"b"]


@pytest.mark.parametrize("made", ["pyarrow", "polars", "pandas", "numpy"])
@pytest.mark.parametrize("missing", [False, True])
def test_what_is_missing_in_a_column_is_no_nan(tmp_path, made, missing):
    """NumPy would make NaN of it, or show what is below a mask."""
    numbers = [1.5, None if missing else 2.5]
    if made == "numpy":
        column = np.ma.masked_array([1.5, 2.5], [False, missing])
    elif made == "pandas":
        column = importlib.import_module(made).Series(numbers, dtype="Float64")
    else:
        module = importlib.import_module(made)
        column = module.array(numbers) if made == "pyarrow" else module.Series(numbers)
    with shardio.DatasetWriter(tmp_path / "ds", schema={"x": Feature("float32", optional=True)}) as out:
        if missing and made == "numpy":
            with pytest.raises(SchemaError):
                out.write_batch({"x": column})
            numbers = numbers[:1]
        else:
            out.write_batch({"x": column})
    assert [value["x"] for value in shardio.open(tmp_path / "ds")] == numbers
    with (
        refused(SchemaError, "'x'") if missing else contextlib.nullcontext(),
        shardio.DatasetWriter(tmp_path / "required", schema={"x": "float32"}) as out,
    ):
        out.write_batch({"x": column})


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"n": [1, 2], "word": ["a"]}, SchemaError, "differing lengths"),
        ({"n": 3, "word": "a"}, TypeError, "single value"),
        ({"n": [1]}, SchemaError, "lacks feature 'word'"),
        ({"n": ["x"], "word": ["a"]}, SchemaError, "'n'"),
        ([{"n": 1, "word": "a"}], TypeError, "mapping of features to columns"),
    ],
)
def test_what_is_no_batch(tmp_path, columns, error, says):
    with shardio.DatasetWriter(tmp_path / "ds", schema={"n": "int64", "word": "text"}) as out:
        out.write_batch({"n": [7], "word": ["kept"]})
        with pytest.raises(error, match=says):
            out.write_batch(columns)
    assert [value["word"] for value in shardio.open(tmp_path / "ds")] == ["kept"]


NANS = {
    "float16": (np.uint16, [0x7C01, 0xFE00, 0x7E01]),
    "float32": (np.uint32, [0x7F800001, 0xFFA00000, 0x7FC00001]),
    "float64": (np.uint64, [0x7FF0000000000001, 0xFFF4000000000000, 0x7FF8000000000001]),
}


@pytest.mark.parametrize("dtype", NANS)
def test_bits_of_nans_are_kept(tmp_path, dtype):
    kind, bits = NANS[dtype]
    values = np.array(bits, kind).view(dtype)
    columns = {"array": values, "arrow": pa.array(values)}
    if dtype == "float32":
        columns["polars"] = pl.Series(values)
    for name, column in columns.items():
        with shardio.DatasetWriter(tmp_path / name, {"x": dtype}) as out:
            out.write_batch({"x": column})
        found = shardio.open(tmp_path / name).read_batch([0, 1, 2])["x"]
        assert [hex(value) for value in found.view(kind)] == [hex(value) for value in bits], name


def test_a_batch_of_bfloat16_is_written_as_it_was_read(tmp_path):
    schema = {"x": "bfloat16", "v": "bfloat16[2]"}
    with shardio.DatasetWriter(tmp_path / "a", schema) as out:
        for number in range(3):
            out.write({"x": number + 0.5, "v": [number, 1.0]})
    ds = shardio.open(tmp_path / "a")
    with shardio.DatasetWriter(tmp_path / "b", schema) as out:
        out.write_batch(ds.read_batch([0, 1, 2]))
    assert [int(value["x"]) for value in shardio.open(tmp_path / "b")] == [int(value["x"]) for value in ds]
