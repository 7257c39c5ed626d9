"""The schema as a value: short strings, fitting values, storing, evolution."""

from __future__ import annotations

import contextlib
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError, SchemaError, UnsupportedVersionError
from shardio.metadata import Feature, Schema
from shardio.v1 import manifest_pb2
from tests.suites.errors import refused

NUMBERS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
]
FILES = ["bytes", "text", "image", "jpeg", "png", "webp", "tiff"]


@pytest.mark.parametrize(
    ("short", "name", "shape"),
    [
        ("int64", "int64", ()),
        ("float32[16]", "float32", (16,)),
        ("uint8[224,224,3]", "uint8", (224, 224, 3)),
        ("int32[?]", "int32", (None,)),
        ("uint8[?, ?,3]", "uint8", (None, None, 3)),
        ("text[?]", "text", (None,)),
    ],
)
def test_short_strings(short, name, shape):
    feature = Feature(short)
    assert (feature.type, feature.shape) == (name, shape)
    assert feature.short == short.replace(" ", "")
    assert Feature(feature.short) == feature
    assert Feature(name, shape=shape) == feature


@given(
    st.sampled_from(NUMBERS),
    st.lists(st.none() | st.integers(1, 9), max_size=5).map(tuple),
)
def test_printing_is_the_inverse_of_parsing(name, shape):
    feature = Feature(name, shape=shape)
    assert Feature(feature.short) == feature
    assert (Feature(feature.short).type, Feature(feature.short).shape) == (name, shape)


@pytest.mark.parametrize(
    "odd",
    [
        *(
            "",
            " ",
            "integer",
            "Int64",
            "int65",
            "int64[",
            "int64]",
            "int64[]",
            "int64[,]",
            "int64[0]",
        ),
        *(
            "int64[-1]",
            "int64[1e3]",
            "int64[3",
            "int64[3]]",
            "int64[3][3]",
            "int64 [3]",
            "int64[\u0663]",
            "int64\n",
        ),
        *(
            "int64[99999999999]",
            "uint8[99999999,99999]",
            "json[3]",
            "text[2,3]",
            "jpeg[?,?]",
            "datetime64",
            "object",
        ),
        *("__class__", "int64[" + "1," * 40 + "1]", "a" * 10_000, "\u0130nt64", "longdouble", "None"),
    ],
)
def test_hostile_and_odd_strings_name_the_feature(odd):
    with refused(ValueError, "'thing'") as caught:
        Schema.parse({"thing": odd})
    assert len(str(caught.value)) < 500


@given(st.text(max_size=40))
def test_any_text_is_a_type_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert Feature(text).short


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "\ud800", "x" * 1025, "_position", "_valid"])
def test_odd_names(name):
    with refused(ValueError, "feature"):
        Schema.parse({name: "int64"})


@pytest.mark.parametrize(
    ("given", "means"),
    [
        (int, "int64"),
        (float, "float64"),
        (bool, "bool"),
        (str, "text"),
        (bytes, "bytes"),
        (complex, "complex128"),
        (np.float32, "float32"),
        (np.uint8, "uint8"),
        (np.dtype(">i4"), "int32"),
        (np.dtype("?"), "bool"),
        ("float", "float64"),
        ("double[2]", "float64[2]"),
        ("int[?]", "int64[?]"),
        ("str", "text"),
        ("string[?]", "text[?]"),
        ("boolean", "bool"),
    ],
    ids=repr,
)
def test_names_of_types_that_python_and_numpy_have(given, means):
    assert Schema.parse({"a": given}) == Schema.parse({"a": means})
    assert Feature(given).short == means


def test_an_alias_in_a_manifest_is_a_type_of_a_newer_version():
    message = Schema.parse({"a": "float64"}).to_message()
    message.features[0].type = "float"
    with refused(UnsupportedVersionError, "'float'"):
        Schema.from_message(message)


def test_the_callers_other_mistakes():
    with pytest.raises(TypeError, match="name is a str"):
        Schema.parse({3: "int64"})
    assert Schema({"a": "float", "b": int}) == Schema.parse({"a": "float64", "b": "int64"})
    with refused(TypeError, "'a'"):
        Schema.parse({"a": 7})
    with refused(TypeError, "mapping"):
        Schema.parse(["a"])
    with pytest.raises(TypeError, match="short string"):
        Feature(object)
    with refused(ValueError, "once"):
        Feature("int64[3]", shape=(3,))
    with refused(ValueError, "'avro'"):
        Schema.parse({"a": "int64"}, encoding="avro")
    with pytest.raises(ValueError, match="at most 10000"):
        Schema.parse({str(i): "int64" for i in range(10_001)})
    with pytest.raises(AttributeError):
        Feature("int64").shape = (3,)
    with refused(ValueError, "'a/shape'"):
        Schema.parse({"a": "uint8[?,?]", "a/shape": "int64[2]"})


@pytest.mark.parametrize(
    ("encoding", "mapping", "complaint"),
    [
        ("array", {"a": "int64", "b": "int64"}, "one required feature"),
        ("array", {"a": "int64[?]"}, "one required feature"),
        ("array", {"a": "text"}, "one required feature"),
        ("array", {}, "one required feature"),
        ("bytes", {"a": "int64"}, "one required bytes"),
        ("bytes", {"a": "bytes", "b": "bytes"}, "one required bytes"),
        ("tensors", {"a": "uint64"}, "'a': TensorProto has no type for uint64"),
        ("sequence_example", {"a": "int64"}, "context"),
        ("sequence_example", {}, "context"),
    ],
)
def test_what_an_encoding_cannot_hold(encoding, mapping, complaint):
    with pytest.raises(ValueError, match=complaint):
        Schema.parse(mapping, encoding=encoding)


def test_a_schema_of_sequences():
    mapping = {"context": {"id": "int64"}, "feature_lists": {"frame": "jpeg", "box": "float32[4]"}}
    schema = Schema.parse(mapping, encoding="sequence_example")
    assert list(schema) == ["id"]
    assert list(schema.sequence_features) == ["frame", "box"]
    assert Schema.from_message(schema.to_message()) == schema
    with pytest.raises(ValueError, match="feature lists need"):
        Schema({}, sequence_features=schema.sequence_features)


def test_a_schema_is_a_value():
    mapping = {
        "image": "jpeg",
        "label": Feature("int64", default=-1),
        "tags": Feature("text[?]", default=["a", "ü"]),
        "nothing": Feature("int32[?]", default=[]),
        "many": Feature("float64[?,?]", default=[[1.0, float("nan")]]),
        "note": Feature("json", default={"a": [1, None]}),
        "may": Feature("bytes", optional=True),
        "bits": Feature("bfloat16", default=1.5),
    }
    schema = Schema.parse(mapping)
    same = [
        Schema.parse(mapping),
        pickle.loads(pickle.dumps(schema)),
        Schema.from_message(schema.to_message()),
    ]
    for other in same:
        assert other == schema
        assert hash(other) == hash(schema)
        assert list(other) == list(schema)
    assert Schema.parse(schema) is schema
    assert schema["label"].default == -1
    assert schema["label"].optional
    assert schema["tags"].default == ["a", "ü"]
    assert schema["many"].default.shape == (1, 2)
    assert schema["note"].default == {"a": [1, None]}
    assert schema["bits"].default == 0x3FC0
    assert schema["may"].default is None
    assert schema != Schema.parse({**mapping, "label": Feature("int64", default=0)})
    schema["many"].default[0] = 7  # a caller's copy
    assert schema["many"].default[0, 0] == 1.0


@pytest.mark.parametrize(
    ("short", "default"),
    [("int64", "x"), ("int8", 300), ("float32[2]", [1]), ("text", b"x"), ("bytes", "x"), ("json", {1, 2})],
)
def test_a_default_must_fit(short, default):
    with pytest.raises(ValueError, match="default does not fit"):
        Feature(short, default=default)


def test_a_default_is_kept_in_every_manifest_and_so_is_small():
    with pytest.raises(ValueError, match="kept in every manifest"):
        Feature("bytes", default=b"x" * (1 << 20) + b"x")


@pytest.mark.parametrize(
    ("short", "value", "found"),
    [
        ("int64", 3.5, "3.5"),
        ("int64", "3", "str of length 1"),
        ("int64", None, "None"),
        ("int64", [3], r"int64\[1\]"),
        ("int64", np.array([3]), r"int64\[1\]"),
        ("int64", 2**63, "9223372036854775808"),
        ("int64", 2**64, "int 18446744073709551616"),
        ("uint8", -1, "-1"),
        ("uint8[2]", [1, 256], "256"),
        ("bool", 1, "int64 1"),
        ("float32", 1e39, "infinity"),
        ("float32", 2**24 + 1, "cannot hold exactly"),
        ("float64", 2**53 + 1, "cannot hold exactly"),
        ("float16", 70000, "cannot hold exactly"),
        ("float16", 2**60, "cannot hold exactly"),
        ("float32", 2**63 - 1, "cannot hold exactly"),
        ("float32", 1j, "complex"),
        ("float32[3]", [[1, 2, 3]], r"int64\[1,3\]"),
        ("float32[?]", [[1], [2, 3]], "list of length 2"),
        ("float32[2]", np.ma.masked_array([1.0, 2.0], [True, False]), "masked"),
        ("float32[2,2]", [[1.0, 2.0], np.ma.masked_array([1.0, 2.0], [True, False])], "masked"),
        ("int64[1,2]", (np.ma.masked_array([1, 2], [True, False]),), "masked"),
        ("float32[2]", {1.0, 2.0}, "set"),
        # NumPy makes floats of integers that are beside floats, and of those on both sides of 2**63.
        ("float64[2]", [2**53 + 1, 0.5], "9007199254740993, which float64 cannot hold exactly"),
        ("float64[2,2]", [[1, 0.5], np.array([2**53 + 1, 3])], "9007199254740993"),
        ("float64[2]", [np.uint64(2**63 + 1), -1], "9223372036854775809"),
        ("float32[2]", [float("nan"), 2**24 + 1], "16777217, which float32 cannot hold exactly"),
        ("complex64[2]", (2**24 + 1, 1j), "16777217"),
        ("float16[2]", [2049, 0.5], "2049"),
        ("bfloat16[2]", [257, 0.5], "257"),
        ("bfloat16", 3, "int64 3"),
        ("bfloat16", 3.4e38, "infinity"),
        ("text", b"x", "bytes of length 1"),
        ("text", "\ud800", "surrogate"),
        ("text[?]", "abc", "str of length 3"),
        ("text[2]", ["a"], "1 items"),
        ("bytes", "x", "str of length 1"),
        ("bytes", np.zeros(3, np.uint8), r"uint8\[3\]"),
        ("jpeg", np.zeros((2, 2, 3), np.float32), r"float32 \[2, 2, 3\]"),
        ("json", {"a": object()}, "object"),
        ("json", float("nan"), "nan"),
        pytest.param("json", 10**5000, "int of 16610 binary digits", id="json of 5000 digits"),
        pytest.param("int64", 10**5000, "int of 16610 binary digits", id="int64 of 5000 digits"),
    ],
)
def test_a_value_that_does_not_fit_names_the_feature(short, value, found):
    with refused(SchemaError, "'box'") as caught:
        Feature(short).fit(value, "box")
    assert caught.value.expected is not None
    assert caught.value.found is not None
    assert re.search(found, str(caught.value)), str(caught.value)
    assert caught.value.located(row=7).row == 7


def test_deep_json_is_a_schema_error_not_a_recursion_error():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SchemaError):
        Feature("json").fit(value, "doc")


@pytest.mark.parametrize(
    ("short", "value", "bits"),
    [
        ("int64", True, 1),
        ("int64", np.uint8(7), 7),
        ("uint8", np.int64(255), 255),
        ("float32", 3, 3.0),
        ("float32", 2**24, 2.0**24),
        ("float64", np.float32(0.1), float(np.float32(0.1))),
        ("float32", 0.1, np.float32(0.1)),
        ("float32", float("inf"), np.inf),
        ("complex64", 2.5, 2.5),
        ("bfloat16", 1.0, 0x3F80),
        ("bfloat16", np.uint16(0x7FC1), 0x7FC1),
        ("bfloat16", float("-inf"), 0xFF80),
        ("bfloat16", 1.00390625, 0x3F80),  # half way: to even
        ("bfloat16", 1.01171875, 0x3F82),
    ],
)
def test_a_value_that_fits_without_loss(short, value, bits):
    stored = Feature(short).fit(value, "x")
    assert stored.shape == ()
    assert stored.dtype == Feature(short).dtype
    assert stored == bits


def test_a_bfloat16_nan_stays_a_nan():
    stored = Feature("bfloat16[2]").fit(np.array([np.nan, -np.nan]), "x")
    assert ((stored & 0x7FFF) > 0x7F80).all()


def test_an_empty_list_is_any_empty_array():
    assert Feature("int32[?]").fit([], "x").dtype == np.int32
    assert Feature("uint8[?,3]").fit([], "x").shape == (0, 3)
    assert Feature("uint8[?,?,3]").fit([], "x").shape == (0, 0, 3)
    with pytest.raises(SchemaError):
        Feature("uint8[2]").fit([], "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"a": Feature("int64", default=0)}),
        ({}, {"a": Feature("int64", optional=True)}),
        ({"a": "int64", "b": "text"}, {"b": "text"}),
        ({"a": "int64"}, {"a": Feature("int64", default=3)}),
        ({"a": Feature("int64", default=3)}, {"a": Feature("int64", default=4)}),
        ({"a": "int64[3]"}, {"a": "int64[?]"}),
        ({"a": "int64[3,4]"}, {"a": "int64[?,4]"}),
        ({"a": "int64[?,4,?]"}, {"a": "int64[?,?,?]"}),
        ({"a": "jpeg"}, {"a": "image"}),
        ({"a": "png"}, {"a": "bytes"}),
        ({"a": "json"}, {"a": "text"}),
        ({"a": "text[2]"}, {"a": "bytes[?]"}),
    ],
)
def test_changes_that_older_records_survive(old, new):
    older, newer = Schema.parse(old), Schema.parse(new)
    assert newer.incompatibility(older) is None
    newer.check_reads(older)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({}, {"a": "int64"}, "'a': it is new and required"),
        ({"a": Feature("int64", optional=True)}, {"a": "int64"}, "'a': older records may lack it"),
        ({"a": "int64"}, {"a": "int32"}, "'a': its type changes from int64 to int32"),
        ({"a": "int32"}, {"a": "int64"}, "'a': its type changes"),
        ({"a": "image"}, {"a": "jpeg"}, "'a': its type changes"),
        ({"a": "bytes"}, {"a": "text"}, "'a': its type changes"),
        ({"a": "int64[?]"}, {"a": "int64[3]"}, "'a': its shape changes"),
        ({"a": "int64[3]"}, {"a": "int64[4]"}, "'a': its shape changes"),
        ({"a": "int64[3]"}, {"a": "int64[3,1]"}, "'a': its shape changes"),
        ({"a": "int64[3,4]"}, {"a": "int64[?,?]"}, "'a': its shape changes"),
        ({"a": "int64"}, {"a": "int64[?]"}, "'a': its shape changes"),
    ],
)
def test_an_incompatible_change_is_a_schema_error(old, new, reason):
    """Older records are read through the newest schema by its defaults; incompatible is SchemaError."""
    older, newer = Schema.parse(old), Schema.parse(new)
    with pytest.raises(SchemaError, match=reason):
        newer.check_reads(older)


def test_the_encoding_does_not_change():
    older = Schema.parse({"a": "int64"}, encoding="tensors")
    with pytest.raises(SchemaError):
        Schema.parse({"a": "int64"}).check_reads(older)


def _message(**fields):
    message = Schema.parse({"a": Feature("int64[?]", default=[1, 2])}).to_message()
    for name, value in fields.items():
        target = message if name == "encoding" else message.features[0]
        if isinstance(value, list):
            del getattr(target, name)[:]
            getattr(target, name).extend(value)
        else:
            setattr(target, name, value)
    return message


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "\x00"},
        {"shape": [0]},
        {"shape": [-2]},
        {"shape": [2**62]},
        {"shape": [2, 2]},
        {"shape": [3]},
        {"shape": [-1] * 40},
        {"default": []},
        {"default": [b"", b""]},
        {"default": [b"x" * 15]},
        {"default_shape": [3]},
        {"default_shape": [2**63, 2**63]},
        {"default_shape": []},
        {"type": "text"},
        {"type": "json", "shape": [], "default": [b"{"]},
        {"type": "text", "shape": [], "default": [b"\xff"]},
    ],
)
def test_a_damaged_stored_schema(fields):
    message = _message(**fields)
    if fields == {"type": "text"}:
        message.features[0].default[0] = b"\xff"
    with pytest.raises(FormatError):
        Schema.from_message(message)


def test_the_same_feature_twice():
    message = _message()
    message.features.append(message.features[0])
    with refused(FormatError, "twice"):
        Schema.from_message(message)


def test_too_many_stored_features():
    message = manifest_pb2.Schema(encoding="example")
    for number in range(10_001):
        message.features.add(name=str(number), type="int64")
    with pytest.raises(FormatError):
        Schema.from_message(message)


def test_integers_beside_floats_fit_where_they_are_exact() -> None:
    fitted = Feature("float64[4]").fit([2**53, 2**62, -(2**63), 0.5], "x")
    assert fitted.tolist() == [2**53, 2**62, -(2**63), 0.5]
    assert Feature("float32[3]").fit([float(2**24 + 1), 1e30, 3], "x").tolist()[0] == 2**24
    assert Feature("bfloat16[2]").fit([256, 0.5], "x").tolist() == [0x4380, 0x3F00]


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan")
def test_a_masked_item_of_a_list_is_no_nan() -> None:
    with pytest.raises(SchemaError):
        Feature("float32[2]").fit([1.0, np.ma.masked], "x")
