"""Write a Spark DataFrame as a dataset: each partition is a task, the driver commits once.

    spark-submit examples/spark_write.py s3://bucket/table

Spark runs a partition again whose executor died, and may run it twice at once (`spark.speculation`): each
attempt writes under names of its own, and the commit takes one complete attempt of each.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import shardio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCHEMA = {"id": "int64", "text": "text"}


def writer_of(url: str, session: str) -> Callable[[Iterable[Any]], None]:
    """Return what writes one partition."""

    def write(rows: Iterable[Any]) -> None:
        from pyspark import TaskContext

        task = TaskContext.get().partitionId()
        with shardio.DatasetWriter(url, schema=SCHEMA, session=session, task=task, commit=False) as out:
            for row in rows:
                out.write(row.asDict())

    return write


def main(url: str, session: str = "table-2024-06") -> shardio.Version:
    """Write a table of 10,000 rows."""
    from pyspark.sql import SparkSession, functions as f

    spark = SparkSession.builder.appName("shardio").getOrCreate()
    frame = spark.range(10_000, numPartitions=8).withColumn("text", f.concat(f.lit("row "), f.col("id")))
    frame.rdd.foreachPartition(writer_of(url, session))
    version = shardio.commit(url, session=session, tasks=frame.rdd.getNumPartitions())
    spark.stop()
    return version


if __name__ == "__main__":
    print(f"version {main(*sys.argv[1:]).number}")
