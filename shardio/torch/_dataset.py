"""Streams as torch knows them: an `IterableDataset` of ready-made batches."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Self

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from shardio.callers import warn
from shardio.parallel import end_with_parent
from shardio.reader import DatasetReader
from shardio.streaming import Mix, StreamLoader, StreamOptions, method_with_stream_options, prepare
from shardio.torch._ranks import agreed_stream, check_rank, resolve_rank
from shardio.torch._seeded import Watched
from shardio.torch._tensors import collate, tensors

# Modules of Lightning's training loop, under its two names.
FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
# Objects around a stream that are looked into for it: a dataset that holds more holds data.
_MOST_LOOKED_AT = 1000


class StreamingDataset(StreamLoader, IterableDataset[Any]):
    """Batches of one rank, as tensors; see `shardio.stream` for the order and the options.

    Meant for `StreamingDataLoader`. torch's own `DataLoader(dataset, batch_size=None)` and torchdata's
    `StatefulDataLoader(dataset, batch_size=None)` work, too. Loader worker w of W makes every W-th batch,
    which is the order in which those loaders ask for them. Each of their passes with worker processes is the
    next epoch, also after one that was left early.

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
        self._served: weakref.ref[Any] | None = None

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

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, or within a loader worker those that are its turn.

        Raises:
            ValueError: a loader would batch the batches again, or hand them to other ranks.
        """
        _check_loader(sys._getframe(1))  # noqa: SLF001 - a loader tells the dataset nothing about itself
        self.check_rank()
        info = get_worker_info()
        if info is None:
            return self._batches(0, 1, self.stream.begin)
        end_with_parent()
        return self._batches(
            info.id,
            info.num_workers,
            partial(self.stream.begin_in_worker, info.id, info.num_workers),
        )

    def __getstate__(self) -> dict[str, Any]:
        # On its way to a worker process, where the loader cannot be seen any more.
        frame = sys._getframe(1)  # noqa: SLF001
        _check_loader(frame)
        found = _pass_of_loader(frame)
        if found is not None:
            self.begin_in_workers(*found)
        return {**self.__dict__, "_served": None}

    def begin_in_workers(self, batches: Any, state: Any) -> None:
        """Note the pass of a torch loader whose worker processes are being started.

        Args:
            batches: the loader's iterator; the first of its workers counts.
            state: what torchdata's loader continues from, None for none.
        """
        if self._served is not None and self._served() is batches:
            return
        self._served = weakref.ref(batches)
        if state is not None:  # the workers load it, and this process must know their epoch
            try:
                epoch = state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]["epoch"]
            except (KeyError, TypeError):
                warn(
                    "the loader's state does not say which epoch its StreamingDataset was in, so the passes "
                    f"after this one are counted from epoch {self.stream.epoch}: call set_epoch before each",
                )
            else:
                self.stream.set_epoch(epoch, restart=True)
        self.stream.begin_in_workers()
        if batches._persistent_workers:  # noqa: SLF001 - torch has no public way
            self._follow(batches)

    def _follow(self, batches: Any) -> None:
        """Have this process know the epoch of worker processes that torch keeps: they count their passes.

        Their loader tells its dataset of the first pass alone, and nothing that is set here reaches them.
        """
        stream = self.stream
        order, coming = stream.order, stream.epoch + 1
        # Of another stream of that loader, or torch's; a bound method would keep the workers alive.
        reset = vars(batches).get("_reset") or partial(type(batches)._reset, weakref.proxy(batches))  # noqa: SLF001

        def begin(loader: Any, first_iter: bool = False, **options: Any) -> None:  # noqa: FBT001, FBT002
            nonlocal coming
            if first_iter:
                reset(loader, first_iter, **options)
                return
            if stream.is_set and (stream.order, stream.epoch, stream.step) != (order, coming, 0):
                raise ValueError(
                    f"set_epoch or load_state_dict chose step {stream.step} of epoch {stream.epoch}, which "
                    "does not reach the worker processes that a loader with persistent_workers keeps: these "
                    f"begin epoch {coming}. Write set_epoch({coming}), or make another loader over this "
                    "dataset: without persistent_workers, or StreamingDataLoader(dataset)"
                )
            reset(loader, **options)
            stream.set_epoch(coming)
            stream.begin_in_workers()
            coming += 1

        batches._reset = begin  # noqa: SLF001

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
            yield batch.columns
        stream.end(number)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is, by the batches that were taken from this object.

        A loader that prefetches has taken more than it has delivered: ask the loader, not the dataset. Within
        a loader worker the state is that worker's own, as torchdata's loader keeps it.
        """
        return super().state_dict()


def _pass_of_loader(frame: FrameType | None) -> tuple[Any, Any] | None:
    """Look up the stack for a torch loader's iterator; return it and the state that it continues from."""
    for _ in range(40):
        if frame is None:
            return None
        batches = frame.f_locals.get("self")
        if isinstance(batches, _BaseDataLoaderIter):
            return batches, frame.f_locals.get("next_iter_state")
        frame = frame.f_back
    return None


def _before_fork() -> None:
    # A loader that forks its workers tells the dataset nothing: without this they would repeat their epoch.
    found = _pass_of_loader(sys._getframe(1))  # noqa: SLF001
    if found is None:
        return
    for each in _streams_in(found[0]._dataset):  # noqa: SLF001 - torch has no public way
        each.begin_in_workers(*found)


def _streams_in(root: object) -> Iterator[StreamingDataset]:
    """Yield the streams that a loader's dataset is or holds, however deep others wrap them, each once."""
    coming, seen = deque([root]), {id(root)}
    for _ in range(_MOST_LOOKED_AT):
        if not coming:
            return
        each = coming.popleft()
        if isinstance(each, StreamingDataset):
            yield each
            continue
        held: Iterable[object] = each if isinstance(each, list | tuple | set | frozenset) else ()
        if isinstance(each, dict):
            held = each.values()
        elif hasattr(each, "__dict__"):
            held = vars(each).values()
        for one in itertools.islice(held, _MOST_LOOKED_AT):
            if id(one) not in seen and _may_hold(one):
                seen.add(id(one))
                # Data may hold any number of objects: wrappers, which are datasets, come before it.
                (coming.appendleft if isinstance(one, Dataset) else coming.append)(one)


def _may_hold(each: object) -> bool:
    """Whether other objects may be in one; text and numbers, of which data is made, hold none."""
    if isinstance(each, list | tuple | set | frozenset | dict):
        return bool(each)
    return hasattr(each, "__dict__") and not isinstance(each, type | ModuleType)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


def _check_loader(frame: FrameType | None) -> None:
    """Look up the stack for a loader in which batches would come out wrong.

    Raises:
        ValueError: it would batch the batches again; or is accelerate's, which reads rank 0 alone and cuts
            its batches up for the other ranks; or Lightning trains from it, whose `set_epoch` and checkpoints
            would not reach the stream, so that epochs repeat.
    """
    for _ in range(60):  # a forked worker is above the frames of its parent
        if frame is None:
            return
        loader = frame.f_locals.get("self")
        module = type(loader).__module__
        batches_again = isinstance(loader, DataLoader) and loader.batch_size is not None
        if module.startswith("torch.utils.data."):  # a fetcher, which is there in worker processes too
            batches_again |= getattr(loader, "auto_collation", False)
        if batches_again:
            raise ValueError(
                "the batches of a StreamingDataset are ready made, and this loader would batch them again: "
                "write StreamingDataLoader(dataset), or DataLoader(dataset, batch_size=None)"
            )
        if module.endswith(".loops.evaluation_loop"):
            return
        if module in FIT_LOOPS:
            raise ValueError(
                "Lightning's epochs and checkpoints do not reach a StreamingDataset through this loader, so "
                "that records would come again: return StreamingDataLoader(dataset) from train_dataloader"
            )
        if module == "accelerate.data_loader":
            state = getattr(loader, "state", None)
            split = type(loader).__name__ in ("DataLoaderDispatcher", "IterableDatasetShard")
            if split and getattr(state, "num_processes", 2) > 1:
                raise ValueError(
                    "accelerate would hand the batches of one rank's StreamingDataset to all ranks, and the "
                    "other ranks' records would never be seen: write StreamingDataLoader(dataset) and give "
                    "that to accelerator.prepare, or return it from the Trainer's get_train_dataloader"
                )
        frame = frame.f_back
