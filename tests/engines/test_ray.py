"""Ray Data, with Ray itself: two workers, and one that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError
from shardio.parallel import RayExecutor
from tests.engines.conftest import RECORDS, write_numbers
from tests.parallel.elsewhere import OPERATIONS, hold
from tests.suites.errors import refused

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def ray():
    import ray as engine

    engine.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def shardio_ray(ray):
    from shardio.engines import ray as module

    return module


def _sorted(dataset) -> list[int]:
    return sorted(row["n"] for row in dataset.take_all())


def test_ray_reads_what_one_process_reads(shardio_ray, numbers) -> None:
    found = shardio_ray.read(numbers, override_num_blocks=9)
    rows = sorted(found.take_all(), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(RECORDS))
    assert [row["image"] for row in rows] == [value["image"] for value in shardio.open(numbers)]
    assert shardio_ray.read(numbers).count() == RECORDS
    some = shardio_ray.read(numbers, features=["n", "name"], where="n < 5")
    assert some.schema().names == ["n", "name"]
    assert _sorted(some) == [0, 1, 2, 3, 4]


def test_ray_decodes_the_columns_that_it_needs(shardio_ray, numbers) -> None:
    found = shardio_ray.read(numbers).select_columns(["n"])
    assert _sorted(found) == list(range(RECORDS))
    source = shardio_ray.ShardioDatasource(shardio.open(numbers)).apply_projection({"n": "n"})
    (table, *_) = source.get_read_tasks(1)[0]()
    assert table.column_names == ["n"]


def test_filters_keep_what_they_keep_by_records(shardio_ray, tmp_path) -> None:
    from ray.data.expressions import col

    write_numbers(tmp_path / "ds", records=500)
    named = (col("name") == "name 3") & (col("n") > 400)
    found = shardio_ray.read(tmp_path / "ds").filter(expr=named).select_columns(["n"])
    assert _sorted(found) == list(range(402, 500, 7))
    shardio.build_table(tmp_path / "ds", features=["n", "name"], workers=1)
    found = shardio_ray.read(tmp_path / "ds", where="name = 'name 3' AND n > 400").select_columns(["n"])
    assert _sorted(found) == list(range(402, 500, 7))


def test_a_version_stays_pinned(shardio_ray, tmp_path) -> None:
    write_numbers(tmp_path / "ds", records=100)
    found = shardio_ray.read(tmp_path / "ds")
    write_numbers(tmp_path / "ds", records=10, first=100, mode="append")
    assert _sorted(found) == list(range(100))
    assert _sorted(shardio_ray.read(tmp_path / "ds", version=1)) == list(range(100))
    assert _sorted(shardio_ray.read(tmp_path / "ds")) == list(range(110))


def test_what_ray_writes_is_what_it_had(shardio_ray, numbers, tmp_path) -> None:
    report = shardio_ray.write(shardio_ray.read(numbers), tmp_path / "copy", compression="zstd")
    assert report.records == {"train": RECORDS}
    columns = shardio.open(tmp_path / "copy").to_arrow().sort_by("n")
    expected = shardio.open(numbers).to_arrow()
    assert columns["image"].equals(expected["image"])
    assert columns["name"].equals(expected["name"])
    assert shardio.verify(tmp_path / "copy").ok
    assert not shardio.gc(tmp_path / "copy").unclaimed
    with pytest.raises(CommitConflictError):
        shardio_ray.write(shardio_ray.read(numbers), tmp_path / "copy")
    report = shardio_ray.write(shardio_ray.read(numbers, where="n < 5"), tmp_path / "copy", mode="append")
    assert (report.version, report.records) == (2, {"train": 5})


def test_nulls_and_a_schema_of_the_caller(ray, shardio_ray, tmp_path) -> None:
    rows = [{"n": 1, "t": "x"}, {"n": 2, "t": None}]
    shardio_ray.write(ray.data.from_items(rows), tmp_path / "null")
    assert sorted(shardio.open(tmp_path / "null"), key=lambda value: value["n"]) == rows
    shardio_ray.write(ray.data.from_items(rows), tmp_path / "some", schema={"n": "int8", "t": None})
    assert shardio.open(tmp_path / "some").schema["n"].type == "int8"
    with refused(Exception, "'t'"):
        shardio_ray.write(ray.data.from_items(rows), tmp_path / "no", schema={"n": "int8", "t": "text"})
    assert not list((tmp_path / "no").glob("_shardio/*"))
    shardio_ray.write(shardio_ray.read(tmp_path / "null", where="n > 7"), tmp_path / "empty")
    assert len(shardio.open(tmp_path / "empty", split="all")) == 0


def test_a_session_is_written_once(ray, shardio_ray, tmp_path) -> None:
    rows = ray.data.range(100).rename_columns({"id": "n"})
    first = shardio_ray.write(rows, tmp_path / "ds", session="run-1")
    again = shardio_ray.write(rows, tmp_path / "ds", session="run-1")
    assert (first.version, again.version, len(shardio.open(tmp_path / "ds"))) == (1, 1, 100)


def test_a_worker_that_dies_while_it_writes_costs_nothing(shardio_ray, numbers, tmp_path) -> None:
    flag = tmp_path / "flag"

    def die_once(row):
        if row["n"] == RECORDS - 1 and not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    rows = shardio_ray.read(numbers, features=["n"], override_num_blocks=8).map(die_once)
    report = shardio_ray.write(rows, tmp_path / "ds")
    assert flag.exists()
    assert report.records == {"train": RECORDS}
    assert sorted(int(value["n"]) for value in shardio.open(tmp_path / "ds")) == list(range(RECORDS))
    assert shardio.verify(tmp_path / "ds").ok
    assert not shardio.gc(tmp_path / "ds").unclaimed


# A cache is filled from a server, which is tried with Dask.
@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - {"fill_cache"}))
def test_every_operation_survives_a_worker_that_dies(ray, tmp_path, name, seeded) -> None:
    with RayExecutor() as executor:
        hold(name, tmp_path, executor, seeded)
