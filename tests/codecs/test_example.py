"""Examples and sequence examples without a schema, against TensorFlow's files and protobuf's own messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.codecs import (
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)
from shardio.errors import CorruptRecordError, SchemaError
from shardio.v1 import example_pb2
from tests.codecs._golden import expected, is_same, payloads
from tests.suites.errors import refused

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_tensorflows_examples():
    found, wanted = list(map(decode_example, payloads("examples-plain.tfrecord"))), expected("examples")
    assert len(found) == len(wanted) == 41
    for features, record in zip(found, wanted, strict=True):
        assert list(features) == sorted(record)
        for name, value in record.items():
            assert is_same(features[name], value), name


def test_tensorflows_sequence_examples():
    found = list(map(decode_sequence_example, payloads("sequences-plain.tfrecord")))
    wanted = expected("sequences")
    assert len(found) == len(wanted)
    for value, record in zip(found, wanted, strict=True):
        assert set(value["context"]) == set(record["context"])
        assert set(value["feature_lists"]) == set(record["feature_lists"])
        for name, feature in record["context"].items():
            assert is_same(value["context"][name], feature)
        for name, steps in record["feature_lists"].items():
            assert len(value["feature_lists"][name]) == len(steps)
            assert all(map(is_same, value["feature_lists"][name], steps))


@pytest.mark.parametrize("name", ["examples-plain.tfrecord", "sequences-plain.tfrecord"])
def test_what_tensorflow_wrote_is_written_again(name):
    sequence = name.startswith("sequences")
    cls = example_pb2.SequenceExample if sequence else example_pb2.Example
    for payload in payloads(name):
        decoded = (decode_sequence_example if sequence else decode_example)(payload)
        again = (encode_sequence_example if sequence else encode_example)(decoded)
        assert _without_empty_kinds(cls.FromString(again)) == _without_empty_kinds(cls.FromString(payload))


def _without_empty_kinds(message):
    """A list without values is a list of anything: which kind of nothing it was, Python cannot say."""
    parts = (message.features,) if isinstance(message, example_pb2.Example) else (message.context,)
    for part in parts:
        for feature in part.feature.values():
            if feature.WhichOneof("kind") == "bytes_list" and not feature.bytes_list.value:
                feature.ClearField("bytes_list")
    return message


@given(
    st.dictionaries(
        # Of one length: protobuf sorts a name before one that begins it, which no other order does.
        st.text(st.characters(codec="ascii"), min_size=3, max_size=3),
        st.lists(INT64, min_size=1, max_size=70) | st.lists(st.binary(max_size=9), min_size=1, max_size=4),
        max_size=5,
    )
)
def test_bytes_are_those_of_protobuf(features):
    message = example_pb2.Example()
    for name, values in features.items():
        feature = message.features.feature[name]
        holder = feature.bytes_list if isinstance(values[0], bytes) else feature.int64_list
        holder.value.extend(values)
    payload = encode_example(features)
    assert payload == message.SerializeToString(deterministic=True)
    found = decode_example(payload)
    assert {name: list(values) for name, values in found.items()} == features


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_floats_keep_every_bit(bits):
    values = np.array(bits, np.uint32).view(np.float32)
    assert decode_example(encode_example({"x": values}))["x"].view(np.uint32).tolist() == bits


@pytest.mark.parametrize(
    ("given_value", "found"),
    [
        (3, np.array([3])),
        (True, np.array([1])),
        (np.uint8(7), np.array([7])),
        (2.5, np.array([2.5], np.float32)),
        ("ü", ["ü".encode()]),
        (b"x", [b"x"]),
        (bytearray(b"x"), [b"x"]),
        (["a", b"b"], [b"a", b"b"]),
        ([], []),
        ((1, 2), np.array([1, 2])),
        ([[1, 2], [3, 4]], np.array([1, 2, 3, 4])),
        (np.empty(0, np.int8), np.empty(0, np.int64)),
        (np.empty(0, np.float64), np.empty(0, np.float32)),
        (np.array(["a", "b"]), [b"a", b"b"]),
        (np.array([b"a"], object), [b"a"]),
        (np.array([1.5], ">f8"), np.array([1.5], np.float32)),
    ],
)
def test_what_may_be_given(given_value, found):
    got = decode_example(encode_example({"x": given_value}))["x"]
    assert type(got) is type(found)
    assert getattr(got, "dtype", None) == getattr(found, "dtype", None)
    assert list(got) == list(found)


@pytest.mark.parametrize(
    "value",
    [None, object(), {"a": 1}, 2**63, 1j, ["a", 1], [b"a", None], [[1], [2, 3]], "\ud800", 1e39, {1, 2}],
)
def test_what_no_example_holds_names_the_feature(value):
    with refused(SchemaError, "'x'"):
        encode_example({"x": value})
    with refused(SchemaError, "'x, step 1'"):
        encode_sequence_example({"feature_lists": {"x": [1, value]}})


def test_other_mistakes():
    with pytest.raises(SchemaError):
        encode_example([1])
    with pytest.raises(SchemaError):
        encode_example({3: 1})
    with pytest.raises(SchemaError):
        encode_example({"\ud800": 1})
    with pytest.raises(SchemaError):
        encode_sequence_example({"features": {}})
    with refused(SchemaError, "'x'"):
        encode_sequence_example({"feature_lists": {"x": 3}})


@pytest.mark.parametrize("payload", [b"\x0a", b"\xff" * 20, b"\x0a\x05\x0a\x03\x0a\x01\xff"])
def test_no_example(payload):
    with pytest.raises(CorruptRecordError):
        decode_example(payload)
    with pytest.raises(CorruptRecordError):
        decode_sequence_example(payload)


def test_an_empty_payload_is_an_example_without_features():
    assert decode_example(b"") == {}
    assert encode_example({}) == b""
    assert decode_sequence_example(b"") == {"context": {}, "feature_lists": {}}
    assert encode_sequence_example({}) == b""
