"""What needs no fitting is stored as `Feature.fit` would have it: one law for every type and value."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from shardio.codecs import record_codec
from shardio.codecs._layout import ExampleLayout
from shardio.errors import SchemaError
from shardio.kernels import encode_example
from shardio.metadata import Feature
from tests.codecs._values import NUMBERS, SHAPES, arrays

ANY_INT = st.integers(-(2**65), 2**65) | st.sampled_from([0, 1, 255, 2**24, 2**24 + 1, 2**53 + 1, -(2**63)])
ANY_FLOAT = st.floats(width=64) | st.sampled_from([3.4e38, 3.5e38, 65504.0, 65520.0, -0.0, 5e-324])
DTYPES = [np.dtype(name) for name in NUMBERS if name != "bfloat16"]
NUMPY = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays(dtype, ()).map(lambda array: array[()]))
PLAIN = st.booleans() | ANY_INT | ANY_FLOAT | NUMPY
ARRAYS = st.tuples(st.sampled_from(DTYPES), st.sampled_from([(3,), (2, 3), (1, 2), (0,), (2, 0)])).flatmap(
    lambda each: arrays(*each)
)
TEXTS = st.text(max_size=4) | st.binary(max_size=4) | st.just("\ud800")
VALUES = PLAIN | TEXTS | st.none() | ARRAYS | st.lists(PLAIN, max_size=4) | st.lists(TEXTS, max_size=4)
FEATURES = st.builds(
    lambda name, shape: Feature(name, shape=shape), st.sampled_from(NUMBERS), st.sampled_from(SHAPES)
) | st.sampled_from(
    [
        *(
            Feature(name + shape)
            for name in ("text", "bytes", "jpeg", "image")
            for shape in ("", "[?]", "[2]")
        ),
        *(Feature("int64" + shape, classes=["ant", "bee"]) for shape in ("", "[?]")),
        Feature("uint8", classes=["ant", "bee"]),
        Feature("jpeg", default=b""),
        Feature("json"),
    ]
)


def stored(layout: ExampleLayout, value: Any) -> Any:
    """The Example of the value, or the error."""
    entries: dict[str, Any] = {}
    try:
        layout.encode(value, entries)
    except SchemaError as error:
        return str(error)
    return encode_example(entries)


@pytest.mark.slow
@settings(max_examples=max(200, settings().max_examples * 5), deadline=None)
@given(FEATURES, VALUES)
@example(Feature("float32"), np.array([0x7F800001], np.uint32).view(np.float32)[0])  # a signalling NaN
@example(Feature("float64"), np.array([0x7FF0000000000001], np.uint64).view(np.float64)[0])
@example(Feature("float16"), np.array([0x7C01], np.uint16).view(np.float16)[0])
@example(Feature("float32[1]"), np.array([3.4028236e38]))
@example(Feature("float32[2]"), np.array([np.nan, 1]))
@example(Feature("float32[?]"), [1.0, 2**24 + 1])
@example(Feature("float32[?]"), [1e39])
@example(Feature("float32"), 2**24 + 1)
@example(Feature("float32"), np.int64(2**24 + 1))
@example(Feature("float64"), 2**53 + 1)
@example(Feature("float32"), 3.4028236e38)
@example(Feature("float16"), 65520.0)
@example(Feature("float32"), np.float64(1e39))
@example(Feature("bfloat16"), np.empty(0, np.complex64))
@example(Feature("int8[?]"), np.empty(0, np.complex64))
@example(Feature("int8"), 128)
@example(Feature("int8"), -129)
@example(Feature("int64", classes=["ant", "bee"]), -1)
@example(Feature("uint8"), np.int64(-1))
@example(Feature("int64"), np.uint64(2**63))
@example(Feature("int64", classes=["ant", "bee"]), 2)
@example(Feature("int64", classes=["ant", "bee"]), np.int64(-1))
@example(Feature("float32[1]"), np.array([2**24 + 1], np.int32))
@example(Feature("uint8[1]"), np.array([256], np.int16))
@example(Feature("text[?]"), ["a", "\ud800"])
@example(Feature("bytes[2]"), [b"a"])
@example(Feature("jpeg[?]"), [b"\xff\xd8\xff", b"hello"])
@example(Feature("int64[?]"), [2**63])
@example(Feature("int64[?]"), [True, 1])
@example(Feature("int64"), "bee")
@example(Feature("float64[?]"), [1.0, 2**53 + 1])
@example(Feature("float16[?]"), [65520.0])
@example(Feature("float32[?]"), [float("inf"), float("nan"), 3.4028236e38])
@example(Feature("uint8[2]"), [256, 1])
@example(Feature("int32[2]"), [1, 2, 3])
@example(Feature("bytes[?]"), [np.bytes_(b"a"), b"b"])
@example(Feature("text[?]"), [np.str_("a"), "b"])
@example(Feature("float32[?,?]"), np.ones((2, 2)).T)
def test_it_is_what_fitting_gives(feature, value) -> None:
    fast, slow = ExampleLayout("x", feature), ExampleLayout("x", feature)
    slow._direct = {}
    assert stored(fast, value) == stored(slow, value)


@pytest.mark.parametrize(
    ("short", "value"),
    [
        ("float32", 0.5), ("float32", np.float32(0.5)), ("float32", np.float64(0.5)), ("float32", 3),
        ("float64", 0.5), ("float16", 0.5), ("int64", 3), ("int64", np.int64(3)), ("int64", np.int32(3)),
        ("uint8", 3), ("uint8", np.uint8(3)), ("bool", True), ("bool", np.True_), ("text", "ü"),
        ("bytes", b"x"), ("jpeg", b"\xff\xd8\xff"), ("float32[2]", [0.5, 1.5]), ("float32[?]", [0.5, 1.5]),
        ("int64[2]", [1, 2]), ("int64[?]", [1, 2]), ("float32[2]", np.ones(2)), ("float32[?]", np.ones(2)),
        ("int64[?]", np.ones(2, np.int32)), ("uint8[?,?,3]", np.zeros((2, 2, 3), np.uint8)),
        ("text[?]", ["a", "ü"]), ("bytes[2]", [b"a", b"b"]), ("jpeg[?]", [b"\xff\xd8\xff"]), ("text[?]", []),
        ("float64[2]", [0.5, 1.5]), ("float16[?]", [0.5]), ("uint8[?]", [0, 255]), ("int32[2]", [-1, 1]),
        ("float32[?]", []), ("int64[?]", []), ("float64[?]", []),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_plain_values_are_not_fitted(short, value) -> None:
    """What most records are made of costs no call of `fit`, which takes several times as long as protobuf."""
    codec = record_codec({"x": short})
    expected = codec.encode({"x": value})
    with mock.patch.object(Feature, "fit", side_effect=AssertionError):
        assert codec.encode({"x": value}) == expected
