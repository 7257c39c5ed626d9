"""Workers that die, executors that break: lost tasks run again, an item that kills its worker is named."""

from __future__ import annotations

import functools
import itertools
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest
import torch
from distributed import KilledWorker

import shardio
from shardio.errors import NotFoundError, StorageError
from tests.parallel import jobs
from tests.suites.datasets import numbers
from tests.suites.errors import refused

WRITE = functools.partial(shardio.write_dataset, schema=jobs.SCHEMA)


GONE = KilledWorker("task", SimpleNamespace(address="tcp://worker"), 3)


class Losing(ThreadPoolExecutor):
    """Loses some submissions, before or after they have had their effect."""

    def __init__(self, *losses: Exception | None, after: bool = False) -> None:
        super().__init__(2)
        self._losses = itertools.chain(losses, itertools.repeat(None))
        self._after = after

    def submit(self, fn, /, *args, **kwargs):
        loss = next(self._losses)
        if loss is None:
            return super().submit(fn, *args, **kwargs)
        if self._after:
            super().submit(fn, *args, **kwargs).result()
        future: Future = Future()
        future.set_exception(loss)
        return future


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("loss", [GONE, CancelledError()])
def test_a_lost_task_is_run_again(tmp_path, loss, after) -> None:
    """Lost tasks are retried, also those that had done their work: it counts once."""
    with Losing(None, loss, loss, None, loss, after=after) as executor:
        report = WRITE(tmp_path / "ds", range(100), jobs.number, executor=executor, tasks=4)
    assert report.records == {"train": 100}
    assert numbers(tmp_path / "ds") == list(range(100))


def test_an_error_that_is_named_like_a_loss_is_one_of_the_function(tmp_path) -> None:
    """Memory that an accelerator does not have fails the function: it is not run again, its error is told."""
    with (
        Losing(None, torch.OutOfMemoryError("CUDA out of memory")) as executor,
        refused(torch.OutOfMemoryError, "CUDA"),
    ):
        WRITE(tmp_path / "ds", range(100), jobs.number, executor=executor, tasks=4)


def test_a_task_lost_too_often_ends_the_write(tmp_path) -> None:
    begun: list[Future] = []

    class Cursed(Losing):
        def submit(self, fn, /, part):
            if part.task == 2:
                wait(begun)
                future: Future = Future()
                future.set_exception(GONE)
                return future
            begun.append(super().submit(fn, part))
            return begun[-1]

    with (
        Cursed() as executor,
        refused(StorageError, "task 2", "items 50 to 74"),
    ):
        WRITE(tmp_path / "ds", range(100), jobs.number, executor=executor, tasks=4, session="s")
    with pytest.raises(NotFoundError):
        shardio.open(tmp_path / "ds")
    with ThreadPoolExecutor(2) as executor:
        report = WRITE(tmp_path / "ds", range(100), jobs.number, executor=executor, tasks=4, session="s")
    assert report.reused == sum(not each.cancelled() for each in begun) >= 2
    assert numbers(tmp_path / "ds") == list(range(100))


@pytest.mark.parametrize("at", ["submit", "result"])
def test_a_callers_executor_that_dies_is_named(tmp_path, at) -> None:
    """An executor that dies: named, nothing published, resumable."""

    class Dying(Losing):
        def submit(self, fn, /, *args, **kwargs):
            if at == "submit":
                raise BrokenExecutor("the cluster is gone")
            return super().submit(fn, *args, **kwargs)

    dying = Dying(None, BrokenExecutor("the cluster is gone"))
    with (
        dying as executor,
        refused(StorageError, "session="),
    ):
        WRITE(tmp_path / "ds", range(100), jobs.number, executor=executor, session="s")
    with pytest.raises(NotFoundError):
        shardio.open(tmp_path / "ds")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["sequence", "iterator"])
def test_a_worker_that_is_killed_costs_nothing_but_time(tmp_path, stream) -> None:
    items = [(n, str(tmp_path / "flag")) for n in range(1000)]
    report = WRITE(tmp_path / "ds", iter(items) if stream else items, jobs.kill_once)
    assert report.records == {"train": 1000}
    assert numbers(tmp_path / "ds") == list(range(1000))
    assert (tmp_path / "flag").exists()


@pytest.mark.slow
def test_the_task_that_kills_its_worker_is_found(tmp_path) -> None:
    """It is named with its items, and not one of those that shared the pool with it."""
    items = [(n, str(tmp_path)) for n in range(1000)]
    with refused(StorageError, "task 10", "items 312 to 342"):
        WRITE(tmp_path / "ds", items, jobs.kill_always, session="s")
    assert len(list(tmp_path.glob("death.*"))) == 4, "once in company, three times alone"
    with pytest.raises(NotFoundError):
        shardio.open(tmp_path / "ds")
    report = WRITE(tmp_path / "ds", items, jobs.number_of_traced, session="s")
    assert report.reused >= 8
    assert numbers(tmp_path / "ds") == list(range(1000))


def test_no_more_is_under_way_than_workers_need(tmp_path) -> None:
    """What waits in an executor is pickled items: a stream of them must not all be taken at once."""
    taken = 0

    def stream():
        nonlocal taken
        for k in range(256 * 40):
            taken = k
            yield k

    most = 0

    def watch(progress) -> None:
        nonlocal most
        if taken < 256 * 40 - 1:  # and not while small shards are made large ones
            most = max(most, taken // 256 - progress.done)

    with ThreadPoolExecutor(1) as executor:
        WRITE(tmp_path / "ds", stream(), jobs.number, executor=executor, progress=watch)
    assert most <= 5
