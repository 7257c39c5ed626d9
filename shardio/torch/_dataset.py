"""Streams as torch knows them: an `IterableDataset` of ready-made batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from shardio.streaming import Stream, StreamOptions, end_with_parent, method_with_stream_options
from shardio.torch._ranks import agree, resolve_rank
from shardio.torch._tensors import tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardio.reader import DatasetReader
    from shardio.streaming import Mix

__all__ = ["StreamingDataset"]


class StreamingDataset(IterableDataset[Any]):
    """Batches of one rank, as tensors; see `shardio.stream` for the order and the options.

    Meant for `StreamingDataLoader`. It is right as well in torch's own `DataLoader(dataset, batch_size=None)`
    and in torchdata's `StatefulDataLoader(dataset, batch_size=None)`: loader worker w of W makes every W-th
    batch, which is the order in which those loaders ask for them.

    Args:
        ds: from `shardio.open`, a slice of it, or `shardio.mix`.
        options: see `shardio.StreamOptions`. Rank and world size are by default those of
            `torch.distributed`, else of the environment, else 0 of 1.

    Raises:
        ValueError: sizes, ranks or weights that make no sense; several ranks that could read
            different versions.
    """

    @method_with_stream_options(StreamOptions)
    def __init__(self, ds: DatasetReader | Mix, **options: Any) -> None:
        given = StreamOptions(**options)
        rank, world_size = resolve_rank(given.rank, given.world_size)
        given = replace(given, rank=rank, world_size=world_size, num_threads=0)
        self.stream = Stream(agree(ds, world_size), given)

    def __len__(self) -> int:
        """Return the steps of this epoch that remain; the same for every rank."""
        return len(self.stream)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, or within a loader worker those that are its turn."""
        info = get_worker_info()
        if info is None:
            return self._turns(0, 1, self.stream.begin)
        end_with_parent()
        return self._turns(
            info.id,
            info.num_workers,
            partial(self.stream.begin_in_worker, info.id, info.num_workers),
        )

    def _turns(self, worker: int, workers: int, begin: Callable[[], int]) -> Iterator[Any]:
        stream = self.stream
        number = begin()
        for batch in stream.batches(worker=worker, workers=workers, finish=tensors):
            # As the stream counts it, the step before this worker's next turn.
            stream.delivered(number, batch.step + workers - 1 - worker)
            yield batch.columns
        stream.end(number)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded."""
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands, by the batches that were taken from this object.

        A loader that prefetches has taken more than it has delivered: ask the loader, not the dataset. Within
        a loader worker the state is that worker's own, as torchdata's loader keeps it.
        """
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ResumeError: it is damaged or does not belong here; names what differs.
        """
        self.stream.load_state_dict(state)
