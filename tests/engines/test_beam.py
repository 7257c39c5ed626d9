"""Beam, with its DirectRunner; in an environment of its own."""

from __future__ import annotations

import pytest

import shardio
from tests.engines.conftest import write_numbers
from tests.suites.errors import refused

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]
SCHEMA = {"n": "int64", "image": "bytes"}


def _copied(value) -> dict:
    return {"n": int(value["n"]), "image": value["image"]}


def test_beam_reads_and_writes_what_one_process_does(numbers, tmp_path) -> None:
    import apache_beam as beam

    from shardio.engines.beam import ReadFromShardio, WriteToShardio

    with beam.Pipeline() as pipeline:
        rows = pipeline | ReadFromShardio(numbers) | beam.Map(_copied)
        _ = rows | WriteToShardio(tmp_path / "ds", schema=SCHEMA, tasks=3, compression="zstd")
    ds = shardio.open(tmp_path / "ds")
    found = sorted((int(value["n"]), value["image"]) for value in ds)
    assert found == [(int(value["n"]), value["image"]) for value in shardio.open(numbers)]
    assert shardio.verify(tmp_path / "ds").ok
    assert not shardio.gc(tmp_path / "ds").unclaimed


def test_a_pipeline_reads_the_version_that_was_there_when_it_was_made(tmp_path) -> None:
    import apache_beam as beam

    from shardio.engines.beam import ReadFromShardio, WriteToShardio

    write_numbers(tmp_path / "ds", records=100)
    with beam.Pipeline() as pipeline:
        rows = pipeline | ReadFromShardio(tmp_path / "ds", where="n < 50") | beam.Map(_copied)
        _ = rows | WriteToShardio(tmp_path / "copy", schema=SCHEMA, session="run-1")
        write_numbers(tmp_path / "ds", records=10, mode="append")
    assert len(shardio.open(tmp_path / "copy")) == 50


def test_bundles_that_fail_and_run_again_double_nothing(tmp_path) -> None:
    import apache_beam as beam

    from shardio.engines.beam import WriteToShardio

    flag = tmp_path / "flag"

    def fail_once(n):
        if n == 700 and not flag.exists():
            flag.touch()
            raise RuntimeError("once")
        return {"n": n}

    with refused(Exception, "once"), beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create(range(1000)) | beam.Map(fail_once)
        _ = rows | WriteToShardio(tmp_path / "ds", schema={"n": "int64"}, session="run-1")
    for _ in range(2):
        with beam.Pipeline() as pipeline:
            rows = pipeline | beam.Create(range(1000)) | beam.Map(fail_once)
            _ = rows | WriteToShardio(tmp_path / "ds", schema={"n": "int64"}, session="run-1")
    ds = shardio.open(tmp_path / "ds")
    assert (ds.version, sorted(int(value["n"]) for value in ds)) == (1, list(range(1000)))
