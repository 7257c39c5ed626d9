"""The same files have the same schema, adopted and converted, or are refused by both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio import Schema, codecs
from shardio.errors import SchemaError
from tests.convert.test_inference import npy
from tests.indexer.shards import tar, tfrecord


def lines(*values: Any) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def examples(*values: dict[str, Any]) -> bytes:
    return tfrecord([codecs.encode_example(value) for value in values])


STEPS = {"context": {"n": 3}, "feature_lists": {"f": [b"a", b"b"]}}
FILES = {
    "plain.jsonl": lines({"n": 1, "s": "a"}, {"n": 2, "s": "b"}),
    "optional.jsonl": lines({"n": 1, "s": "a"}, {"s": "b"}),
    "numbers.jsonl": lines({"n": 1}, {"n": 0.5}),
    "contradicting.jsonl": lines({"n": 1, "s": "a"}, {"n": "x", "s": "b"}),
    "nameless.jsonl": lines({"": 1, "n": 1}),
    "plain.tar": tar([("a.n", b"1"), ("a.txt", b"x"), ("b.n", b"2"), ("b.txt", b"y")]),
    "contradicting.tar": tar([("a.n.npy", npy(np.zeros(3))), ("b.n.npy", npy(np.zeros((3, 3))))]),
    "plain.tfrecord": examples({"n": 1, "s": b"\xff\xd8\xff"}, {"n": 2, "s": b"\xff\xd8\xff"}),
    "optional.tfrecord": examples({"n": 1, "s": b"x"}, {"s": b"x"}),
    "contradicting.tfrecord": examples({"n": 1}, {"n": b"x"}),
    "bytes.tfrecord": tfrecord([b"\xff\xff", b"\xfe"]),
    "steps.tfrecord": tfrecord([codecs.encode_sequence_example(STEPS)]),
}
GIVEN: dict[str, Any] = {
    "inferred": None,
    "given": Schema.parse({"n": "int64"}),
    "partial": {"n": "float64"},
    "removed": {"n": None},
    "absent": {"absent": "int64"},
    "nested": {"context": {"n": "int64"}, "feature_lists": {"f": "bytes"}},
}


def outcome(function: Any, *args: Any, **options: Any) -> Any:
    """Return the schema of a dataset, or that it is refused."""
    try:
        return function(*args, workers=1, **options).schema
    except ValueError:  # of which SchemaError and FormatError are kinds
        return "refused"


@pytest.mark.parametrize("name", FILES)
def test_adopted_and_converted_alike(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name])
    for case, schema in GIVEN.items():
        if case == "nested" and not name.endswith(".tfrecord"):
            continue
        if (case, name) == ("partial", "optional.jsonl"):
            continue  # adoption keeps the feature optional, and conversion requires it of every record
        adopted = outcome(shardio_indexer.adopt, file, into=tmp_path / f"{case}-a", schema=schema)
        converted = outcome(shardio.convert_dataset, file, tmp_path / f"{case}-c", schema=schema)
        assert adopted == converted, case


@pytest.mark.parametrize("ending", ["jsonl", "tar", "tfrecord"])
@pytest.mark.parametrize(
    ("later", "fits"),
    [({"cls": 7}, True), ({"cls": "x"}, False), ({"cls": 0.5}, False), ({"id": 7}, False)],
    ids=["same", "text", "float", "lacking"],
)
def test_appended_alike(tmp_path: Path, ending: str, later: dict[str, Any], fits: bool) -> None:
    """What is appended has the schema of the dataset, or is refused."""
    make = {
        "jsonl": lines,
        "tar": lambda value: tar([(f"a.{name}", str(item).encode()) for name, item in value.items()]),
        "tfrecord": examples,
    }[ending]
    first, second = tmp_path / "a" / f"1.{ending}", tmp_path / "a" / f"2.{ending}"
    first.parent.mkdir()
    first.write_bytes(make({"cls": 1}))
    shardio_indexer.adopt(first)
    shardio.convert_dataset(first, tmp_path / "c")
    second.write_bytes(make(later))
    adopted = outcome(shardio_indexer.adopt, first.parent)
    converted = outcome(shardio.convert_dataset, second, tmp_path / "c", mode="append")
    assert adopted == converted
    assert (adopted == "refused") is not fits


def test_the_advice_settles_a_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "contradicting.jsonl"
    file.write_bytes(FILES[file.name])
    with pytest.raises(SchemaError) as caught:
        shardio_indexer.adopt(file)
    assert f"{file} row 1" in str(caught.value)
    assert "skip" not in (caught.value.advice or "")
    assert shardio_indexer.adopt(file, schema={"n": "json"}).ok
    assert [value["n"] for value in shardio.open(tmp_path)] == [1, "x"]
