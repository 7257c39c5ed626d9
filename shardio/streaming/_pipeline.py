"""The pipeline of one pass: plan groups of steps, fetch their windows ahead, build and deliver their batches.

A planner thread does the arithmetic, other threads fetch and build, the consumer's thread only takes what is
ready. Batches are delivered in the order of their steps whatever the threads do. With `threads=0` everything
happens in the consumer's thread, when a batch is asked for. The first group is a single step and is built
before anything else is fetched, so the first batch waits for its own chunks alone.

An example: batches of 6 in the order that `shardio/order/_interleave.py` shows, with `window=4`, one rank.

    group 0   step 0       rows (0, 0, 6)    fetches the windows 23; 18 19; 13 14 15; 8 9 10 11
    group 1   steps 1-3    rows (0, 6, 24)   fetches 4 5 6 7; 0 1 2 3; 20 21 22; 16 17; 12

`(0, 6, 24)` says: of lane 0 the places 6 to 23.  After group 0 the windows 23 and 18 19 are used up and
freed; the other two are held, since step 1 takes 15 and 8.  The 18 rows of group 1 are gathered by one call
and cut at 0, 6, 12 and 18 into three batches.  A large window from a bucket is held in eight parts, the rows
that are delivered first in the first of them, and each part is freed after its last row.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.order import (
    RUN_BYTES,
    Budget,
    SourceReading,
    StepGroup,
    check_memory,
    decoded_memory,
    process_memory,
    rank_slice,
    reading_of,
    reads_alone,
    reads_whole,
)
from shardio.reader import JoinedSource
from shardio.streaming._batches import PlannedSteps, RowIdentities
from shardio.streaming._held import HeldWindows, Neighbours
from shardio.streaming._scratch import scratch_choice
from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import TypeAlias

    from shardio.order import BatchReading, Lanes, Order, Plan, Schedule, ShardSizes
    from shardio.streaming._batches import Batch, BatchBuilder, PendingWindow
    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._windows import WindowData

    Load: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """How a pass runs.

    Attributes:
        rank, world_size, worker, workers: which share of the batches this process delivers.
        threads: that build, and fetch where data is local; 0 for none.
        io_threads: further threads that fetch, where fetching is waiting for a network; else 0.
        row_bytes: mean decoded bytes of a row.
        group_rows, group_bytes: what a group of more than one step holds at most.
        ahead_bytes: decoded bytes that are planned ahead of the consumer.
        fetch_bytes: decoded bytes of the windows that one call fetches, or finds, if they are small.
        slow: each row costs a call of the caller's function, or an image.
        identities: batches need to know which records their rows are.
        unread: windows hold no records.
        records_first: the first batch waits for its own records only, not for whole windows, where those
            would be more megabytes from a bucket.
        exact: of each source, whether rows that are apart are fetched as cheaply as those between them, too.
        in_parts: of each source, whether its windows are fetched in parts, which are freed one by one.
        sizes: of each source, its shards.
        neighbours: of each source, which windows come with others; None for none.
    """

    rank: int
    world_size: int
    worker: int
    workers: int
    threads: int
    io_threads: int
    row_bytes: float
    group_rows: int
    group_bytes: int
    ahead_bytes: int
    fetch_bytes: int
    identities: bool
    unread: bool = False
    slow: bool = False
    records_first: bool = False
    exact: tuple[bool, ...] = ()
    in_parts: tuple[bool, ...] = ()
    sizes: tuple[ShardSizes, ...] = ()
    neighbours: tuple[Neighbours | None, ...] = ()

    @classmethod
    def from_stream(  # noqa: PLR0913 - made in one place
        cls,
        options: StreamOptions,
        components: list[Component],
        order: Order,
        *,
        global_batch: int,
        worker: int,
        workers: int,
        threads: int,
        by_value: bool,
        read: Sequence[SourceReading],
    ) -> PipelineOptions:
        """Return what the options of a stream make of a pass.

        Args:
            options: of the stream.
            components: its datasets.
            order: its order.
            global_batch: rows of a global batch, now.
            worker, workers: this is loader worker w of W.
            threads: that build.
            by_value: whether a function of the caller's sees every record.
            read: how each dataset is read; where records stay in their files, many are planned ahead.
        """
        unread = all(each.unread for each in read)
        rank, world_size = options.rank_and_world_size
        sizes = [component.order.sizes for component in components]
        local = all(component.source.is_local for component in components)
        mapped = all(component.source.is_mapped for component in components)
        images = components[0].source.options.images
        slow = by_value or images is not None
        least = (1 + local) * TUNING.part_row_bytes
        # A row takes its payload and the image that is made of it; one image is what most records hold.
        row_bytes = sum(s.total_decoded_bytes for s in sizes) / sum(s.total_rows for s in sizes)
        row_bytes += 0 if images is None else images.bytes_each
        usual = _ahead_bytes(components, local=local, unread=unread)
        ahead_bytes = options.ahead_bytes or usual
        # Each thread has a group, and others are ahead: few bytes ahead are small groups, too. Shards whose
        # records are copied one by one are visited once a group, so groups of half the size cost twice as
        # many visits; of whatever is fetched or decoded by the block larger groups only hold more.
        groups_ahead = 2 if mapped and not reads_by_block(components) else 4
        group_bytes = min((1 + unread) * TUNING.group_bytes, -(-ahead_bytes // groups_ahead))
        if options.memory_bytes is not None:
            windows = process_memory(order, global_batch=global_batch, world_size=world_size, read=read)
            left = options.memory_bytes - windows.held_bytes
            # A quarter for what is ahead, one for the windows of the groups that are being built and
            # delivered, one for the batches that are gathered from them, one for blocks that are decoded.
            group_bytes = max(1, min(group_bytes, left // (4 * (threads + 2))))
            ahead_bytes = max(1, min(ahead_bytes, left // 4))
        io_threads = max(TUNING.io_threads, threads, min(4 * TUNING.io_threads, ahead_bytes // group_bytes))
        if threads == 0 or local:
            io_threads = 0
        fetch_bytes = group_bytes if mapped or not local else min(group_bytes, TUNING.read_bytes)
        if unread:
            fetch_bytes = int(4 * TUNING.group_rows * row_bytes)
        in_parts = tuple(
            plan.interleaved and not (component.source.is_mapped or each.scratch) and row_bytes >= least
            for plan, component, each in zip(order.plans, components, read, strict=True)
        )
        place = rank, world_size, max(1, workers)
        return cls(
            rank=rank,
            world_size=world_size,
            worker=worker,
            workers=workers,
            threads=threads,
            io_threads=io_threads,
            row_bytes=row_bytes,
            group_rows=TUNING.group_rows_by_value if slow else TUNING.group_rows,
            group_bytes=group_bytes,
            ahead_bytes=ahead_bytes,
            fetch_bytes=fetch_bytes,
            identities=options.positions
            or options.random_transform is not None
            or any(
                isinstance(component.source, JoinedSource) or component.source.is_partitioned
                for component in components
            )
            or bool(images and images.random),
            unread=unread,
            slow=slow,
            records_first=reads_alone(order.plans) and not mapped,
            sizes=tuple(sizes),
            exact=tuple(component.source.is_mapped and component.is_slice for component in components),
            in_parts=in_parts,
            neighbours=tuple(
                None
                if local or unread
                else _neighbours(
                    plan, each.sizes, global_batch, *place, early=_early(in_parts=parts, scratch=each.scratch)
                )
                for plan, each, parts in zip(order.plans, read, in_parts, strict=True)
            ),
        )


def _neighbours(
    plan: Plan,
    sizes: ShardSizes,
    global_batch: int,
    rank: int,
    world_size: int,
    workers: int,
    *,
    early: float,
) -> Neighbours | None:
    """Return which windows of a source in a bucket come with others to one process.

    Args:
        plan, sizes: of the source.
        global_batch, rank, world_size, workers: of the process.
        early: of what its windows hold, what others may that are not needed yet.
    """
    if not plan.interleaved or plan.workers % workers:
        return None  # else a lane is read by several
    start, stop = rank_slice(global_batch, rank, world_size)
    share = global_batch // plan.ranks
    own = np.zeros(plan.ranks, bool)
    own[-(-start // share) : stop // share] = True
    rows = sizes.total_rows
    room = plan.lanes * plan.interleave * plan.window * early
    room = int((rows if reads_whole(plan, sizes) else room) * own.mean() / workers)
    run_rows = int(RUN_BYTES * rows / max(1, sizes.total_stored_bytes))
    return Neighbours(plan.chunk_rows, run_rows, room, rows, np.tile(own, plan.workers))


def _early(*, in_parts: bool, scratch: bool) -> float:
    # Windows in parts are half delivered on average: the rest is for neighbours, and for what is on its way.
    return TUNING.early_share if in_parts else TUNING.early_share / 3 if scratch else 0.0


def _ahead_bytes(components: Sequence[Component], *, local: bool, unread: bool) -> int:
    """Return what is ahead by default: the farther the store, the more."""
    usual = TUNING.ahead_bytes
    if unread or local:
        return 2 * usual if unread else usual // 2
    latency = max(component.source.pool.latency() for component in components)
    if latency == float("inf"):
        return usual
    return max(usual, min(4 * usual, int(2 * latency * TUNING.bytes_per_second)))


def budget_of(options: StreamOptions, components: Sequence[Component]) -> Budget:
    """Return what the default plan of a stream may cost."""
    # Not by `mmap=`, which ranks may choose each for itself.
    local = all(component.source.is_plain_local for component in components)
    decoded = not local and all(component.source.has_local_blocks for component in components)
    memory = options.memory_bytes
    if memory is None and decoded:
        memory = decoded_memory([component.order.sizes for component in components])
    bound = {} if memory is None else {"memory_bytes": memory}
    return Budget(
        mixing=options.mixing,
        local=local,
        decoded=decoded,
        scratch_bytes=scratch_choice(options, components).bytes,
        **bound,
    )


def reads_by_block(components: Sequence[Component]) -> bool:
    """Return whether blocks of local shards are read whole: some dataset has no checksums of records."""
    return not all(component.source.has_record_checksums for component in components)


def check_bound(
    order: Order,
    options: StreamOptions,
    read: Sequence[SourceReading],
    *,
    global_batch: int,
) -> None:
    """Raise ValueError, with both numbers, if one process of the plan needs more than the caller allows.

    A default plan is made to fit, so that this is about one that was given or came with a state.
    """
    world_size = options.rank_and_world_size[1]
    check_memory(
        order, global_batch=global_batch, world_size=world_size, memory_bytes=options.memory_bytes, read=read
    )


class _Built(NamedTuple):
    """The batches of a group, up to the first that could not be built, and the error of that one."""

    batches: list[Batch]
    error: Exception | None


class Pipeline:
    """One pass over the rest of an epoch.

    Args:
        schedule: the epoch, at the step to begin with.
        builder: builds batches.
        load: fetches windows, given the number of their source and their pieces; and, where they are to come
            in parts, int64 [rows], the part of each row: then it returns a list of what each part holds.
        options: see `PipelineOptions`.
    """

    def __init__(
        self,
        schedule: Schedule,
        builder: BatchBuilder,
        load: Load,
        options: PipelineOptions,
    ) -> None:
        self._planner = _Planner(schedule, load, options)
        self._builder = builder
        self._options = options

    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield the batches of this process, in order.

        Raises:
            ValueError: the pass was begun by the parent of this process; its threads are not here.
        """
        if self._options.threads == 0:
            for group in self._planner.groups():
                for planned in self._planner.plan(group, _run_here):
                    yield from self._builder.build(planned)
            return
        threads = _PassThreads(self._planner, self._builder, self._options)
        seconds = TUNING.ending_seconds / 10
        try:
            try:
                threads.start()
                for batch in threads:
                    yield batch
                    _check_process(threads.home)
                seconds = TUNING.ending_seconds
            except (Exception, GeneratorExit):
                seconds = TUNING.ending_seconds
                raise
            finally:
                threads.close(seconds)
        except KeyboardInterrupt:
            # It may have come while they were being ended: those that were not told would wait for ever.
            threads.close(TUNING.ending_seconds / 10)
            raise


def _check_process(home: int) -> None:
    if os.getpid() != home:
        raise ValueError(
            "this pass was begun before the process forked, and its threads stayed with the parent: iterate "
            "over the stream again"
        )


class _Planner:
    """Cuts the steps of a process into groups and has their windows fetched; one thread at a time uses it.

    Attributes:
        room: how many groups may be built, or wait to be taken, at a time.
    """

    def __init__(self, schedule: Schedule, load: Load, options: PipelineOptions) -> None:
        self._schedule = schedule
        self._options = options
        self._steps = schedule.steps(worker=options.worker, workers=options.workers)
        rows = max(1, -(-schedule.global_batch // options.world_size))
        step_bytes = max(1.0, rows * options.row_bytes)
        wanted = min(options.group_rows / rows, options.group_bytes / step_bytes, TUNING.most_steps)
        self._built_steps = max(1, int(wanted))
        group_bytes = self._built_steps * step_bytes
        # Of fetched steps this large, which come faster than they are taken, each waits for the one before.
        self._one_by_one = (
            options.io_threads > 0 and not options.slow and step_bytes > TUNING.large_step_bytes
        )
        # Windows that hold no records take no memory, so that many steps are planned at once.
        most = int(min(options.group_rows / rows, TUNING.most_steps))
        if not options.unread:
            # Steps that are a group each are large enough.
            small = options.io_threads > 0 and self._built_steps > 1 and not self._one_by_one
            small &= any(options.in_parts)
            most = min(most, (TUNING.planned_together if small else 1) * self._built_steps)
        self._group_steps = max(self._built_steps, most)
        ahead = int(options.ahead_bytes / group_bytes)
        self.room = max(2, min(options.threads + 1, int(TUNING.built_bytes / group_bytes)))
        self.room = 1 if self._one_by_one else self.room
        # What is large is ahead while it is built, and a group more would be held for nothing.
        least = 1 if group_bytes <= TUNING.ahead_bytes else 0
        self._ahead = max(least, min(TUNING.most_steps, ahead))
        self._windows = HeldWindows(
            schedule.lanes,
            load,
            options.row_bytes,
            options.fetch_bytes,
            begun=schedule.step > 0,
            exact=options.exact,
            in_parts=options.in_parts,
            neighbours=options.neighbours,
        )
        self._load = load
        self._records_first = options.records_first

    def groups(self) -> Iterator[StepGroup]:
        """Yield the steps of this process in groups, of which the first is a single step."""
        options = self._options
        start, count = 0, 1
        while start < len(self._steps):
            steps = [step for step in self._steps[start : start + count] if step < self._schedule.tail_start]
            # Each step of the tail draws from windows of other lanes, so what is common to several is little.
            steps = steps or [self._steps[start]]
            yield self._schedule.group(steps, rank=options.rank, world_size=options.world_size)
            start, count = start + len(steps), self._group_steps

    def max_groups_ahead(self, group: StepGroup, taken: int) -> int:
        """Return how many groups may wait beside those that are being built, after so many were taken."""
        # It grows with every group that was delivered, so that what is needed first is fetched first.
        return 0 if self._one_by_one or self._in_tail(group) else min(self._ahead, 2 * taken)

    def built_apart(self, group: StepGroup) -> int:
        """Return how many groups are built of one that was planned together."""
        return -(-len(group.steps) // self._built_steps)

    def _in_tail(self, group: StepGroup) -> bool:
        return group.steps[0] >= self._schedule.tail_start

    def plan(self, group: StepGroup, submit: Callable[..., Future[WindowData]]) -> list[PlannedSteps]:
        """Find the rows of a group, submit what fetches their windows, and cut it as it is built."""
        if self._in_tail(group) and len(group.parts):
            # The tail goes through all lanes in order, those of other processes too; lanes before it are
            # done with.
            self._windows.let_go_before(int(group.parts[0, 0]))
        if self._records_first:
            self._records_first = False
            reading = self._first_reading(group)
            if reading.alone:
                return [self._plan_records(group, submit, reading.without_blocks)]
        planned = _plan(
            self._schedule.lanes,
            group,
            self._windows,
            submit,
            with_identities=self._options.identities,
            # The first batch waits for its own windows only.
            alone=self._in_tail(group) or group.steps[0] == self._steps[0],
        )
        return planned.split(self._built_steps)

    def _first_reading(self, group: StepGroup) -> BatchReading:
        # Whether a shard has what compares records without their blocks is found when it is opened.
        sources = [
            SourceReading(sizes, exact=False, record=(sizes, sizes.row_stored_bytes))
            for sizes in self._options.sizes
        ]
        return reading_of(
            self._schedule.lanes,
            group.parts,
            sources,
            begun=self._schedule.step > 0,
            mapped=False,
            by_block=True,
            may_be_alone=True,
        )

    def _plan_records(
        self, group: StepGroup, submit: Callable[..., Future[WindowData]], without_blocks: tuple[bool, ...]
    ) -> PlannedSteps:
        """Submit what fetches the records of a group alone, without the windows that they are in."""
        lanes = self._schedule.lanes
        rows = lanes.rows(group.parts)
        window, row = np.empty_like(rows.positions), np.empty_like(rows.positions)
        futures: list[PendingWindow] = []
        for source, alone in enumerate(without_blocks):
            own = np.flatnonzero(rows.sources == source)
            most = own.size if alone else TUNING.first_rows
            for low in range(0, own.size, most):
                some = own[low : low + most]
                window[some], row[some] = len(futures), np.arange(some.size)
                pieces = lanes.record_pieces(source, rows.positions[some])
                futures.append(submit(partial(self._load, alone=alone), source, pieces))
        identities = None
        if self._options.identities:
            identities = RowIdentities(*(column[group.order] for column in rows))
        return PlannedSteps(group, futures, window, row, identities)


class _PassThreads:
    """The threads of one pass: a planner, builders, and fetchers where data is remote.

    Once they are started, iterating, in the consumer's thread, gives the batches. Ctrl-C may come between any
    two of its instructions: each thread is known to `close` before it is started.
    """

    def __init__(self, planner: _Planner, builder: BatchBuilder, options: PipelineOptions) -> None:
        self._planner = planner
        self._builder = builder
        self._room = planner.room
        self._changed = threading.Condition()
        # All below is changed with the condition held.
        self._planned: deque[PlannedSteps] = deque()
        self._building: deque[Future[_Built]] = deque()
        self._begun = False
        self._taken = 0
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None
        self._ended = False
        self._builders = DaemonThreads(options.threads, "shardio-stream")
        self._fetchers = self._builders
        if options.io_threads:
            self._fetchers = DaemonThreads(options.io_threads, "shardio-fetch")
        self._planning = threading.Thread(target=self._plan_ahead, name="shardio-plan", daemon=True)
        self.home = os.getpid()
        _passes.add(self)

    def start(self) -> None:
        """Start all threads.

        Raises:
            RuntimeError: the system has no more threads; those that were started are for `close` to end.
        """
        fetchers = [] if self._fetchers is self._builders else self._fetchers.threads
        threads = [*self._builders.threads, *fetchers, self._planning]
        for number, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError as error:
                message = (
                    f"{number} of {len(threads)} threads could be started ({error}); use a smaller "
                    "num_threads=, or raise the limit of threads (ulimit -u, or that of the container)"
                )
                raise RuntimeError(message) from error

    def __iter__(self) -> Iterator[Batch]:
        while True:
            future = self._next()
            if future is None:
                return
            built = future.result()
            with self._changed:
                self._taken += 1
                self._changed.notify_all()
            yield from built.batches
            if built.error is not None:
                raise built.error

    def _next(self) -> Future[_Built] | None:
        with self._changed:
            while not self._building:
                if self._finished:
                    if self._error is not None:
                        raise self._error
                    return None
                self._changed.wait()
            future = self._building.popleft()
            self._start_builds()
            return future

    def _start_builds(self) -> None:
        # Tasks start in the order in which they were submitted, and the windows of a group are submitted
        # before it: so a thread that waits for a window never waits for one that no thread will fetch.
        while self._planned and len(self._building) < self._room:
            self._building.append(self._builders.submit(self._build, self._planned.popleft()))

    def _build(self, planned: PlannedSteps) -> _Built:
        batches: list[Batch] = []
        try:
            batches.extend(self._builder.build(planned))
        except Exception as error:  # noqa: BLE001 - it is raised at its step
            return _Built(batches, error)
        return _Built(batches, None)

    def _plan_ahead(self) -> None:
        error: BaseException | None = None
        try:
            for group in self._planner.groups():
                with self._changed:
                    while not (self._closed or self._has_room(group)):
                        self._changed.wait()
                    if self._closed:
                        return
                    self._begun = True
                planned = self._planner.plan(group, self._fetchers.submit)
                with self._changed:
                    self._planned.extend(planned)
                    del planned
                    self._start_builds()
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001 - it is raised in the consumer's thread
            error = caught
        finally:
            with self._changed:
                self._error = error
                self._finished = True
                self._changed.notify_all()

    def _has_room(self, group: StepGroup) -> bool:
        waiting = len(self._planned) + len(self._building)
        if not self._taken:
            # The first batch shares the bandwidth with no other.
            return not self._begun
        room = self._room + self._planner.max_groups_ahead(group, self._taken)
        return not waiting or waiting + self._planner.built_apart(group) <= room

    def close(self, seconds: float) -> None:
        """End all threads: no new task is begun, and those under way stop at the next record.

        What Ctrl-C interrupts here may be done again.

        Args:
            seconds: to wait for them at most.
        """
        # Threads of a parent cannot be waited for.
        if self._ended or os.getpid() != self.home:
            return
        deadline = time.monotonic() + seconds
        self._builder.cancel()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _join(self._planning, deadline)
        for threads in (self._builders, self._fetchers):
            threads.close()
        for threads in (self._builders, self._fetchers):
            threads.join(deadline)
        self._ended = True


_passes: weakref.WeakSet[_PassThreads] = weakref.WeakSet()


@atexit.register
def _end_passes() -> None:
    """End what was left in the middle while modules are still there: iterators end after some of them."""
    for threads in list(_passes):
        threads.close(TUNING.ending_seconds)


class DaemonThreads:
    """Threads that run tasks in the order in which they were submitted.

    Unlike those of a `ThreadPoolExecutor`, the interpreter does not wait for them when it ends: a function of
    the caller's that hangs must not make the program hang.

    Args:
        count: of threads.
        name: what their names begin with.

    Attributes:
        threads: for the caller to start.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = queue.SimpleQueue()
        self._closed = False
        self.threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Return the future of a call."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, args))
        return future

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            if self._closed:
                task[0].cancel()
            if task[0].set_running_or_notify_cancel():
                _run(*task)
            # What the task holds must not live until the next one comes.
            del task

    def close(self) -> None:
        """End the threads; those that are not begun of their tasks are cancelled."""
        # The threads take them: what another thread took, and Ctrl-C made it forget, would be waited for.
        self._closed = True
        for _ in self.threads:
            self._tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads until a moment of `time.monotonic`."""
        for thread in self.threads:
            _join(thread, deadline)


def _join(thread: threading.Thread, deadline: float) -> None:
    if thread.is_alive():  # else it may never have been started
        thread.join(max(0.0, deadline - time.monotonic()))


def _run(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is needed
        future.set_exception(error)
    else:
        future.set_result(result)


def _run_here(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Do at once, in this thread, what threads would do later."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except Exception as error:  # noqa: BLE001 - it is raised where the result is needed
        future.set_exception(error)
    return future


def _plan(
    lanes: Lanes,
    group: StepGroup,
    windows: HeldWindows,
    submit: Callable[..., Future[WindowData]],
    *,
    with_identities: bool,
    alone: bool = True,
) -> PlannedSteps:
    found = windows.plan(group, submit, alone=alone)
    identities = None
    if with_identities:
        identities = RowIdentities(*(column[group.order] for column in lanes.rows(group.parts)))
    return PlannedSteps(group, *found, identities)


def plan_template(lanes: Lanes, load: Load) -> PlannedSteps:
    """Return a step of the first few records of an epoch, loaded: the pattern of a batch that has none.

    Args:
        lanes: of the epoch.
        load: fetches windows, given the number of their source and their pieces.
    """
    lane = int(np.flatnonzero(lanes.lane_lengths)[0])
    count = min(TUNING.template_rows, int(lanes.lane_lengths[lane]))
    parts = np.array([[lane, 0, count]])
    group = StepGroup([0], np.array([0, count]), [count], parts, np.arange(count))

    return _plan(lanes, group, HeldWindows(lanes, load, 1.0, 1), _run_here, with_identities=True)
