"""A loader that knows what was delivered: threads by default, processes for pure Python.

Everything heavy (reading, checking, decompressing, parsing, decoding images) releases the interpreter lock,
so threads of the training process do it without the cost of sending batches between processes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from shardio.arguments import checked_options_beside, integer
from shardio.callers import warn
from shardio.errors import ShardioError
from shardio.order import Order
from shardio.parallel import end_with_parent, worker_folder
from shardio.streaming import Stream, StreamLoader, StreamOptions
from shardio.torch._dataset import StreamingDataset
from shardio.torch._devices import Mover
from shardio.torch._tensors import pin, tensors


class StreamingDataLoader(StreamLoader):
    """Load a `StreamingDataset`, ahead and in order, and resume exactly.

    `state_dict` counts the batches that were delivered, not those that were prefetched. A pass ends, with its
    threads or processes, when its iterator does: at the end of the epoch, on `break`, or on an error.

    Trainers find the attributes of a torch loader: `batch_size`, `drop_last`, `sampler` and `batch_sampler`
    (of steps, with `set_epoch`). `dataset` is a map-style view of the epoch, in which item s is the batch of
    step s. So Lightning, accelerate and transformers resume and skip exactly; see docs/training.

    Args:
        dataset: what to load.
        collate_fn: makes a batch of the list of a step's values; by default columns of the schema, or what
            torch's `default_collate` makes of what a transform returns.
        num_threads: threads of this process that fetch, check, decode, transform and collate; 0 for none.
        num_workers: processes instead, for transforms in pure Python; `num_threads` is not used then.
        prefetch_factor: batches that each worker process makes ahead.
        pin_memory: return tensors in page-locked memory.
        device: deliver batches there, for example "cuda". The threads that build them copy them ahead, from
            page-locked memory and on a stream of their own, so copies run beside the model. Batches that are
            ahead take memory of the device: `ahead_bytes`, some 32 MB, or 16 MB for local files. Batches of
            worker processes are copied when they are asked for.
        persistent_workers: keep the worker processes from epoch to epoch, until `close`.
        multiprocessing_context: "fork", "forkserver" or "spawn"; None for the platform's.

    Examples:
        >>> import shardio, tempfile
        >>> from shardio.torch import StreamingDataset, StreamingDataLoader
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> ds = shardio.from_generator(({"n": n} for n in range(100)), url)
        >>> loader = StreamingDataLoader(StreamingDataset(ds, global_batch=10))
        >>> len(loader), next(iter(loader))["n"].shape
        (10, torch.Size([10]))
    """

    @checked_options_beside("StreamingDataset", inspect.signature(StreamOptions).parameters)
    def __init__(  # noqa: PLR0913 - options as torch's loader has them
        self,
        dataset: StreamingDataset,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_threads: int = 2,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(
                f"StreamingDataLoader loads a StreamingDataset, found {type(dataset).__name__}; make one, "
                "StreamingDataset(ds, global_batch=...); MapDataset goes to torch.utils.data.DataLoader"
            )
        for name, value, least in (
            ("num_threads", num_threads, 0),
            ("num_workers", num_workers, 0),
            ("prefetch_factor", prefetch_factor, 1),
        ):
            if integer(name, value) < least:
                raise ValueError(f"{name}={value!r} must be an integer of at least {least}")
        if persistent_workers and not num_workers:
            raise ValueError("persistent_workers=True needs num_workers of at least 1")
        self._data = dataset if collate_fn is None else dataset.with_collate(collate_fn)
        self.stream = self._data.stream
        self.num_threads = num_threads
        self.num_workers = num_workers
        self.pin_memory = pin_memory and _can_pin()
        self._mover = None if device is None else Mover(device)
        self._loader_options = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "multiprocessing_context": multiprocessing_context,
        }
        self._persistent = persistent_workers
        self._kept: tuple[tuple[Order, int, int], DataLoader[Any], Iterator[Any]] | None = None
        # What other people's training loops ask a loader of torch for.
        self.dataset = StepDataset(self._data, num_threads)
        self.sampler = StepSampler(self.stream)
        self.batch_sampler = StepSampler(self.stream, batches=True)
        self.collate_fn = _as_made
        self.drop_last = self.stream.options.remainder == "drop"
        self.prefetch_factor = prefetch_factor if num_workers else None
        self.persistent_workers = persistent_workers
        self.multiprocessing_context = multiprocessing_context
        self.timeout = 0
        self.worker_init_fn = None
        self.generator = None
        self.pin_memory_device = ""

    @property
    def batch_size(self) -> int:
        """Records of a step of this rank; the most of any rank where ranks do not divide the global batch."""
        return -(-self.stream.global_batch // self.stream.world_size)

    def __iter__(self) -> Generator[Any, None, None]:
        """Yield the batches that remain; after an epoch that came to its end, those of the next one."""
        self._data.check_rank()
        stream = self.stream
        number = stream.begin(workers=self.num_workers)
        # Of an epoch that had ended nothing is left to start processes for.
        processes = self.num_workers and stream.remaining
        source = self._from_processes(stream) if processes else self._from_threads(stream)
        with contextlib.closing(source):
            for step, batch, rows in stream.with_progress(source):
                stream.delivered(number, step, rows)
                yield batch if self._mover is None else self._mover.finish(batch)
        stream.end(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes that were kept for the next epoch; the loader can be used again."""
        if self._kept is not None:
            _stop_workers(self._kept[2])
            self._kept = None

    def _finish(self, batch: Any) -> Any:
        return self._placed(tensors(batch))

    def _placed(self, made: Any) -> Any:
        """Return a batch of tensors where it was asked for, or on its way there."""
        if self._mover is not None:
            return self._mover.begin(made)
        return pin(made) if self.pin_memory else made

    def _from_threads(self, stream: Stream) -> Generator[tuple[int, Any, int], None, None]:
        batches = stream.batches(
            threads=self.num_threads,
            collate=self._data.collate_fn,
            columnar=self._data.columnar,
            finish=self._finish,
        )
        with contextlib.closing(batches):
            for batch in batches:
                yield batch.step, batch.columns, batch.rows

    def _from_processes(self, stream: Stream) -> Generator[tuple[int, Any, int], None, None]:
        # Workers that were kept are where they left off: at the beginning of the epoch after theirs.
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == (stream.order, stream.epoch, stream.step):
            loader = kept[1]
        else:
            if kept is not None:
                _stop_workers(kept[2])
            # A generator of its own: torch's is the caller's, and must not depend on how batches are made.
            generator = torch.Generator().manual_seed((stream.options.seed + stream.epoch) % 2**63)
            loader = DataLoader(
                _WorkerView(stream, self._data),
                batch_size=None,
                collate_fn=_as_made,
                generator=generator,
                **self._loader_options,
            )
        iterator = iter(loader)
        whole = False
        try:
            for step, batch, rows in _deliver(iterator, stream):
                yield step, self._placed(batch), rows
            whole = True
        finally:
            if whole and self._persistent:
                self._kept = ((stream.order, stream.epoch + 1, 0), loader, iterator)
            else:
                _stop_workers(iterator)


class StepSampler(Sampler[Any]):
    """The steps of a stream's epoch, for loops that take samplers apart.

    Args:
        stream: what `set_epoch` reaches.
        batches: yield each step as a list of one, as batch samplers do.
    """

    def __init__(self, stream: Stream, *, batches: bool = False) -> None:
        self._stream = stream
        self._batches = batches

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        for step in range(len(self._stream)):
            yield [step] if self._batches else step

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded."""
        self._stream.set_epoch(epoch)


class StepDataset(Dataset[Any]):
    """The batches of a stream's epoch by the number of their step; consecutive ones are read ahead.

    A loop that skips the first n batches begins with step n: what is before it is not read.

    Attributes:
        stream: the stream.
    """

    def __init__(self, data: StreamingDataset, threads: int) -> None:
        self.stream = data.stream
        self._check_rank = data.check_rank
        self._collate, self._columnar = data.collate_fn, data.columnar
        self._threads = threads
        self._pass: tuple[int, int, int, Iterator[Any]] | None = None

    def __len__(self) -> int:
        return len(self.stream)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None}

    def __getitem__(self, step: int) -> Any:
        """Return the batch of a step, and note it as delivered.

        Raises:
            IndexError: the epoch has no such step.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} must be in [0, {len(self)})")
        stream, info = self.stream, get_worker_info()
        workers = 1 if info is None else info.num_workers
        # A pass that is over, or that the parent of this process began, cannot continue.
        if self._pass is None or self._pass[:3] != (os.getpid(), stream.passes, step):
            self._pass = None
            self._check_rank()
            stream.go_to(step)
            number = stream.begin(worker=None if info is None else info.id)
            threads = self._threads if info is None else 0
            batches: Iterator[Any] = stream.batches(
                workers=workers,
                threads=threads,
                collate=self._collate,
                columnar=self._columnar,
                finish=tensors,
            )
        else:
            number, batches = self._pass[1], self._pass[3]
        with stream.counters.timed("wait_seconds"):
            batch = next(batches)
        stream.delivered(number, batch.step, batch.rows)
        coming = step + workers
        self._pass = (os.getpid(), number, coming, batches) if coming < len(self) else None
        return batch.columns

    def __getitems__(self, steps: list[int]) -> Any:
        """Return the batch of the one step of a list, as a `batch_sampler` gives it.

        Raises:
            ValueError: there are several; their batches would be batched again.
        """
        if len(steps) != 1:
            raise ValueError(
                "the batches of a stream are ready made, and this loader would batch them again: use the "
                "StreamingDataLoader itself, or its batch_sampler with its dataset"
            )
        return self[steps[0]]


def _can_pin() -> bool:
    # torch.accelerator came with torch 2.6.
    accelerator = getattr(torch, "accelerator", torch.cuda)
    if accelerator.is_available():
        return True
    warn("pin_memory=True, but there is no accelerator: batches are not pinned")
    return False


# Both ends of a loader's worker processes: what a worker makes, and how its parent takes it. Besides
# batches a worker reports how many records it has skipped, and errors of shardio whole: torch itself would
# pass on their text alone, without the address of the damage.


class _WorkerView(IterableDataset[Any]):
    """What a worker process gets of a stream: its turns.

    Each is (step, batch, its rows, and since the last one records skipped and other counters).
    """

    def __init__(self, stream: Stream, data: StreamingDataset) -> None:
        self._stream = stream
        self._collate, self._columnar = data.collate_fn, data.columnar
        self._folder = worker_folder()
        self._passes = 0

    def __iter__(self) -> Iterator[tuple[int, Any, int, int, dict[str, float]]]:
        # Not in the generator, which begins when the first batch is asked for: that may be never.
        end_with_parent(self._folder)
        return self._turns()

    def _turns(self) -> Iterator[tuple[int, Any, int, int, dict[str, float]]]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 - only workers iterate over it
        stream = self._stream
        if self._passes:
            stream.set_epoch(stream.epoch + 1, restart=True)
        self._passes += 1
        skipped = stream.skipped
        try:
            batches = stream.batches(
                worker=info.id,
                workers=info.num_workers,
                threads=0,
                collate=self._collate,
                columnar=self._columnar,
                finish=tensors,
            )
            for batch in batches:
                counted = stream.counters.work()
                yield batch.step, batch.columns, batch.rows, stream.skipped - skipped, counted
                skipped = stream.skipped
        except ShardioError as error:
            yield -1, error, 0, 0, {}


def _as_made(batch: Any) -> Any:
    """Return a batch as it is; what torch would do with it by default takes tuples and long doubles apart."""
    return batch


def _deliver(batches: Iterator[Any], stream: Stream) -> Iterator[tuple[int, Any, int]]:
    """Yield the steps, batches and their rows that a loader over a `_WorkerView` gives.

    Raises:
        ShardioError: as it was raised in a worker.
        RuntimeError: torch's, where a worker died.
    """
    for step, batch, rows, skipped, counted in batches:
        if isinstance(batch, ShardioError):
            raise batch
        if skipped:
            stream.add_skipped(skipped)
        stream.counters.add(**counted)
        yield step, batch, rows


def _stop_workers(iterator: Iterator[Any]) -> None:
    """End the worker processes behind a loader's iterator now, not when the garbage collector comes to it.

    A traceback that is kept would keep them alive.
    """
    stop = getattr(iterator, "_shutdown_workers", None)  # torch has no public way
    if stop is not None:
        stop()
