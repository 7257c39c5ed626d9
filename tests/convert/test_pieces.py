"""How sources are cut: whatever the runs, every record once; and the guess of a type."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, strategies as st

import shardio
from shardio.convert import _jsonl


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
def test_guesses(tmp_path, values, short: str) -> None:
    ds = shardio.from_generator([{"n": 0, "x": value} for value in values], tmp_path / "ds")
    assert ds.schema is not None
    assert ds.schema["x"].short + ("?" if ds.schema["x"].optional else "") == short
