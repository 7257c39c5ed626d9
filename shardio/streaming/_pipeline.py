"""The pipeline of one pass: plan groups of steps, open their chunks ahead, build and deliver their batches.

A planner thread does the arithmetic, other threads fetch and build, the consumer's thread only takes what is
ready. Batches are delivered in the order of their steps whatever the threads do. With `threads=0` everything
happens in the consumer's thread, when a batch is asked for. The first group is a single step; it is built in
that thread before anything else is planned, so the first batch waits for its own records alone.

    schedule ->  Planner  -- chunks to open ------>  fetchers:  Opener.open  ->  Arena
                    |                                                              |
                    `------- planned groups --->  builders:  wait, gather, decode
                                                         |
                                            batches, in the order of their steps
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from shardio.streaming._options import TUNING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from shardio.streaming._batches import Batch, BatchBuilder, PlannedSteps
    from shardio.streaming._chunks import OpenChunks
    from shardio.streaming._planner import PassLimits, Planner

    # The batches of a group, up to the first that could not be built, and the error of that one.
    _Built = tuple[list[Batch], Exception | None]


def run_pass(
    planner: Planner, builder: BatchBuilder, chunks: OpenChunks, limits: PassLimits
) -> Generator[Batch, None, None]:
    """Yield the batches of this process over the rest of an epoch, in order.

    Args:
        planner: plans its groups.
        builder: builds their batches.
        chunks: that are open; given up at the end.
        limits: see `PassLimits`.

    Raises:
        ValueError: the pass was begun by the parent of this process; its threads are not here.
    """
    if limits.threads == 0:
        try:
            for group in planner.groups():
                yield from builder.build(planner.plan(group, run_here))
        finally:
            chunks.close()
        return
    threads = _PassThreads(planner, builder, chunks, limits)
    seconds = TUNING.ending_seconds / 10
    try:
        try:
            threads.start()
            for batch in threads:
                yield batch
                _check_process(threads.home)
            seconds = TUNING.ending_seconds
        except (Exception, GeneratorExit):
            seconds = TUNING.ending_seconds
            raise
        finally:
            threads.close(seconds)
    except KeyboardInterrupt:
        # It may have come while they were being ended: those that were not told would wait for ever.
        threads.close(TUNING.ending_seconds / 10)
        raise


def _check_process(home: int) -> None:
    if os.getpid() != home:
        raise ValueError(
            "this pass was begun before the process forked, and its threads stayed with the parent: iterate "
            "over the stream again"
        )


class _PassThreads:
    """The threads of one pass: a planner, builders, and fetchers where data is remote.

    Once they are started, iterating, in the consumer's thread, gives the batches. Ctrl-C may come between any
    two of its instructions: each thread is known to `close` before it is started.
    """

    def __init__(
        self, planner: Planner, builder: BatchBuilder, chunks: OpenChunks, limits: PassLimits
    ) -> None:
        self._planner, self._builder, self._chunks = planner, builder, chunks
        group_bytes = planner.group_steps * planner.step_bytes
        # Of steps as large as this two at once would take more than a process may hold.
        one_by_one = planner.step_bytes > TUNING.large_step_bytes
        built = max(2, min(limits.threads + 1, int(TUNING.built_bytes / group_bytes)))
        ahead = min(TUNING.most_steps, int(limits.ahead_bytes / group_bytes))
        # What is large is ahead while it is built, and a group more would be held for nothing.
        ahead = max(ahead, 1 if group_bytes <= TUNING.ahead_bytes else 0)
        self._most_built = 1 if one_by_one else built
        self._most = 1 if one_by_one else built + ahead
        # The queue between planner and builders is bounded: each group takes a permit until it is delivered.
        self._permits = threading.Semaphore(self._most)
        # Changed with the lock held: groups to build, None behind the last; and how many builds may begin.
        self._lock = threading.Lock()
        self._planned: deque[tuple[PlannedSteps, int] | None] = deque()
        self._free = self._most_built
        self._building: queue.SimpleQueue[tuple[Future[_Built], int] | None] = queue.SimpleQueue()
        self._closed = self._ended = False
        self._builders = DaemonThreads(limits.threads, "shardio-stream")
        self._fetchers = DaemonThreads(limits.io_threads, "shardio-fetch")
        self._planning = DaemonThreads(1, "shardio-plan")
        self._all = (self._builders, self._fetchers, self._planning)
        self.home = os.getpid()
        _passes.add(self)

    def start(self) -> None:
        """Start all threads.

        Raises:
            RuntimeError: the system has no more threads; those that were started are for `close` to end.
        """
        for pool in self._all:
            for thread in pool.threads:
                thread.start()

    def __iter__(self) -> Iterator[Batch]:
        # Tasks start in the order in which they were submitted, and the chunks of a group are submitted
        # before it: so a thread that waits for a chunk never waits for one that no thread will open.
        fetch = (self._fetchers if self._fetchers.threads else self._builders).submit
        groups = self._planner.groups()
        first = next(groups, None)
        if first is None:
            return
        batches = list(self._builder.build(self._planner.plan(first, fetch)))
        planning = self._planning.submit(self._plan_ahead, groups, fetch)
        yield from batches
        while (building := self._building.get()) is not None:
            future, permits = building
            self._begin_builds(free=1)
            batches, error = future.result()
            self._permits.release(permits)
            yield from batches
            if error is not None:
                raise error
        planning.result()

    def _begin_builds(self, *planned: tuple[PlannedSteps, int] | None, free: int = 0) -> None:
        """Add planned groups, or None behind the last; let as many be built as may be."""
        with self._lock:
            self._planned.extend(planned)
            self._free += free
            while self._planned and (self._free or self._planned[0] is None):
                group = self._planned.popleft()
                if group is None:
                    self._building.put(None)
                else:
                    self._free -= 1
                    self._building.put((self._builders.submit(self._build, group[0]), group[1]))

    def _build(self, planned: PlannedSteps) -> _Built:
        batches: list[Batch] = []
        try:
            batches.extend(self._builder.build(planned))
        except Exception as error:  # noqa: BLE001 - it is raised at its step
            return batches, error
        return batches, None

    def _plan_ahead(self, groups: Iterator[Any], fetch: Callable[..., Future[None]]) -> None:
        try:
            for group in groups:
                # Steps of the tail open chunks of their own, so as few are under way as are being built.
                permits = self._most // self._most_built if self._planner.is_in_tail(group.steps[0]) else 1
                for _ in range(permits):
                    self._permits.acquire()
                if self._closed:
                    return
                self._begin_builds((self._planner.plan(group, fetch), permits))
        finally:
            self._begin_builds(None)

    def close(self, seconds: float) -> None:
        """End all threads: no new task is begun, and those under way stop at the next record.

        What Ctrl-C interrupts here may be done again.

        Args:
            seconds: to wait for them at most.
        """
        # Threads of a parent cannot be waited for.
        if self._ended or os.getpid() != self.home:
            return
        deadline = time.monotonic() + seconds
        self._builder.cancel()
        self._closed = True
        self._permits.release(self._most)
        for pool in self._all:
            pool.close()
        threads = [thread for pool in self._all for thread in pool.threads if thread.is_alive()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in threads):
            self._chunks.close()
        self._ended = True


_passes: weakref.WeakSet[_PassThreads] = weakref.WeakSet()


@atexit.register
def _end_passes() -> None:
    """End what was left in the middle while modules are still there: iterators end after some of them."""
    for threads in list(_passes):
        threads.close(TUNING.ending_seconds)


class DaemonThreads:
    """Threads that run tasks in the order in which they were submitted.

    Unlike those of a `ThreadPoolExecutor`, the interpreter does not wait for them when it ends: a function of
    the caller's that hangs must not make the program hang.

    Args:
        count: of threads.
        name: what their names begin with.

    Attributes:
        threads: for the caller to start.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = queue.SimpleQueue()
        self._closed = False
        self.threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Return the future of a call."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, args))
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._closed:
                task[0].cancel()
            if task[0].set_running_or_notify_cancel():
                _run(*task)
            # What the task holds must not live until the next one comes.
            del task

    def close(self) -> None:
        """End the threads; those that are not begun of their tasks are cancelled."""
        # The threads take them: what another thread took, and Ctrl-C made it forget, would be waited for.
        self._closed = True
        for _ in self.threads:
            self._tasks.put(None)


def _run(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is needed
        future.set_exception(error)
    else:
        future.set_result(result)


def run_here(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Do at once, in this thread, what threads would do later."""
    future: Future[Any] = Future()
    _run(future, function, args)
    return future
