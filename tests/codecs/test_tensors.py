"""TensorProtos: caffe2's messages, every data type, typed fields and raw bytes."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.codecs import decode_tensors, encode_tensors, read_tensors, record_codec
from shardio.errors import CorruptRecordError, FormatError, SchemaError, ShardioError
from shardio.v1 import tensor_pb2
from tests.codecs._golden import GOLDEN
from tests.codecs._values import TENSOR_NUMBERS, arrays
from tests.suites.errors import refused

RECORDS = json.loads((GOLDEN / "codecs" / "torchrecord.json").read_text())


def test_torchrecords_own_records():
    for record in RECORDS:
        image, label = decode_tensors(base64.b64decode(record["payload"]))
        assert image.dtype == label.dtype == np.uint8
        assert image.tobytes() == base64.b64decode(record["rgb"])
        assert int(label.tobytes()) == record["label"]
        stored = read_tensors(base64.b64decode(record["payload"]))
        assert stored[0].dims == (record["width"], record["height"])
        assert [tensor.name for tensor in stored] == ["", ""]


def test_torchrecords_records_by_a_schema():
    codec = record_codec({"rgb": "bytes", "label": "text"}, encoding="tensors")
    payloads = [base64.b64decode(record["payload"]) for record in RECORDS]
    batch = codec.decode_batch(payloads)
    assert batch["rgb"] == [base64.b64decode(record["rgb"]) for record in RECORDS]
    assert batch["label"] == [str(record["label"]) for record in RECORDS]


# Written out by hand from the field numbers of caffe2.proto.
@pytest.mark.parametrize(
    ("wire", "value"),
    [
        ("0801 1001 1a04 0000c03f", np.array([1.5], np.float32)),
        ("0802 1002 2204 01 ff01 05", None),
        ("0802 1002 220b 01 ffffffffffffffffff01", np.array([1, -1], np.int32)),
        ("0802 1003 2a02 6162", np.frombuffer(b"ab", np.uint8)),
        ("0801 1004 3201 61", [b"a"]),
        ("0802 1005 2202 0100", np.array([True, False])),
        ("0801 1006 2202 ff01", np.array([255], np.uint8)),
        ("0801 1007 2202 7f", None),
        ("0801 1007 2201 7f", np.array([127], np.int8)),
        ("0801 1008 2203 ffff03", np.array([65535], np.uint16)),
        ("0801 1009 220a ffffffffffffffffff01", np.array([-1], np.int16)),
        ("0801 100a 520a 80808080808080808001", np.array([-(2**63)])),
        ("0801 100c 2202 8078", np.array([np.uint16(0x3C00)]).view(np.float16)),
        ("0801 100d 4a08 000000000000f83f", np.array([1.5])),
        ("0801 100a 6a08 0100000000000000", np.array([1])),
        ("0801 100c 6a02 003c", np.array([1.0], np.float16)),
        ("0801 1001 6a02 803f 7801", np.array([1.0], np.float32)),
        ("0801 1a04 0000c03f", np.array([1.5], np.float32)),
        ("1001 1a04 0000c03f", np.array(1.5, np.float32)),
        ("0801 1001 1d 0000c03f 3a0161", np.array([1.5], np.float32)),
        ("0a0102 1002 2002 2003", np.array([2, 3], np.int32)),
    ],
    ids=map(str, range(21)),
)
def test_wire_forms(wire, value):
    tensor = bytes.fromhex(wire.replace(" ", ""))
    payload = b"\x0a" + bytes([len(tensor)]) + tensor
    if value is None:
        with pytest.raises(CorruptRecordError):
            decode_tensors(payload)
        return
    found = decode_tensors(payload)
    (got,) = found.values() if isinstance(found, dict) else found
    if isinstance(value, list):
        assert got == value
    else:
        assert (got.dtype, got.shape, got.tobytes()) == (value.dtype, value.shape, value.tobytes())


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.data())
def test_arrays_come_back(data):
    names = data.draw(
        st.lists(st.sampled_from([name for name in TENSOR_NUMBERS if name != "bfloat16"]), max_size=4)
    )
    shapes = st.sampled_from([(), (0,), (3,), (2, 3), (1, 0, 2)])
    given_values = [data.draw(arrays(np.dtype(name), data.draw(shapes))) for name in names]
    found = decode_tensors(encode_tensors(given_values))
    assert len(found) == len(names)
    for got, value in zip(found, given_values, strict=True):
        native = (
            value if value.dtype.isnative else value.copy().byteswap().view(value.dtype.newbyteorder("="))
        )
        assert got.dtype == native.dtype
        assert got.shape == native.shape
        assert got.tobytes() == np.ascontiguousarray(native).tobytes()
        assert got.flags.writeable
    named = {
        f"{number} {name}": value
        for number, (name, value) in enumerate(zip(names, given_values, strict=True))
    }
    if named:
        again = decode_tensors(encode_tensors(named))
        assert list(again) == list(named)


def test_plain_values():
    found = decode_tensors(
        encode_tensors([1, 2.5, True, [[1, 2]], "ü", b"\xff", ["a", b"b"], np.float64(0.1)])
    )
    kinds = [value.dtype.name if isinstance(value, np.ndarray) else "strings" for value in found]
    assert kinds == ["int64", "float32", "bool", "int64", "strings", "strings", "strings", "float64"]
    assert found[4:7] == [["ü".encode()], [b"\xff"], [b"a", b"b"]]
    assert found[3].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "value",
    [
        np.uint32(1),
        np.uint64(1),
        1j,
        object(),
        None,
        {"a"},
        np.ma.masked_array([1, 2], [True, False]),
        [[1], [2, 3]],
    ],
    ids=["uint32", "uint64", "complex", "object", "None", "set", "masked", "irregular"],
)
def test_what_has_no_data_type(value):
    with refused(SchemaError, "'x'"):
        encode_tensors({"x": value})


@pytest.mark.parametrize(
    ("value", "why"),
    [([1.0, 1e39], "infinity"), ([2**24 + 1, 0.5], "16777217"), ("\ud800", "lone surrogate")],
)
def test_what_would_be_changed_is_refused(value, why):
    with pytest.raises(SchemaError, match=why):
        encode_tensors({"x": value})


def test_names():
    message = tensor_pb2.TensorProtos()
    for name in ("a", "a"):
        message.protos.add(name=name, data_type=3)
    assert isinstance(decode_tensors(message.SerializeToString()), list)
    assert decode_tensors(b"") == []
    with pytest.raises(SchemaError):
        encode_tensors(np.zeros(3))
    with pytest.raises(SchemaError):
        encode_tensors("abc")


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": [3], "data_type": 1, "float_data": [1, 2]},
        {"dims": [-1], "data_type": 1},
        {"dims": [2**40, 2**40], "data_type": 1},
        {"dims": [1] * 33, "data_type": 1, "float_data": [1]},
        {"dims": [0, 2**62, 2**62], "data_type": 1},
        {"dims": [1], "data_type": 1, "int32_data": [1]},
        {"dims": [1], "data_type": 1, "float_data": [1], "raw_data": b"1234"},
        {"dims": [1], "data_type": 10, "raw_data": b"1234567"},
        {"dims": [1], "data_type": 5, "raw_data": b"\x02"},
        {"dims": [1], "data_type": 5, "int32_data": [2]},
        {"dims": [1], "data_type": 6, "int32_data": [256]},
        {"dims": [1], "data_type": 7, "int32_data": [128]},
        {"dims": [1], "data_type": 12, "int32_data": [65536]},
        {"dims": [2], "data_type": 4, "string_data": [b"a"]},
        {"dims": [1], "data_type": 0, "float_data": [1]},
        {"dims": [1], "data_type": 1, "raw_data": b"1234", "data_format": 2},
    ],
    ids=map(str, range(16)),
)
def test_tensors_that_contradict_themselves(fields):
    message = tensor_pb2.TensorProtos()
    message.protos.add(**fields)
    with pytest.raises(FormatError):
        decode_tensors(message.SerializeToString())


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.data())
def test_damage_gives_values_or_errors_of_the_tree(data):
    payload = bytearray(
        encode_tensors({"a": np.arange(6.0).reshape(2, 3), "s": ["x"], "h": np.float16([1, 2])})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_tensors(bytes(payload))
    except ShardioError as error:
        assert isinstance(error, FormatError)  # noqa: PT017 - the error is one of two right outcomes
    with pytest.raises(CorruptRecordError):
        decode_tensors(bytes(payload) + b"\x0a")


def _message(*tensors):
    """Return a TensorProtos message, of (name, number) pairs."""
    message = tensor_pb2.TensorProtos()
    for name, number in tensors:
        proto = message.protos.add(data_type=10, int64_data=[number])
        if name:
            proto.name = name
    return message.SerializeToString()


@pytest.mark.parametrize(
    "tensors",
    [
        [("a", 1), ("b", 2), ("a", 3)],
        [("a", 1), ("b", 2), ("other", 3), ("other", 4)],
        [("", 1), ("", 2), ("", 3)],
        [("a", 1), ("b", 2), ("", 3)],
        [("", 1), ("b", 2)],
    ],
)
def test_no_tensor_is_dropped_for_another(tensors):
    codec = record_codec({"a": "int64", "b": "int64"}, encoding="tensors")
    good = _message(("", 1), ("", 2))
    assert codec.decode(good) == codec.decode(_message(("b", 2), ("a", 1), ("other", 3))) == {"a": 1, "b": 2}
    for features in (None, ["b"]):
        with pytest.raises(SchemaError) as caught:
            codec.decode_batch([good, _message(*tensors)], features=features)
        assert caught.value.row == 1
        assert caught.value.advice
