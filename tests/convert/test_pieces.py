"""How sources are cut: whatever the runs, every record once; and the guess of a type."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.convert import _jsonl, _schema
from shardio.errors import BadRecord, SchemaError
from shardio.formats import Sample, SourceOptions
from tests.suites.errors import refused


@given(lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)), run=st.integers(1, 30))
def test_runs_of_lines(lines: list[bytes], run: int) -> None:
    """Whatever the edges of the runs: every line in exactly one, with its place."""
    data = b"\n".join(lines)
    found = [
        pair
        for start in range(0, len(data), run)
        for pair in _jsonl._lines_of_run(io.BytesIO(data), start, min(start + run, len(data)), "url")
    ]
    whole = [(start, line.removesuffix(b"\n")) for start, line in found if line != b"\n"]
    places = np.cumsum([0, *(len(line) + 1 for line in lines)])
    assert whole == [(int(place), line) for place, line in zip(places[:-1], lines, strict=True) if line]


def guessed(*values: Any, clash: Any = "raise") -> str:
    source = _jsonl.JsonLines("nowhere", SourceOptions())
    samples = [Sample(f"line {n}", {"x": value}) for n, value in enumerate(values)]
    schema = _schema.infer_from_values(source, samples, None, clash=clash)
    assert schema is not None
    return schema["x"].short + ("?" if schema["x"].optional else "")


@pytest.mark.parametrize(
    ("values", "short"),
    [
        ((1, 2), "int64"),
        ((1, 2.5), "float64"),
        ((2**63, 1), "uint64"),
        ((2**70,), "json"),
        ((True, False), "bool"),
        (("a", None), "text?"),
        (([1, 2], [3, 4]), "int64[2]"),
        (([1, 2], [3]), "int64[?]"),
        (([1, 2], []), "int64[?]"),
        (([[1, 2], [3, 4]], [[5, 6]]), "int64[?,2]"),
        (([[1], [2, 3]],), "json"),
        (({"a": 1}, {"b": 2}), "json"),
        (([], []), "json"),
        ((None, None), "json?"),
        ((["a"], ["b", "c"]), "text[?]"),
        ((b"\xff\xd8\xff1", b"\xff\xd8\xff2"), "jpeg"),
        ((b"\xff\xd8\xff1", b"\x89PNG\r\n\x1a\n"), "image"),
        ((b"\xff\xd8\xff1", b"other"), "bytes"),
        ((np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32)), "float32[?,3]"),
    ],
)
def test_guesses(values, short: str) -> None:
    assert guessed(*values) == short


def test_contradictions() -> None:
    for values in ((1, "a"), (-1, 2**63), (1, [1]), ("a", {"b": 1}), (True, 1)):
        with refused(SchemaError, "'x'"):
            guessed(*values)
    assert guessed(1, 2, "a", clash="most") == "int64"


def test_lines_as_they_come() -> None:
    found = _jsonl._parsed(json.dumps([1, 2]).encode(), "here")
    assert found == Sample("here", {"value": [1, 2]})
    assert isinstance(_jsonl._parsed(b"nope", "here"), BadRecord)
    bad = _jsonl._parsed(b'{"a": {"$base64": "%%"}}', "here")
    assert bad == Sample("here", {"a": {"$base64": "%%"}})
