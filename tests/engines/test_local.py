"""Dask, Polars and torchdata, as they are installed with what the tests need."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import polars as pl
import pytest
from torchdata.nodes import Loader, Mapper, Prefetcher

import shardio
from shardio.engines import polars as shardio_polars
from shardio.engines.torchdata import ShardioNode
from shardio.reader import Span
from tests.engines.conftest import RECORDS, write_numbers
from tests.suites.lazy import imported_when_used

shardio_dask = imported_when_used("shardio.engines.dask")


@pytest.fixture(scope="module")
def client():
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_reads_what_one_process_reads(numbers, client) -> None:
    frame = shardio_dask.read_dataframe(numbers, npartitions=9)
    assert frame.npartitions >= 9
    whole = frame.compute()
    assert whole["n"].tolist() == list(range(RECORDS))
    assert whole["image"].tolist() == [value["image"] for value in shardio.open(numbers)]
    assert frame["n"].sum().compute() == RECORDS * (RECORDS - 1) // 2
    bag = shardio_dask.read_bag(numbers, where="n < 3").pluck("n").compute()
    assert [int(n) for n in bag] == [0, 1, 2]


def _die_once(number: int, flag: str) -> int:
    if number == 3333 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_worker_that_dies_costs_nothing(numbers, client, tmp_path) -> None:
    bag = shardio_dask.read_bag(numbers, npartitions=9).pluck("n").map(int)
    assert bag.map(_die_once, str(tmp_path / "flag")).compute() == list(range(RECORDS))
    assert (tmp_path / "flag").exists()


@pytest.mark.filterwarnings("ignore:records are read")
def test_dask_decodes_the_columns_that_a_computation_uses(numbers, monkeypatch) -> None:
    frame = shardio_dask.read_dataframe(numbers, columns=["n", "name"])
    assert list(frame.columns) == ["n", "name"]
    asked, iter_arrow = [], Span.iter_arrow

    def noted(self, columns=None):
        asked.append(columns)
        return iter_arrow(self, columns)

    monkeypatch.setattr(Span, "iter_arrow", noted)
    assert frame["n"].max().compute(scheduler="synchronous") == RECORDS - 1
    assert {tuple(columns) for columns in asked} == {("n",)}


def test_polars_reads_the_rows_and_columns_of_a_query(tmp_path) -> None:
    write_numbers(tmp_path / "ds")
    lazy = shardio_polars.scan(tmp_path / "ds")
    query = lazy.filter((pl.col("n") % 1000 == 0) | pl.col("name").is_null()).select("name", "n")
    before = query.collect()
    assert before["n"].to_list() == [0, 1000, 2000, 3000, 4000, 5000]
    assert lazy.filter((pl.col("n") > 3) & (pl.col("n") < 6)).collect()["n"].to_list() == [4, 5]
    assert lazy.head(3).collect()["n"].to_list() == [0, 1, 2]
    assert lazy.select(pl.len()).collect().item() == RECORDS
    assert lazy.select("vector").tail(1).collect().item().to_list() == [5999.0, 2999.5]
    shardio.build_table(tmp_path / "ds", features=["n"], workers=1)
    lazy = shardio_polars.scan(tmp_path / "ds")
    kept = lazy.filter(pl.col("n") == 17).collect()
    assert kept["image"].to_list() == [b"17" * 20]
    assert lazy.filter((pl.col("n") == 17) & (pl.col("name") == "no")).collect().is_empty()


def _numbers(batch) -> list[int]:
    return batch["n"].tolist()


def _nodes(url, **place) -> Loader:
    node = ShardioNode(url, global_batch=100, shuffle=True, seed=3, **place)
    return Loader(Prefetcher(Mapper(node, _numbers), 4))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("taken", [13, 0, 59, 1])
def test_nodes_resume_exactly(numbers, taken) -> None:
    whole = list(_nodes(numbers))
    assert sorted(n for batch in whole for n in batch) == list(range(RECORDS))
    loader = _nodes(numbers)
    batches = iter(loader)
    first = [next(batches) for _ in range(taken)]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = _nodes(numbers)
    resumed.load_state_dict(state)
    assert first + list(resumed) == whole


def test_nodes_resume_on_another_number_of_ranks(numbers) -> None:
    node = ShardioNode(numbers, global_batch=100, shuffle=True, seed=3)
    whole = [_numbers(batch) for batch in node]
    node = ShardioNode(numbers, global_batch=100, shuffle=True, seed=3)
    for _ in range(7):
        next(node)
    state = node.state_dict()
    ranks = [
        ShardioNode(numbers, global_batch=100, shuffle=True, seed=3, rank=r, world_size=2) for r in (0, 1)
    ]
    for rank in ranks:
        rank.reset(state)
    halves = [[_numbers(batch) for batch in rank] for rank in ranks]
    assert [one + other for one, other in zip(*halves, strict=True)] == whole[7:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the state that was loaded is of the end")
def test_nodes_begin_another_epoch_after_each(numbers) -> None:
    loader = _nodes(numbers)
    first, state, second = list(loader), loader.state_dict(), list(loader)
    assert first != second
    resumed = _nodes(numbers)
    resumed.load_state_dict(state)
    assert list(resumed) == second
