"""Every type in every encoding comes back as written: dtype, shape, every bit; alone and by the batch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.codecs import ImageOptions, RaggedColumn, record_codec
from shardio.errors import SchemaError
from tests.codecs._values import NUMBERS, TENSOR_NUMBERS, arrays, features, rows_of, same, values
from tests.suites.errors import refused

NAMES = ["a", "b", "Ünïcode näme/with.dots", "a/b"]


@st.composite
def _records(draw, numbers, most=3):
    schema = {
        name: draw(features(numbers))
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    }
    count = draw(st.integers(1, most))
    return schema, [{name: draw(values(feature)) for name, feature in schema.items()} for _ in range(count)]


def _check(schema, records, codec):
    payloads = [codec.encode(record) for record in records]
    buffer = b"?".join([b"", *payloads, b""])
    stops = np.cumsum([len(payload) + 1 for payload in payloads])
    starts = stops - [len(payload) for payload in payloads]
    alone = [codec.decode(payload) for payload in payloads]
    together = codec.decode_many((buffer, starts, stops))
    batch = codec.decode_batch(payloads)
    assert list(batch) == list(schema)
    rows = {name: rows_of(column) for name, column in batch.items()}
    for number, record in enumerate(records):
        for name, feature in schema.items():
            assert same(feature, alone[number][name], record[name])
            assert same(feature, together[number][name], record[name])
            assert same(feature, rows[name][number], record[name])
    return payloads


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(_records(NUMBERS))
def test_example(case):
    schema, records = case
    _check(schema, records, record_codec(schema))


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(_records(TENSOR_NUMBERS))
def test_tensors(case):
    schema, records = case
    _check(schema, records, record_codec(schema, encoding="tensors"))


def _feature(name, shape):
    from shardio.metadata import Feature

    return Feature(name, shape=shape)


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_array(name, data):
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    codec = record_codec({"x": _feature(name, shape)}, encoding="array")
    given_values = [data.draw(arrays(codec.schema["x"].dtype, shape)) for _ in range(2)]
    payloads = _check(codec.schema, [{"x": value} for value in given_values], codec)
    assert len(payloads[0]) == int(np.prod(shape)) * codec.schema["x"].dtype.itemsize
    assert codec.encode(given_values[0]) == payloads[0]
    column = codec.decode_batch(payloads)["x"]
    assert column.shape == (2, *shape)
    assert column.flags.writeable


def test_arrays_gathered_by_the_caller_are_not_copied_again():
    codec = record_codec({"x": "int32[2]"}, encoding="array")
    data = np.frombuffer(bytearray(b"".join(codec.encode([i, 7]) for i in range(3))), np.uint8)
    column = codec.decode_batch((data, [0, 8, 16], [8, 16, 24]))["x"]
    assert np.shares_memory(column, data)
    assert column.tolist() == [[0, 7], [1, 7], [2, 7]]
    others = codec.decode_batch((data, [16, 0], [24, 8]))["x"]
    assert not np.shares_memory(others, data)
    assert others.tolist() == [[2, 7], [0, 7]]
    assert not np.shares_memory(codec.decode_many((data, [0], [8]))[0]["x"], data)


@pytest.mark.parametrize("name", ["bytes", "text", "json", "jpeg", "image"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_bytes_with_a_feature(name, data):
    codec = record_codec({"x": name}, encoding="bytes")
    value = data.draw(values(codec.schema["x"]))
    _check(codec.schema, [{"x": value}], codec)


@pytest.mark.parametrize("encoding", ["example", "tensors", "array", "bytes", "sequence_example"])
def test_a_codec_travels_to_other_processes(encoding):
    schema = {"x": "text" if encoding == "bytes" else "int64"}
    value = {"x": "ü" if encoding == "bytes" else 3}
    if encoding == "sequence_example":
        schema, value = (
            {"context": schema, "feature_lists": {"t": "text"}},
            {"context": value, "feature_lists": {"t": ["a"]}},
        )
    codec = record_codec(schema, encoding=encoding, images=ImageOptions())
    other = pickle.loads(pickle.dumps(codec))
    assert other.schema == codec.schema
    assert other.decode(codec.encode(value)) == value


def test_bytes_without_a_schema():
    codec = record_codec(None)
    assert codec.schema is None
    assert codec.encode(memoryview(b"abc")) == b"abc"
    assert codec.decode(b"abc") == b"abc"
    assert codec.decode_batch([b"a", b""]) == {"payload": [b"a", b""]}
    assert codec.decode_many((b"abcd", [0, 2], [2, 4])) == [b"ab", b"cd"]


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.data())
def test_sequence_example(data):
    schema = {
        "context": {
            name: data.draw(features()) for name in data.draw(st.lists(st.sampled_from(NAMES), unique=True))
        },
        "feature_lists": {
            name: data.draw(features()) for name in data.draw(st.lists(st.sampled_from(NAMES), unique=True))
        },
    }
    codec = record_codec(schema, encoding="sequence_example")
    records = [
        {
            "context": {name: data.draw(values(feature)) for name, feature in schema["context"].items()},
            "feature_lists": {
                name: data.draw(st.lists(values(feature), max_size=3))
                for name, feature in schema["feature_lists"].items()
            },
        }
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    payloads = [codec.encode(record) for record in records]
    alone = [codec.decode(payload) for payload in payloads]
    batch = codec.decode_batch(payloads)
    context = {name: rows_of(column) for name, column in batch["context"].items()}
    lists = {name: rows_of(column) for name, column in batch["feature_lists"].items()}
    for number, record in enumerate(records):
        for name, feature in schema["context"].items():
            assert same(feature, alone[number]["context"][name], record["context"][name])
            assert same(feature, context[name][number], record["context"][name])
        for name, feature in schema["feature_lists"].items():
            steps = record["feature_lists"][name]
            found = alone[number]["feature_lists"][name]
            assert len(found) == len(steps)
            assert all(same(feature, one, other) for one, other in zip(found, steps, strict=True))
            assert len(lists[name][number]) == len(steps)
            assert all(
                same(feature, one, other) for one, other in zip(lists[name][number], steps, strict=True)
            )


@pytest.mark.parametrize(
    ("short", "bits"),
    [
        ("float16", 0x7C01),
        ("float32", 0x7F800001),
        ("float32", 0xFFC12345),
        ("float64", 0x7FF0000000000001),
        ("bfloat16", 0x7F81),
    ],
)
@pytest.mark.parametrize("encoding", ["example", "tensors", "array"])
def test_a_signalling_nan_keeps_its_payload(short, bits, encoding):
    codec = record_codec({"x": f"{short}[2]"}, encoding=encoding)
    dtype = codec.schema["x"].dtype
    value = np.array([bits, 0], f"<u{dtype.itemsize}").view(dtype)
    payload = codec.encode({"x": value})
    for got in (codec.decode(payload)["x"], codec.decode_batch([payload])["x"][0]):
        assert got.view(f"<u{dtype.itemsize}")[0] == bits


def test_scalars_come_as_numpy_scalars_that_work_as_labels():
    codec = record_codec({"label": "int64", "weight": "float32", "good": "bool"})
    value = codec.decode(codec.encode({"label": -3, "weight": -0.0, "good": True}))
    assert (type(value["label"]), type(value["weight"]), type(value["good"])) == (
        np.int64,
        np.float32,
        np.bool_,
    )
    assert ["a", "b", "c", "d"][value["label"]] == "b"
    assert np.signbit(value["weight"])


def test_batches_are_arrays_and_do_not_share_memory_with_the_records():
    codec = record_codec({"x": "float32[2]", "y": "int16[?]", "s": "text", "z": "int64"})
    payloads = [codec.encode({"x": [i, 2], "y": [i] * i, "s": str(i), "z": i}) for i in range(4)]
    batch = codec.decode_batch(payloads)
    assert batch["x"].shape == (4, 2)
    assert batch["z"].tolist() == [0, 1, 2, 3]
    assert isinstance(batch["y"], RaggedColumn)
    assert batch["y"].values.tolist() == [1, 2, 2, 3, 3, 3]
    assert batch["y"].offsets.tolist() == [0, 0, 1, 3, 6]
    assert batch["s"] == ["0", "1", "2", "3"]
    batch["x"][:] = 7
    value = codec.decode(payloads[1])
    value["y"][:] = 9
    assert codec.decode(payloads[1])["y"].tolist() == [1]
    many = codec.decode_many(payloads)
    many[3]["y"][:] = 0
    assert many[2]["y"].tolist() == [2, 2]
    # A value that is kept keeps no batch alive.
    assert many[2]["x"].base is None
    assert many[2]["y"].base is None


def test_no_records_make_empty_columns():
    schema = {
        "x": "float32[2]",
        "y": "int16[?]",
        "s": "text",
        "z": "int64",
        "m": "uint8[?,?,3]",
        "h": "bool[3]",
    }
    for encoding in ("example", "tensors"):
        batch = record_codec(schema, encoding=encoding).decode_batch([])
        assert batch["x"].shape == (0, 2)
        assert batch["h"].shape == (0, 3)
        assert len(batch["y"]) == len(batch["m"]) == 0
        assert batch["s"] == []


@pytest.mark.parametrize("encoding", ["example", "tensors"])
def test_only_the_features_asked_for(encoding):
    schema = {"a": "int64", "b": "text", "c": "float32[2]"}
    codec = record_codec(schema, encoding=encoding)
    payload = codec.encode({"a": 1, "b": "x", "c": [1, 2]})
    assert list(codec.decode(payload, features=["c", "a"])) == ["c", "a"]
    assert list(codec.decode_batch([payload], features=["b"])) == ["b"]
    assert codec.decode_many([payload] * 2, features=[]) == [{}, {}]
    narrow = record_codec(schema, encoding=encoding, features=["b"])
    assert narrow.decode(payload) == {"b": "x"}
    assert list(narrow.decode_batch([payload])) == ["b"]
    with refused(ValueError, "'d'"):
        codec.decode(payload, features=["d"])
    with refused(ValueError, "'d'"):
        record_codec(schema, encoding=encoding, features=["d"])
    with pytest.raises(TypeError, match="list of names"):
        codec.decode(payload, features="a")


@pytest.mark.parametrize("kind", [int, float, np.int8, np.uint64, np.float16, np.float64])
@pytest.mark.parametrize("short", [name for name in NUMBERS if name.startswith(("int", "uint", "float"))])
def test_a_plain_number_is_stored_as_the_type_of_its_feature(short, kind):
    codec = record_codec({"x": short, "xs": f"{short}[2]"})
    if short.startswith("float") or kind not in (float, np.float16, np.float64):
        value = codec.decode(codec.encode({"x": kind(3), "xs": [kind(3), kind(5)]}))
        assert (value["x"].dtype.name, value["x"], value["xs"].tolist()) == (short, 3, [3, 5])
    else:
        with refused(SchemaError, "'x'"):
            codec.encode({"x": kind(3), "xs": [3, 5]})
