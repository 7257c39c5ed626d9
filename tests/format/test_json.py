"""The one decoder of JSON: what it takes, what it refuses, and that depth does not depend on the caller."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given, strategies as st

from shardio import Feature
from shardio.errors import SchemaError
from shardio.format import (
    MAX_JSON_DEPTH,
    is_blank_line,
    parse_json,
    restored_object,
    wide_encoding,
)
from tests.suites.errors import refused

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_it_reads_what_python_writes(value, ascii_only) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass") if ascii_only else text.encode("utf-8", "replace")
    assert parse_json(b" \t" + data + b"\r\n") == json.loads(data.decode())


BAD = {
    "NaN": (b"NaN", "NaN is not JSON"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is not JSON"),
    "twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' comes twice"),
    "not UTF-8": (b'"\xe9"', "not UTF-8"),
    "mark": (b"\xef\xbb\xbf{}", "byte order mark"),
    "UTF-16": ("{}".encode("utf-16-le"), "character"),
    "cut": (b'{"a": 1', "at character 7"),
    "two": (b"{} {}", "Extra data"),
    "nothing": (b"", "Expecting value"),
    "control": (b'"a\nb"', "control character"),
    "deep": (b"[" * 257 + b"]" * 257, "nested deeper than 256"),
    "very deep": (b'{"a":' * 200_000, "nested deeper than 256"),
    "digits": (b"1" * 5000, "digits"),
    "too large": (b'{"a": [1.5, -1e400]}', "-1e400 is larger than float64"),
    "too large, with many digits": (b"1" * 400 + b".5", "larger than float64"),
    "too large, with both": (b"1" * 299 + b".0E+12", "larger than float64"),
}


@pytest.mark.parametrize(("data", "why"), BAD.values(), ids=BAD)
def test_it_refuses_what_is_not_json(data, why) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(data)
    with pytest.raises(ValueError, match=why):
        Feature("json").restore([data])


def test_numbers_as_large_as_float64_are_read() -> None:
    data = b'{"a": [1.7976931348623157e308, -1.7976931348623157E+308, 1e-400], "b": "9e999", "c": 1e0000001}'
    assert parse_json(data) == {
        "a": [sys.float_info.max, -sys.float_info.max, 0.0],
        "b": "9e999",
        "c": 10.0,
    }


def test_depth_does_not_depend_on_the_stack_of_the_caller() -> None:
    """What adoption takes with an empty stack is read with a deep one."""
    deepest = b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH

    def below(frames: int) -> object:
        return below(frames - 1) if frames else parse_json(deepest)

    assert below(sys.getrecursionlimit() // 2) == json.loads(deepest)


def test_brackets_in_strings_are_no_depth() -> None:
    value = {"a": "[" * 1000, 'b"[': ['\\"' + "{" * 1000]}
    assert parse_json(json.dumps(value).encode()) == value


def test_what_could_not_be_read_is_not_written() -> None:
    value: object = 1
    for _ in range(MAX_JSON_DEPTH):
        value = [value]
    feature = Feature("json")
    assert feature.restore(feature.fit(value, "a")) == value
    with pytest.raises(SchemaError):
        feature.fit([value], "a")


def test_objects_are_made_innermost_first() -> None:
    data = b'{"a": {"$": 1}, "b": [{"$": 2}]}'
    assert parse_json(data, make=lambda one: one.get("$", one)) == {"a": 1, "b": [2]}


def test_lines_and_marks() -> None:
    assert is_blank_line(b" \t\r\n")
    assert not is_blank_line(b"\x0b")
    for name in ("utf-16", "utf-32"):
        assert wide_encoding("{}".encode(name)) == name.upper()
    assert wide_encoding(b"{}") is None


def test_a_doubled_name_among_many_is_found_at_once() -> None:
    """Comparing each name with all others would take minutes."""
    names = ", ".join(f'"{number}": 1' for number in range(200_000))
    with refused(ValueError, "'199999'"):
        parse_json(f'{{{names}, "199999": 2}}'.encode())


def test_infinities_that_an_export_wrote_come_back() -> None:
    document = b'{"a": {"$float": "Infinity"}, "b": [1.5, {"$float": "-Infinity"}]}'
    assert parse_json(document, make=restored_object) == {"a": math.inf, "b": [1.5, -math.inf]}
