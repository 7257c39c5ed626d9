"""Payloads of every type and encoding, frozen: what was written stays readable, and is written so again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shardio.codecs import record_codec
from shardio.metadata import Schema
from shardio.v1 import manifest_pb2
from tests.codecs._golden import GOLDEN
from tests.codecs._values import NUMBERS, TENSOR_NUMBERS, same

FILE = GOLDEN / "codecs" / "payloads-v1.json"


def _number(name, shape):
    """Values that differ in every byte, and the odd ones of floats."""
    feature = Schema.parse({"x": name})["x"]
    size = int(np.prod(shape)) * feature.dtype.itemsize
    raw = (np.arange(size) * 37 + 200).astype(np.uint8)
    return (raw & 1 if name == "bool" else raw).view(feature.dtype).reshape(shape)


def _cases():
    for name in NUMBERS:
        for shape, text in (((), ""), ((2, 3), "[2,3]"), ((2,), "[?]"), ((1, 2), "[?,?]")):
            yield f"example {name}{text}", "example", {"x": name + text}, {"x": _number(name, shape)}
    for name in TENSOR_NUMBERS:
        yield f"tensors {name}[?]", "tensors", {"x": name + "[?]"}, {"x": _number(name, (3,))}
    for name in ("uint8", "bfloat16", "complex128"):
        yield f"array {name}", "array", {"x": f"{name}[2,2]"}, {"x": _number(name, (2, 2))}
    others = {"b": "bytes", "t": "text", "i": "jpeg", "j": "json", "l": "text[?]", "e": "int64[?]"}
    value = {"b": b"\0\xff", "t": "ü\U0001f426", "i": b"\xff\xd8", "j": {"a": [1, None, "ü"]}, "l": ["", "x"]}
    value["e"] = np.empty(0, np.int64)
    for encoding in ("example", "tensors"):
        yield f"{encoding} others", encoding, others, value
    yield "bytes json", "bytes", {"j": "json"}, {"j": value["j"]}


CASES = {name: case for name, *case in _cases()}


def test_every_case_is_frozen():
    assert set(json.loads(FILE.read_text())) == {*CASES, "sequence_example"}


@pytest.mark.parametrize("name", CASES)
def test_frozen_payloads(name):
    """P19: golden files of every format version are kept forever."""
    encoding, mapping, value = CASES[name]
    frozen = json.loads(FILE.read_text())[name]
    schema = Schema.from_message(manifest_pb2.Schema.FromString(bytes.fromhex(frozen["schema"])))
    assert schema == Schema.parse(mapping, encoding=encoding)
    codec = record_codec(schema)
    payload = bytes.fromhex(frozen["payload"])
    # The frozen image is cut short, and no longer written as one; its bytes lie there as any others.
    free = {name: "bytes" if short == "jpeg" else short for name, short in mapping.items()}
    assert record_codec(free, encoding=encoding).encode(value).hex() == frozen["payload"]
    found = codec.decode(payload)
    assert all(same(feature, found[key], value[key]) for key, feature in schema.items())


SEQUENCE = {"context": {"n": "int64"}, "feature_lists": {"f": "float16[2]", "m": "uint8[?,?]", "t": "text"}}
STEPS = {
    "context": {"n": -1},
    "feature_lists": {"f": [[1, 2], [3, 4]], "m": [np.ones((1, 2), np.uint8)], "t": ["a", "ü", ""]},
}


def test_a_frozen_sequence():
    frozen = json.loads(FILE.read_text())["sequence_example"]
    codec = record_codec(SEQUENCE, encoding="sequence_example")
    assert codec.schema.to_message().SerializeToString(deterministic=True).hex() == frozen["schema"]
    assert codec.encode(STEPS).hex() == frozen["payload"]
    found = codec.decode(bytes.fromhex(frozen["payload"]))["feature_lists"]
    assert found["t"] == ["a", "ü", ""]
    assert [step.tolist() for step in found["f"]] == [[1, 2], [3, 4]]
    assert found["m"][0].tolist() == [[1, 1]]
