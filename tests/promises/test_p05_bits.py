"""P5: every single flipped bit in shard, index or manifest is detected before a sample is returned."""

from __future__ import annotations

import itertools

import pytest

import shardio
from shardio.metadata import parse_head
from tests.promises.damage import WAYS, Victim, found_out, returns_wrong
from tests.promises.places import PLACES, fresh

COMPRESSIONS = ["none", "zstd", "gzip"]
EVERY_KIND = pytest.mark.parametrize("compression", COMPRESSIONS)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
ENDS = [".tfrecord", ".shardidx", ".list", ".manifest"]


def victim(compression: str, place: str, tmp_path) -> Victim:
    url = fresh(place, tmp_path)
    records = [b"wren", b"", b"robin", b"kite" * 5]
    with shardio.DatasetWriter(url, None, compression, block_bytes=50) as out:
        for record in records:
            out.write(record)
    return Victim(url, records)


def may_pass(index: bytes, at: int, place: str, way: str, *, cut: bool = False) -> bool:
    """Whether a read may return records, the right ones, where this byte of an index is wrong or missing."""
    head = parse_head(index)
    end = head.frame_stop_offset + 4 * head.rows
    return place != "local" and at >= end


@pytest.mark.sampled(10)
@EVERY_PLACE
@EVERY_KIND
@pytest.mark.parametrize("end", ENDS)
def test_every_flipped_bit_is_detected(end, compression, place, tmp_path, long):
    """P5: every single flipped bit in shard, index or manifest is detected before a sample is returned."""
    case = victim(compression, place, tmp_path)
    (key,) = case.of_kind(end)
    good = case.objects[key]
    # Each byte about once, in one of the places; bit by bit in tests/metadata.
    stride = 1 if long else {".tfrecord": 10, ".shardidx": 18}.get(end, 34)
    bits = range(stride // 2 if place == "memory" else 0, 8 * len(good), stride)
    ways = itertools.cycle(WAYS) if not long else None
    for bit in bits:
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        case.put(key, bytes(damaged))
        for way in WAYS if ways is None else [next(ways)]:
            error = found_out(case.url, way)
            # The zeros and the mark at the end of an index hold nothing; where the file is mapped they are
            # checked all the same, elsewhere by `shardio verify`.
            if error is None and end == ".shardidx" and may_pass(good, bit // 8, place, way):
                assert returns_wrong(case.url, case.payloads) is None
                assert not shardio.verify(case.url).ok
                continue
            assert error is not None, f"bit {bit} of {key} by {way}"
    case.restore(key)
    assert found_out(case.url, "lookup") is None


@EVERY_PLACE
@EVERY_KIND
def test_a_flipped_bit_harms_nothing_but_its_block(compression, place, tmp_path):
    """What is in other blocks is still handed out, by lookup and by batch."""
    case = victim(compression, place, tmp_path)
    (key,) = case.of_kind(".tfrecord")
    damaged = bytearray(case.objects[key])
    damaged[-1] ^= 1
    case.put(key, bytes(damaged))
    ds = shardio.open(case.url, decode=False)
    assert ds[0] == b"wren"
    assert ds[2] == b"robin"
    assert ds.read([1, 0, 1]) == [b"", b"wren", b""]
    with pytest.raises(shardio.errors.CorruptBlockError) as caught:
        ds[3]
    assert caught.value.row == 3
    with pytest.raises(shardio.errors.CorruptBlockError):
        ds[3]
    assert ds[1] == b""
