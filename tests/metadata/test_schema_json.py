"""The one reader of schema JSON: whatever a Feature says comes through, and errors name the feature."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

from shardio.metadata import Feature, Schema, parse_schema_json
from tests.metadata.test_schema import FILES, NUMBERS
from tests.suites.errors import refused

FEATURES = [
    *(Feature(name) for name in (*NUMBERS, *FILES, "json")),
    *(Feature(name, optional=True) for name in (*NUMBERS, *FILES, "json")),
    *(
        Feature(f"{name}[?,2]", default=[[name == "bool" or 1.0] * 2])
        for name in NUMBERS
        if "int" not in name
    ),
    *(Feature(f"{name}[?,2]", default=[[1, 0], [0, 1]]) for name in NUMBERS if "int" in name),
    *(Feature(f"{name}[2]", default=[b"\xff", b""]) for name in FILES if name != "text"),
    Feature("text[?]", default=["é", "NaN"]),
    Feature("text", default="Infinity"),
    Feature("json", default={"$base64": "aGFsbG8="}),
    Feature("float32[3]", default=[float("nan"), float("inf"), float("-inf")]),
    Feature("complex64", default=1 - 2j),
    Feature("int64", default=np.int64(-(2**63))),
]


@pytest.mark.parametrize("feature", FEATURES, ids=repr)
def test_whatever_a_feature_says_json_says(feature) -> None:
    schema = Schema.parse({"x": feature})
    text = json.dumps(schema.to_dict(), allow_nan=False)
    assert Schema.parse(parse_schema_json(text)) == schema


def test_every_argument_of_a_feature_is_a_key() -> None:
    """An argument that Feature learns later is known here at once."""
    arguments = set(inspect.signature(Feature).parameters)
    with refused(ValueError, "'x'") as caught:
        parse_schema_json('{"x": {"type": "int64", "colour": "red"}}')
    assert all(name in str(caught.value) for name in arguments)


def test_sequence_examples() -> None:
    text = '{"context": {"id": "int64"}, "feature_lists": {"type": {"type": "float32[4]", "optional": true}}}'
    schema = Schema.parse(parse_schema_json(text), encoding="sequence_example")
    assert schema.sequence_features["type"] == Feature("float32[4]", optional=True)
    assert parse_schema_json(json.dumps(schema.to_dict())) == parse_schema_json(text)
    assert parse_schema_json('{"context": "int64"}') == {"context": Feature("int64")}


BAD = {
    "{": "not JSON",
    "[]": "an object of features by name",
    '{"a": "int64", "a": "text"}': "'a' comes twice",
    '{"a": "int65"}': "feature 'a'.*int65",
    '{"a": 5}': "feature 'a'.*a type as a string",
    '{"a": {"shape": [2]}}': "feature 'a'.*a type as a string",
    '{"a": {"type": "int64", "optional": "no"}}': "feature 'a'.*true or false",
    '{"a": {"type": "int64", "shape": 3}}': "feature 'a'.*a list of sizes",
    '{"a": {"type": "int64", "shape": [-1]}}': "feature 'a'.*positive",
    '{"a": {"type": "int64", "default": "x"}}': "feature 'a'.*default does not fit",
    '{"a": {"type": "uint8", "default": 300}}': "feature 'a'.*default does not fit",
    '{"a": {"type": "bytes", "default": {"$base64": "!"}}}': "feature 'a'",
    '{"a": {"type": "complex64", "default": "x"}}': "feature 'a'",
    '{"a": {"type": "int64", "default": NaN}}': "NaN is not JSON",
    '{"context": {"a": "int65"}}': "feature 'context/a'",
}


@pytest.mark.parametrize(("text", "why"), BAD.items())
def test_errors_name_the_feature(text, why) -> None:
    with pytest.raises(ValueError, match=why):
        parse_schema_json(text)
