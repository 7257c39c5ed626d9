"""Batches in storage order hold what lookups give, whatever borders of blocks, runs and shards they cross."""

from __future__ import annotations

import numpy as np
import pytest

import shardio
from shardio.errors import SchemaError
from tests.promises.places import GOLDEN, PLACES, copied, fresh
from tests.streaming.datasets import RICH, rich_value, write
from tests.suites.errors import refused

NAMES = ["none", "zstd", "gzip", "deleted", "adopted", "empty"]
SIZES = [1, 7, 10**6]
CUTS = [
    lambda ds: ds,
    lambda ds: ds[3:-2],
    lambda ds: ds[::-1],
    lambda ds: ds[5::3],
    lambda ds: ds.select(np.arange(len(ds))[::2]),
]


@pytest.fixture(autouse=True)
def short_runs(tuning):
    """Runs of few blocks, so that small datasets have many."""
    tuning(run_bytes=700, mapped_run_bytes=700)


def check_sizes(batches, size, records):
    """All batches but the last are full."""
    counts = [len(batch) for batch in batches]
    assert counts == [size] * (records // size) + [records % size] * (records % size > 0)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_lists_of_payloads(name, place, tmp_path):
    whole = shardio.open(copied(GOLDEN / name, place, tmp_path), "all", decode=False)
    for cut in CUTS:
        ds = cut(whole)
        wanted = [ds[k] for k in range(len(ds))]
        assert list(ds) == wanted
        for size in SIZES:
            batches = list(ds.iter_batches(size))
            check_sizes(batches, size, len(ds))
            assert [payload for batch in batches for payload in batch] == wanted


def equal(left, right):
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, list):
        return left == right
    return (
        equal(left.values, right.values)
        and equal(left.offsets, right.offsets)
        and (left.shapes is None or equal(left.shapes, right.shapes))
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_columns_are_those_of_read_batch(compression, place, tmp_path):
    url = write(fresh(place, tmp_path), [40, 1, 25], schema=RICH, value=rich_value, compression=compression)
    for options in ({}, {"features": ["n", "tokens"]}, {"decode": False}):
        whole = shardio.open(url, **options)
        for cut in CUTS:
            ds = cut(whole)
            for size in SIZES:
                first = 0
                for found in ds.iter_batches(size):
                    stop = min(first + size, len(ds))
                    wanted = ds.read_batch(range(first, stop))
                    batch = found if isinstance(found, dict) else {"payload": found}
                    assert list(batch) == list(wanted)
                    assert all(equal(batch[name], wanted[name]) for name in wanted)
                    first = stop
                assert first == len(ds)


def test_a_batch_is_the_callers_own(tmp_path):
    """What a caller does to one batch changes neither the next nor the dataset."""
    ds = shardio.open(write(tmp_path / "d", [20], value=lambda n: {"n": n}, schema={"n": "int64"}))
    for batch in ds.iter_batches(3):
        batch["n"][:] = -1
    assert [int(n) for batch in ds.iter_batches(3) for n in batch["n"]] == list(range(20))
    raw = shardio.open(tmp_path / "d", decode=False)
    for batch in raw.iter_batches(3):
        batch.clear()
    assert [payload for batch in raw.iter_batches(3) for payload in batch] == list(raw)


def test_a_record_that_does_not_fit_is_named(tmp_path):
    write(tmp_path / "d", [30], schema={"n": "int64", "x": "int64[2]"}, value=lambda n: {"n": n, "x": [n, n]})
    with shardio.DatasetWriter(tmp_path / "d", mode="append") as out:
        out.write_encoded(shardio.codecs.encode_example({"n": 30}))
    with refused(SchemaError, "'x'") as caught:
        list(shardio.open(tmp_path / "d").iter_batches(7))
    assert (caught.value.row, caught.value.shard) == (0, shardio.open(tmp_path / "d").locate(30).shard)


def test_sizes_that_make_no_sense(tmp_path):
    ds = shardio.open(write(tmp_path / "d", [3]))
    for size in (0, -1):
        with pytest.raises(ValueError):  # noqa: PT011 - any
            ds.iter_batches(size)
    with pytest.raises(TypeError):
        ds.iter_batches(1.5)
    check_sizes([batch["n"] for batch in ds.iter_batches(np.int64(2))], 2, 3)
