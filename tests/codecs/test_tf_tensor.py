"""Tensors as TensorFlow wrote them read as it reads them, and are written as it writes them."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from shardio import codecs
from shardio.errors import CorruptRecordError, SchemaError, ShardioError
from shardio.v1 import tf_tensor_pb2

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow" / "tensors.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]


def plain(array, dtype):
    items = array.reshape(-1).tolist()
    if dtype == "string":
        return [base64.b64encode(item).decode() for item in items]
    if dtype.startswith("complex"):
        return [[item.real, item.imag] for item in items]
    return [float(item) for item in items]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_tensorflow_wrote(case):
    data = base64.b64decode(case["data"])
    array = codecs.parse_tensor(data)
    assert list(array.shape) == case["shape"]
    wanted = case["values"]
    if case["dtype"] != "string":
        assert array.dtype.name == case["dtype"]
        if not case["dtype"].startswith("complex"):
            wanted = [float(item) for item in wanted]
    assert plain(array, case["dtype"]) == wanted
    if case["name"].startswith("serialize"):
        assert codecs.serialize_tensor(array) == data


@given(
    hnp.arrays(st.sampled_from([np.dtype(name) for name in TYPES]), hnp.array_shapes(min_dims=0, min_side=0))
)
def test_arrays_come_back(array):
    back = codecs.parse_tensor(codecs.serialize_tensor(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@given(st.lists(st.one_of(st.text(), st.binary()), max_size=5))
def test_strings_come_back(items):
    back = codecs.parse_tensor(codecs.serialize_tensor(items))
    if items:  # an empty list is one of numbers
        assert back.tolist() == [item.encode() if isinstance(item, str) else item for item in items]


def test_byte_order_and_strides_do_not_matter():
    array = np.arange(12, dtype=">i4").reshape(3, 4).T
    assert codecs.parse_tensor(codecs.serialize_tensor(array)).tolist() == array.tolist()
    assert codecs.parse_tensor(codecs.serialize_tensor([[1.5, 2]])).tolist() == [[1.5, 2.0]]
    assert codecs.parse_tensor(codecs.serialize_tensor("word")).tolist() == b"word"


def made(shape=(), **fields):
    message = tf_tensor_pb2.TensorFlowTensor(**fields)
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    return message.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff",
        b"",
        made(dtype=1, shape=[3], tensor_content=b"\0" * 11),
        made(dtype=1, shape=[1], float_val=[1, 2]),
        made(dtype=8, shape=[2], scomplex_val=[1, 2, 3]),
        made(dtype=1, shape=[-1]),
        made(dtype=1, shape=[1 << 40], float_val=[1]),
        made(dtype=1, shape=[1 << 62, 0]),
        made(dtype=7, shape=[1 << 40], string_val=[b"a"]),
        made(dtype=7, shape=[1], tensor_content=b"\x01a"),
    ],
)
def test_bytes_that_are_no_tensor(data):
    with pytest.raises(CorruptRecordError):
        codecs.parse_tensor(data)


def test_types_without_an_array():
    for number in (11, 25, 99):
        with pytest.raises(SchemaError):
            codecs.parse_tensor(made(dtype=number, shape=[1]))
    with pytest.raises(SchemaError):
        codecs.serialize_tensor("\ud800")
    for array in (np.array(["2020-01-01"], "M8[D]"), np.array([object()])):
        with pytest.raises(SchemaError):
            codecs.serialize_tensor(array)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(ShardioError):
        codecs.parse_tensor(data)
