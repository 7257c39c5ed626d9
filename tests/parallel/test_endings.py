"""However a write ends, its workers end with it, and nothing half-done is seen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import shardio
from shardio.errors import NotFoundError, ShardioError
from tests.parallel import jobs
from tests.parallel.programs import driver, wait_until, wait_until_gone, workers_of


def at_work(folder: Path, process, most: int = 2) -> list:
    """Return the workers once so many are busy, and the others, too, leave Ctrl-C to the driver."""
    wait_until(lambda: len(list(folder.iterdir())) >= min(most, os.cpu_count() or 1))
    wait_until(lambda: all(ignores_ctrl_c(worker.pid) for worker in workers_of(process)))
    workers = workers_of(process)
    assert {int(path.name) for path in folder.iterdir()} <= {worker.pid for worker in workers}
    return workers


def ignores_ctrl_c(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("items", [8, 1], ids=["all busy", "some idle"])
@pytest.mark.parametrize("group", [True, False], ids=["terminal", "kill -INT"])
def test_ctrl_c_leaves_no_worker_and_publishes_nothing(tmp_path, group, items) -> None:
    """P4, P14: Ctrl-C, from a terminal (which all processes hear) or to the driver alone."""
    busy, url = tmp_path / "busy", tmp_path / "ds"
    busy.mkdir()
    with driver(url=str(url), items=[str(busy)] * items, function="wait_for_ever") as process:
        workers = at_work(busy, process, items)
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGINT
        assert err.count("Traceback") == 1, "the driver says it, and not every worker too"
        assert err.rstrip().endswith("KeyboardInterrupt")
        wait_until_gone(workers)
    with pytest.raises(NotFoundError):
        shardio.open(url)
    assert [path for path in url.rglob("*") if path.is_file()] == [], "it cannot be continued"


@pytest.mark.slow
def test_a_killed_driver_takes_its_workers_along(tmp_path) -> None:
    """P14: SIGKILL of the driver: its workers clean up and go."""
    busy, url = tmp_path / "busy", tmp_path / "ds"
    busy.mkdir()
    with driver(url=str(url), items=[str(busy)] * 8, function="wait_for_ever") as process:
        workers = at_work(busy, process)
        process.kill()
        process.wait()
        wait_until_gone(workers)
    with pytest.raises(NotFoundError):
        shardio.open(url)
    assert [path for path in url.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_sigterm_ends_a_driver_like_any_program(tmp_path) -> None:
    busy, url = tmp_path / "busy", tmp_path / "ds"
    busy.mkdir()
    with driver(url=str(url), items=[str(busy)] * 8, function="wait_for_ever", session="s") as process:
        workers = at_work(busy, process)
        process.terminate()
        assert process.wait(timeout=600) == -signal.SIGTERM
        wait_until_gone(workers)
    with pytest.raises(NotFoundError):
        shardio.open(url)


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_while_it_makes_a_file_leaves_none(tmp_path) -> None:
    """Also where something keeps the error, whose frames keep the writer that has the file."""
    with pytest.raises(ShardioError):
        shardio.write_dataset(
            tmp_path / "ds", range(4), jobs.stopped_while_a_file_is_made, schema=jobs.SCHEMA, workers=2
        )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_worker_ends_though_a_finalizer_ignored_that_it_was_told_to(tmp_path) -> None:
    with pytest.raises(ShardioError):
        shardio.write_dataset(
            tmp_path / "ds", [tmp_path] * 100, jobs.stopped_in_a_finalizer, schema=jobs.SCHEMA, workers=2
        )
    assert not (tmp_path / "went on").exists()
