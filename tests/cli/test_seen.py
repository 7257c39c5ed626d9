"""`shardio info` shows what records without a schema look like."""

from __future__ import annotations

from pathlib import Path

import shardio
from shardio.codecs import encode_example

GOLDEN = Path(__file__).parent.parent / "golden" / "tensorflow"


def test_info_of_a_foreign_file(run) -> None:
    """Schema inference from the first records of foreign Examples, with what varies."""
    said = run("info", GOLDEN / "examples-plain.tfrecord").out
    assert "the first 41 records: tf.train.Example" in said
    assert "its length differs, from 0 to 6 values" in said
    assert "missing in 14 of 41 records, so it is optional" in said
    seen = run("info", "--json", GOLDEN / "sequences-gzip.tfrecord").document["seen"]
    assert seen["encoding"] == "sequence_example"
    types = {row["name"]: row["type"] for row in seen["features"]}
    assert types["[] audio"] == "float32[3]"
    assert types["length"] == "int64"


def test_info_of_a_dataset_without_a_schema(run, tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        for number in range(150):
            out.write(encode_example({"id": number, "odd": 1 if number % 2 else 0.5}))
    said = run("info", tmp_path / "ds").out
    assert "no schema: records are bytes" in said
    assert "the first 100 records: tf.train.Example" in said
    assert "left out: its kind differs (float32 in 50, int64 in 50)" in said
    seen = run("info", "--json", tmp_path / "ds").document["seen"]
    assert [(row["name"], row["type"]) for row in seen["features"]] == [("id", "int64"), ("odd", None)]


def test_info_of_what_is_no_example(run, tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        out.write(b"plain text, no message")
    ended = run("info", tmp_path / "ds")
    assert ended.code == 0
    assert "tf.train" not in ended.out
    assert run("info", "--json", tmp_path / "ds").document["seen"] is None
    assert run("info", "--json", GOLDEN / "none-plain.tfrecord").document["seen"] is None


def test_info_survives_damage_in_the_first_records(run, tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        out.write(encode_example({"id": 1}))
    (shard,) = (tmp_path / "ds" / "data").glob("*.tfrecord")
    data = bytearray(shard.read_bytes())
    data[15] ^= 1
    shard.write_bytes(data)
    assert run("info", tmp_path / "ds").code == 0
