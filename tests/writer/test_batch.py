"""`write_batch` stores the rows of columns as `write` stores each, and takes what `read_batch` returns."""

from __future__ import annotations

import numpy as np
import pytest

import shardio
from shardio import Feature
from shardio.errors import SchemaError

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
        with pytest.raises(SchemaError, match="'payload'"):
            out.write_batch({"n": [b"c"]})
    assert payloads(tmp_path / "bytes") == [b"a", b"b"]


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
