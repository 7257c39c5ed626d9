"""Jobs handed out to processes, results as they come: a bounded number under way, lost jobs run again.

A worker may die at any moment.  A pool of our own whose worker died does not say which job killed it, so
those that may have been running are run again one at a time: a job that is lost while alone is to blame.
Any executor of `concurrent.futures` can take the place of that pool: Dask, MPI, `RayExecutor`.
"""

from __future__ import annotations

import collections
import os
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardio.arguments import integer
from shardio.display import plural
from shardio.errors import StorageError
from shardio.parallel._pool import make_pool, run_in_worker, stop_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

Job = TypeVar("Job")
Result = TypeVar("Result")

_TRIES = 3
# A process's clients serve so many small shards, and a kill loses little.
_JOB_SHARDS = 16
# Jobs under way on an executor that does not say how many workers it has.
_MOST_AHEAD = 1024
# So long the jobs that are under way on a caller's executor are waited for when another failed.
_ENDING_SECONDS = 60.0
_REDRAW = 1.0
# What engines call a worker that is gone, by their package; none of them is imported for it. Functions raise
# errors of the same names: `torch.OutOfMemoryError` is one of a function that failed.
_LOSSES = {
    "asyncio": {"CancelledError"},
    "concurrent": {"CancelledError"},
    "distributed": {"CommClosedError", "FutureCancelledError", "FuturesCancelledError", "KilledWorker"},
    "ray": {"NodeDiedError", "ObjectLostError", "OutOfMemoryError", "WorkerCrashedError"},
}


class InlineExecutor(Executor):
    """Run each call at once, in the caller's own thread."""

    # How many jobs are kept under way depends on it.
    _max_workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function and return its outcome as a finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it, as that of a pool does
            future.set_exception(error)
        return future


@dataclass(frozen=True)
class LostJob:
    """What became of a job that has no result: its worker was lost three times, or the executor broke down.

    Attributes:
        error: what the executor said.
        tries: how often it was lost.
        executor_broken: the caller's executor takes no more jobs.
    """

    error: BaseException
    tries: int
    executor_broken: bool = False

    def as_error(self, task: str, *, advice: str, **place: Any) -> StorageError:
        """Return what ends a call for want of the result.

        Args:
            task: what the worker did, as in "read a shard".
            advice: what to do about it.
            place: of what it worked on, as errors take it.
        """
        lost = "the executor broke down" if self.executor_broken else "a worker was lost"
        times = "" if self.executor_broken else f" {plural(self.tries, 'time')}"
        found = f"{type(self.error).__name__}: {self.error}"
        return StorageError(f"{lost}{times} while it {task}", found=found, advice=advice, **place)


class JobRunner(Generic[Job, Result]):
    """Run a function over jobs, in processes.

    Args:
        function: called with a job, in a worker; must be importable there.
        executor: where jobs run; None for a process pool that ends with this process, however that ends.
        workers: processes of that pool; None for one per processor, 1 for this process itself.
        keep_going: what the function raises ends its own job alone, as a `LostJob`.

    Raises:
        TypeError, ValueError: `workers` is not a whole number of at least 1, or given with an executor.
    """

    def __init__(
        self,
        function: Callable[[Job], Result],
        *,
        executor: Executor | None = None,
        workers: int | None = None,
        keep_going: bool = False,
    ) -> None:
        check_workers(workers, executor)
        if executor is not None and not hasattr(executor, "submit"):
            raise TypeError(f"executor= takes an executor of concurrent.futures, found {executor!r:.80}")
        self._function = function
        self._keep_going = keep_going
        self._pool = None
        self._executor = executor
        self._workers = workers or os.cpu_count() or 1
        if executor is None and workers == 1:
            self._executor = InlineExecutor()
        elif executor is None:
            self._pool = make_pool(self._workers)
        self._tries: collections.Counter[int] = collections.Counter()
        self._waiting: dict[Future[Result], tuple[int, Job]] = {}
        self._again: collections.deque[tuple[int, Job]] = collections.deque()
        self._suspects: collections.deque[tuple[int, Job]] = collections.deque()
        self._finished: collections.deque[tuple[Job, Result | LostJob]] = collections.deque()
        self._broken: BaseException | None = None

    def run(
        self,
        jobs: Iterable[Job],
        *,
        most_ahead: int = _MOST_AHEAD,
        tick: Callable[[], None] | None = None,
    ) -> Generator[tuple[Job, Result | LostJob]]:
        """Yield each job with its result, in the order in which they end; to be closed, so that workers end.

        Args:
            jobs: taken as they are needed: four for each worker are under way.
            most_ahead: how many are under way on an executor that does not say how many workers it has.
            tick: called about every second while jobs are under way.

        Raises:
            Exception: what the function raised, without `keep_going`; no other job runs any more in a pool of
                our own.
        """
        todo = iter(enumerate(jobs))
        workers = _workers_of(self._pool or self._executor)
        ahead = 4 * workers if workers else most_ahead
        try:
            while self._fill(todo, ahead):
                ended, _ = wait(self._waiting, timeout=_REDRAW, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._take(future)
                while self._finished:
                    yield self._finished.popleft()
                if tick is not None:
                    tick()
            while self._finished:
                yield self._finished.popleft()
        finally:
            self._stop()

    def _fill(self, todo: Iterator[tuple[int, Job]], ahead: int) -> bool:
        """Submit what may run now; return whether anything is under way or has ended."""
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
                job = next(todo, None)
                if job is None:
                    break
                self._submit(job)
        return bool(self._waiting or self._finished)

    def _submit(self, job: tuple[int, Job]) -> None:
        if self._broken is not None:
            self._lose(job, self._broken)
            return
        try:
            if self._pool is not None:
                future = self._pool.submit(run_in_worker, self._function, job[1])
            else:
                assert self._executor is not None  # noqa: S101 - for mypy: one of the two is there
                future = self._executor.submit(self._function, job[1])
        except BrokenExecutor as error:
            # A worker died before this was submitted, so this is not to blame.
            self._again.appendleft(job)
            self._renew(error)
            return
        self._waiting[future] = job

    def _take(self, future: Future[Result]) -> None:
        job = self._waiting.get(future)
        if job is None:
            return
        try:
            result = future.result()
        except BrokenExecutor as error:
            self._renew(error)
        except BaseException as error:
            del self._waiting[future]
            if _is_loss(error):
                if not self._blame(job, error):
                    self._again.append(job)
            elif self._keep_going and isinstance(error, Exception):
                self._finished.append((job[1], LostJob(error, 1)))
            else:
                raise
        else:
            del self._waiting[future]
            self._finished.append((job[1], result))

    def _renew(self, error: BrokenExecutor) -> None:
        """Replace a pool of our own whose worker died, and see to what was in it."""
        if self._pool is None:
            self._break(error)
            return
        stop_pool(self._pool)
        lost: list[tuple[int, Job]] = []
        for future, job in self._waiting.items():
            failure = future.exception()
            if failure is None:
                self._finished.append((job[1], future.result()))
            elif isinstance(failure, BrokenExecutor):
                lost.append(job)
            else:
                raise failure
        self._waiting.clear()
        # A pool starts what was submitted first, so these and no others can have been running.
        running = lost[: self._workers]
        if len(lost) == 1 and self._blame(lost[0], error):
            running = []
        self._suspects.extend(running)
        self._again.extendleft(reversed(lost[self._workers :]))
        self._pool = make_pool(self._workers)

    def _break(self, error: BrokenExecutor) -> None:
        """Give up what the caller's executor can no longer do."""
        self._broken = error
        waiting, self._waiting = self._waiting, {}
        for future, job in waiting.items():
            failure = future.exception() if future.done() else error
            if failure is None:
                self._finished.append((job[1], future.result()))
            else:
                self._lose(job, failure)

    def _lose(self, job: tuple[int, Job], error: BaseException) -> None:
        self._finished.append((job[1], LostJob(error, self._tries[job[0]] + 1, executor_broken=True)))

    def _blame(self, job: tuple[int, Job], error: BaseException) -> bool:
        """Note that a job was lost; return whether it is given up."""
        number, lost = job
        self._tries[number] += 1
        if self._tries[number] < _TRIES:
            return False
        self._finished.append((lost, LostJob(error, _TRIES)))
        return True

    def _stop(self) -> None:
        if self._pool is not None:
            stop_pool(self._pool)
        else:
            for future in self._waiting:
                future.cancel()

    def left(self) -> tuple[list[Result], int]:
        """Return what `run`, left early, did not yield, and how many jobs a minute more did not end."""
        found = [result for _, result in self._finished if not isinstance(result, LostJob)]
        begun = [future for future in self._waiting if not future.cancelled()]
        ended, running = wait(begun, timeout=_ENDING_SECONDS)
        return found + [future.result() for future in ended if future.exception() is None], len(running)


def cut_jobs(sizes: Sequence[int], *, most_bytes: int) -> list[tuple[int, int]]:
    """Return half-open ranges of shards that are worth a message to a worker, and cheap to lose.

    Args:
        sizes: of the shards in bytes.
        most_bytes: a job ends with the shard that reaches them, or with the sixteenth.
    """
    found: list[tuple[int, int]] = []
    first = size = 0
    for stop, more in enumerate(sizes, 1):
        size += more
        if stop - first == _JOB_SHARDS or size >= most_bytes or stop == len(sizes):
            found.append((first, stop))
            first, size = stop, 0
    return found


def check_workers(workers: int | None, executor: Executor | None = None) -> None:
    """Refuse a number of workers that makes no sense.

    Raises:
        TypeError, ValueError: it is not a whole number of at least 1, or an executor is given as well.
    """
    if workers is None:
        return
    if integer("workers", workers) < 1:
        message = f"workers={workers} must be at least 1"
        raise ValueError(message)
    if executor is not None:
        raise ValueError("workers= is for the pool that is made without executor=: give one of them")


def _workers_of(executor: Executor | None) -> int | None:
    """Return how many workers an executor has, where it says so, as those of the standard library do."""
    workers: int | None = getattr(executor, "_max_workers", None)
    return workers


def _is_loss(error: BaseException) -> bool:
    """Tell whether a worker was lost, as each engine says it, rather than its function failed."""
    kinds = type(error).__mro__
    return any(kind.__name__ in _LOSSES.get(kind.__module__.partition(".")[0], ()) for kind in kinds)
