"""The pipeline of one pass: plan groups of steps, open their chunks ahead, build and deliver their batches.

A planner thread does the arithmetic, other threads fetch and build, the consumer's thread only takes what is
ready. Batches are delivered in the order of their steps whatever the threads do. With `threads=0` everything
happens in the consumer's thread, when a batch is asked for. The first group is a single step and is built
before anything else is fetched, so the first batch waits for its own records alone.

    schedule ->  Planner  -- chunks to open ------>  fetchers:  Opener.open  ->  Arena
                    |                                                              |
                    `------- rows of a group ----->  builders:  wait, gather, decode
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
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from shardio.order import StepGroup
    from shardio.streaming._batches import Batch, BatchBuilder, PlannedSteps
    from shardio.streaming._chunks import OpenChunks
    from shardio.streaming._planner import PassLimits, Planner


class _Built(NamedTuple):
    """The batches of a group, up to the first that could not be built, and the error of that one."""

    batches: list[Batch]
    error: Exception | None


class Pipeline:
    """One pass over the rest of an epoch.

    Args:
        planner: plans its groups.
        builder: builds their batches.
        chunks: that are open; given up at the end.
        limits: see `PassLimits`.
    """

    def __init__(
        self, planner: Planner, builder: BatchBuilder, chunks: OpenChunks, limits: PassLimits
    ) -> None:
        self._planner, self._builder, self._chunks, self._limits = planner, builder, chunks, limits

    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield the batches of this process, in order.

        Raises:
            ValueError: the pass was begun by the parent of this process; its threads are not here.
        """
        if self._limits.threads == 0:
            try:
                for group in self._planner.groups():
                    yield from self._builder.build(self._planner.plan(group, run_here))
            finally:
                self._chunks.close()
            return
        threads = _PassThreads(self._planner, self._builder, self._chunks, self._limits)
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
        self._one_by_one = planner.step_bytes > TUNING.large_step_bytes
        room = max(2, min(limits.threads + 1, int(TUNING.built_bytes / group_bytes)))
        self._room = 1 if self._one_by_one else room
        # What is large is ahead while it is built, and a group more would be held for nothing.
        least = 1 if group_bytes <= TUNING.ahead_bytes else 0
        self._ahead = max(least, min(TUNING.most_steps, int(limits.ahead_bytes / group_bytes)))
        self._changed = threading.Condition()
        # All below is changed with the condition held.
        self._planned: deque[PlannedSteps] = deque()
        self._building: deque[Future[_Built]] = deque()
        self._begun = False
        self._taken = 0
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None
        self._ended = False
        self._builders = DaemonThreads(limits.threads, "shardio-stream")
        self._fetchers = self._builders
        if limits.io_threads:
            self._fetchers = DaemonThreads(limits.io_threads, "shardio-fetch")
        self._planning = threading.Thread(target=self._plan_ahead, name="shardio-plan", daemon=True)
        self.home = os.getpid()
        _passes.add(self)

    def start(self) -> None:
        """Start all threads.

        Raises:
            RuntimeError: the system has no more threads; those that were started are for `close` to end.
        """
        for thread in self._threads():
            thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            future = self._next()
            if future is None:
                return
            built = future.result()
            with self._changed:
                self._taken += 1
                self._changed.notify_all()
            yield from built.batches
            if built.error is not None:
                raise built.error

    def _next(self) -> Future[_Built] | None:
        with self._changed:
            while not self._building:
                if self._finished:
                    if self._error is not None:
                        raise self._error
                    return None
                self._changed.wait()
            future = self._building.popleft()
            self._start_builds()
            return future

    def _start_builds(self) -> None:
        # Tasks start in the order in which they were submitted, and the windows of a group are submitted
        # before it: so a thread that waits for a window never waits for one that no thread will fetch.
        while self._planned and len(self._building) < self._room:
            self._building.append(self._builders.submit(self._build, self._planned.popleft()))

    def _build(self, planned: PlannedSteps) -> _Built:
        batches: list[Batch] = []
        try:
            batches.extend(self._builder.build(planned))
        except Exception as error:  # noqa: BLE001 - it is raised at its step
            return _Built(batches, error)
        return _Built(batches, None)

    def _plan_ahead(self) -> None:
        error: BaseException | None = None
        try:
            for group in self._planner.groups():
                with self._changed:
                    while not (self._closed or self._has_room(group)):
                        self._changed.wait()
                    if self._closed:
                        return
                    self._begun = True
                planned = self._planner.plan(group, self._fetchers.submit)
                with self._changed:
                    self._planned.append(planned)
                    del planned
                    self._start_builds()
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001 - it is raised in the consumer's thread
            error = caught
        finally:
            with self._changed:
                self._error = error
                self._finished = True
                self._changed.notify_all()

    def _has_room(self, group: StepGroup) -> bool:
        waiting = len(self._planned) + len(self._building)
        if not self._taken:
            # The first batch shares the bandwidth with no other.
            return not self._begun
        return not waiting or waiting < self._room + self._groups_ahead(group)

    def _groups_ahead(self, group: StepGroup) -> int:
        """Return how many groups may wait beside those that are being built."""
        if self._one_by_one or self._planner.is_in_tail(group.steps[0]):
            return 0
        # It grows with every group that was delivered, so that what is needed first is fetched first.
        return min(self._ahead, 2 * self._taken)

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
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _join(self._planning, deadline)
        for threads in (self._builders, self._fetchers):
            threads.close()
        for threads in (self._builders, self._fetchers):
            threads.join(deadline)
        if not any(thread.is_alive() for thread in self._threads()):
            self._chunks.close()
        self._ended = True

    def _threads(self) -> list[threading.Thread]:
        fetchers = [] if self._fetchers is self._builders else self._fetchers.threads
        return [*self._builders.threads, *fetchers, self._planning]


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
        while True:
            task = self._tasks.get()
            if task is None:
                return
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

    def join(self, deadline: float) -> None:
        """Wait for the threads until a moment of `time.monotonic`."""
        for thread in self.threads:
            _join(thread, deadline)


def _join(thread: threading.Thread, deadline: float) -> None:
    if thread.is_alive():  # else it may never have been started
        thread.join(max(0.0, deadline - time.monotonic()))


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
