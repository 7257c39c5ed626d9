"""A write of many tasks by hand: idempotent tasks, one commit."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

import shardio
from shardio.errors import CommitConflictError, NotFoundError
from tests.suites.datasets import numbers


def write_task(frozen: bytes, number: int) -> str:
    """Write a task as a worker does, which got the session by pickle."""
    with pickle.loads(frozen).task(number) as out:
        for n in range(10):
            out.write({"n": 10 * number + n}, split="train" if n % 2 else "test")
    return out.attempt


def test_tasks_in_any_order_and_twice(tmp_path):
    url = tmp_path / "ds"
    session = shardio.WriteSession.begin(url, {"n": "int64"}, compression="zstd")
    frozen = pickle.dumps(session)
    with ThreadPoolExecutor(3) as executor:
        list(executor.map(write_task, [frozen] * 6, [4, 3, 2, 1, 0, 3]))
    with pytest.raises(NotFoundError):
        shardio.open(url)
    with pytest.raises(NotFoundError, match="5"):
        session.commit(tasks=6)
    report = session.commit(tasks=5)
    assert (report.version, report.tasks, report.records) == (1, 5, {"test": 25, "train": 25})
    assert numbers(url) == list(range(1, 50, 2))
    assert shardio.gc(url).unclaimed == {}


def test_the_attempts_that_an_engine_accepted(tmp_path):
    """Other attempts of a task are left behind, and collected as garbage."""
    url = tmp_path / "ds"
    session = shardio.WriteSession.begin(url, {"n": "int64"}, session="run")
    first, second = (write_task(pickle.dumps(session), 0) for _ in range(2))
    assert session.commit({0: first}).records == {"test": 5, "train": 5}
    assert session.committed == shardio.WriteSession.begin(url, session="run", mode="append").committed
    with pytest.raises(CommitConflictError):
        session.commit({0: second, 1: write_task(pickle.dumps(session), 1)})
    assert len(shardio.open(url, "all")) == 10


def test_what_is_aborted_leaves_nothing_but_a_named_session_continues(tmp_path):
    for name in (None, "run"):
        url = tmp_path / f"ds-{name}"
        session = shardio.WriteSession.begin(url, {"n": "int64"}, session=name)
        write_task(pickle.dumps(session), 0)
        session.abort()
        assert bool(list((url / "data").glob("*.tfrecord"))) is (name is not None)


def test_what_the_commit_would_refuse_is_refused_at_once(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        out.write(b"here")
    with pytest.raises(CommitConflictError):
        shardio.WriteSession.begin(tmp_path / "ds")
    with pytest.raises(TypeError, match="shard_byte"):
        shardio.WriteSession.begin(tmp_path / "new", shard_byte=3)
