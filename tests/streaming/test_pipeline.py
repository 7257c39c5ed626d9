"""Reading ahead: bounded, in order, without deadlock; errors at their own step; nothing left behind."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import shardio
from shardio.order import Plan
from tests.streaming.datasets import RICH, memory_url, numbers, plan, rich_value, write
from tests.suites.errors import refused

ALL_THREADS = pytest.mark.parametrize("threads", [0, 1, 2, 5])


@pytest.fixture(scope="module")
def ds():
    return shardio.open(write(memory_url(), [70, 5, 125], compression="zstd"))


def make(ds, **options):
    return shardio.stream(ds, **{"global_batch": 4, "plan": plan(), "remainder": "keep", **options})


earlier: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _threads_of_earlier_tests():
    """Conditions in SQL keep a thread, and torchdata's `Loader` its nodes until cycles are collected."""
    earlier.clear()
    earlier.update(threading.enumerate())


def is_kept(thread):
    """Tell whether a thread sends requests, for all streams of the process, and stays."""
    return thread.name.startswith("shardio-io")


def stream_threads():
    """Return the names of the threads of shardio's that this test has started."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("shardio-") and not is_kept(thread) and thread not in earlier
    ]


class TroubleError(Exception):
    pass


def failing_at(n):
    def transform(value):
        if value["n"] == n:
            raise TroubleError(n)
        return value

    return transform


@ALL_THREADS
@pytest.mark.parametrize("step", [0, 1, 17, 49])
def test_an_error_comes_at_its_own_step_after_the_batches_before_it(ds, threads, step):
    expected = numbers(make(ds))
    for options in (
        {"transform": failing_at(expected[step][-1])},
        {"batch_transform": lambda columns: columns if columns["n"].tolist() != expected[step] else 1 / 0},
    ):
        stream = make(ds, num_threads=threads, **options)
        got = []
        with pytest.raises((TroubleError, ZeroDivisionError)):
            got.extend(batch["n"].tolist() for batch in _each(stream, got))
        assert got == expected[:step]
        assert stream.state_dict()["step"] == step
        assert stream_threads() == []


def _each(stream, got):
    for batch in stream:
        got.append(batch["n"].tolist())
    return ()


def test_an_error_in_a_transform_names_the_record(ds):
    with pytest.raises(TroubleError) as caught:
        list(make(ds, transform=failing_at(73)))
    place = ds.locate(73)
    assert caught.value.__notes__ == [
        f"in a transform, for row {place.row} of shard {place.shard} ({place.url})"
    ]


@pytest.mark.parametrize("most", range(7))
def test_where_threads_cannot_be_started_none_is_left(monkeypatch, ds, most):
    """As in a container with a limit."""
    stream = make(ds, num_threads=2)
    started = []
    start = threading.Thread.start

    def limited(thread):
        if thread.name.startswith("shardio"):
            if len(started) == most:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError):
        next(iter(stream))
    for thread in started:
        thread.join(600)
    assert len(started) == most
    assert stream_threads() == []


def test_nothing_runs_before_the_first_batch_is_asked_for(ds):
    it = iter(make(ds))
    assert stream_threads() == []
    it.close()


@pytest.fixture(scope="module")
def large():
    return shardio.open(
        write(
            memory_url(),
            [4000],
            schema=None,
            value=lambda n: b"%06d" % n + bytes(1018),
            block_bytes=4096,
        )
    )


_SHAPE = shardio.Plan(ranks=4, workers=1, chunk_rows=100, interleave=5, window=100)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_chunk_that_cannot_be_fetched_is_an_error_at_its_step(monkeypatch, large, threads):
    monkeypatch.setattr(type(large.source), "is_mapped", property(lambda _: False))
    pool, calls = large.source.pool, itertools.count(1)
    get = pool.get

    def failing(number):
        if next(calls) == 3:
            raise OSError("torn cable")
        return get(number)

    monkeypatch.setattr(pool, "get", failing)
    seen = 0
    with refused(OSError, "torn cable"):
        for batch in shardio.stream(large, global_batch=20, plan=_SHAPE, num_threads=threads):
            seen += len(batch["payload"])
    assert 20 <= seen < 4000


@pytest.mark.parametrize("threads", [0, 2])
def test_what_a_caller_keeps_of_windows_stays_as_it_was(tmp_path, threads):
    """Memory of windows is used again: views that a caller has kept must not change under it."""
    url = write(tmp_path / "d", [1500, 1500], schema=RICH, value=rich_value)
    shape = Plan(ranks=4, chunk_rows=8, interleave=4)
    kept = []

    def keep(value):
        kept.append(value)
        return value

    for transform in (None, keep):
        options = {"plan": shape, "global_batch": 20, "transform": transform, "num_threads": threads}
        for batch in list(shardio.stream(shardio.open(url), remainder="keep", **options)):
            rows = [{name: column[row] for name, column in batch.items()} for row in range(20)]
            kept += rows if transform is None else []
    assert len(kept) == 6000
    for value in kept:
        wanted = rich_value(int(value["n"]))
        assert all(np.array_equal(value[name], wanted[name]) for name in wanted)
