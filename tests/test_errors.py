"""Errors say much, and not everything: what is in a file does not decide how long a message gets."""

from __future__ import annotations

import pickle

import pytest

from shardio.errors import FormatError, ShardioError

LONG = [
    "a" * (16 << 20),
    b"a" * (16 << 20),
    tuple(range(10**6)),
    ["a" * 10**6] * 100,
    {"a" * 10**6: ["b" * 10**6]},
    set(range(10**5)),
    1 << (1 << 20),
    [1 << (1 << 20)],
    range(10**9),
]


@pytest.mark.parametrize("value", LONG, ids=[str(number) for number in range(len(LONG))])
def test_no_message_is_longer_than_people_read(value):
    error = FormatError("a thing is wrong", expected=value, found=value, advice="do this", url="here")
    text = str(error)
    assert len(text) < 3000
    assert text.startswith("a thing is wrong (here): expected ")
    assert text.endswith("; do this")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert str(error.located(row=3)).replace(", row 3", "") == text
    assert len(pickle.dumps(error)) < 6000


def test_texts_are_cut_where_they_are_long():
    error = ShardioError("w" * 10**6, url="u" * 10**6, shard="s" * 10**6, advice="a" * 10**6)
    assert len(str(error)) < 17_000
    assert "... (1000000 characters)" in error.what


def test_short_sides_stay_what_they_are():
    for value in (7, "x", b"abc", (1, "a"), ["a", "b"], {"a": 1}, None, 2.5):
        assert FormatError("x", expected=value, found=value).expected is value
