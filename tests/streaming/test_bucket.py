"""What an epoch from a bucket asks for, counted at the server: a chunk is one request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import shardio
from shardio.errors import CorruptBlockError, CorruptRecordError
from shardio.order import Plan
from tests.servers import s3
from tests.servers.faults import FaultServer, fault_server
from tests.streaming.datasets import flip

SIZE, ROWS, BLOCK = 600, 12_000, 4096
# Chunks of 48 KB: a lane of the first reads six, one in each strand; one of the second about five.
WHOLE = Plan(ranks=4, workers=1, chunk_rows=80, interleave=37, window=80)
PART = Plan(ranks=4, workers=1, chunk_rows=80, interleave=8, window=80)


class Asked(NamedTuple):
    """Requests for data, and bytes of them, as multiples of what the records take."""

    requests: int
    bytes: float


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    folder: Path = tmp_path_factory.mktemp("bucket")
    random = np.random.default_rng(1)
    with shardio.DatasetWriter(folder / "d", shard_bytes=3 << 20, block_bytes=BLOCK) as out:
        for number in range(ROWS):
            out.write(number.to_bytes(4, "little") + random.bytes(SIZE - 4))
    with fault_server() as running:
        running.load(folder / "d", "/bucket/d")
        yield running


def epoch(
    server: FaultServer, plan: Plan | None, *, step: int = 0, **options: object
) -> tuple[list[int], Asked]:
    """Return the numbers of the records of an epoch, and what was asked for."""
    ds = shardio.open("s3://bucket/d", storage_options=s3.options_for(server.url), engine="obstore")
    stream = shardio.stream(ds, global_batch=16, seed=3, plan=plan, remainder="keep", **options)
    stream.go_to(step)
    server.log.clear()
    found = [int.from_bytes(each[:4], "little") for batch in stream for each in batch["payload"]]
    ranges = [r.range for r, _ in server.log if not r.path.endswith(".shardidx") and "/data/" in r.path]
    return found, Asked(
        len(ranges), sum(stop - start for start, stop in filter(None, ranges)) / (ROWS * SIZE)
    )


@pytest.mark.parametrize("threads", [0, 2])
def test_a_dataset_that_fits_in_its_windows_is_fetched_once(server: FaultServer, threads: int) -> None:
    """It took three requests for each chunk, and each had the blocks at both its ends."""
    found, asked = epoch(server, WHOLE, num_threads=threads)
    assert sorted(found) == list(range(ROWS))
    chunks = ROWS / WHOLE.chunk_rows
    assert asked.requests <= 1.1 * chunks + 16 + 4  # the first batch by the record, and the ends of shards
    assert asked.bytes <= 1.08 + 16 * BLOCK / (ROWS * SIZE)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:global_batch=16 gives 3 ranks")
@pytest.mark.parametrize("plan", [WHOLE, PART])
@pytest.mark.parametrize("step", [1, 333])
def test_ranks_and_threads_deliver_one_order(server: FaultServer, plan: Plan, step: int) -> None:
    """From the middle of an epoch too, and where ranks share a batch unevenly."""
    shares = [epoch(server, plan, step=step, num_threads=0, rank=rank, world_size=3)[0] for rank in range(3)]
    alone = epoch(server, plan, step=step, num_threads=2)[0]
    assert sorted(row for share in shares for row in share) == sorted(alone)
    assert shares[0][:5] == alone[:5]


def test_ranks_together_fetch_little_more_than_one(server: FaultServer) -> None:
    """Neighbours of another rank are not fetched, but most are of the same: a chunk is several strands."""
    chunk, found, requests, bytes_ = 320, [], 0, 0.0
    plan = replace(WHOLE, chunk_rows=chunk, window=chunk)
    for rank in range(4):
        rows, asked = epoch(server, plan, num_threads=0, rank=rank, world_size=4)
        found += rows
        requests += asked.requests
        bytes_ += asked.bytes
    assert sorted(found) == list(range(ROWS))
    assert bytes_ <= 1.03 + BLOCK / (chunk * SIZE) * 1.5 + 16 * BLOCK / (ROWS * SIZE)
    assert requests <= 16 + 1.5 * ROWS / chunk


@pytest.mark.parametrize("threads", [0, 2])
def test_a_small_dataset_is_read_by_few_requests_before_the_first_batch(
    server: FaultServer, threads: int
) -> None:
    """As many as its calls of 4 MiB and its shards make, and no block comes twice."""
    found, asked = epoch(server, None, num_threads=threads)
    assert sorted(found) == list(range(ROWS))
    ds = shardio.open("s3://bucket/d", storage_options=s3.options_for(server.url), engine="obstore")
    figures, _ = shardio.plan_report(ds, global_batch=16)
    assert abs(figures.requests - asked.requests) <= 1
    assert asked.requests <= 5
    assert asked.bytes <= 1.08


@pytest.mark.parametrize("chunk_rows", [80, 320])
def test_requests_are_estimated_within_a_fifth(server: FaultServer, chunk_rows: int) -> None:
    for strands in (2, 8):
        plan = Plan(ranks=4, workers=1, chunk_rows=chunk_rows, interleave=strands, window=chunk_rows)
        ds = shardio.open("s3://bucket/d", storage_options=s3.options_for(server.url), engine="obstore")
        figures, _ = shardio.plan_report(ds, global_batch=16, plan=plan)
        assert figures.requests == pytest.approx(epoch(server, plan)[1].requests, rel=0.2)


def test_an_epoch_in_storage_order_has_no_seams(server: FaultServer) -> None:
    """Chunks of a window that follow one another are one request, and no block comes twice."""
    ds = shardio.open("s3://bucket/d", storage_options=s3.options_for(server.url), engine="obstore")
    server.log.clear()
    stream = shardio.stream(ds, global_batch=16, shuffle=False, num_threads=0)
    assert sum(len(batch["payload"]) for batch in stream) == ROWS
    sizes = [r.range[1] - r.range[0] for r, _ in server.log if r.range and "/data/" in r.path]
    assert len(sizes) <= 2 * 3  # the head of an index, and a shard
    assert sum(sizes) <= 1.05 * ROWS * SIZE


@pytest.mark.filterwarnings("ignore:damaged records are skipped")
@pytest.mark.parametrize("plan", [WHOLE, PART], ids=["whole", "part"])
def test_nothing_of_a_damaged_block_is_delivered(server: FaultServer, tmp_path: Path, plan: Plan) -> None:
    """Blocks of many shards come by one call, and are compared while rows are taken from them."""
    with shardio.DatasetWriter(tmp_path / "d", shard_bytes=400_000, block_bytes=BLOCK) as out:
        for number in range(2000):
            out.write(number.to_bytes(4, "little") + bytes(SIZE - 4))
    ds = shardio.open(tmp_path / "d")
    firsts = {}  # of each shard that is hurt, the number of its first record
    for position in (333, 1500):
        place = ds.locate(position)
        flip(place.url, place.start + 100)
        firsts[place.shard] = position - place.row
    found = [each for each in shardio.verify(tmp_path / "d").findings if each.kind == "block"]
    bad = {firsts[each.shard] + row for each in found for row in range(each.row, each.row_stop)}
    assert {333, 1500} < bad
    server.load(tmp_path / "d", "/bucket/hurt")

    def numbers(on_error: str) -> list[int]:
        ds = shardio.open(
            "s3://bucket/hurt",
            storage_options=s3.options_for(server.url),
            engine="obstore",
            on_error=on_error,
        )
        stream = shardio.stream(ds, global_batch=16, seed=3, plan=plan, remainder="keep")
        return [int.from_bytes(each[:4], "little") for batch in stream for each in batch["payload"]]

    with pytest.raises(CorruptBlockError):
        numbers("raise")
    assert sorted(numbers("skip")) == sorted(set(range(2000)) - bad)


@pytest.mark.filterwarnings("ignore:some chunks are fetched more than once")
def test_a_record_that_does_not_decode_has_its_address(server: FaultServer, tmp_path: Path) -> None:
    """Rows have other numbers in their chunks."""
    with shardio.DatasetWriter(tmp_path / "d", {"n": "int64"}, shard_bytes=40_000) as out:
        for number in range(2000):
            if number == 1500:
                out.write_encoded(b"\xff")
            else:
                out.write({"n": number})
    server.load(tmp_path / "d", "/bucket/decodes")
    ds = shardio.open("s3://bucket/decodes", storage_options=s3.options_for(server.url), engine="obstore")
    with pytest.raises(CorruptRecordError) as caught:
        list(shardio.stream(ds, global_batch=16, seed=3, plan=PART, num_threads=0))
    place = ds.locate(1500)
    assert (caught.value.url, caught.value.row) == (place.url, place.row)
