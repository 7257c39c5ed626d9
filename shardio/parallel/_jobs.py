"""Jobs handed out to processes, results as they come: a bounded number under way, lost jobs run again.

A worker may die at any moment.  A pool of our own whose worker died does not say which job killed it, so
those that may have been running are run again one at a time: a job that is lost while alone is to blame.
Any executor of `concurrent.futures` can take the place of that pool: Dask, MPI, `RayExecutor`.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from shardio.arguments import integer
from shardio.callers import warn
from shardio.catalog import Version
from shardio.display import plural
from shardio.errors import StorageError
from shardio.metadata import ShardTable
from shardio.parallel._pool import TaskCounts, make_pool, run_in_worker, stop_pool
from shardio.progress import CountProgress
from shardio.reader import ReadOptions, Slice


class Job(Protocol):
    """Work for one worker; pickles. A `Slice` is one."""

    @property
    def label(self) -> str:
        """What it works on, for the error of a lost worker."""
        ...

    @property
    def size(self) -> int:
        """How much it is, as progress counts it."""
        ...


AnyJob = TypeVar("AnyJob", bound=Job)
Result = TypeVar("Result")

_TRIES = 3
# A process's clients serve so many small shards, and a kill loses little.
_JOB_SHARDS = 16
# Jobs under way on an executor that does not say how many workers it has.
_MOST_AHEAD = 512
# So long the jobs that are under way on a caller's executor are waited for when another failed.
_ENDING_SECONDS = 60.0
# Some systems deliver Ctrl-C between waits only.
_AWAKE = 1.0
_SLICE_BYTES = 64 << 20
# What engines call a worker that is gone, by their package; none of them is imported for it. Functions raise
# errors of the same names: `torch.OutOfMemoryError` is one of a function that failed.
_LOSSES = {
    "asyncio": {"CancelledError"},
    "concurrent": {"CancelledError"},
    "distributed": {"CommClosedError", "FutureCancelledError", "FuturesCancelledError", "KilledWorker"},
    "ray": {"NodeDiedError", "ObjectLostError", "OutOfMemoryError", "WorkerCrashedError"},
}


def run(  # noqa: PLR0913 - what all jobs of the project need
    function: Callable[[AnyJob], Result],
    jobs: Iterable[AnyJob],
    url: str | None,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: Callable[[CountProgress], None] | None = None,
    advice: str = "run it again, with fewer workers if memory was short",
    on_lost: Callable[[AnyJob, StorageError], Result] | None = None,
    on_late: Callable[[AnyJob, Result], object] | None = None,
    counts: TaskCounts | None = None,
) -> Generator[tuple[AnyJob, Result]]:
    """Yield each job with the result of a function, as they end; to be closed, so that workers end.

    Args:
        function: called with a job, in a worker; must be importable there.
        jobs: taken as they are needed: four for each worker are under way.
        url: of the data, for errors. Data in the memory of this process is worked on here.
        executor: any of `concurrent.futures`; None for a process pool that ends with this process.
        workers: processes of that pool; None for one per processor, 1 for this process itself.
        progress: called after each job with the sizes of those that ended, as stored bytes.
        advice: what to do where a worker is lost.
        on_lost: returns the result of a job whose worker was lost; None to raise the error instead.
        on_late: takes the results of the jobs under way on a caller's executor after another one failed or
            this was closed; they are waited for, a minute at most. For jobs that write under `url`.
        counts: shared with the workers of our own pool, and shown while jobs run.

    Raises:
        StorageError: a worker was lost three times over one job, or the caller's executor broke down.
        Exception: what the function raised.
    """
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(f"executor= takes an executor of concurrent.futures, found {executor!r:.80}")
    check_workers(workers, executor)
    done, total = 0, sum(job.size for job in jobs) if isinstance(jobs, Sequence) else 0
    here = executor is None and (workers == 1 or (url or "").startswith("memory:"))
    runner = None if here else _Runner(function, jobs, executor, workers or os.cpu_count() or 1, counts)
    try:
        for job, result in ((job, function(job)) for job in jobs) if runner is None else runner.results():
            yield job, result.settle(job, url, advice, on_lost) if isinstance(result, _Lost) else result
            done += job.size
            if progress is not None:
                progress(CountProgress(done, total, "B"))
    except BaseException:
        # A GeneratorExit, too: the caller failed, or was interrupted, between two results.
        if runner is not None and on_late is not None:
            for job, result in runner.finish(url):
                on_late(job, result)
        raise
    finally:
        if runner is not None:
            runner.stop()


@dataclass(frozen=True)
class _Lost:
    """Why a job has no result: its worker was lost three times, or the caller's executor broke down."""

    reason: BaseException
    tries: int

    def settle(
        self,
        job: AnyJob,
        url: str | None,
        advice: str,
        on_lost: Callable[[AnyJob, StorageError], Result] | None,
    ) -> Result:
        """Return the result of the job, or raise the error; see `run`."""
        how = f"a worker was lost {plural(self.tries, 'time')}" if self.tries else "the executor broke down"
        error = StorageError(
            f"{how} while it worked on {job.label}",
            url=url,
            shard=job.entry.key if isinstance(job, Slice) else None,
            found=f"{type(self.reason).__name__}: {self.reason}",
            advice=advice,
        )
        if on_lost is None:
            raise error from self.reason
        return on_lost(job, error)


@dataclass(eq=False)
class _Attempt(Generic[AnyJob]):
    job: AnyJob
    tries: int = 0


class _Runner(Generic[AnyJob, Result]):
    """Jobs under way; the arguments are those of `run`."""

    def __init__(
        self,
        function: Callable[[AnyJob], Result],
        jobs: Iterable[AnyJob],
        executor: Executor | None,
        workers: int,
        counts: TaskCounts | None,
    ) -> None:
        self._own = executor is None
        self._workers, self._counts = workers, counts
        self._executor: Any = make_pool(workers, counts) if executor is None else executor
        self._function = functools.partial(run_in_worker, function) if self._own else function
        self._todo = map(_Attempt, jobs)
        size = getattr(self._executor, "_max_workers", None)
        self._ahead = 4 * size if size else _MOST_AHEAD
        self._waiting: dict[Future[Result], _Attempt[AnyJob]] = {}
        self._again: collections.deque[_Attempt[AnyJob]] = collections.deque()
        self._suspects: collections.deque[_Attempt[AnyJob]] = collections.deque()
        self._ended: collections.deque[tuple[AnyJob, Result | _Lost]] = collections.deque()
        self._broken: BaseException | None = None

    def results(self) -> Iterator[tuple[AnyJob, Result | _Lost]]:
        """Yield each job with what became of it, in the order in which they end."""
        while self._fill():
            for future in wait(self._waiting, timeout=_AWAKE, return_when=FIRST_COMPLETED).done:
                self._take(future)
            if self._counts is not None:
                self._counts.beat()
            while self._ended:
                yield self._ended.popleft()

    def _fill(self) -> bool:
        """Submit what may run now; return whether anything is under way or has ended."""
        while len(self._waiting) + len(self._ended) < self._ahead:
            # Submitting may find the pool broken, which changes everything: so one at a time.
            if alone := bool(self._suspects):
                attempt = None if self._waiting else self._suspects.popleft()
            else:
                attempt = self._again.popleft() if self._again else next(self._todo, None)
            if attempt is None:
                break
            self._submit(attempt)
            if alone:
                break
        return bool(self._waiting or self._ended or self._again or self._suspects)

    def _submit(self, attempt: _Attempt[AnyJob]) -> None:
        if self._broken is not None:
            self._ended.append((attempt.job, _Lost(self._broken, 0)))
            return
        try:
            self._waiting[self._executor.submit(self._function, attempt.job)] = attempt
        except BrokenExecutor as error:
            # A worker died before this was submitted, so this is not to blame.
            self._again.appendleft(attempt)
            self._break(error)

    def _take(self, future: Future[Result]) -> None:
        attempt = self._waiting.get(future)
        if attempt is None:
            return  # the pool that it was in has broken
        error = _error_of(future)
        if isinstance(error, BrokenExecutor):
            self._break(error)
            return
        del self._waiting[future]
        if error is None:
            self._ended.append((attempt.job, future.result()))
        elif _is_loss(error):
            self._lose(attempt, error, self._again)
        else:
            raise error

    def _break(self, error: BrokenExecutor) -> None:
        """See to what was in an executor whose worker died; a pool of our own is replaced."""
        if self._own:
            stop_pool(self._executor)
        else:
            self._broken = error
        lost: list[_Attempt[AnyJob]] = []
        waiting, self._waiting = self._waiting, {}
        for future, attempt in waiting.items():
            failure = _error_of(future) if future.done() else error
            if failure is None:
                self._ended.append((attempt.job, future.result()))
            elif isinstance(failure, BrokenExecutor):
                lost.append(attempt)
            else:
                raise failure
        if self._own:
            self._executor = make_pool(self._workers, self._counts)
        if self._own and len(lost) == 1:
            self._lose(lost[0], error, self._suspects)
        elif self._own:
            # A pool starts what was submitted first, so these and no others can have been running.
            self._suspects.extend(lost[: self._workers])
            self._again.extendleft(reversed(lost[self._workers :]))
        else:
            self._again.extendleft(lost)

    def _lose(
        self, attempt: _Attempt[AnyJob], error: BaseException, again: collections.deque[_Attempt[AnyJob]]
    ) -> None:
        attempt.tries += 1
        if attempt.tries < _TRIES:
            again.append(attempt)
        else:
            self._ended.append((attempt.job, _Lost(error, attempt.tries)))

    def finish(self, url: str | None) -> Iterator[tuple[AnyJob, Result]]:
        """Yield the results of the jobs under way on a caller's executor, after another one failed."""
        if self._own:
            return
        running = {future: attempt.job for future, attempt in self._waiting.items() if not future.cancel()}
        yield from ((job, result) for job, result in self._ended if not isinstance(result, _Lost))
        ended, left = wait(running, timeout=_ENDING_SECONDS)
        yield from ((running[each], each.result()) for each in ended if each.exception() is None)
        if left:
            warn(
                f"a job failed, and {len(left)} others still run on the executor and may still write to {url}"
            )

    def stop(self) -> None:
        """End the pool, or cancel what waits on a caller's executor."""
        if self._own:
            stop_pool(self._executor)
            return
        for future in self._waiting:
            future.cancel()


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


def sliced(url: str, version: Version, table: ShardTable, options: ReadOptions) -> list[Slice]:
    """Return the shards of a version in slices that are worth a message to a worker."""
    cuts = cut_jobs(table.stored_bytes.tolist(), most_bytes=_SLICE_BYTES)
    return [
        Slice.of_version(url, version, table.take(np.arange(first, stop)), options, number=first)
        for first, stop in cuts
    ]


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


def _error_of(future: Future[Any]) -> BaseException | None:
    """Return what an ended future failed with."""
    try:
        return future.exception()
    except CancelledError as error:
        return error


def _is_loss(error: BaseException) -> bool:
    """Tell whether a worker was lost, as each engine says it, rather than its function failed."""
    kinds = type(error).__mro__
    return any(kind.__name__ in _LOSSES.get(kind.__module__.partition(".")[0], ()) for kind in kinds)
