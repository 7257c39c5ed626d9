"""Run a function over slices of a dataset, here or in workers; what a lost worker means is decided once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from typing import Literal, TypeVar

from shardio.errors import StorageError
from shardio.parallel._jobs import JobRunner, LostJob
from shardio.progress import CountProgress
from shardio.reader import Slice

Result = TypeVar("Result")


def run(
    function: Callable[[Slice], Result],
    slices: Sequence[Slice],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: Callable[[CountProgress], None] | None = None,
    unit: Literal["records", "bytes"] = "records",
    advice: str = "run it again, with fewer workers if memory was short",
    on_lost: Callable[[Slice, StorageError], Result] | None = None,
) -> Generator[tuple[Slice, Result]]:
    """Yield each slice with the result of a function, as they end; to be closed, so that workers end.

    Args:
        function: called with a slice, in a worker; must be importable there.
        slices: of a dataset.
        executor: any of `concurrent.futures`; None for a process pool.
        workers: processes of that pool; None for one per processor, 1 for this process itself. Data in the
            memory of this process is read here.
        progress: called with how much has been done.
        unit: what it counts: live records of the slices, or their stored bytes.
        advice: what to do where a worker is lost.
        on_lost: returns the result of a slice whose worker was lost; None to raise the error instead.

    Raises:
        StorageError: a worker was lost three times over one slice.
        Exception: what the function raised.
    """
    if executor is None and slices and slices[0].url.startswith("memory:"):
        workers = 1
    sizes = {id(each): each.live_rows if unit == "records" else each.stored_bytes for each in slices}
    done, total = 0, sum(sizes.values())
    runner: JobRunner[Slice, Result] = JobRunner(function, executor=executor, workers=workers)
    with closing(runner.run(slices)) as results:
        for each, result in results:
            if isinstance(result, LostJob):
                error = result.as_error("read a shard", advice=advice, url=each.url, shard=each.entry.key)
                if on_lost is None:
                    raise error from result.error
                yield each, on_lost(each, error)
            else:
                yield each, result
            done += sizes[id(each)]
            if progress is not None:
                progress(CountProgress(done, total, unit))
