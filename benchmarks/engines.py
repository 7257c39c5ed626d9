"""Rows of 1 KB that Ray Data, Spark, Dask and Polars read in a second, beside one process of shardio alone.

    python benchmarks/engines.py [--rows 400000] [--workers 2] [--rounds 3] [--only ray spark]

Each engine counts the bytes of one feature of all rows, where its workers read them. It has started, and has
read the dataset once, before it is measured; the best of some rounds counts. The dataset is on the local
disk and in the page cache. An engine that is not installed is left out. On a machine that is busy with other
work the second figure tells more: rows for each second of processor, of all processes that take part.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psutil

import shardio

SIZE = 1000
Read = Callable[[], int]


def write(url: str, rows: int) -> None:
    """Write rows of an integer and 1,000 bytes that do not compress."""
    noise = os.urandom(1 << 20)
    with shardio.DatasetWriter(url, schema={"n": "int64", "data": "bytes"}, shard_bytes=64 << 20) as out:
        for n in range(rows):
            begin = n * 4099 % (len(noise) - SIZE)
            out.write({"n": n, "data": noise[begin : begin + SIZE]})


@contextlib.contextmanager
def alone(url: str, workers: int) -> Iterator[Read]:
    """Read by `iter_batches`, in this process."""
    del workers
    ds = shardio.open(url)
    yield lambda: sum(sum(map(len, batch["data"])) for batch in ds.iter_batches(4096))


@contextlib.contextmanager
def ray(url: str, workers: int) -> Iterator[Read]:
    """Read by `ray.read`, and count by `map_batches`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import ray as engine

    from shardio.engines import ray as shardio_ray

    def count(table: pa.Table) -> pa.Table:
        return pa.table({"bytes": [pc.sum(pc.binary_length(table["data"])).as_py()]})

    engine.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    engine.data.DataContext.get_current().enable_progress_bars = False

    def read() -> int:
        rows = shardio_ray.read(url).map_batches(count, batch_format="pyarrow", batch_size=None)
        # Not by its own `sum`, which keeps a processor of few for itself.
        return sum(row["bytes"] for row in rows.take_all())

    yield read
    engine.shutdown()


@contextlib.contextmanager
def spark(url: str, workers: int) -> Iterator[Read]:
    """Read by `format("shardio")`, and count in SQL."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from shardio.engines import spark as shardio_spark

    builder = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    shardio_spark.register(session)

    def read() -> int:
        frame = session.read.format("shardio").load(url)
        return int(frame.selectExpr("sum(length(data))").collect()[0][0])

    yield read
    session.stop()


@contextlib.contextmanager
def dask(url: str, workers: int) -> Iterator[Read]:
    """Read by `read_dataframe`, and count in its partitions."""
    from distributed import Client, LocalCluster

    from shardio.engines import dask as shardio_dask

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
    ):
        yield lambda: int(shardio_dask.read_dataframe(url)["data"].map_partitions(_bytes_of).compute().sum())


def _bytes_of(column: Any) -> Any:
    return column.map(len)


@contextlib.contextmanager
def polars(url: str, workers: int) -> Iterator[Read]:
    """Read by `scan`, in this process."""
    del workers
    import polars as pl

    from shardio.engines import polars as shardio_polars

    yield lambda: int(shardio_polars.scan(url).select(pl.col("data").bin.size().sum()).collect().item())


ENGINES: dict[str, Callable[[str, int], AbstractContextManager[Read]]] = {
    "alone": alone, "ray": ray, "spark": spark, "dask": dask, "polars": polars,
}  # fmt: skip


def processor() -> float:
    """Return the seconds of processor of this process and those that it has begun."""
    own = psutil.Process()
    seconds = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def main() -> None:
    """Print a line for each engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/rows"
        write(url, given.rows)
        for name in given.only:
            try:
                with ENGINES[name](url, given.workers) as read:
                    walls, owns = [], []
                    for _ in range(given.rounds + 1):
                        begin, before = time.perf_counter(), processor()
                        found = read()
                        walls.append(time.perf_counter() - begin)
                        owns.append(processor() - before)
                        assert found == given.rows * SIZE, found
            except ImportError as error:
                print(f"| {name} | not installed: {error} |", flush=True)
                continue
            wall, own = given.rows / min(walls[1:]), given.rows / min(owns[1:])
            print(f"| {name} | {wall:,.0f} rows/s | {own:,.0f} rows a second of processor |", flush=True)


if __name__ == "__main__":
    main()
