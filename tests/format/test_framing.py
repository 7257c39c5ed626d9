"""Framings and kinds: where payloads are, and the numbers that files hold."""

from __future__ import annotations

import numpy as np
import pytest

from shardio.format import Compression, Framing, Limits, RecordCrc, payload_bounds
from tests.suites.errors import refused


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Framing, "TFRECORD RAW LINES TAR_SAMPLE"),
        (Compression, "NONE ZSTD GZIP ZLIB"),
        (RecordCrc, "CRC32C CRC32 UNCHECKED"),
    ],
)
def test_the_numbers_are_those_of_the_specification(kind, names):
    known = {name: number for number, name in enumerate(names.split(), 1)}
    assert {member.name: int(member) for member in kind if member} == known


def bounds(framing, starts, stops, **options):
    found = payload_bounds(framing, np.array(starts), np.array(stops), **options)
    return [column.tolist() for column in found]


def test_a_tfrecord_payload_lies_between_head_and_tail():
    assert bounds(Framing.TFRECORD, [0, 20], [20, 36]) == [[12, 32], [16, 32]]


def test_raw_is_all_payload():
    assert bounds(Framing.RAW, [0, 5], [5, 5]) == [[0, 5], [5, 5]]


def test_a_line_is_without_its_ending():
    tails = [b"a\n", b"\r\n", b"\n", b"xy", b"\r\r", b"\r"]
    found = bounds(Framing.LINES, [0] * 6, [9] * 6, tails=tails)
    assert found[1] == [8, 7, 8, 9, 9, 9]
    with pytest.raises(TypeError, match="last bytes"):
        bounds(Framing.LINES, [0], [1])


@pytest.mark.parametrize(
    ("name", "kind", "suffix"),
    [
        (None, Compression.NONE, ""),
        ("none", Compression.NONE, ""),
        ("zstd", Compression.ZSTD, ".zst"),
        ("gzip", Compression.GZIP, ".gz"),
        ("zlib", Compression.ZLIB, ".zz"),
    ],
)
def test_names_of_compressions(name, kind, suffix):
    assert Compression.parse(name) is kind
    assert kind.suffix == suffix


@pytest.mark.parametrize("name", ["ZSTD", "", "lz4", 1])
def test_an_unknown_compression_is_refused(name):
    with refused(ValueError, "compression"):
        Compression.parse(name)


@pytest.mark.parametrize("value", [0, -1, (1 << 32) - 16, 1 << 40])
@pytest.mark.parametrize("name", ["record", "block"])
def test_no_limit_is_larger_than_its_column(name, value):
    """The caller may raise them (`limits=shardio.Limits(record=...)` of `shardio.open`, `open_shard` and
    `verify`), up to u32 where a column is u32; a file MUST NOT.
    """
    with pytest.raises(ValueError, match=f"limit {name}={value} must be between"):
        Limits(**{name: value})
    assert getattr(Limits(**{name: (1 << 32) - 17}), name) == (1 << 32) - 17
