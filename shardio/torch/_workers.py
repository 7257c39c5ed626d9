"""Both ends of a loader's worker processes: what a worker makes, and how its parent takes it.

Besides batches a worker reports how many records it has skipped, and errors of shardio whole: torch itself
would pass on their text alone, without the address of the damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from shardio.errors import ShardioError
from shardio.streaming import end_with_parent, worker_folder
from shardio.torch._tensors import tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.streaming import Stream

__all__ = ["WorkerView", "as_made", "deliver", "stop_workers"]


class WorkerView(IterableDataset[Any]):
    """What a worker process gets of a stream: its turns, as (step, batch, records skipped since the last)."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._folder = worker_folder()
        self._passes = 0

    def __iter__(self) -> Iterator[tuple[int, Any, int]]:
        # Not in the generator, which begins when the first batch is asked for: that may be never.
        end_with_parent(self._folder)
        return self._turns()

    def _turns(self) -> Iterator[tuple[int, Any, int]]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 - only workers iterate over it
        stream = self._stream
        if self._passes:
            stream.set_epoch(stream.epoch + 1, restart=True)
        self._passes += 1
        skipped = stream.skipped
        try:
            for batch in stream.batches(worker=info.id, workers=info.num_workers, threads=0, finish=tensors):
                yield batch.step, batch.columns, stream.skipped - skipped
                skipped = stream.skipped
        except ShardioError as error:
            yield -1, error, 0


def as_made(batch: Any) -> Any:
    """Return a batch as it is; what torch would do with it by default takes tuples and long doubles apart."""
    return batch


def deliver(batches: Iterator[Any], stream: Stream) -> Iterator[tuple[int, Any]]:
    """Yield the steps and batches that a loader over a `WorkerView` gives.

    Raises:
        ShardioError: as it was raised in a worker.
        RuntimeError: torch's, where a worker died.
    """
    for step, batch, skipped in batches:
        if isinstance(batch, ShardioError):
            raise batch
        if skipped:
            stream.add_skipped(skipped)
        yield step, batch


def stop_workers(iterator: Iterator[Any]) -> None:
    """End the worker processes behind a loader's iterator now, not when the garbage collector comes to it.

    A traceback that somebody keeps would keep them alive.
    """
    stop = getattr(iterator, "_shutdown_workers", None)  # torch has no public way
    if stop is not None:
        stop()
