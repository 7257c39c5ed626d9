"""P21: errors give exact addresses."""

from __future__ import annotations

import copy
import pickle

import pytest

import shardio
from shardio import errors
from shardio.errors import (
    CorruptBlockError,
    CorruptRecordError,
    FormatError,
    ShardioError,
)
from shardio.metadata import parse_head
from tests.promises.damage import WAYS, Victim, found_out
from tests.promises.places import GOLDEN, PLACES, copied, payloads

CASES = [(name, place) for name in ("none", "zstd", "gzip") for place in PLACES]
EVERY_CASE = pytest.mark.parametrize(("name", "place"), CASES)


@pytest.fixture
def victim(name: str, place: str, tmp_path) -> Victim:
    return Victim(copied(GOLDEN / name, place, tmp_path), payloads(name, 2, "all"))


def flip(victim: Victim, key: str, place: int) -> None:
    damaged = bytearray(victim.objects[key])
    damaged[place] ^= 1
    victim.put(key, bytes(damaged))


@EVERY_CASE
@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_block(victim, way):
    """P21: url, shard, row, byte range, expected, found, and what to do."""
    key = victim.of_kind(".tfrecord")[-1]
    head = parse_head(victim.objects[key + ".shardidx"])
    block = head.blocks - 1
    start, stop = head.block_bounds(block)
    flip(victim, key, start)
    error = found_out(victim.url, way)
    assert type(error) is CorruptBlockError
    assert error.url == victim.store.url_of(key)
    assert (error.shard, error.row, error.start, error.stop) == (key, head.block_rows(block)[0], start, stop)
    assert error.expected == f"CRC-32C {int(head.block_crc32c[block]):#010x}"
    assert str(error.found).startswith("0x")
    text = str(error)
    for part in (
        error.url,
        f"row {error.row}",
        f"bytes [{start}, {stop})",
        error.expected,
        error.found,
        error.advice,
    ):
        assert str(part) in text
    assert "`shardio verify`" in text


@EVERY_CASE
@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_part_of_an_index(victim, way):
    shard = victim.of_kind(".tfrecord")[-1]
    key = shard + ".shardidx"
    head = parse_head(victim.objects[key])
    block = head.blocks - 1
    start, stop = head.frame_stop_bounds(block)
    flip(victim, key, start)
    error = found_out(victim.url, way)
    assert type(error) is FormatError
    assert (error.url, error.shard) == (victim.store.url_of(key), shard)
    assert (error.row, error.start, error.stop) == (head.block_rows(block)[0], start, stop)
    assert error.advice


@pytest.mark.parametrize("place", PLACES)
def test_a_shard_without_an_index(place, tmp_path):
    case = Victim(copied(GOLDEN / "shards", place, tmp_path), [])
    url = f"{case.url}/none.tfrecord"
    data = bytearray(case.store.get("none.tfrecord", max_bytes=10_000))
    shard = shardio.open_shard(url)
    assert isinstance(shard, shardio.ShardReader)
    where = shard.locate(7)
    data[where.start + 12] ^= 1
    case.put("none.tfrecord", bytes(data))
    case.put("none.tfrecord.shardidx", None)
    with pytest.warns(UserWarning, match="no index"):
        alone = shardio.open_shard(url)
    with pytest.raises(CorruptRecordError) as caught:
        list(alone)
    error = caught.value
    assert (error.url, error.row, error.start, error.stop) == (url, 7, where.start, where.stop)
    assert f"row 7, bytes [{where.start}, {where.stop})" in str(error)


CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ShardioError)
]
FIELDS = {
    "url": "s3://b/x",
    "shard": "data/y",
    "row": 7,
    "start": 10,
    "stop": 20,
    "expected": "a",
    "found": b"b",
    "advice": "run `shardio verify`",
}


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_travel_between_processes(cls):
    """Workers send errors to their parents with everything they know."""
    error = cls("what is wrong", **FIELDS)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert again.fields() == error.fields() == FIELDS
        assert str(again) == str(error)
    places = "(s3://b/x, shard data/y, row 7, bytes [10, 20))"
    assert str(error) == f"what is wrong {places}: expected a, found b'b'; run `shardio verify`"


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_are_located_by_those_who_know(cls):
    bare = cls("wrong", row=3)
    located = bare.located(url="u", row=9)
    assert type(located) is cls
    assert (located.url, located.row) == ("u", 3), "what was known stays"
    assert bare.url is None
    assert str(cls("wrong")) == "wrong"
    assert str(cls("wrong", found=1)) == "wrong: found 1"
    assert str(cls("wrong", url="a/data/y", shard="data/y")) == "wrong (a/data/y)"


def test_errors_are_grouped_by_what_a_caller_does():
    assert {cls.__name__: [base.__name__ for base in cls.__bases__] for cls in CLASSES} == {
        "ShardioError": ["Exception"],
        "FormatError": ["ShardioError", "ValueError"],
        "CorruptBlockError": ["FormatError"],
        "CorruptRecordError": ["FormatError"],
        "UnsupportedVersionError": ["FormatError"],
        "StaleIndexError": ["ShardioError", "ValueError"],
        "NotFoundError": ["ShardioError", "FileNotFoundError"],
        "KeyNotFoundError": ["NotFoundError", "KeyError"],
        "StorageError": ["ShardioError", "OSError"],
        "CommitConflictError": ["ShardioError"],
        "CommitOutcomeUnknownError": ["ShardioError"],
        "UnsafeNameError": ["ShardioError", "ValueError"],
        "SchemaError": ["ShardioError", "ValueError"],
        "ResumeError": ["ShardioError", "ValueError"],
    }
