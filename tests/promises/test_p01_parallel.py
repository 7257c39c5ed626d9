"""P1, P2, P4 of parallel writes: workers and drivers are killed, under a process pool and under Dask."""

from __future__ import annotations

import random

import pytest

from tests.parallel import jobs
from tests.parallel.places import Place, dask_cluster, moto_program
from tests.parallel.programs import driver, finished, wait_until_gone, workers_of

COUNT = 240
FEW = 80  # the S3 server of the tests answers some fifty requests a second
# Every engine and every place; all four together with `--hypothesis-profile=long`.
USUAL = [("processes", "local"), ("dask", "local"), ("processes", "s3")]


@pytest.fixture(scope="module")
def endpoint():
    with moto_program() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def cluster():
    with dask_cluster() as cluster:
        yield cluster


def size_of(place: Place) -> tuple[int, int]:
    """Return how many items and tasks suit a place."""
    return (COUNT, 32) if place.options is None else (FEW, 8)


def pytest_generate_tests(metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        long = metafunc.config.getoption("--hypothesis-profile", default=None) == "long"
        pairs = [*USUAL, ("dask", "s3")] if long else USUAL
        metafunc.parametrize(("engine", "where"), pairs)


@pytest.fixture
def place(request, where, tmp_path) -> Place:
    return Place(tmp_path, request.getfixturevalue("endpoint") if where == "s3" else None)


@pytest.mark.slow
def test_a_killed_driver_is_run_again_and_goes_on(request, engine, where, place, tmp_path) -> None:
    """P1, P2: SIGKILL of the driver at random moments; a rerun of the session continues, once."""
    dice = random.Random(7)
    url = place.url()
    count, tasks = size_of(place)
    go_on = tmp_path / "go on"
    options = {"url": url, "items": jobs.held_back(range(count), go_on), "function": "wait_for_a_file"}
    options |= {"tasks": tasks, "session": "night-run", **place.storage}
    if engine == "dask":
        options["dask"] = request.getfixturevalue("cluster").scheduler_address
    done = 0
    for _ in range(2 if where == "local" else 1):
        with driver(**options) as process:
            stop = done + dice.randrange(1, tasks // 4)
            for line in process.stdout:
                if int(line.split()[1]) >= stop:
                    break
            workers = workers_of(process)
            process.kill()
            process.wait()
            wait_until_gone(workers)
        assert place.numbers(url) is None
        done = stop
    go_on.touch()
    with driver(**options) as process:
        version, reused, records = finished(process)
    assert version == 1
    assert 1 <= reused < tasks
    assert records == {"train": count}
    assert place.numbers(url) == list(range(count))
    with driver(**options) as process:
        assert finished(process) == [1, tasks, {"train": count}]


@pytest.mark.slow
def test_a_driver_killed_between_the_passes_of_a_shuffle_goes_on(tmp_path) -> None:
    """P1: also with a spool; it is gone in the end."""
    dice = random.Random(3)
    place, spool = Place(tmp_path, None), tmp_path / "spool"
    spool.mkdir()
    url = place.url()
    options = {"url": url, "count": COUNT, "session": "mixed", "shuffle": 9, "spool_dir": str(spool)}
    for tasks in (dice.randrange(2, 30), 32):
        with driver(**options, held_at=tasks) as process:
            for line in process.stdout:
                if int(line.split()[1]) >= tasks:
                    break
            process.kill()
        assert place.numbers(url) is None
    with driver(**options) as process:
        finished(process)
    numbers = place.numbers(url)
    assert numbers != list(range(COUNT))
    assert sorted(numbers) == list(range(COUNT))
    assert list(spool.iterdir()) == []
