"""The stream: an epoch of batches for one rank, resumable at every step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardio.arguments import integer, need
from shardio.callers import warn
from shardio.errors import ResumeError
from shardio.order import Order, Schedule, make_order
from shardio.progress import displayed
from shardio.reader import Damage, DatasetReader
from shardio.redact import redact
from shardio.streaming._arena import Arena
from shardio.streaming._batches import Batch, BatchBuilder
from shardio.streaming._chunks import OpenChunks
from shardio.streaming._components import Mix, components_of, prepare
from shardio.streaming._opener import Opener
from shardio.streaming._options import StreamOptions, with_stream_options
from shardio.streaming._pipeline import run_pass
from shardio.streaming._planner import Planner, needs_identities, pass_limits
from shardio.streaming._plans import (
    UNREAD_ROW_BYTES,
    Resources,
    advice,
    check_memory,
    mixing_advice,
    open_bytes,
    scratch_folder,
)
from shardio.streaming._rows import RowGatherer
from shardio.streaming._stats import Counters, StreamProgress, StreamStats

# The datasets, by their UUIDs, of whose mixing this process has been told: their next stream says no more.
_TOLD_OF_MIXING: set[tuple[str, ...]] = set()


@with_stream_options(StreamOptions)
def stream(ds: DatasetReader | Mix | str | Path, **options: Any) -> Stream:
    """Stream a dataset, or a mixture, in batches of NumPy columns.

    The global batch of step s holds the same records in the same order whatever the number of ranks and
    workers, and `state_dict` resumes exactly on any other number; see docs/order.md.

    Args:
        ds: from `shardio.open`, a part of it (`filter`, `select`, a slice), `map` of it, or `shardio.mix`;
            or the URL of a dataset.
        options: see `StreamOptions`.

    Raises:
        ValueError: sizes, ranks or weights that make no sense; names both numbers.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> ds = shardio.from_generator(({"n": n} for n in range(100)), url)
        >>> batches = shardio.stream(ds, global_batch=10, seed=1)
        >>> len(batches), next(iter(batches))["n"].shape
        (10, (10,))
    """
    return Stream(*prepare(ds, StreamOptions.from_options("shardio.stream", options)))


class Stream:
    """Batches of one rank; made by `shardio.stream`.

    Iterating yields the rest of the epoch. When it came to the end, the next iteration begins the next epoch.
    When it was left early, the next iteration begins the same epoch again. After `load_state_dict`, the first
    iteration goes on from the state.

    Attributes:
        order: everything that decides which record comes next.
        epoch: number of the epoch.
        rank, world_size: which slice of every global batch is delivered here.
        options: as the caller gave them.
        components: the dataset, or those of the mixture.
        resources: what the default plan is made for.
        stats: rates, time waited, and where the time went: `stats.epoch`, `stats.since_last()`,
            `stats.every(100, function)`.
        counters: behind `stats`, for loaders.
    """

    def __init__(
        self,
        data: DatasetReader | Mix,
        options: StreamOptions,
        *,
        chosen: tuple[str | None] | None = None,
    ) -> None:
        self.rank, self.world_size = options.rank_and_world_size
        global_batch = options.first_global_batch
        self._data = data
        self.epoch = options.epoch
        self.options = options
        self.components = components_of(data)
        for component in self.components:
            reader = component.reader
            if not len(reader):
                what = "this selection of " if len(reader.source) else ""
                raise ValueError(
                    f"{redact(reader.source.url)} has no records in {what}split {reader.split!r}, so none "
                    "can be streamed"
                )
        sizes = [component.order.sizes for component in self.components]
        mixture = data.mixture if isinstance(data, Mix) else None
        self.resources = Resources.of_stream(options, self.components)
        self.order = make_order(
            [component.order for component in self.components],
            global_batch=global_batch,
            shuffle=options.shuffle,
            seed=options.seed,
            remainder=options.remainder,
            plan=options.plan,
            mixture=mixture,
            budgets=self.resources.budgets(sizes, (1,) if mixture is None else mixture.counts),
        )
        self.counters = Counters(self.components)
        self.stats = StreamStats(self.counters)
        self._batch = global_batch
        self._checked: tuple[int, int] | None = None
        self._passes = 0
        # The step at which a pass ended with an error.
        self._failed: int | None = None
        self._worker: int | None = None
        # The order whose open chunks are in a folder, or, where that is None, in memory.
        self._placed: Order | None = None
        self._scratch: str | None = None
        # Where the stream that this is a copy of keeps them: a disk that is fuller now ends no run.
        self._chosen = chosen
        self._arena: tuple[int, Arena] | None = None  # with the process that uses it
        self._go_to(self.order.schedule(options.epoch, global_batch))

    def _go_to(self, schedule: Schedule) -> None:
        """Stand at the beginning of a schedule; what an iterator of before still delivers counts no more."""
        if not schedule.rows:
            raise ValueError(
                "no lane of the plan holds one whole period of the mixture: use a plan with fewer ranks and "
                "workers, weights of smaller terms, or larger datasets"
            )
        if self._chosen is not None:
            [self._scratch], self._placed = self._chosen, self.order
        elif self._placed is not self.order:
            self._scratch = None
            self._scratch = scratch_folder(
                self.order,
                self.options,
                self.components,
                self.row_bytes,
                self.resources.memory_bytes,
                global_batch=schedule.global_batch,
            )
            self._placed = self.order
        check_memory(
            self.order,
            self.row_bytes,
            self.options.memory_bytes,
            global_batch=schedule.global_batch,
            world_size=self.world_size,
        )
        self._damage = Damage(self.components[0].source, schedule.rows)
        self._schedule = schedule
        self._step = schedule.step
        self._fresh = True
        self._over = False
        self._passes += 1

    @property
    def global_batch(self) -> int:
        """Rows of a global batch, over all ranks."""
        return self._schedule.global_batch

    @property
    def step(self) -> int:
        """Number of the step that is delivered next, counted from the beginning of the epoch."""
        return self._step

    def __len__(self) -> int:
        """Return the steps of the whole epoch, equal on all ranks; after a pass that ended, of the next."""
        if self._over and len(self._schedule.changes) > 1:
            return self.order.schedule(self.epoch + 1, self._schedule.global_batch).stop
        return self._schedule.stop

    @property
    def remaining(self) -> int:
        """Steps of this epoch that were not delivered yet; 0 once it has ended."""
        return self._schedule.stop - self._step

    def __repr__(self) -> str:
        urls = " + ".join(component.source.url for component in self.components)
        return (
            f"<shardio.Stream {urls}: epoch {self.epoch}, step {self.step} of {self._schedule.stop}, "
            f"batches of {self.global_batch}, rank {self.rank} of {self.world_size}>"
        )

    @property
    def data(self) -> DatasetReader | Mix:
        """The dataset or mixture that is streamed."""
        return self._data

    def to_hf(self) -> Any:
        """Return the examples as a `datasets.IterableDataset` of Hugging Face, in this stream's order.

        Its `state_dict` resumes exactly on another number of processes, as long as both divide 322,560: all
        numbers up to 10, powers of two up to 1,024, and many others. Example `i` of the epoch belongs to
        process `i % world_size` after `datasets.distributed.split_dataset_by_node`, so a step with the same
        total batch size holds the same examples. `set_epoch` changes the order. Loader workers each have
        their share of a process's examples and a state of their own.

        The examples are those of this stream's batches for all ranks; who iterates makes batches of them. The
        first epoch begins at this stream's position: after `go_to` or `load_state_dict` a trainer that counts
        steps continues there.

        Raises:
            ImportError: datasets is not installed: `pip install "shardio[hf]"`.
            ValueError: the stream has a `batch_transform` or pads.
        """
        need("to_hf", "shardio[hf]", "datasets", "pyarrow")
        from shardio.streaming._huggingface import to_hf_stream

        return to_hf_stream(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle to addresses and a state; a copy is where the next pass of this stream would begin."""
        if self._ended:
            schedule = self.order.schedule(self.epoch + 1, self._schedule.global_batch)
            state = self.order.state(schedule, self.epoch + 1, 0)
        else:
            state = self.order.state(self._schedule, self.epoch, self._schedule.step)
        return _rebuild, (self._data, self.options, self._batch, state, self._scratch)

    def __iter__(self) -> Generator[Any, None, None]:
        """Yield the batches that remain, as dicts of columns.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with the address of the damage.
                The batches before those of its window are delivered first.
        """
        number = self.begin()
        with contextlib.closing(self.batches()) as batches:
            for batch in self.with_progress(batches):
                self.delivered(number, batch.step, batch.rows)
                yield batch.columns
        self.end(number)

    # What `__iter__` does in one piece, in four for loaders that take batches elsewhere: begin, batches,
    # delivered, end.

    def begin(self, *, workers: int = 0, worker: int | None = None) -> int:
        """Make ready for a pass: the next epoch after one that ended, else from where this one began.

        Args:
            workers: loader worker processes; only what is worth a warning depends on it.
            worker: number of this one, if it is one: others than the first warn of nothing.

        Returns:
            The number of the pass, for `delivered` and `end`: of two passes over one stream the later one
            counts.

        Raises:
            ResumeError: the last pass of this rank, one of several, ended with an error.
        """
        if self._failed is not None and self.world_size > 1:
            raise ResumeError(
                f"the last pass of rank {self.rank} of {self.world_size} ended with an error before step "
                f"{self._failed}, where the other ranks still wait for it: another pass would not be in step "
                "with theirs",
                advice="let the error end this process; or continue with that very step, "
                "`load_state_dict(state_dict())`, or on all ranks with a state that was saved",
            )
        if not self._fresh:
            self.set_epoch(self.epoch + self._ended, restart=True)
        elif worker is None and self._schedule.step >= self._schedule.stop > 0:
            warn(
                f"the state that was loaded is of the end of epoch {self.epoch}: this pass over it has no "
                f"batches, the next one is epoch {self.epoch + 1}; set_epoch({self.epoch + 1}) begins there"
            )
        self._fresh = False
        self._passes += 1
        self.stats.begin()
        if not worker:
            self._warn_once(workers)
        return self._passes

    def begin_in_worker(self, worker: int, workers: int) -> int:
        """Make ready for a pass in a loader worker process that torch runs.

        Every pass but the first is the next epoch there: no worker knows how far its consumer came, and all
        must agree.
        """
        if self._worker != os.getpid():
            self._worker = os.getpid()
        elif not self._fresh:
            self.set_epoch(self.epoch + 1, restart=True)
        return self.begin(workers=workers, worker=worker)

    @property
    def _ended(self) -> bool:
        return not self._fresh and self._step >= self._schedule.stop

    @property
    def skipped(self) -> int:
        """Records skipped because of damage, by all streams over this reader in this process."""
        return self.components[0].source.stats.records_skipped

    def add_skipped(self, rows: int) -> None:
        """Count records that a worker process has left out.

        Raises:
            FormatError: too many records were skipped.
        """
        self._damage.count(rows)

    @property
    def passes(self) -> int:
        """Number of the latest pass."""
        return self._passes

    def delivered(self, number: int, step: int, rows: int = 0) -> None:
        """Note that the batch of a step, of so many records, reached its consumer."""
        if number == self._passes:
            self._step = min(step + 1, self._schedule.stop)
            self.stats.delivered(rows, self._step)

    def with_progress(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches on their way to the consumer: the time it waits is counted, progress is shown."""
        with displayed(self.options.progress, f"epoch {self.epoch}") as show:
            for batch in self._noting_failure(self.stats.waiting(batches)):
                yield batch
                if show is not None:
                    records = self.stats.epoch.records
                    show(StreamProgress(self._step, self._schedule.stop, records))

    def _noting_failure(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except Exception:
            self._failed = self._step
            raise

    def end(self, number: int) -> None:
        """Note that the pass came to its end."""
        if number == self._passes:
            self._step = self._schedule.stop
            self._over = True
            self.stats.end()

    def batches(
        self,
        *,
        worker: int = 0,
        workers: int = 1,
        threads: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        columnar: bool = True,
        finish: Callable[[Any], Any] | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield the batches that loader worker w of W builds, with their steps; moves nothing here.

        Args:
            worker, workers: w and W.
            threads: that fetch and build; None for those of the options.
            collate: makes a batch of the values of records; by default, columns.
            columnar: whether that can be cut by rows; else a batch without rows is `collate([])`.
            finish: is called with each batch, in the thread that built it.
        """
        options, components, schedule = self.options, self.components, self._schedule
        threads = options.num_threads if threads is None else threads
        chunks = OpenChunks(self._own_arena())
        opener = Opener(components, chunks, self._damage, self.counters)
        gatherer = RowGatherer(components, chunks, opener, self.counters)
        place = {"global_batch": schedule.global_batch, "world_size": self.world_size}
        limits = pass_limits(
            options,
            components,
            open_bytes(self.order, self.row_bytes, **place),
            threads=threads,
            by_value=options.transforms_records or collate is not None,
        )
        builder = BatchBuilder(
            gatherer,
            options,
            epoch=self.epoch,
            damage=self._damage,
            collate=collate,
            columnar=columnar,
            finish=finish,
        )
        planner = Planner(
            schedule,
            (self.rank, self.world_size, worker, workers),
            self.order.plans,
            self.gathered_by_index,
            gatherer,
            limits,
            identities=needs_identities(options, components),
        )
        return run_pass(planner, builder, chunks, limits)

    def _own_arena(self) -> Arena:
        """Return the arena of this process that no pass uses; a forked child has its own."""
        home, arena = self._arena or (0, Arena())
        if home != os.getpid() or arena.folder != self._scratch or arena.passes:
            arena = Arena(self._scratch)
            self._arena = os.getpid(), arena
        return arena

    @property
    def gathered_by_index(self) -> list[bool]:
        """Of each dataset, whether its rows are gathered from mapped shards, by their index.

        What is skipped must not depend on when it is read, so streams that skip damage open chunks.
        """
        skips = self.components[0].source.options.on_error != "raise"
        return [not skips and component.source.is_mapped for component in self.components]

    @property
    def scratch(self) -> str | None:
        """The folder of the scratch file for open chunks; None where they are held in memory."""
        return self._scratch

    @property
    def row_bytes(self) -> list[float]:
        """Of each dataset, what an open window holds in memory of a record, on average."""
        return [
            UNREAD_ROW_BYTES
            if stays or (self._scratch is not None and not component.source.is_local)
            else component.order.sizes.row_decoded_bytes
            for component, stays in zip(self.components, self.gathered_by_index, strict=True)
        ]

    def go_to(self, step: int) -> None:
        """Go to a step of this epoch, from which the next pass continues.

        Raises:
            IndexError: the epoch has no such step.
        """
        self._go_to(self._schedule.at(integer("step", step)))

    def set_epoch(self, epoch: int, *, restart: bool = False) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded.

        Args:
            epoch: its number.
            restart: begin it again even so.
        """
        epoch = integer("epoch", epoch)
        if epoch == self.epoch and self._fresh and not restart:
            return
        schedule = self.order.schedule(epoch, self._schedule.global_batch)
        self.epoch = epoch
        self._go_to(schedule)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is after what was delivered: small, in clear, fit for JSON."""
        return self.order.state(self._schedule, self.epoch, self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with this stream's ranks and global batch and the state's plan.

        Raises:
            ResumeError: the state is damaged, or belongs to another dataset, seed, mixture or remainder, or
                the global batch does not fit its plan; names what differs.
            ValueError: the state's plan needs more than `memory_bytes`.
        """
        before = self.order, self.epoch
        self.order, schedule, self.epoch = self.order.resume(state, global_batch=self._batch)
        try:
            self._go_to(schedule)
        except ValueError:
            self.order, self.epoch = before
            raise
        self._checked = self._failed = None

    def _warn_once(self, workers: int) -> None:
        """Say once what other numbers of ranks and workers would save, and what mixes more."""
        self._warn_of_mixing()
        if self._checked != (self.world_size, workers):
            self._checked = (self.world_size, workers)
            for line in advice(
                self.order,
                self.resources,
                global_batch=self.global_batch,
                world_size=self.world_size,
                workers=workers,
            ):
                warn(line)

    def _warn_of_mixing(self) -> None:
        """Warn once a process, and in the first rank, about what sorted records would cost."""
        components = self.components
        datasets = tuple(component.order.identity.uuid for component in components)
        if self.rank or datasets in _TOLD_OF_MIXING:
            return
        line = mixing_advice(
            self.order,
            self.resources,
            [component.order.identity.url or component.source.url for component in components],
            shuffled=[component.is_shuffled for component in components],
        )
        if line is not None:
            _TOLD_OF_MIXING.add(datasets)
            warn(line)


class StreamLoader:
    """What the loaders of every framework have of their stream: its length, its state, its counters.

    Attributes:
        stream: the stream.
    """

    stream: Stream

    def __repr__(self) -> str:
        return f"<{type(self).__module__.partition('._')[0]}.{type(self).__name__} of {self.stream!r}>"

    def __len__(self) -> int:
        """Return the steps of the whole epoch; the same for every rank."""
        return len(self.stream)

    @property
    def remaining(self) -> int:
        """Steps of this epoch that are left."""
        return self.stream.remaining

    @property
    def stats(self) -> StreamStats:
        """Rates, time waited, and where the time went, summed over threads and worker processes."""
        return self.stream.stats

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded."""
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is: small, in clear, fit for JSON, the same in all processes."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, on any number of ranks, devices, workers and threads.

        Raises:
            ResumeError: it is damaged or does not belong here; names what differs.
        """
        self.stream.load_state_dict(state)


def _rebuild(
    data: DatasetReader | Mix,
    options: StreamOptions,
    global_batch: int,
    state: dict[str, Any],
    scratch: str | None,
) -> Stream:
    options = replace(options, global_batch=global_batch, batch_size=None, epoch=0)
    copy = Stream(data, options, chosen=(scratch,))
    copy.load_state_dict(state)
    copy._chosen = None  # noqa: SLF001 - another state may have another plan
    return copy
