"""What does not fit is refused, by name, with what was expected and what was found; damage is damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from shardio.codecs import encode_example, encode_tensors, record_codec
from shardio.errors import CorruptRecordError, FormatError, SchemaError, ShardioError
from shardio.metadata import Feature, Schema
from shardio.v1 import example_pb2
from tests.codecs._values import rows_of
from tests.suites.errors import refused

SCHEMA = {
    "i": "int64",
    "f": "float32[2]",
    "h": "float16[2]",
    "b": "bool[2]",
    "r": "int32[?]",
    "p": "int64[?,2]",
    "m": "uint8[?,?,2]",
    "o": "int64[?,?]",
    "t": "text",
    "j": "json",
    "l": "text[2]",
    "d": Feature("int16[2]", default=[1, 2]),
}
GOOD = {
    "i": 3,
    "f": [1, 2],
    "h": [1, 2],
    "b": [True, False],
    "r": [1, 2, 3],
    "p": [[1, 2], [3, 4]],
    "m": np.zeros((1, 2, 2), np.uint8),
    "o": [[1, 2, 3]],
    "t": "x",
    "j": {},
    "l": ["a", "b"],
    "d": [3, 4],
}
CODEC = record_codec(SCHEMA)
STORED = {
    "i": 3,
    "f": np.float32([1, 2]),
    "h": b"\0" * 4,
    "b": b"\x01\0",
    "r": b"\0" * 12,
    "p": [1, 2, 3, 4],
    "m": b"\0" * 4,
    "m/shape": [1, 2, 2],
    "o": [1, 2, 3],
    "o/shape": [1, 3],
    "t": "x",
    "j": "{}",
    "l": ["a", "b"],
    "d": b"\0" * 4,
}


def test_the_stored_form_is_what_the_documents_say():
    assert CODEC.decode(encode_example(STORED))["o"].tolist() == [[1, 2, 3]]
    message = example_pb2.Example.FromString(CODEC.encode(GOOD)).features.feature
    assert list(message["i"].int64_list.value) == [3]
    assert list(message["f"].float_list.value) == [1, 2]
    assert list(message["h"].bytes_list.value) == [np.array([1, 2], "<f2").tobytes()]
    assert list(message["b"].bytes_list.value) == [b"\x01\x00"]
    assert list(message["r"].bytes_list.value) == [np.array([1, 2, 3], "<i4").tobytes()]
    assert list(message["p"].int64_list.value) == [1, 2, 3, 4]
    assert list(message["m/shape"].int64_list.value) == [1, 2, 2]
    assert list(message["o"].int64_list.value) == [1, 2, 3]
    assert list(message["t"].bytes_list.value) == [b"x"]
    assert list(message["j"].bytes_list.value) == [b"{}"]
    assert list(message["l"].bytes_list.value) == [b"a", b"b"]
    assert "p/shape" not in message


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({**GOOD, "f": [1, 2, 3]}, r"feature 'f'.*expected float32\[2\], found int64\[3\]"),
        ({key: item for key, item in GOOD.items() if key != "i"}, "lacks feature 'i'.*expected int64"),
        ({**GOOD, "i": None}, "feature 'i'.*found None"),
        ({**GOOD, "x": 1}, "feature 'x' that the schema does not have"),
        ([1, 2], "mapping of feature names"),
        (b"x", "mapping of feature names"),
    ],
    ids=["shape", "missing", "none", "unknown", "list", "bytes"],
)
@pytest.mark.parametrize("encoding", ["example", "tensors"])
def test_a_value_that_does_not_fit(encoding, value, complaint):
    with pytest.raises(SchemaError, match=complaint) as caught:
        record_codec(SCHEMA, encoding=encoding).encode(value)
    assert caught.value.row is None
    assert caught.value.located(row=12).row == 12


@pytest.mark.parametrize(
    ("short", "value"),
    [
        ("jpeg", b"\x89PNG\r\n\x1a\n"),
        ("text", "\ud800"),
        ("text", b"x"),
        ("bytes", "x"),
        ("uint8", 256),
        ("uint8", np.int64(-1)),
        ("float32", 1e39),
        ("float16", (1 << 11) + 1),
        ("int32[2]", [1, 1 << 31]),
        ("int32[2]", [1, 2.5]),
        ("int32[2]", [1, 2, 3]),
        ("int32[2]", np.zeros(3, np.int32)),
        ("uint8[?]", [-1]),
        ("uint8[?]", [1 << 80]),
        ("bytes[2]", [b"x"]),
        ("jpeg[?]", [b"\xff\xd8\xff", b"x"]),
    ],
    ids=str,
)
def test_a_plain_value_that_does_not_fit(short, value):
    with refused(SchemaError, "'x'"):
        record_codec({"x": short}).encode({"x": value})


@pytest.mark.parametrize("encode", [encode_example, encode_tensors])
def test_integers_that_no_type_holds_become_no_floats(encode):
    for value in ([2**63, -1], [[2**63], [-1]], (np.int64(-1), 2**63), [np.uint64(2**63), -1]):
        with refused(SchemaError, "'x'"):
            encode({"x": value})
    assert encode({"x": [2.0**63, -1]}), "one float among them says that they are floats"


@pytest.mark.parametrize(
    ("change", "kind", "complaint"),
    [
        ({"i": []}, SchemaError, "'i' is required"),
        ({"i": 1.5}, SchemaError, "'i' has the wrong kind.*expected int64, found float"),
        ({"i": [1, 2]}, SchemaError, "'i' has the wrong number"),
        ({"f": [1.0]}, SchemaError, "'f' has the wrong number.*expected 2, found 1"),
        ({"h": b"123"}, SchemaError, r"'h' has the wrong size.*float16\[2\], 4 bytes, found 3"),
        ({"h": [b"12", b"34"]}, SchemaError, "'h' has the wrong number"),
        ({"b": 2}, SchemaError, "'b' has the wrong kind.*expected bytes, found int64"),
        ({"b": b"\x01\x02"}, SchemaError, "'b' holds a byte that is not a bool.*found 2"),
        ({"r": b"123"}, SchemaError, "'r' has the wrong size.*multiple of 4 bytes, found 3"),
        ({"p": [1, 2, 3]}, SchemaError, r"'p' has the wrong size.*int64\[\?,2\], found 3"),
        ({"m/shape": [1, 1, 2]}, SchemaError, "'m' does not fit the shape.*4 elements"),
        ({"m/shape": [2, 2, 1]}, SchemaError, "'m' does not fit the shape"),
        ({"m/shape": [-1, -2, 2]}, SchemaError, "'m' does not fit the shape"),
        ({"m/shape": [1, 2]}, SchemaError, "'m/shape' has the wrong number"),
        ({"m/shape": []}, SchemaError, "'m/shape' is required"),
        ({"m": b"", "m/shape": [0, 2**41, 2]}, SchemaError, "'m' does not fit the shape"),
        ({"m": b"", "m/shape": [0, 2**62, 2]}, SchemaError, "'m' does not fit the shape"),
        ({"m/shape": [2**32, 2**32, 2]}, SchemaError, "'m' does not fit the shape"),
        ({"o/shape": [3, 2]}, SchemaError, "'o' does not fit the shape"),
        ({"t": b"\xff"}, CorruptRecordError, "'t' is damaged"),
        ({"j": b"{"}, CorruptRecordError, "'j' is damaged"),
        ({"j": b"NaN"}, CorruptRecordError, "'j' is damaged"),
        ({"j": b"[" * 100_000}, CorruptRecordError, "'j' is damaged"),
        ({"j": b"1" * 5000}, CorruptRecordError, "'j' is damaged"),
        ({"l": ["a"]}, SchemaError, "'l' has the wrong number"),
        ({"l": ["a", b"\xff"]}, CorruptRecordError, "'l' is damaged"),
        ({"d": b"123"}, SchemaError, "'d' has the wrong size"),
    ],
    ids=map(str, range(27)),
)
def test_a_record_that_does_not_fit(change, kind, complaint):
    good, bad = encode_example(STORED), encode_example({**STORED, **change})
    with pytest.raises(kind, match=complaint) as caught:
        CODEC.decode(bad)
    assert caught.value.row is None
    for read in (CODEC.decode_many, CODEC.decode_batch):
        with pytest.raises(kind, match=complaint) as caught:
            read([good, good, bad])
        assert caught.value.row == 2
    name = next(iter(change)).split("/")[0]
    with pytest.raises(kind, match=complaint):
        record_codec({name: SCHEMA[name]}).decode(bad)
    others = [other for other in SCHEMA if other != name]
    assert list(CODEC.decode(bad, features=others)) == others


def _message(payload, codec):
    try:
        return codec.decode(payload)
    except ShardioError as error:
        return type(error)


@settings(max_examples=max(50, settings().max_examples // 5), deadline=None)
@given(st.data())
@example(None)
def test_mutated_records_give_values_or_errors_of_the_tree_alike(data):
    payload = bytearray(CODEC.encode(GOOD))
    if data is not None:
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(payload) - 1))
            payload[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
            payload = payload or bytearray(b"?")
    one = _message(bytes(payload), CODEC)
    try:
        batch = {name: rows_of(column)[0] for name, column in CODEC.decode_batch([bytes(payload)]).items()}
    except (SchemaError, FormatError):
        # Of several faults each way finds its own first.
        assert isinstance(one, type)
    else:
        assert repr(one) == repr({name: batch[name] for name in SCHEMA})


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_refused_by_every_codec(garbage):
    codecs = [
        CODEC,
        record_codec(SCHEMA, encoding="tensors"),
        record_codec({"context": SCHEMA, "feature_lists": {"x": "uint8[?,?]"}}, encoding="sequence_example"),
        record_codec({"x": "bool[3]"}, encoding="array"),
        record_codec({"x": "json"}, encoding="bytes"),
    ]
    for codec in codecs:
        for read in (codec.decode_many, codec.decode_batch):
            try:
                read([garbage])
            except (SchemaError, FormatError) as error:
                assert error.row == 0  # noqa: PT017 - the error is one of several right outcomes


def test_an_array_record_of_another_size():
    codec = record_codec({"x": "float32[2]"}, encoding="array")
    with refused(SchemaError, "'x'") as caught:
        codec.decode_batch([b"12345678", b"1234567"])
    assert caught.value.row == 1
    with pytest.raises(SchemaError):
        record_codec({"x": "bool[2]"}, encoding="array").decode(b"\x00\x07")


def test_steps_and_their_shapes_must_agree():
    codec = record_codec({"context": {}, "feature_lists": {"m": "uint8[?,?]"}}, encoding="sequence_example")
    from shardio.codecs import encode_sequence_example

    bad = encode_sequence_example({"feature_lists": {"m": [b"ab"], "m/shape": [[1, 2], [1, 2]]}})
    good = codec.encode({"feature_lists": {"m": [np.ones((1, 2), np.uint8)] * 3}})
    for read in (codec.decode_many, codec.decode_batch):
        with refused(SchemaError, "'m'") as caught:
            read([good, bad])
        assert caught.value.row == 1
    worse = encode_sequence_example(
        {"feature_lists": {"m": [b"ab"] * 3, "m/shape": [[1, 2], [1, 2], [2, 2]]}}
    )
    with pytest.raises(SchemaError) as caught:
        codec.decode_batch([good, good, worse])
    assert caught.value.row == 2


def test_a_step_that_does_not_fit_names_the_step():
    codec = record_codec({"context": {}, "feature_lists": {"m": "int64"}}, encoding="sequence_example")
    with refused(SchemaError, "'m'"):
        codec.encode({"feature_lists": {"m": [1, "x"]}})
    with refused(SchemaError, "'m'"):
        codec.encode({"feature_lists": {"m": "ab"}})
    with refused(SchemaError, "'m'"):
        codec.encode({"context": {}})


def test_mistakes_of_the_caller():
    with pytest.raises(ValueError, match="needs a schema"):
        record_codec(None, encoding="array")
    with refused(ValueError, "'example'"):
        record_codec(Schema.parse({"a": "int64"}), encoding="tensors")
    with pytest.raises(SchemaError):
        record_codec(None).encode({"a": 1})
    for codec in (CODEC, record_codec({"x": "int64"}, encoding="array"), record_codec(None)):
        with pytest.raises(TypeError, match="one payload"):
            codec.decode_batch(b"abc")
        with pytest.raises(TypeError, match="make a list of it"):
            codec.decode_batch(iter([b"abc"]))
    with pytest.raises(IndexError):
        record_codec({"x": "int64"}, encoding="array").decode_batch((b"12345678", [4], [12]))
