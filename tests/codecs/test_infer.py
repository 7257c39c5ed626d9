"""The schema of records that others wrote."""

from __future__ import annotations

import numpy as np
import pytest

from shardio.codecs import encode_example, encode_sequence_example, encode_tensors, infer_schema, record_codec
from shardio.errors import CorruptRecordError
from shardio.metadata import Feature, Schema
from tests.codecs._golden import payloads


def test_tensorflows_examples():
    records = payloads("examples-plain.tfrecord")
    schema, report = infer_schema(records)
    assert schema["id"] == Feature("int64")
    assert schema["signed"].short == "int64[6]"
    assert schema["ragged"].short == "int64[?]"
    assert schema["texts"].short == "bytes[?]"
    assert schema["floats"] == Feature("float32[4]", optional=True)
    assert "empty" not in schema
    assert report.features["empty"].type is None
    assert report.records == 41
    assert len(record_codec(schema).decode_many(records)) == 41
    notes = "\n".join(report.notes())
    assert "floats: missing in" in notes
    assert "empty: left out: no record gives it a kind" in notes
    assert "ragged: its length differs, from" in notes
    assert "floats: float32[4]" in str(report)


def test_tensorflows_sequences():
    records = payloads("sequences-plain.tfrecord")
    schema, _ = infer_schema(records)
    assert schema.encoding == "sequence_example"
    assert schema.sequence_features["tokens"].short == "int64[?]"
    assert schema.sequence_features["audio"].short == "float32[3]"
    assert len(record_codec(schema).decode_many(records)) == len(records)


def test_kinds_lengths_and_gaps():
    records = [
        encode_example(
            {
                "n": 1,
                "mixed": 1,
                "len": [1],
                "some": 1.5,
                "pic": b"\xff\xd8\xff1",
                "any": b"\x89PNG\r\n\x1a\n",
            }
        ),
        encode_example(
            {"n": 2, "mixed": 1.5, "len": [1, 2], "pic": b"\xff\xd8\xff2", "any": b"II*\0", "_valid": 1}
        ),
        encode_example(
            {"n": 3, "mixed": 2, "len": np.empty(0, np.int64), "pic": b"\xff\xd8\xff", "any": b"RIFF....WEBP"}
        ),
    ]
    schema, report = infer_schema(iter(records))
    assert schema == Schema.parse(
        {
            "n": "int64",
            "len": "int64[?]",
            "some": Feature("float32", optional=True),
            "pic": "jpeg",
            "any": "image",
        }
    )
    notes = report.notes()
    assert "mixed: left out: its kind differs (float32 in 1, int64 in 2)" in notes
    assert "len: its length differs, from 0 to 2 values" in notes
    assert "some: missing in 2 of 3 records, so it is optional" in notes
    assert any(note.startswith("_valid: left out: feature name '_valid' is taken") for note in notes)
    assert report.features["mixed"].kinds == {"int64": 2, "float32": 1}


def test_text_is_left_bytes_and_said_to_be_text():
    schema, report = infer_schema([encode_example({"t": "ü", "b": b"\xff"})])
    assert (schema["t"].short, schema["b"].short) == ("bytes", "bytes")
    assert report.notes() == ["t: its bytes are UTF-8 so far; declare it as text if all of them are"]


def test_an_optional_feature_list():
    records = [
        encode_sequence_example({"context": {"a": 1}, "feature_lists": {"f": [1, 2]}}),
        encode_example({"a": 1}),
    ]
    schema, report = infer_schema(records)
    assert schema.sequence_features["f"].optional
    assert report.feature_lists["f"].missing == 1
    assert not schema["a"].optional


def test_what_is_no_sample():
    with pytest.raises(ValueError, match="no records"):
        infer_schema([])
    with pytest.raises(CorruptRecordError) as caught:
        infer_schema([encode_example({"a": 1}), b"\x0a"])
    assert caught.value.row == 1
    # As Examples these parse, too, of which nothing is read: a schema without features would hide all.
    for other in ({"x": np.ones(2, np.float32), "y": 3}, [np.ones(2, np.float32)]):
        with pytest.raises(CorruptRecordError):
            infer_schema([encode_example({}), encode_tensors(other)])
    empty = {"context": {}, "feature_lists": {}}
    assert infer_schema([b"", encode_example({}), encode_sequence_example(empty)])[0] == Schema({})
