"""Features of type "tensor": arrays as TensorFlow serializes them, in records, batches and schemas."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio import Feature
from shardio.codecs import encode_example, record_codec, serialize_tensor
from shardio.errors import CorruptRecordError, SchemaError
from shardio.metadata import Schema, parse_schema_json
from tests.suites.errors import refused

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow" / "tensor-features.tfrecord"
TYPES = {"grid": "tensor:float32[?,2]", "half": "tensor:bfloat16[?]", "scalar": "tensor", "words": "tensor"}
F4 = np.float32


def test_examples_that_tensorflow_wrote(tmp_path):
    """Its tutorial's way to store arrays: adopted with types, read as arrays, written again byte for byte."""
    shutil.copy(GOLDEN, tmp_path)
    shardio.adopt(tmp_path, schema=TYPES)
    found = shardio.open(tmp_path)
    assert found.schema == Schema.parse(TYPES)
    for n, value in enumerate(found):
        assert value["grid"].dtype == F4
        assert value["grid"].tolist() == [[n, n]] * n
        assert (value["half"].astype("u4") << 16).view(F4).tolist() == list(range(n))
        assert (value["scalar"].dtype, value["scalar"][()]) == (np.int64, n)
        assert value["words"].tolist() == [b"a", b"b" * n]
    codec = record_codec(TYPES)
    assert [codec.encode(value) for value in found] == list(shardio.open(tmp_path, decode=False))
    with refused(SchemaError, "'grid'"):
        shardio.adopt(tmp_path, schema={"grid": "tensor:int32"})


def test_a_batch_stacks_what_is_alike():
    codec = record_codec({"x": Feature("tensor", optional=True)})
    one, two, none = (codec.encode({"x": value}) for value in (np.ones((2, 3), F4), np.ones(4, F4), None))
    assert codec.decode_batch([one, one])["x"].shape == (2, 2, 3)
    mixed = codec.decode_batch([one, two, none])["x"]
    assert [None if each is None else each.shape for each in mixed] == [(2, 3), (4,), None]
    assert codec.decode_batch([none, one])["x"][0] is None
    doubles = codec.encode({"x": np.ones((2, 3))})
    assert [each.dtype.name for each in codec.decode_batch([one, doubles])["x"]] == ["float32", "float64"]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("tensor:float32[?,2]", np.ones((1, 3)), "float64[1,3]"),
        ("tensor:float32[?,2]", serialize_tensor(np.ones((1, 2))), "tensor:float64[1,2]"),
        ("tensor:int8", [300], "the value 300"),
        ("tensor", b"not a tensor", "not a TensorProto"),
        ("tensor", None, "NoneType"),
        ("tensor", [[1], [2, 3]], "no array"),
        ("tensor", np.ma.masked_array([1, 2], [0, 1]), "a masked array"),
        ("tensor", [2**53 + 1, 0.5], "9007199254740993"),
        ("tensor", np.array(["2020-01-01"], "M8[D]"), "datetime64"),
    ],
)
def test_what_does_not_fit(kind, value, found):
    with refused(SchemaError, "'x'") as caught:
        record_codec({"x": kind}).encode({"x": value})
    assert found in str(caught.value)


def test_a_serialized_tensor_is_taken_as_it_is():
    data = serialize_tensor(np.arange(3))
    assert record_codec({"x": "tensor:int64[3]"}).encode({"x": data}) == encode_example({"x": data})


@pytest.mark.parametrize("data", [b"\xff\xff", b"", serialize_tensor(np.arange(3)), serialize_tensor("a")])
def test_damage_names_feature_and_record(data):
    codec = record_codec({"x": "tensor:float32[?]"})
    payloads = [codec.encode({"x": [1]}), encode_example({"x": data})]
    for decode in (codec.decode_many, codec.decode_batch):
        with refused((SchemaError, CorruptRecordError), "'x'") as caught:
            decode(payloads)
        assert caught.value.row == 1
    with refused((SchemaError, CorruptRecordError), "'x'"):
        codec.decode(payloads[1])


def test_bfloat16_without_a_package_for_it(monkeypatch):
    """Its bits alone would be taken for uint16 when they are written again."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    payload = record_codec({"x": "tensor:bfloat16"}).encode({"x": [1.0, 2.0]})
    with refused(SchemaError, "ml_dtypes"):
        record_codec({"x": "tensor"}).decode(payload)
    assert record_codec({"x": "tensor:bfloat16"}).decode(payload)["x"].tolist() == [0x3F80, 0x4000]


@pytest.mark.parametrize(
    ("text", "short"),
    [("tensor:float[?]", "tensor:float64[?]"), ("tensor:int32[ ? , 2 ]", "tensor:int32[?,2]")],
)
def test_names_of_types(text, short):
    feature = Feature(text)
    assert (feature.short, feature.kind, feature.shape, feature.dtype) == (short, "tensor", (), None)
    assert Feature(feature.short) == feature
    message = Schema.parse({"a": short}).to_message()
    assert Schema.from_message(message) == Schema.parse({"a": short})
    message.features[0].type = text
    with pytest.raises(ValueError, match="newer shardio"):
        Schema.from_message(message)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensor[3]", "behind the type of its elements"),
        ("tensor:text", '"tensor" alone takes strings'),
        ("tensor:tensor:int8", '"tensor" alone takes strings'),
        ("tensor:", "is not a type"),
        ("tensor:floot32", "did you mean float32"),
        ("tensor:uint8[9999999999]", "larger than a record"),
        ("tensors", "did you mean tensor"),
    ],
)
def test_no_types(text, says):
    with pytest.raises(ValueError, match=says):
        Feature(text)


def test_defaults_keep_their_type():
    schema = Schema.parse({"x": Feature("tensor", default=np.ones(2, np.int16)), "y": "int64"})
    assert Schema.parse(parse_schema_json(json.dumps(schema.to_dict()))) == schema
    back = record_codec(schema).decode(encode_example({"y": 1}))["x"]
    assert (back.dtype, back.tolist()) == (np.int16, [1, 1])


@pytest.mark.parametrize(
    ("old", "new", "reads"),
    [
        ("tensor:float32[2]", "tensor:float32[?]", True),
        ("tensor:float32[?]", "tensor:float32", True),
        ("tensor:float32", "tensor", True),
        ("tensor:float32", "bytes", True),
        ("tensor", "tensor:float32", False),
        ("tensor:float32", "tensor:float32[?]", False),
        ("tensor:float32[2]", "tensor:float32[3]", False),
        ("tensor:float32[2]", "tensor:float64[2]", False),
        ("tensor:float32[2]", "float32[2]", False),
        ("bytes", "tensor", False),
    ],
)
def test_what_reads_older_records(old, new, reads):
    trouble = Schema.parse({"x": new}).incompatibility(Schema.parse({"x": old}))
    assert (trouble is None) == reads
