"""Windows of many small local shards: each is opened when the first of its records is wanted."""

from __future__ import annotations

import pytest

import shardio
from shardio.errors import CorruptBlockError
from tests.streaming.datasets import flat, hurt, numbers, write

SHARDS = 100


@pytest.fixture(scope="module", params=[None, "zstd"])
def url(request, tmp_path_factory):
    url = str(tmp_path_factory.mktemp("many") / "d")
    with shardio.DatasetWriter(url, {"n": "int64"}, request.param, block_bytes=130, shard_bytes=1) as out:
        for n in range(5 * SHARDS):
            out.write({"n": n})
    assert shardio.open(url).source.table.rows.tolist() == [5] * SHARDS
    return url


def make(ds, **options):
    return shardio.stream(ds, **{"global_batch": 10, "seed": 3, **options})


@pytest.mark.parametrize("threads", [0, 2])
def test_the_first_batch_opens_the_shards_of_its_records(url, threads):
    """In the caller's thread those of some batches ahead, too; never all."""
    ds = shardio.open(url)
    stream = make(ds, num_threads=threads, ahead_bytes=1)
    batches = iter(stream)
    next(batches)
    assert 0 < len(ds.source.pool) < 3 * SHARDS // 4
    batches.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [0, 2])
def test_damage_ends_the_pass_at_its_record_and_may_be_skipped(tmp_path, threads):
    url = write(str(tmp_path / "d"), [5] * SHARDS, schema={"n": "int64"})
    whole = numbers(make(shardio.open(url)))
    lost = sorted(hurt(shardio.open(url), 250))
    # The other records of the block are right.
    before = next(step for step, batch in enumerate(whole) if lost[-1] in batch)
    stream = make(shardio.open(url), num_threads=threads)
    found = []
    with pytest.raises(CorruptBlockError):
        found.extend(batch["n"].tolist() for batch in stream)
    assert found == whole[: len(found)]
    assert len(found) == before
    with pytest.warns(UserWarning, match="damaged records are skipped"):
        found = flat(numbers(make(shardio.open(url, on_error="skip"), num_threads=threads)))
    assert sorted([*found, *lost]) == list(range(5 * SHARDS))
