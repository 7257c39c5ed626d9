"""Shards cut into jobs that run in processes; every shard has an outcome, also where its worker was lost."""

from __future__ import annotations

import contextlib
import functools
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardio.errors import StorageError
from shardio.parallel import JobRunner, LostJob, check_workers
from shardio.storage import connect
from shardio_indexer._shard import Outcome, Shard, index_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from shardio.storage import Store
    from shardio_indexer._scan import ScanOptions

__all__ = ["Job", "run_jobs"]

# One job is so much: a process's clients serve many small shards, and a kill loses little.
_JOB_SHARDS = 16
_JOB_BYTES = 64 << 20


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
        workers: processes of that pool; None for one per processor. 1 works here.
        show: called with the number of bytes done.
    """
    jobs = job.cut()
    check_workers(workers, executor)
    if executor is None and (workers == 1 or len(jobs) < 2):
        for one in jobs:
            yield from one.run(show)
        return
    # `Job.run` raises nothing of its own: engines raise errors of many kinds when they lose a worker.
    runner: JobRunner[Job, list[Outcome]] = JobRunner(
        Job.run, executor=executor, workers=workers, keep_going=True
    )
    with contextlib.closing(runner.run(jobs)) as results:
        for one, result in results:
            outcomes = _lost(one, result) if isinstance(result, LostJob) else result
            if show is not None:
                show(sum(outcome.shard.size for outcome in outcomes))
            yield from outcomes


def _lost(job: Job, lost: LostJob) -> list[Outcome]:
    return [
        Outcome(
            shard,
            error=StorageError(
                "the worker that indexed this shard was lost",
                url=shard.url,
                found=f"{type(lost.error).__name__}: {lost.error}",
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
