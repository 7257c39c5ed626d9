"""The kernel that judges lines of JSON: what it passes is a document, and what is plainly one is passed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.format import parse_json
from shardio.kernels import count_documents

PLAIN = [
    "{}",
    "[]",
    "0",
    "-0",
    "-1.5",
    "1e9",
    "true",
    "false",
    "null",
    '""',
    ' {"a": 1} \r\n',
    '{"a": {"a": 1}, "b": 2}',
    '["\\u00e9\\n", "\u00e9", [[]]]',
]
DOUBTFUL = [
    '{"\\u0061": 1}',
    "1e100",
    "9" * 300,
    "[" * 100 + "]" * 100,
    json.dumps({str(n): n for n in range(300)}),
]
WRONG = [
    "",
    " ",
    "NaN",
    "Infinity",
    "-",
    "01",
    "1.",
    ".5",
    "+1",
    "1e",
    "1e999",
    "[1e999]",
    "tru",
    "nulls",
    "[1,]",
    "[,1]",
    "{",
    "[",
    '{"a"}',
    '{"a":}',
    '{"a": 1,}',
    "{a: 1}",
    '{"a": 1, "a": 2}',
    '{"a": 1, "\\u0061": 2}',
    '"',
    '"a\nb"',
    '"\\x"',
    '"\\u12g4"',
    '"\\u12"',
    '"\\',
    "[1] [2]",
    "[1}",
    "\ufeff1",
    "\x00",
    "[" * 300 + "]" * 300,
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def count(lines: list[str], first: int = 0) -> int:
    """Return what the kernel says of lines, one after another."""
    texts = [line.encode() for line in lines]
    return count_documents(b"".join(texts), np.cumsum([0, *map(len, texts)])[1:], first)


def is_document(line: str) -> bool:
    """Tell whether the one decoder of JSON reads a line."""
    try:
        parse_json(line.encode())
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("line", PLAIN)
def test_what_is_plainly_a_document_is_passed(line: str) -> None:
    assert is_document(line)
    assert count([line, line, "x", line]) == 2
    assert count(["x", line], 1) == 2


@pytest.mark.parametrize("line", [*DOUBTFUL, *WRONG])
def test_what_is_wrong_or_in_doubt_is_not(line: str) -> None:
    assert is_document(line) is (line in DOUBTFUL)
    assert count(["[1]", line, "[2]"]) == 1


@given(st.lists(VALUES.map(json.dumps) | st.text(alphabet='{}[]":,1e-.\\ atrue', max_size=20), max_size=4))
def test_it_passes_documents_alone(lines: list[str]) -> None:
    passed = count(lines)
    assert all(map(is_document, lines[:passed]))


def test_lines_outside_of_the_bytes_are_refused() -> None:
    for stops in ([3], [1, 0], [-1]):
        with pytest.raises(IndexError):
            count_documents(b"12", np.array(stops))
