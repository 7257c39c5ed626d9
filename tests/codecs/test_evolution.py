"""Older records are read through the newest schema by its defaults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.codecs import RaggedColumn, record_codec
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema
from tests.codecs._values import features, rows_of, same, values
from tests.suites.errors import refused

ENCODINGS = ["example", "tensors"]
OLD = {"a": "int64"}
DEFAULTS = {
    "number": Feature("int64", default=-7),
    "float": Feature("float32", default=0.5),
    "half": Feature("float16", default=0.5),
    "vector": Feature("int16[2]", default=[3, 4]),
    "ragged": Feature("int64[?]", default=[1, 2, 3]),
    "bytes_ragged": Feature("uint8[?]", default=[1, 2]),
    "own_two": Feature("int64[?,?]", default=[[1, 2]]),
    "two": Feature("uint8[?,?,2]", default=[[[1, 2], [3, 4]]]),
    "inner": Feature("float32[2,?]", default=[[1.0], [2.0]]),
    "text": Feature("text", default="ü"),
    "texts": Feature("text[?]", default=["a", "b"]),
    "pair": Feature("bytes[2]", default=[b"\0", b""]),
    "json": Feature("json", default={"a": None}),
    "image": Feature("jpeg", default=b"\xff\xd8"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_new_feature_has_its_default_in_older_records(encoding):
    older = Schema.parse(OLD, encoding=encoding)
    newer = Schema.parse({**OLD, **DEFAULTS}, encoding=encoding)
    newer.check_reads(older)
    old, new = record_codec(older), record_codec(newer)
    full = {
        "a": 2,
        **{name: feature.default for name, feature in DEFAULTS.items()},
        "number": 9,
        "ragged": [],
        "two": np.zeros((0, 3, 2), np.uint8),
        "texts": [],
    }
    payloads = [old.encode({"a": 1}), new.encode(full), old.encode({"a": 3})]
    batch = {name: rows_of(column) for name, column in new.decode_batch(payloads).items()}
    for number, payload in enumerate(payloads):
        value = new.decode(payload)
        many = new.decode_many(payloads)[number]
        assert value["a"] == [1, 2, 3][number]
        for name, feature in DEFAULTS.items():
            wanted = full[name] if number == 1 else feature.default
            wanted = np.asarray(wanted, feature.dtype) if feature.dtype is not None else wanted
            for got in (value[name], many[name], batch[name][number]):
                assert same(feature, got, wanted), (name, got)
    # and the old program skips what it does not know
    assert old.decode(payloads[1]) == {"a": 2}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_optional_feature_without_default_reads_as_none(encoding):
    shapes = {
        "n": "int64",
        "h": "float16[2]",
        "r": "int64[?]",
        "q": "int8[?]",
        "t": "text",
        "l": "text[?]",
        "i": "jpeg",
    }
    schema = {"a": "int64", **{name: Feature(short, optional=True) for name, short in shapes.items()}}
    codec = record_codec(schema, encoding=encoding)
    full = {"a": 2, "n": 1, "h": [1, 2], "r": [1], "q": [2], "t": "", "l": [], "i": b"\xff\xd8\xff"}
    payloads = [codec.encode({"a": 1}), codec.encode(full), codec.encode({**dict.fromkeys(shapes), "a": 3})]
    for found in (codec.decode_many(payloads), [codec.decode(payload) for payload in payloads]):
        for row in (0, 2):
            assert [found[row][name] for name in shapes] == [None] * len(shapes)
        assert found[1]["t"] == ""
        assert found[1]["l"] == []
    batch = codec.decode_batch(payloads, features=["r", "q", "t", "l", "i"])
    assert isinstance(batch["r"], RaggedColumn)
    assert [row.tolist() for row in batch["r"]] == [[], [1], []]
    assert [row.tolist() for row in batch["q"]] == [[], [2], []]
    assert batch["t"] == [None, "", None]
    assert batch["l"] == [None, [], None]
    assert batch["i"] == [None, b"\xff\xd8\xff", None]
    for name in ("n", "h"):
        with pytest.raises(SchemaError, match=f"'{name}' is missing.*default") as caught:
            codec.decode_batch([payloads[1], payloads[0]], features=[name])
        assert caught.value.row == 1


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("int64[3]", "int64[?]", np.array([1, 2, 3])),
        ("int16[2,3]", "int16[?,3]", np.ones((2, 3), np.int16)),
        ("float32[2,3]", "float32[2,?]", np.ones((2, 3), np.float32)),
        ("uint8[?,2,?]", "uint8[?,?,?]", np.ones((1, 2, 3), np.uint8)),
        ("jpeg", "image", b"\xff\xd8\xff"),
        ("text", "bytes", "ü"),
        ("json", "text", "x"),
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_widened_feature_reads_older_records(encoding, old, new, value):
    older, newer = (Schema.parse({"x": short}, encoding=encoding) for short in (old, new))
    newer.check_reads(older)
    payload = record_codec(older).encode({"x": value})
    expected = {"text": "ü".encode(), "json": '"x"'}.get(old, value)
    got = record_codec(newer).decode(payload)["x"]
    assert same(newer["x"], got, expected)
    assert same(newer["x"], rows_of(record_codec(newer).decode_batch([payload])["x"])[0], expected)


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.data())
def test_compatible_schemas_read_each_others_records(data):
    """What `incompatibility` allows can be read; found by drawing schemas, not by listing changes."""
    old = {name: data.draw(features()) for name in "ab"}
    new = {name: data.draw(st.sampled_from(list(old.values())) | features()) for name in "ab"}
    older, newer = Schema(old), Schema(new)
    if newer.incompatibility(older) is None:
        record = {name: data.draw(values(feature)) for name, feature in old.items()}
        payload = record_codec(older).encode(record)
        assert set(record_codec(newer).decode(payload)) == set(new)
        record_codec(newer).decode_batch([payload])


def test_an_optional_feature_list_has_no_steps_where_it_is_missing():
    schema = {
        "context": {"n": Feature("int64", default=4)},
        "feature_lists": {"f": Feature("text", optional=True)},
    }
    codec = record_codec(schema, encoding="sequence_example")
    assert codec.decode(codec.encode({})) == {"context": {"n": 4}, "feature_lists": {"f": []}}
    batch = codec.decode_batch([b"", codec.encode({"feature_lists": {"f": ["x"]}})])
    assert rows_of(batch["feature_lists"]["f"]) == [[], ["x"]]
    with refused(ValueError, "'f'"):
        Schema({}, encoding="sequence_example", sequence_features={"f": Feature("text", default="")})
