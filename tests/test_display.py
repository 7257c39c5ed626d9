"""Values for people and for programs."""

from __future__ import annotations

import base64
import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.display import LINE, PAGE, Bounds, describe, html_cell, plain, plural, printable, render, size
from tests.cli.conftest import jpeg

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.lists(st.floats(width=32)).map(lambda items: np.array(items, np.float32)),
    st.lists(st.integers(0, 255)).map(lambda items: np.array(items, np.uint8).reshape(1, -1)),
    st.integers(-9, 9).map(np.int16),
    st.booleans().map(np.bool_),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@given(VALUES)
def test_every_value_has_a_place_in_json(value: object) -> None:
    json.dumps(plain(value), allow_nan=False)


@given(VALUES, st.sampled_from([LINE, PAGE]))
def test_a_page_gets_every_value_in_parts(value: object, bounds: Bounds) -> None:
    parts = render(value, bounds=bounds)
    json.dumps(parts, allow_nan=False)
    assert len(parts.get("text", "")) <= max(bounds.text, 80)
    assert len(parts.get("items", ())) <= bounds.items
    assert len(parts.get("numbers", ())) <= bounds.numbers


@given(VALUES, st.integers(40, 200))
def test_what_people_see_is_printable_and_short(value: object, width: int) -> None:
    lines = describe(value, width=width)
    assert lines
    for line in lines:
        assert line.isprintable()
        assert len(line) <= max(width, 80)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"),
        (np.float32("inf"), "Infinity"),
        (-math.inf, "-Infinity"),
        (b"\x00\xff", {"$base64": "AP8="}),
        (memoryview(b"a"), {"$base64": base64.b64encode(b"a").decode()}),
        (np.arange(4, dtype=np.uint8).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array(3), 3),
        (np.array([1.5, math.nan]), [1.5, "NaN"]),
        (1 + 2j, [1.0, 2.0]),
        ({"a": (1, None)}, {"a": [1, None]}),
        (np.array([True, False]), [True, False]),
    ],
)
def test_values_for_programs(value: object, expected: object) -> None:
    assert plain(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "0 bytes"),
        (b"hello", '5 bytes  "hello"'),
        (bytes(range(20)), "20 bytes  00 01 02 03 04 05 06 07 08 09 0a 0b ...  |............|"),
        (jpeg(31, 17), f"JPEG 31x17, {len(jpeg(31, 17))} bytes"),
        ("wren", '"wren"'),
        ('say "wren"\n', '"say \\"wren\\"\\n"'),
        (np.arange(10, dtype=np.int32), "int32[10]  0 1 2 3 4 5 6 7 ..."),
        (np.zeros((2, 3), np.float32), "float32[2,3]  0 0 0 0 0 0"),
        (np.zeros((0, 3), np.uint8), "uint8[0,3]"),
        (np.float32(0.5), "0.5"),
        (None, "None"),
        ([], "0 items"),
        ([b"one"], '3 bytes  "one"'),
        (["a", "b"], '2 items: "a", "b"'),
        ([{"n": 1, "name": "wren"}, None], '2 items: {n: 1, name: "wren"}, None'),
        (b"RIFF....WAVE", "wav audio, 12 bytes"),
        (b"BMW and wren", '12 bytes  "BMW and wren"'),
        (["A" * 300], f'"{"A" * 78}..." (300 characters)'),
        (frozenset(["A" * 300]), "frozenset({'" + "A" * 84 + " ..."),
        (np.array(["A" * 300]), "str9600[1]  " + "A" * 76 + " ..."),
        (np.datetime64("2020-01-01", "ns"), "2020-01-01T00:00:00.000000000"),
        (np.timedelta64(5, "s"), "5 seconds"),
        (np.complex64(0.1), "(0.1+0j)"),
        (np.float32(0.1), "0.1"),
        (0.1, "0.1"),
        (1 + 2j, "(1+2j)"),
        (2**70, "1180591620717411303424"),
        (True, "True"),
    ],
)
def test_values_for_people(value: object, expected: str) -> None:
    assert describe(value) == [expected]


def test_long_bytes_are_text_by_their_beginning() -> None:
    ends = "\u00e9".encode()  # in the middle of a character, wherever the beginning is cut
    for text in (b"a" + ends * 500_000, ends * 500_000, b"wren " * 200_000 + b"\xff"):
        for bounds in (LINE, PAGE):
            parts = render(text, bounds=bounds)
            assert (parts["kind"], parts["text"]) == ("text", text.decode(errors="ignore")[: bounds.text])
            assert "characters" not in parts
        (line,) = describe(text)
        assert line.endswith('..."')
    assert render(b"wren\xc3")["kind"] == "bytes"


def test_a_picture_too_large_for_a_notebook_is_a_line() -> None:
    photograph = jpeg(31, 17)
    assert html_cell(photograph).startswith("<img src=")
    assert html_cell(photograph + bytes(1 << 20)).startswith("JPEG 31x17, ")


def test_a_record_is_a_line_a_feature() -> None:
    value = {"context": {"id": 3}, "label": "x" * 200}
    assert describe(value, width=60) == [
        "context",
        "  id  3",
        'label    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxx..." (200 characters)',
    ]


def test_without_pillow_an_image_is_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    photograph = jpeg(3, 3)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert describe(photograph)[0].endswith("|......JFIF..|")


def test_a_broken_image_is_bytes() -> None:
    assert "bytes  ff d8 ff" in describe(jpeg(3, 3)[:6] + bytes(30))[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (5 * 10**12, "5.0 TB"),
        (5 * 10**18, "5,000.0 PB"),
    ],
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


def test_words() -> None:
    assert plural(1, "shard") == "1 shard"
    assert plural(1200, "shard") == "1,200 shards"
    assert printable("a\tb\x9b\u202e") == "a\\tb\\x9b\\u202e"
