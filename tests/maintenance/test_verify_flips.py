"""Every flipped bit of a shard is found where it is, in a dataset, with an index alone, and without one.

`make test` tries a quarter of the places, `make test-nightly` all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from tests.maintenance.made import index_of, make_dataset, payloads, rewrite, shards

COMPRESSIONS = pytest.mark.parametrize("compression", [None, "zstd", "gzip"])


@pytest.fixture
def dataset(tmp_path: Path, compression: str | None) -> Path:
    return make_dataset(tmp_path / "ds", {"train": payloads(9)}, compression=compression)


@pytest.fixture
def tried(seeded, long) -> slice:
    """Which places of a file are tried."""
    return slice(None) if long else slice(seeded.randrange(4), None, 4)


def flips(data: bytes, tried: slice):
    for place in range(len(data))[tried]:
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        yield place, bytes(changed)


@pytest.mark.sampled(3)
@COMPRESSIONS
def test_every_flipped_bit_of_a_shard_by_itself(dataset: Path, tried: slice) -> None:
    (shard,) = shards(dataset)
    original = shard.read_bytes()
    for place, data in flips(original, tried):
        rewrite(shard, data)
        report = shardio.verify(shard)
        assert report.damaged, place
    rewrite(shard, original)
    assert shardio.verify(shard).ok


@COMPRESSIONS
def test_every_flipped_bit_without_an_index(dataset: Path, compression: str | None, tried: slice) -> None:
    """A flip is found, or the records are what they were: some bits around compressed data mean nothing."""
    (shard,) = shards(dataset)
    index_of(shard).unlink()
    original = shard.read_bytes()
    for place, data in flips(original, tried):
        rewrite(shard, data)
        if shardio.verify(shard).ok:
            assert compression is not None, place
            with pytest.warns(UserWarning, match="no index"):
                assert list(shardio.open_shard(shard)) == payloads(9), place
