"""Uncompressed local shards: records are gathered by the index, and compared with their own checksums."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.errors import CorruptBlockError
from shardio.order import Plan
from tests.streaming.datasets import flip
from tests.suites.descriptors import open_in

MANY = 900
SHAPE = Plan(ranks=4, workers=1, chunk_rows=32, interleave=6, window=32)
linux = pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
THREADS = pytest.mark.parametrize("threads", [0, 2])
# Small records are looked into through the map, large ones are read past it.
SIZES = {"small": 600, "large": 4900}


def value(n: int, size: int) -> bytes:
    return n.to_bytes(4, "little") + np.random.default_rng(n).bytes(size + n % 300)


@pytest.fixture(scope="module", params=SIZES)
def pristine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with shardio.DatasetWriter(folder / "d", shard_bytes=MANY * SIZES[request.param] // 11) as out:
        for n in range(MANY):
            out.write(value(n, SIZES[request.param]))
    return folder / "d"


@pytest.fixture
def url(pristine, tmp_path):
    """Return a copy that may be damaged."""
    shutil.copytree(pristine, tmp_path / "d")
    return tmp_path / "d"


def shards(url):
    return sorted((url / "data").glob("*.tfrecord"))


def stream(ds, **options):
    return shardio.stream(ds, **{"global_batch": 16, "plan": SHAPE, "remainder": "keep", **options})


def records(batches):
    return [record for batch in batches for record in batch["payload"]]


def read() -> int:
    """Return the bytes that this process has asked the system for."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


PARTS = {
    "all": lambda ds: ds,
    "some": lambda ds: ds.select([n for n in range(MANY) if n % 7 < 3]),
    "slice": lambda ds: ds[100:500],
}


@pytest.mark.sampled(2)
@THREADS
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_the_records_are_those_of_blocks(pristine, threads, verify, part):
    def made(**options):
        return stream(PARTS[part](shardio.open(pristine, verify=verify, **options)), num_threads=threads)

    wanted = records(made(mmap=False))
    assert records(made()) == wanted
    later = made()
    later.go_to(len(later) // 2)
    assert records(later) == wanted[16 * (len(later) // 2) :]


@linux
def test_no_byte_is_read_twice(pristine):
    ds = shardio.open(pristine)
    batches = stream(ds, num_threads=0)
    list(batches)  # maps, indexes, modules
    before = read()
    assert len(records(batches)) == MANY
    assert read() - before <= 1.05 * int(ds.source.table.stored_bytes.sum())


@linux
def test_files_are_not_kept_open(pristine):
    batches = iter(stream(shardio.open(pristine), num_threads=2))
    for _ in range(5):
        next(batches)
        assert len(open_in(pristine)) <= 2
    batches.close()
    assert not open_in(pristine)


def test_deleted_records_are_left_out(url):
    shardio.delete(url, range(50, 400))
    found = records(stream(shardio.open(url)))
    assert sorted(int.from_bytes(each[:4], "little") for each in found) == [*range(50), *range(400, MANY)]


def test_a_mixture_may_compare_some(pristine):
    def made(**options):
        parts = [(shardio.open(pristine, verify=verify, **options), 1) for verify in (True, False)]
        return stream(shardio.mix(parts), num_threads=2, positions=True, plan=[SHAPE, SHAPE])

    for found, wanted in zip(made(), made(mmap=False), strict=True):
        assert found["payload"] == wanted["payload"]
        assert (found["_position"] == wanted["_position"]).all()


@pytest.mark.sampled(2)
@THREADS
@pytest.mark.parametrize("place", [3, 9, 100, -2], ids=["length", "length's checksum", "payload", "checksum"])
def test_damage_is_found_when_its_record_is_delivered(url, threads, place):
    ds = shardio.open(url)
    steps = [batch["_position"].tolist() for batch in stream(ds, positions=True)]
    where = ds.locate(500)
    flip(where.url, where.start + place % (where.stop - where.start))
    found = []
    with pytest.raises(CorruptBlockError) as caught:
        found.extend(stream(shardio.open(url), num_threads=threads, positions=True))
    assert [batch["_position"].tolist() for batch in found] == steps[: len(found)]
    assert 500 in steps[len(found)]
    assert caught.value.shard == where.shard
    assert caught.value.start <= where.start < where.stop <= caught.value.stop


@THREADS
def test_damage_that_came_after_a_block_was_compared_is_not_delivered(url, threads):
    ds = shardio.open(url)
    assert len(list(ds)) == MANY  # every block is compared, by its map
    where = ds.locate(500)
    flip(where.url, where.start + 100)
    with pytest.raises(CorruptBlockError):
        records(stream(ds, num_threads=threads))


def replace_by_another(path):
    path.with_suffix(".new").write_bytes(b"?" * path.stat().st_size)
    path.with_suffix(".new").replace(path)


@linux
@THREADS
@pytest.mark.parametrize("change", [Path.unlink, replace_by_another])
def test_files_that_lose_their_names_are_read_to_the_end(url, threads, change):
    """They are mapped as they were: what was there is delivered."""
    batches = stream(shardio.open(url), num_threads=threads, ahead_bytes=1)
    wanted, found = records(batches), []
    batches.set_epoch(0)
    for step, batch in enumerate(batches):
        found += batch["payload"]
        if step == 10:
            for path in shards(url):
                change(path)
    assert found == wanted


@linux
@THREADS
def test_a_file_of_large_records_that_is_cut_is_an_error_and_no_signal(tmp_path, threads):
    with shardio.DatasetWriter(tmp_path / "d", shard_bytes=400_000) as out:
        for n in range(MANY):
            out.write(value(n, SIZES["large"]))
    batches = stream(shardio.open(tmp_path / "d"), num_threads=threads, ahead_bytes=1)

    def go():
        for step, _ in enumerate(batches):
            if step == 10:
                for path in shards(tmp_path / "d"):
                    os.truncate(path, 100)

    with pytest.raises(CorruptBlockError):
        go()


@linux
def test_without_descriptors_the_maps_are_looked_into(pristine):
    import resource

    ds = shardio.open(pristine)
    batches = stream(ds, num_threads=0)
    wanted = records(batches)
    batches.set_epoch(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        found = records(batches)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == wanted
