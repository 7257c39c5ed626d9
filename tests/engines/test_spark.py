"""Spark 4, with Spark itself: workers and executors that are killed, and speculation."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

import shardio
from tests.engines.conftest import RECORDS, write_numbers
from tests.suites.errors import refused

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]


def _session(master: str, **settings: str):
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:  # of another test, with other settings
        active.stop()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([path or "." for path in sys.path])
    fixed = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false", "spark.task.maxFailures": "4",
    }  # fmt: skip
    builder = SparkSession.builder.master(master)
    for name, value in {**fixed, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    return spark


@pytest.fixture(scope="module")
def spark():
    # `local` with several attempts, so that a task which is lost is run again.
    session = _session("local[2, 4]")
    from shardio.engines import spark as module

    module.register(session)
    yield session
    session.stop()


def _load(spark, url, **options):
    return spark.read.format("shardio").options(**options).load(str(url))


def test_spark_reads_what_one_process_reads(spark, numbers) -> None:
    frame = _load(spark, numbers, num_partitions=9)
    assert frame.dtypes == [
        ("n", "bigint"), ("name", "string"), ("image", "binary"), ("vector", "array<float>"),
    ]  # fmt: skip
    assert frame.rdd.getNumPartitions() >= 9
    rows = sorted(frame.collect(), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(RECORDS))
    expected = list(shardio.open(numbers))
    assert [bytes(row["image"]) for row in rows] == [value["image"] for value in expected]
    assert [row["vector"] for row in rows] == [value["vector"].tolist() for value in expected]
    some = _load(spark, numbers, features="n, name_length", where="n < 5").collect()
    assert sorted(map(tuple, some)) == [(n, 6) for n in range(5)]
    assert frame.count() == RECORDS


def test_types_that_spark_does_not_have_become_wider_ones(spark, tmp_path) -> None:
    types = {"a": "uint8", "b": "uint64", "c": "float16", "d": "uint8[2]", "e": "int32[?]", "f": "bool"}
    value = {"a": 255, "b": 2**64 - 1, "c": 0.5, "d": [1, 255], "e": [1, 2, 3], "f": True}
    with shardio.DatasetWriter(tmp_path / "ds", schema=types) as out:
        out.write(value)
    (row,) = _load(spark, tmp_path / "ds").collect()
    assert row.asDict() == value


def test_options_that_there_are_not_are_refused_by_name(spark, numbers) -> None:
    with refused(Exception, "'spilt'"):
        _load(spark, numbers, spilt="train")


def test_filters_keep_what_they_keep_by_records(spark, tmp_path) -> None:
    write_numbers(tmp_path / "ds", records=500)
    for condition, count in {
        "n < 7": 7, "n IN (3, 499, 1000)": 2, "name = 'name 3' AND n > 400": 14, "name IS NULL": 0,
        "name IS NOT NULL AND NOT n >= 9": 9, "length(image) > 2 AND n = 5": 1, "vector[0] = 3.0": 1,
    }.items():  # fmt: skip
        assert _load(spark, tmp_path / "ds").where(condition).count() == count, condition


def test_what_spark_writes_is_what_it_had(spark, numbers, tmp_path) -> None:
    frame = _load(spark, numbers)
    frame.write.format("shardio").mode("append").option("compression", "zstd").save(str(tmp_path / "ds"))
    copied = shardio.open(tmp_path / "ds").to_arrow().sort_by("n")
    expected = shardio.open(numbers).to_arrow()
    assert copied["image"].equals(expected["image"])
    assert copied["vector"].to_pylist() == expected["vector"].to_pylist()
    assert shardio.verify(tmp_path / "ds").ok
    frame.where("n < 5").write.format("shardio").mode("append").save(str(tmp_path / "ds"))
    assert len(shardio.open(tmp_path / "ds")) == RECORDS + 5
    frame.where("n < 5").write.format("shardio").mode("overwrite").save(str(tmp_path / "ds"))
    assert sorted(int(value["n"]) for value in shardio.open(tmp_path / "ds")) == [0, 1, 2, 3, 4]
    assert not shardio.gc(tmp_path / "ds").unclaimed


def test_a_write_that_fails_leaves_nothing(spark, tmp_path) -> None:
    frame = spark.range(1000).selectExpr("id AS n", "raise_error('boom') AS text").where("n >= 0")
    with refused(Exception, "boom"):
        frame.write.format("shardio").mode("append").save(str(tmp_path / "ds"))
    assert not [path for path in (tmp_path / "ds").rglob("*") if path.is_file()]


def _die_once(flag: str):
    def check(rows):
        for row in rows:
            if row.n == 777 and not Path(flag).exists():
                Path(flag).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    return check


def test_a_python_worker_that_dies_costs_nothing(spark, numbers, tmp_path) -> None:
    flag = tmp_path / "flag"
    rows = _load(spark, numbers, features="n").rdd.mapPartitions(_die_once(str(flag)))
    spark.createDataFrame(rows, "n bigint").write.format("shardio").mode("append").save(str(tmp_path / "ds"))
    assert flag.exists()
    assert sorted(int(value["n"]) for value in shardio.open(tmp_path / "ds")) == list(range(RECORDS))
    assert shardio.verify(tmp_path / "ds").ok


def _kill_executor_once(flag: str):
    def check(rows):
        for row in rows:
            if row.n == 777 and not Path(flag).exists():
                Path(flag).touch()
                for parent in psutil.Process().parents():
                    if parent.name() == "java":
                        parent.kill()
                        break
            yield row

    return check


def test_an_executor_that_dies_and_speculation_cost_nothing(numbers, tmp_path) -> None:
    spark = _session(
        "local-cluster[2,1,1024]",
        **{"spark.speculation": "true", "spark.speculation.quantile": "0.1",
           "spark.speculation.multiplier": "1.01", "spark.speculation.interval": "50ms",
           "spark.executor.memory": "512m"},
    )  # fmt: skip
    try:
        from shardio.engines import spark as module

        module.register(spark)
        flag = tmp_path / "flag"
        rows = _load(spark, numbers, features="n", num_partitions=12).rdd
        rows = rows.mapPartitions(_kill_executor_once(str(flag)))
        frame = spark.createDataFrame(rows, "n bigint")
        frame.write.format("shardio").mode("append").save(str(tmp_path / "ds"))
        assert flag.exists()
        found = sorted(int(value["n"]) for value in shardio.open(tmp_path / "ds"))
        assert found == list(range(RECORDS))
        assert shardio.verify(tmp_path / "ds").ok
    finally:
        spark.stop()
