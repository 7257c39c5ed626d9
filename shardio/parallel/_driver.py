"""The driver of a parallel write: hand tasks out, keep a bounded number under way, run lost ones again.

A worker may die at any moment, and so may the driver; what counts is the receipts that tasks leave.  Of a
pool of our own whose worker died nobody knows which task killed it, so those that may have been running
are run again one at a time: whoever is lost then, alone, is to blame.
"""

from __future__ import annotations

import collections
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import TYPE_CHECKING

from shardio.errors import StorageError
from shardio.parallel._pool import check_travels, make_pool, run_in_worker, stop_pool
from shardio.parallel._progress import Progress
from shardio.parallel._task import FailedItem, TaskResult, TaskSpec, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardio.parallel._cut import Cut, Part

__all__ = ["Driver"]

_TRIES = 3
# Parts under way on an executor that does not say how many workers it has; those of a stream wait in memory.
_MOST_KNOWN = 1024
_MOST_STREAMED = 128
_REDRAW = 1.0
_ADVICE = "nothing was published; give the same session= again to continue with the tasks that are missing"
# What engines call a worker that is gone; none of them is imported for it.
_LOSSES = {
    "CancelledError",  # concurrent.futures, asyncio
    "FutureCancelledError",  # Dask
    "FuturesCancelledError",
    "KilledWorker",
    "CommClosedError",
    "WorkerCrashedError",  # Ray
    "NodeDiedError",
    "OutOfMemoryError",
    "ObjectLostError",
}


class Driver:
    """Runs the tasks of one write.

    Args:
        spec: what they share.
        executor: where they run; None for a process pool of our own.
        show: called with the progress.

    Attributes:
        tasks: how many there are, as far as is known.
        failed: items left out so far.
    """

    def __init__(
        self, spec: TaskSpec, executor: Executor | None, show: Callable[[Progress], None] | None
    ) -> None:
        if executor is None:
            check_travels(spec.function)
        self.tasks = 0
        self.failed: list[FailedItem] = []
        self._spec = spec
        self._pool = make_pool() if executor is None else None
        self._executor = executor
        self._show = show
        self._progress = Progress(0, 0, 0, 0)
        self._all_seen = False
        self._tries: collections.Counter[int] = collections.Counter()
        self._waiting: dict[Future[TaskResult], Part] = {}
        self._again: collections.deque[Part] = collections.deque()
        self._suspects: collections.deque[Part] = collections.deque()

    def run(self, cut: Cut, done: set[int]) -> None:
        """Run all tasks but those done to their end.

        Raises:
            StorageError: a task was lost too often, or the caller's executor is broken.
            Exception: what a task failed with; no other one runs any more in a pool of our own.
        """
        self.tasks = cut.tasks
        self._all_seen = bool(cut.tasks)
        todo = self._skip(cut, done)
        ahead = self._ahead(streamed=not cut.tasks)
        try:
            self._tell()
            while self._fill(todo, ahead):
                ended, _ = wait(self._waiting, timeout=_REDRAW, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._take(future)
                self._tell()
        finally:
            self._stop()

    def _skip(self, cut: Cut, done: set[int]) -> Iterator[Part]:
        for part in cut.parts:
            self.tasks = max(self.tasks, part.task + 1)
            if part.task in done:
                self._progress = self._progress._replace(done=self._progress.done + 1)
            else:
                yield part
        self._all_seen = True

    def _ahead(self, *, streamed: bool) -> int:
        workers = _workers_of(self._pool or self._executor)
        if workers:
            return 4 * workers
        return _MOST_STREAMED if streamed else _MOST_KNOWN

    def _fill(self, todo: Iterator[Part], ahead: int) -> bool:
        """Submit what may run now; return whether anything is under way."""
        while len(self._waiting) < ahead:
            # Submitting may find the pool broken, which changes everything: so one at a time.
            if self._suspects:
                if self._waiting:
                    break
                self._submit(self._suspects.popleft())
                if self._waiting:
                    break
            elif self._again:
                self._submit(self._again.popleft())
            else:
                part = next(todo, None)
                if part is None:
                    break
                self._submit(part)
        return bool(self._waiting)

    def _submit(self, part: Part) -> None:
        try:
            if self._pool is not None:
                future = self._pool.submit(run_in_worker, run_task, self._spec, part)
            else:
                assert self._executor is not None  # noqa: S101 - for mypy: one of the two is there
                future = self._executor.submit(run_task, self._spec, part)
        except BrokenExecutor as error:
            # A worker died before this was submitted, so this is not to blame.
            self._again.appendleft(part)
            self._renew(error)
            return
        self._waiting[future] = part

    def _take(self, future: Future[TaskResult]) -> None:
        part = self._waiting.get(future)
        if part is None:
            return
        try:
            result = future.result()
        except BrokenExecutor as error:
            self._renew(error)
        except BaseException as error:
            del self._waiting[future]
            if not _is_loss(error):
                raise
            self._blame(part, error)
            self._again.append(part)
        else:
            del self._waiting[future]
            self._note(result)

    def _note(self, result: TaskResult) -> None:
        self.failed += result.failed
        done, _, records, stored = self._progress
        self._progress = Progress(done + 1, 0, records + result.records, stored + result.stored_bytes)

    def _tell(self) -> None:
        if self._show is not None:
            self._show(self._progress._replace(tasks=self.tasks if self._all_seen else 0))

    def _renew(self, error: BrokenExecutor) -> None:
        """Replace a pool of our own whose worker died, and see to what was in it."""
        if self._pool is None:
            raise StorageError(
                "the executor broke down",
                url=self._spec.url,
                found=str(error) or type(error).__name__,
                advice=_ADVICE,
            ) from error
        stop_pool(self._pool)
        lost: list[Part] = []
        for future, part in self._waiting.items():
            failure = future.exception()
            if failure is None:
                self._note(future.result())
            elif isinstance(failure, BrokenExecutor):
                lost.append(part)
            else:
                raise failure
        self._waiting.clear()
        # A pool starts what was submitted first, so these and no others can have been running.
        running = lost[: _workers_of(self._pool) or 1]
        if len(lost) == 1:
            self._blame(lost[0], error)
        self._suspects.extend(running)
        self._again.extendleft(reversed(lost[len(running) :]))
        self._pool = make_pool()

    def _blame(self, part: Part, error: BaseException) -> None:
        self._tries[part.task] += 1
        if self._tries[part.task] >= _TRIES:
            last = part.first + len(part.items) - 1
            raise StorageError(
                f"task {part.task} was lost {_TRIES} times (items {part.first} to {last})",
                url=self._spec.url,
                found=str(error) or type(error).__name__,
                advice=_ADVICE,
            ) from error

    def _stop(self) -> None:
        if self._pool is not None:
            stop_pool(self._pool)
        else:
            for future in self._waiting:
                future.cancel()


def _workers_of(executor: Executor | None) -> int | None:
    """Return how many workers an executor has, where it says so, as those of the standard library do."""
    workers: int | None = getattr(executor, "_max_workers", None)
    return workers


def _is_loss(error: BaseException) -> bool:
    """Tell whether a worker was lost, as each engine says it, rather than its function failed."""
    return any(kind.__name__ in _LOSSES for kind in type(error).__mro__)
