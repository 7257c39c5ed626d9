"""Loaders over a bucket: workers of every kind read, none hangs, and notices come once."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader

import shardio
from shardio.torch import MapDataset, StreamingDataLoader, StreamingDataset
from tests.servers import s3

RECORDS = [b"record %d " % k * (k % 9 + 1) for k in range(120)]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def url(endpoint: str) -> str:
    url = f"s3://{s3.make_bucket(endpoint)}/birds"
    with shardio.DatasetWriter(
        url, shard_bytes=2_000, block_bytes=500, storage_options=s3.options_for(endpoint)
    ) as out:
        for record in RECORDS:
            out.write(record)
    return url


class NoticesAsErrors(logging.Handler):
    """In a worker, what is logged would be lost."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


def refuse_notices(_worker: int) -> None:
    logging.getLogger("shardio").addHandler(NoticesAsErrors())


def write_notices(folder: pathlib.Path, worker: int) -> None:
    logging.getLogger("shardio").addHandler(logging.FileHandler(folder / f"{worker}.log"))


def read_with_workers(ds: shardio.DatasetReader, method: str, init=refuse_notices, workers: int = 2) -> None:
    """Read all records through torch's own DataLoader."""
    loader = DataLoader(
        MapDataset(ds),
        batch_size=10,
        num_workers=workers,
        multiprocessing_context=method,
        collate_fn=list,
        worker_init_fn=init,
        timeout=600,
    )
    assert [record for batch in loader for record in batch] == RECORDS


def stream_with_workers(ds: shardio.DatasetReader, method: str, workers: int = 2) -> None:
    """Stream a shuffled epoch through worker processes: the batches are those of this process."""
    dataset = StreamingDataset(ds, global_batch=10, seed=3, positions=True)
    loader = StreamingDataLoader(dataset, num_workers=workers, multiprocessing_context=method)
    places = []
    for batch in loader:
        places += batch["_position"].tolist()
        assert batch["payload"] == [RECORDS[k] for k in batch["_position"].tolist()]
    assert sorted(places) == list(range(len(RECORDS)))
    assert places != sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "engine"), [("forkserver", "fsspec"), ("spawn", "obstore")])
def test_workers_that_start_from_nothing_read_a_bucket(url, endpoint, method, engine) -> None:
    """P15: under forkserver and spawn either engine works, whatever the parent has used."""
    # Starting interpreters with torch in them takes seconds: one worker each, forked from one that has it.
    multiprocessing.set_forkserver_preload(["shardio.torch"])
    ds = shardio.open(url, storage_options=s3.options_for(endpoint), engine=engine)
    assert ds[7] == RECORDS[7]
    read_with_workers(ds, method, workers=1)
    other = "obstore" if engine == "fsspec" else "fsspec"
    stream_with_workers(
        shardio.open(url, storage_options=s3.options_for(endpoint), engine=other), method, workers=1
    )


@pytest.mark.slow
def test_a_parent_that_has_only_opened_datasets_may_fork(url, endpoint) -> None:
    """P15: safe after fork; in a process of its own, because this one may have used obstore before."""
    script = f"""
import shardio
from tests.torch.test_object_stores import RECORDS, read_with_workers, stream_with_workers
opened = [
    shardio.open({url!r}, storage_options={s3.options_for(endpoint)!r}, engine=engine)
    for engine in ("fsspec", "obstore")
]
for ds in opened:
    assert len(ds) == len(RECORDS)
for ds in opened:
    read_with_workers(ds, "fork")
    stream_with_workers(ds, "fork")
for ds in opened:
    assert ds[7] == RECORDS[7]
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


def test_workers_of_a_user_of_obstore_read_by_s3fs_and_say_so_once(url, endpoint, tmp_path) -> None:
    """P15: a forked child of a process that has used obstore takes fsspec's client, and says so once."""
    ds = shardio.open(url, storage_options=s3.options_for(endpoint))
    assert ds[3] == RECORDS[3]
    read_with_workers(ds, "fork", functools.partial(write_notices, tmp_path))
    for worker in (0, 1):
        lines = (tmp_path / f"{worker}.log").read_text().splitlines()
        assert len(lines) == 1
        assert "forked after obstore was used" in lines[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [{"num_threads": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}])
def test_requests_are_counted(endpoint: str, url: str, how: dict) -> None:
    """Also those that worker processes send."""
    ds = shardio.open(url, storage_options=s3.options_for(endpoint))
    loader = StreamingDataLoader(StreamingDataset(ds, global_batch=20, shuffle=False), **how)
    assert len(list(loader)) == 6
    figures = loader.stats.epoch
    assert figures.requests >= ds.num_shards
    assert (figures.retries, figures.records) == (0, 120)
    assert figures.record_bytes == sum(map(len, RECORDS))
    assert figures.bytes_read >= figures.record_bytes
