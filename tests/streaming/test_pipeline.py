"""Reading ahead: bounded, in order, without deadlock; errors at their own step; nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.errors import CorruptBlockError
from shardio.order import Plan
from shardio.streaming import _pipeline, _planner
from shardio.streaming._arena import Arena
from shardio.streaming._chunks import OpenChunks
from tests.order.shapes import positions_in
from tests.streaming.datasets import RICH, flat, memory_url, numbers, plan, rich_value, write
from tests.suites.errors import refused

ALL_THREADS = pytest.mark.parametrize("threads", [0, 1, 2, 5])


@pytest.fixture(scope="module")
def ds():
    return shardio.open(write(memory_url(), [70, 5, 125], compression="zstd"))


@pytest.fixture
def local(tmp_path):
    return shardio.open(write(tmp_path / "d", [70, 5, 125]))


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


@ALL_THREADS
def test_the_batches_are_the_same_whatever_the_threads(ds, local, threads):
    expected = numbers(make(ds, num_threads=0))
    assert numbers(make(ds, num_threads=threads)) == expected
    assert sorted(flat(numbers(make(local, num_threads=threads)))) == list(range(200))


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


@ALL_THREADS
def test_damage_comes_at_the_first_step_that_needs_it(tmp_path, threads):
    ds = shardio.open(write(tmp_path / "d", [200], compression="zstd"))
    expected = numbers(make(ds))
    place = ds.locate(91)
    path = Path(place.url.removeprefix("file://"))
    head = ds.source.pool.get(0).head
    block = int(head.block_row_stop.searchsorted(place.row, side="right"))
    with path.open("r+b") as file:
        file.seek(int(head.block_stop[block]) - 1)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    bad = set(range(int(head.block_row_stop[block - 1]), int(head.block_row_stop[block])))
    stream = make(shardio.open(tmp_path / "d"), num_threads=threads)
    got: list = []
    with pytest.raises(CorruptBlockError) as caught:
        _each(stream, got)
    assert caught.value.row in bad
    assert got == expected[: len(got)]
    # A window is loaded whole: the first step that draws from a window with the damage is the one that fails.
    schedule = make(ds)._schedule
    for step in range(len(got) + 1):
        windows = schedule.lanes.locate(schedule.parts(step)[0]).windows
        touched = [set(positions_in(windows, number)) & bad for number in range(len(windows))]
        assert any(touched) == (step == len(got))


@pytest.mark.sampled(4)
@ALL_THREADS
@pytest.mark.slow
def test_closing_early_leaves_no_thread(ds, threads):
    stream = make(ds, num_threads=threads)
    it = iter(stream)
    next(it)
    assert bool(stream_threads()) == bool(threads)
    it.close()
    assert stream_threads() == []
    for _ in stream:
        break
    gc.collect()
    assert stream_threads() == []


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


class Interrupt:
    """Ctrl-C before the n-th line that this thread comes to in the pipeline, or when it has started a thread.

    Attributes:
        lines: how many it came to.
    """

    def __init__(self, n=-1):
        self._n, self.lines = n, 0
        source = Path(_pipeline.__file__).read_text(encoding="utf-8").splitlines()
        # A tracer comes to them again between a block and its exit, where no signal does.
        self._skipped = {at for at, line in enumerate(source, 1) if line.lstrip().startswith("with ")}

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, _):
        if frame.f_code is threading.Thread.start.__code__:
            self._count(event == "return")
        elif frame.f_code.co_filename == _pipeline.__file__:
            self._count(event == "line" and frame.f_lineno not in self._skipped)
        else:
            return None
        return self._trace

    def _count(self, one):
        self.lines += one
        if one and self.lines == self._n:
            raise KeyboardInterrupt


def one_pass(ds):
    it = iter(make(ds, num_threads=2))
    for _ in range(12):
        next(it)
    it.close()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("part", range(5))
def test_wherever_ctrl_c_comes_no_thread_is_left(ds, part):
    """Between any two lines: while threads are started, while batches are taken, while threads are ended."""

    def running():
        return {thread for thread in threading.enumerate() if not is_kept(thread)}

    threads = running()
    with Interrupt() as whole:
        one_pass(ds)
    assert whole.lines > 100
    # How often the consumer waits is chance, so that some runs have more lines than others.
    for n in range(1 + part, whole.lines + 20, 5):
        with contextlib.suppress(KeyboardInterrupt), Interrupt(n):
            one_pass(ds)
        deadline = time.monotonic() + 600
        while (left := running() - threads) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left, f"interrupted at line {n}"


def test_nothing_runs_before_the_first_batch_is_asked_for(ds):
    it = iter(make(ds))
    assert stream_threads() == []
    it.close()


class Counted:
    """Counts the rows that chunks are opened for, and the bytes of their payloads that are held.

    Attributes:
        opened: (positions, bytes) of each chunk.
        alive, peak: bytes of the slots in use.
    """

    def __init__(self, monkeypatch):
        self.opened, self.alive, self.peak = [], 0, 0
        self._lock = threading.Lock()
        take, give_back, opened = Arena.take, Arena.give_back, OpenChunks.opened

        def taking(arena, size):
            with self._lock:
                self.alive += size
                self.peak = max(self.peak, self.alive)
            slot = take(arena, size)
            self._sizes[slot.start] = size
            return slot

        def giving_back(arena, slot):
            with self._lock:
                self.alive -= self._sizes.pop(slot.start)
            give_back(arena, slot)

        def noting(chunks, number, slots):
            with self._lock:
                self.opened.append((chunks[number].positions, slots[1].size))
            opened(chunks, number, slots)

        self._sizes = {}
        monkeypatch.setattr(Arena, "take", taking)
        monkeypatch.setattr(Arena, "give_back", giving_back)
        monkeypatch.setattr(OpenChunks, "opened", noting)

    @property
    def rows(self):
        return sum(len(positions) for positions, _ in self.opened)


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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_is_held_is_bounded_for_any_dataset_size(monkeypatch, large, threads):
    """Memory stays within the stated bound: the plan's windows, and what is planned ahead."""
    shape = plan(ranks=4, workers=2, chunk_rows=32)
    memory = 1 << 20
    stream = shardio.stream(large, global_batch=16, plan=shape, num_threads=threads, memory_bytes=memory)
    figures, _ = shardio.plan_report(large, global_batch=16, workers=1, plan=shape, memory_bytes=memory)
    assert figures.memory_bytes < memory < figures.epoch_bytes / 3
    counted = Counted(monkeypatch)
    rows = sum(len(batch["payload"]) for batch in stream)
    assert rows == 4000
    assert 0 < counted.peak <= memory
    assert counted.alive == 0


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
def test_the_first_batch_of_an_interleaved_plan_waits_for_its_own_records(monkeypatch, large, threads):
    """From a bucket; at a resume too, where the windows in use are read again once, each."""
    shape = shardio.Plan(ranks=4, workers=1, chunk_rows=100, interleave=5, window=100)
    stream = shardio.stream(large, global_batch=16, plan=shape, num_threads=threads)
    expected = [batch["payload"] for batch in stream]
    for step in (0, 60):
        fresh = shardio.stream(large, global_batch=16, plan=shape, num_threads=threads)
        fresh.go_to(step)
        monkeypatch.setattr(type(large.source), "is_mapped", property(lambda _: False))
        # As where windows are so large that requests for single records are worth their round trips.
        monkeypatch.setattr(_planner, "TUNING", replace(_planner.TUNING, first_bytes=0))
        counted = Counted(monkeypatch)
        batches = iter(fresh)
        assert next(batches)["payload"] == expected[step]
        assert len(counted.opened[0][0]) == 16
        assert [batch["payload"] for batch in batches] == expected[step + 1 :]
        # Of chunks that are open already at a resume, all rows are fetched once more.
        assert counted.rows <= 16 + 4000 - 16 * step + 20 * 100
        monkeypatch.undo()


def test_a_pass_begun_before_a_fork_is_refused_in_the_child(ds):
    """Safe after fork, or a clear error, never a hang."""
    stream = make(ds)
    it = iter(stream)
    next(it)
    read, wrote = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            list(it)
        except ValueError as error:
            fresh = sorted(flat(numbers(make(ds, num_threads=2))))
            os.write(wrote, f"{error} {fresh == list(range(200))}".encode())
        finally:
            os._exit(0)
    os.close(wrote)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    assert "begun before the process forked" in said
    assert said.endswith("True")
    assert len(list(it)) == 49


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
