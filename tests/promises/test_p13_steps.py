"""P13: every rank gets the number of batches that `len()` says."""

from __future__ import annotations

import itertools

import pytest

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import edited, flat, memory_url, plan, write

pytestmark = pytest.mark.filterwarnings(
    "ignore:some chunks are fetched more than once:UserWarning",
    "ignore:global_batch=.* gives:UserWarning",
    "ignore:This DataLoader will create . worker processes:UserWarning",
)
# Rows of each shard; -1 is an empty shard.
SHARDS = ((1,), (5,), (9,), (1, 1), (-1, 5), (5, -1), (3, -1, 4), (1, 1, 1, 1), (2, 9, -1, 1, 4))
PLANS = (
    plan(1, 1, 4),
    plan(1, 3, 2),
    plan(2, 1, 1),
    plan(2, 2, 100),
    shardio.Plan(ranks=2, workers=1, chunk_rows=2, interleave=2, window=2),
    shardio.Plan(ranks=1, workers=3, chunk_rows=3, interleave=1, window=1),
)
RANKS = (1, 2, 3, 4)
WORKERS = (1, 2, 5)


@pytest.fixture(scope="module")
def base():
    """One shard of each size up to 9."""
    return shardio.open(write(memory_url(), range(1, 10), block_bytes=64))


def reader_of(base, rows):
    shards = [n - 1 for n in rows if n > 0]
    empty = [sum(n > 0 for n in rows[:place]) for place, n in enumerate(rows) if n < 0]
    return edited(base, shards=shards, empty=empty)


@pytest.mark.sampled(17)
@pytest.mark.parametrize("rows", SHARDS, ids=str)
@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_every_rank_gets_as_many_batches_as_len_says(base, rows, remainder):
    """Every rank gets the number of batches that `len()` says, with more workers than shards too."""
    ds = reader_of(base, rows)
    total = len(ds)
    for plan_of_it, batch in itertools.product(PLANS, (4, 6)):
        given = {"global_batch": batch, "remainder": remainder, "plan": plan_of_it}
        if remainder == "drop" and total < batch:
            with pytest.raises(ValueError, match="leaves nothing"):
                shardio.stream(ds, **given)
            continue
        steps = total // batch if remainder == "drop" else -(-total // batch)
        for world_size in RANKS:
            seen = []
            for rank in range(world_size):
                stream = shardio.stream(ds, rank=rank, world_size=world_size, **given)
                assert len(stream) == steps
                got: dict[int, list[int]] = {}
                for workers in WORKERS:
                    got = {}
                    for worker in range(workers):
                        for made in stream.batches(worker=worker, workers=workers, threads=0):
                            assert made.step not in got
                            got[made.step] = made.columns["n"].tolist()
                    assert sorted(got) == list(range(steps))
                seen += flat(got.values())
            if remainder == "keep":
                assert sorted(seen) == sorted(int(value["n"]) for value in ds)
            else:
                assert len(seen) == steps * batch


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 5])
def test_loaders_with_more_workers_than_shards(tmp_path, workers):
    ds = shardio.open(write(tmp_path / "d", [5, 9]))
    for rank in range(3):
        data = StreamingDataset(ds, global_batch=4, rank=rank, world_size=3, remainder="keep")
        loader = StreamingDataLoader(data, num_workers=workers)
        assert len(loader) == len(list(loader)) == 4
