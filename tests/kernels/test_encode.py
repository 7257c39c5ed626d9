"""Encoded Examples: byte for byte what protobuf writes in deterministic mode, and every value comes back."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio import kernels
from shardio.kernels import FeatureRequest, encode_sequence_example
from shardio.kernels._compiled import _encode
from shardio.v1 import example_pb2
from tests.kernels.differential import plain
from tests.kernels.messages import INTEGERS, WORDS
from tests.suites.errors import refused

# None begins with another: of such two upb's deterministic mode writes the longer one first, and shardio the
# shorter.
NAMES = st.sampled_from(["a", "b", "label", "naïve/日本", "n" * 126 + "x", "n" * 127 + "y"])
INT_LISTS = st.lists(
    st.one_of(st.sampled_from(INTEGERS), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=20
)
WORD_LISTS = st.lists(st.one_of(st.sampled_from(WORDS), st.integers(0, (1 << 32) - 1)), max_size=40)
BYTE_LISTS = st.lists(st.binary(max_size=150), max_size=5)


def int64s(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def float32s(words: list[int]) -> np.ndarray:
    return np.array(words, np.uint32).view(np.float32)


VALUES = st.one_of(INT_LISTS.map(int64s), WORD_LISTS.map(float32s), BYTE_LISTS)


def fill(feature, value) -> None:
    """Set one Feature message; floats by their wire form, because Python's floats lose signalling NaNs."""
    if value is None:
        return
    if isinstance(value, list):
        feature.bytes_list.SetInParent()
        feature.bytes_list.value.extend(value)
    elif value.dtype == np.int64:
        feature.int64_list.SetInParent()
        feature.int64_list.value.extend(value.ravel().tolist())
    else:
        feature.float_list.SetInParent()
        for word in value.ravel().view(np.uint32).tolist():
            feature.float_list.MergeFromString(b"\x0d" + struct.pack("<I", word))


def message(values: dict) -> bytes:
    record = example_pb2.Example()
    for name, value in values.items():
        fill(record.features.feature[name], value)
    return record.SerializeToString(deterministic=True)


@given(st.dictionaries(NAMES, st.one_of(VALUES, st.none()), max_size=5))
def test_one_example_is_what_protobuf_writes(values) -> None:
    assert kernels.encode_example(values) == message(values)


@given(st.data(), st.integers(0, 4))
def test_what_was_encoded_is_parsed_again(data, rows) -> None:
    """Rows of any length, or without the feature, for every kind, bit for bit."""
    drawn = {"int64": INT_LISTS.map(int64s), "float": WORD_LISTS.map(float32s), "bytes": BYTE_LISTS}
    kinds = data.draw(st.dictionaries(NAMES, st.sampled_from(sorted(drawn)), max_size=3))
    records = [{n: value for n, k in kinds.items() if (value := data.draw(st.none() | drawn[k])) is not None}
               for _ in range(rows)]  # fmt: skip
    encoded = [kernels.encode_example(record) for record in records]
    parsed = kernels.parse_examples(encoded, [FeatureRequest(n.encode(), k) for n, k in kinds.items()])
    assert parsed.mismatch is None
    for name, column in parsed.columns.items():
        lists = [record.get(name.decode(), []) for record in records]
        assert column.present.tolist() == [name.decode() in record for record in records]
        assert column.offsets.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
        found = plain(column)["values"]
        if column.kind == "bytes":
            assert found == [value for values in lists for value in values]
        else:
            assert found[-1] == b"".join(values.tobytes() for values in lists if len(values))


@given(
    st.dictionaries(NAMES, st.one_of(VALUES, st.none()), max_size=3),
    st.dictionaries(NAMES, st.lists(st.one_of(VALUES, st.none()), max_size=4), max_size=3),
)
def test_a_sequence_example_is_what_protobuf_writes(context, lists) -> None:
    record = example_pb2.SequenceExample()
    for name, value in context.items():
        fill(record.context.feature[name], value)
    for name, steps in lists.items():
        series = record.feature_lists.feature_list[name].feature
        for value in steps:
            fill(series.add(), value)
    assert encode_sequence_example(context, lists) == record.SerializeToString(deterministic=True)


def test_arrays_of_any_shape(kernels) -> None:
    """An array gives all its values in C order, however it is in memory."""
    array = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    for form in (array, np.asfortranarray(array), np.repeat(array, 2, axis=2)[..., ::2]):
        assert [kernels.encode_example({"x": row}) for row in form] == [message({"x": row}) for row in array]


def test_features_stand_in_the_order_of_their_names(kernels) -> None:
    """The same values give the same bytes, whatever order they are given in; the empty name comes first."""
    names = ["b", "", "ab", "a", "ä", "Z", "日本", "\U0001f426"]
    expected = b"".join(kernels.encode_example({name: 1})[2:] for name in sorted(names, key=str.encode))
    assert kernels.encode_example(dict.fromkeys(names, 1))[2:] == expected


def test_single_values_stand_for_lists_of_one(kernels) -> None:
    found = kernels.encode_example({"i": -3, "f": 1.5, "b": b"x", "t": True})
    assert found == message(
        {"i": int64s([-3]), "f": np.array([1.5], np.float32), "b": [b"x"], "t": int64s([1])}
    )
    infinite = message({"f": np.array([np.inf], np.float32)})
    assert kernels.encode_example({"f": 1e300}) == infinite
    assert kernels.encode_example({}) == b""
    assert kernels.encode_example({"i": np.array(7)}) == message({"i": int64s([7])})


@given(
    st.sampled_from(["float", "int64", "bytes", "text"]),
    st.none() | st.integers(0, 3),
    st.lists(st.floats() | st.sampled_from([3.4028236e38, -0.0]), max_size=4)
    | st.lists(st.integers(-(1 << 64), 1 << 64) | st.sampled_from(INTEGERS), max_size=80)
    | st.lists(st.binary(max_size=150), max_size=4)
    | st.lists(st.text(max_size=4) | st.just("\ud800"), max_size=4)
    | st.lists(st.sampled_from([1, 1.5, b"a", "a", True, None, np.bytes_(b"a"), np.float64(1)]), max_size=3),
)
def test_lists_are_packed_as_they_would_be_encoded(kind, size, items) -> None:
    """Or left alone: what is of another type, number or range.  `encode_example` takes what was packed."""
    types = {"float": float, "int64": int, "bytes": bytes, "text": str}
    fits = size in (None, len(items)) and all(type(item) is types[kind] for item in items)
    fits = fits or (
        kind == "bytes" and size in (None, len(items)) and all(isinstance(i, bytes) for i in items)
    )
    if kind == "float" and fits:
        with np.errstate(over="ignore"):
            value = np.array(items).astype(np.float32)
        fits = not (np.isinf(value) & np.isfinite(np.array(items))).any()
    elif kind == "int64" and fits:
        fits = all(-(1 << 63) <= item < 1 << 63 for item in items)
        value = int64s(items) if fits else None
    elif kind == "text" and fits:
        fits = "\ud800" not in items
        value = [item.encode() for item in items] if fits else None
    else:
        value = items
    packed = kernels.pack_list(kind, size, items)
    assert (packed is not None) == fits
    if packed is not None:
        assert kernels.encode_example({"x": packed}) == message({"x": value})
        assert encode_sequence_example({"x": packed}, {}) == encode_sequence_example({"x": value}, {})


@pytest.mark.parametrize(
    "value",
    [
        "text",
        [1],
        (1, "x"),
        (4, b"x"),
        [b"x", 1],
        (b"x",),
        np.zeros(1),
        np.zeros(1, np.int32),
        {},
        object(),
        bytearray(b"x"),
    ],
)
def test_a_value_of_another_type_is_refused(kernels, value) -> None:
    with refused(TypeError, "int, float, bytes"):
        kernels.encode_example({"a": value})
    with refused(TypeError, "int, float, bytes"):
        encode_sequence_example({}, {"a": [value]})


def test_names_are_text_and_ints_have_64_bits(kernels) -> None:
    with refused(TypeError, "feature"):
        kernels.encode_example({b"a": 1})
    for value in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            kernels.encode_example({"a": value})


def test_messages_beyond_protobufs_limit_are_refused(kernels, monkeypatch) -> None:
    monkeypatch.setattr(_encode, "MAX_MESSAGE", 1000)
    with pytest.raises(ValueError, match="the record would take"):
        kernels.encode_example({"a": b"x" * 1000})
