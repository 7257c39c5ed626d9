"""Streams as torch knows them: an `IterableDataset` of ready-made batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from shardio.callers import warn
from shardio.parallel import end_with_parent
from shardio.reader import DatasetReader
from shardio.streaming import Mix, StreamLoader, StreamOptions, method_with_stream_options, prepare
from shardio.torch._ranks import agreed_stream, check_rank, resolve_rank
from shardio.torch._seeded import Watched
from shardio.torch._tensors import collate, tensors


class ReadyBatch(dict[str, Any]):
    """A batch of columns, which torch's default collate function refuses to batch again."""


def _refuse_batching(*_: Any, **__: Any) -> NoReturn:
    raise ValueError(
        "the batches of a StreamingDataset are ready made, and this loader would batch them again: "
        "write StreamingDataLoader(dataset), or DataLoader(dataset, batch_size=None)"
    )


default_collate_fn_map[ReadyBatch] = _refuse_batching


class StreamingDataset(StreamLoader, IterableDataset[Any]):
    """Batches of one rank, as tensors; see `shardio.stream` for the order and the options.

    Meant for `StreamingDataLoader`, which is exact. torch's own `DataLoader(dataset, batch_size=None)` and
    torchdata's `StatefulDataLoader(dataset, batch_size=None)` deliver the same batches: loader worker w of W
    makes every W-th batch, which is the order in which those loaders ask for them. With worker processes
    call `set_epoch` before each of their passes, as for torch's `DistributedSampler`; a state resumes on the
    same number of workers.

    What a transform returns is collated as torch's `default_collate` does it: tensors, arrays and numbers are
    stacked, dicts and tuples item by item.

    Args:
        ds: from `shardio.open`, a part of it (`filter`, `select`, a slice), `map` of it, or `shardio.mix`;
            or the URL of a dataset.
        options: see `shardio.StreamOptions`. Rank and world size are by default those of
            `torch.distributed`, else of the environment, else 0 of 1.

    Raises:
        ValueError: sizes, ranks or weights that make no sense; several ranks that could read different
            versions. Where `torch.distributed` runs, in all ranks: one cannot make its stream, or its data,
            plan, seed or batch are others.
    """

    @method_with_stream_options(StreamOptions)
    def __init__(self, ds: DatasetReader | Mix | str | Path, **options: Any) -> None:
        if "num_threads" in options:
            raise TypeError("give num_threads= to StreamingDataLoader: a StreamingDataset starts no threads")
        ds, given = prepare(ds, StreamOptions.from_options("StreamingDataset", options))
        rank, world_size = resolve_rank(given.rank, given.world_size)
        self._found = (rank, world_size) if given.rank is None else None
        given = replace(given, rank=rank, world_size=world_size, num_threads=0)
        if given.transform is not None:
            given = replace(given, transform=Watched(given.transform))
        if given.random_transform is not None:
            given = replace(given, random_transform=Watched(given.random_transform))
        self.stream = agreed_stream(ds, given)
        self.collate_fn: Callable[[list[Any]], Any] | None = collate if given.transforms_records else None
        self.columnar = True
        self._epoch_is_set = self._warned = False

    def check_rank(self) -> None:
        """Raise ValueError where this process was found to be another rank than it is by now."""
        check_rank(self._found)

    def with_collate(self, collate_fn: Callable[[list[Any]], Any]) -> Self:
        """Return the same dataset, over the same stream, whose batches a function makes of the records.

        Args:
            collate_fn: called with the list of the values of a step's records; an empty list where a rank has
                none.
        """
        other = copy(self)
        other.collate_fn, other.columnar = collate_fn, False
        return other

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded."""
        super().set_epoch(epoch)
        self._epoch_is_set = True

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, on any number of ranks; within a loader worker from that worker's own.

        Raises:
            ResumeError: it is damaged or does not belong here; names what differs.
        """
        super().load_state_dict(state)
        self._epoch_is_set = True

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, or within a loader worker those that are its turn.

        Raises:
            ValueError: this process is another rank by now.
        """
        self.check_rank()
        info = get_worker_info()
        if info is None:
            return self._batches(0, 1, self.stream.begin)
        end_with_parent()
        return self._batches(
            info.id, info.num_workers, partial(self._begin_in_worker, info.id, info.num_workers)
        )

    def _begin_in_worker(self, worker: int, workers: int) -> int:
        if worker == 0 and not (self._epoch_is_set or self._warned):
            self._warned = True
            warn(
                "a StreamingDataset in worker processes of another loader can't see how far its consumer "
                "came: call set_epoch before each pass, or passes repeat an epoch (workers kept by "
                "persistent_workers begin the next epoch by themselves, and set_epoch doesn't reach them); "
                "its state resumes on the same number of workers only. StreamingDataLoader(dataset) is exact"
            )
        # A second pass in this process is one of workers that are kept, which set_epoch doesn't reach.
        self._epoch_is_set = False
        return self.stream.begin_in_worker(worker, workers)

    def _batches(self, worker: int, workers: int, begin: Callable[[], int]) -> Iterator[Any]:
        stream = self.stream
        number = begin()
        batches = stream.batches(
            worker=worker,
            workers=workers,
            collate=self.collate_fn,
            columnar=self.columnar,
            finish=tensors,
        )
        for batch in batches:
            # As the stream counts it, the step before this worker's next batch.
            stream.delivered(number, batch.step + workers - 1 - worker, batch.rows)
            columns = batch.columns
            yield ReadyBatch(columns) if type(columns) is dict else columns
        stream.end(number)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is, by the batches that were taken from this object.

        A loader that prefetches has taken more than it has delivered: ask the loader, not the dataset. Within
        a loader worker the state is that worker's own, as torchdata's loader keeps it.
        """
        return super().state_dict()
