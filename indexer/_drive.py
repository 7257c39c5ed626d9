"""Shards handed out to processes, outcomes as they come; a bounded number under way.

Any executor of `concurrent.futures` will do: a process pool of our own, Dask, MPI, `RayExecutor` of
`shardio.parallel`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardio.errors import StorageError
from shardio.storage import connect
from shardio_indexer._shard import Outcome, Shard, index_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardio.storage import Store
    from shardio_indexer._scan import ScanOptions

__all__ = ["Job", "run_jobs"]

# One job is so much: a process's clients serve many small shards, and a kill loses little.
_JOB_SHARDS = 16
_JOB_BYTES = 64 << 20
_AHEAD = 1024
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Job:
    """Shards that one process indexes one after another.

    Attributes:
        target: URL of the dataset, where indexes are put.
        target_options, data_options: of the storages.
        scan: how shards are scanned.
        shards: which.
    """

    target: str
    target_options: Mapping[str, Any] | None
    data_options: Mapping[str, Any] | None
    scan: ScanOptions
    shards: tuple[Shard, ...]

    def run(self, show: Callable[[int], None] | None = None) -> list[Outcome]:
        """Index the shards; failures are outcomes."""
        target = _store(self.target, _frozen(self.target_options))
        outcomes = []
        for shard in self.shards:
            data = _store(shard.root, _frozen(self.data_options)) if shard.root else target
            outcomes.append(index_shard(shard, target, data, self.scan, show=show))
        return outcomes

    def cut(self) -> list[Job]:
        """Return jobs of a size that is worth a message and cheap to lose."""
        jobs: list[Job] = []
        part: list[Shard] = []
        size = 0
        for shard in self.shards:
            part.append(shard)
            size += shard.size
            if len(part) >= _JOB_SHARDS or size >= _JOB_BYTES:
                jobs.append(self._with(part))
                part, size = [], 0
        if part:
            jobs.append(self._with(part))
        return jobs

    def _with(self, shards: Sequence[Shard]) -> Job:
        return Job(
            target=self.target,
            target_options=self.target_options,
            data_options=self.data_options,
            scan=self.scan,
            shards=tuple(shards),
        )


def run_jobs(
    job: Job,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    show: Callable[[int], None] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of every shard of a job, as they come.

    Args:
        job: all of it.
        executor: where to work; None for a process pool of our own, or here where that is not worth while.
        workers: processes of that pool; None for one a processor. 1 works here.
        show: called with the number of bytes done.
    """
    jobs = job.cut()
    workers = workers or os.cpu_count() or 1
    if executor is None and (workers == 1 or len(jobs) < 2):
        for one in jobs:
            yield from one.run(show)
        return
    if executor is not None:
        yield from _run_on(executor, jobs, show)
        return
    pool = ProcessPoolExecutor(min(workers, len(jobs)), initializer=_begin_worker, initargs=(os.getpid(),))
    try:
        yield from _run_on(pool, jobs, show)
    except BaseException:
        _kill(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_on(executor: Executor, jobs: Sequence[Job], show: Callable[[int], None] | None) -> Iterator[Outcome]:
    todo = iter(jobs)
    waiting: dict[Future[list[Outcome]], Job] = {}
    try:
        while True:
            for job in itertools.islice(todo, _AHEAD - len(waiting)):
                waiting[executor.submit(_run_job, job)] = job
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                outcomes = _result(future, waiting.pop(future))
                if show is not None:
                    show(sum(outcome.shard.size for outcome in outcomes))
                yield from outcomes
    except BrokenExecutor as error:
        # Nothing can be submitted any more: what was under way and what was not begun is named.
        for job in (*waiting.values(), *todo):
            yield from _lost(job, error)
    finally:
        for future in waiting:
            future.cancel()


def _run_job(job: Job) -> list[Outcome]:
    return job.run()


def _result(future: Future[list[Outcome]], job: Job) -> list[Outcome]:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - engines raise errors of their own when a worker is lost
        return _lost(job, error)


def _lost(job: Job, error: Exception) -> list[Outcome]:
    return [
        Outcome(
            shard,
            error=StorageError(
                "the worker that indexed this shard was lost",
                url=shard.url,
                found=f"{type(error).__name__}: {error}",
                advice="it may have been out of memory; run it again, what is done is kept",
            ),
        )
        for shard in job.shards
    ]


@functools.lru_cache(maxsize=16)
def _store(url: str, frozen: str) -> Store:
    """Return a store of this process, the same for all its jobs: clients are dear."""
    return connect(url, storage_options=pickle.loads(bytes.fromhex(frozen)))  # noqa: S301 - frozen above


def _frozen(options: Mapping[str, Any] | None) -> str:
    return pickle.dumps(dict(options) if options else None).hex()


def _begin_worker(parent: int) -> None:
    """End with the parent, however that ends, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        # Of a fork server the parent is that server; a child of our own may have come too late to hear.
        if multiprocessing.get_start_method() == "fork" and os.getppid() != parent:
            os._exit(1)


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        with contextlib.suppress(OSError, ValueError):
            process.kill()
